"""OBAO against its formulas written out in float64, and the decisions its file names."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.errors import ConfigError, DataError
from bombus.methods import obao
from bombus.methods.obao import (
    Obao,
    class_means,
    class_relations,
    find_classifier,
    relation_loss,
)
from bombus.metrics.passes import PassCounter
from by_hand import (
    Descent,
    Params,
    Small,
    agreement,
    assert_same,
    cosine,
    follow,
    half_light,
    images,
    labelled,
    parameters_of,
    small_forward,
)
from tiny import make_tiny, noise_batches, tree_hash

ALL = 2.0  # a margin beyond every entropy

# --- the update ------------------------------------------------------------------------------


def relations(features: list[Tensor], labels: list[int]) -> dict[tuple[int, int], Tensor]:
    """Cosines between the class means, for every pair of classes that occur."""
    means = {}
    for c in sorted(set(labels)):
        own = [f for f, y in zip(features, labels, strict=True) if y == c]
        means[c] = sum(own) / len(own)
    one = torch.ones((), dtype=torch.float64)
    return {(a, b): one if a == b else cosine(means[a], means[b]) for a in means for b in means}


class ByHand:
    """OBAO on `Small`: no module, optimiser or buffer of the library's."""

    def __init__(self, config: Any, kind: str, source: list[tuple[Tensor, Tensor]]) -> None:
        self.config = config
        self.student = parameters_of(Small())
        self.teacher = dict(self.student)
        self.descent = Descent(kind, config.lr)
        self.buffer: list[tuple[float, Tensor, int]] = []  # entropy, image, label
        features = [f for x, _ in source for f in small_forward(self.student, x)[1]]
        self.source = relations(features, [c for _, y in source for c in y.tolist()])

    def __call__(self, x: Tensor) -> Tensor:
        view = half_light(x, torch.Generator(), per_sample=False)
        taught, _ = small_forward(self.teacher, x)
        before, _ = small_forward(self.student, x)
        replayed = list(self.buffer) if len(self.buffer) > 1 else []

        def loss(p: Params) -> Tensor:
            total = 0.5 * agreement(small_forward(p, x)[0], taught)
            total = total + 0.5 * agreement(small_forward(p, view)[0], taught)
            if replayed:
                logits, features = small_forward(p, torch.stack([b[1] for b in replayed]))
                labels = [b[2] for b in replayed]
                for row, y in zip(logits, labels, strict=True):
                    total = total - self.config.replay_weight * (
                        row[y] - row.exp().sum().log()
                    ) / len(labels)
                now = relations(list(features), labels)
                pairs = [pair for pair in now if pair in self.source]
                product = sum(now[q] * self.source[q] for q in pairs)
                size = sum(now[q] ** 2 for q in pairs) * sum(self.source[q] ** 2 for q in pairs)
                total = total - self.config.relation_weight * product / size.sqrt()
            return total

        learning = {k: p for k, p in self.student.items() if not k.startswith("head.")}
        head = {k: p for k, p in self.student.items() if k.startswith("head.")}
        self.descent.step(learning, lambda p: loss({**p, **head}))
        self.student |= learning
        follow(self.teacher, self.student, self.config.momentum)
        answer = (before + taught) / 2
        self._remember(x, before, answer)
        return answer

    def _remember(self, x: Tensor, logits: Tensor, answer: Tensor) -> None:
        arrivals = []
        for image, row, said in zip(x, logits, answer, strict=True):
            p = [math.exp(v) / sum(map(math.exp, row.tolist())) for v in row.tolist()]
            entropy = -sum(v * math.log(v) for v in p)
            if entropy < self.config.margin * math.log(3):
                label = max(range(3), key=lambda c: float(said[c]))
                arrivals.append((entropy, image, label))
        free = self.config.buffer_size - len(self.buffer)
        self.buffer += arrivals[:free]
        late = arrivals[free:]
        doomed = sorted(range(len(self.buffer)), key=lambda i: -self.buffer[i][0])[: len(late)]
        for place, arrival in zip(doomed, late, strict=True):
            self.buffer[place] = arrival


SETTINGS: dict[str, dict[str, Any]] = {
    "some sure": {"margin": 0.8, "buffer_size": 50},
    "overflowing": {"margin": 0.9, "buffer_size": 5},
    "all": {"margin": ALL, "buffer_size": 9, "replay_weight": 0.5, "relation_weight": 20.0},
    "no replay": {"margin": ALL, "replay_weight": 0.0},
    "none sure": {"margin": 0.0},
}


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("name", SETTINGS)
def test_update_by_hand(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obao, "cotta_view", half_light)
    source = labelled(2, 5)
    config = Obao.Config(optimizer=kind, lr=0.01, momentum=0.9, **SETTINGS[name])
    adapter, mine = Obao(Small(), config, source=source), ByHand(config, kind, source)
    for step in range(4):
        x = images(4 if step < 3 else 2, seed=20 + step)
        torch.testing.assert_close(adapter(x), mine(x), rtol=1e-9, atol=1e-9)
        assert len(adapter.buffer) == len(mine.buffer)
        assert sorted(adapter.buffer.entropies.tolist()) == pytest.approx(
            sorted(b[0] for b in mine.buffer), rel=1e-6
        )
        if step != 1:
            assert_same(mine.student, adapter.model, 1e-8)
            assert_same(mine.teacher, adapter.teacher.model, 1e-8)
    kept = {"some sure": range(5, 13), "overflowing": [5], "all": [9], "no replay": [14]}
    assert len(mine.buffer) in kept.get(name, [0]), "the case does not test what it says"
    assert len({b[2] for b in mine.buffer}) > 1 or name == "none sure", "no relations were tested"


def test_pseudo_labels_are_of_student_and_teacher_together() -> None:
    adapter = Obao(Small(), Obao.Config(margin=ALL), source=labelled(2, 5))
    with torch.no_grad():  # a teacher that disagrees, and more loudly
        adapter.teacher.model.head.bias.copy_(torch.tensor([0.0, 0.0, 100.0]))
    adapter(images(4, seed=0))
    assert adapter.buffer.images.state_dict()["labels"].tolist() == [2] * 4


# --- class relations -------------------------------------------------------------------------


def test_class_means_and_relations_by_hand() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 3, 3, 1, 0, 0, 3])
    means, sizes = class_means(features, y, 5)
    assert sizes.tolist() == [3, 1, 0, 3, 0]
    torch.testing.assert_close(means[3], (features[1] + features[2] + features[6]) / 3)
    matrix = class_relations(means, sizes > 0)
    expected = torch.zeros(5, 5, dtype=torch.float64)
    for (a, b), value in relations(list(features), y.tolist()).items():
        expected[a, b] = value
    torch.testing.assert_close(matrix, expected)
    (gradient,) = torch.autograd.grad(matrix.sum(), features)
    assert gradient.isfinite().all()


def test_relation_loss_subtracts_no_mean() -> None:
    now = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
    source = torch.tensor([[1.0, 0.2], [0.2, 1.0]])
    expected = -(2 + 2 * 0.12) / math.sqrt((2 + 2 * 0.36) * (2 + 2 * 0.04))
    assert float(relation_loss(now, source)) == pytest.approx(expected)  # a correlation would be -1
    assert float(relation_loss(now, now)) == pytest.approx(-1)


def test_relations_are_compared_over_the_classes_of_both() -> None:
    generator = torch.Generator().manual_seed(2)
    means = torch.randn(2, 4, 6, generator=generator)
    in_buffer, in_source = torch.tensor([1, 1, 0, 1]).bool(), torch.tensor([1, 0, 1, 1]).bool()
    both = [0, 3]
    now, source = (
        class_relations(m, here) for m, here in zip(means, (in_buffer, in_source), strict=True)
    )
    small = [class_relations(m[both], torch.ones(2).bool()) for m in means]
    torch.testing.assert_close(relation_loss(now, source), relation_loss(*small))
    nobody = class_relations(means[0], torch.zeros(4).bool())
    assert float(relation_loss(nobody, source)) == 0
    moving = means[0].clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(
        relation_loss(class_relations(moving, torch.zeros(4).bool()), source), moving
    )
    assert torch.equal(gradient, torch.zeros(4, 6))


def test_one_class_only_has_no_relation_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.rand(4, 3, requires_grad=True)
    means, sizes = class_means(features, torch.ones(4, dtype=torch.long), 3)
    loss = relation_loss(class_relations(means, sizes > 0), torch.eye(3))
    assert float(loss.detach()) == pytest.approx(-1)
    (gradient,) = torch.autograd.grad(loss, features)
    assert torch.equal(gradient, torch.zeros(4, 3))
    source = [(images(6, seed=1), torch.zeros(6, dtype=torch.long))]
    adapter = Obao(Small(), Obao.Config(margin=ALL), source=source)
    for seed in (2, 3, 4):
        assert adapter(images(1, seed=seed).repeat(4, 1, 1, 1)).isfinite().all()
        assert not adapter.last.events


# --- what is trained -------------------------------------------------------------------------


class HeadFirst(nn.Module):
    """A classifier defined before what feeds it, and a decoy of its shape after it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)
        self.stem = nn.Conv2d(3, 6, 3)
        self.mix = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mix(self.stem(x).mean((2, 3))).relu())
        return logits


def test_the_classifier_is_found_wherever_it_stands() -> None:
    assert find_classifier(HeadFirst(), torch.rand(4, 3, 8, 8)) == "head"
    for kind, name in (("batchnorm", "fc"), ("groupnorm", "head"), ("vit", "head")):
        assert find_classifier(make_tiny(kind), noise_batches(1)[0]) == name


@pytest.mark.parametrize("kind", ["batchnorm", "groupnorm", "vit"])
def test_all_but_the_classifier_learns(kind: str) -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]
    adapter = Obao(make_tiny(kind), Obao.Config(margin=ALL), source=source)
    before = parameters_of(adapter.model)
    for x in noise_batches(3):
        adapter(x)
    still = {k for k, p in adapter.model.named_parameters() if torch.equal(p, before[k])}
    assert still == {f"{adapter.classifier}.weight", f"{adapter.classifier}.bias"}


def test_a_class_without_source_images_is_no_part_of_the_pattern() -> None:
    source = [(images(6, seed=1), torch.tensor([0, 0, 0, 2, 2, 2]))]
    adapter = Obao(Small(), Obao.Config(margin=ALL), source=source)
    assert adapter.relations.isfinite().all()
    assert adapter.relations.diagonal().tolist() == [1, 0, 1]
    for seed in range(3):
        adapter(images(4, seed=seed))
        assert not adapter.last.events
    assert adapter.last.signals["relation"] < 0


# --- the buffer in the stream ----------------------------------------------------------------


def sizes_passed(adapter: Any, x: Tensor) -> list[int]:
    """The batch sizes that the student learns from while the adapter answers x."""
    sizes = []
    handle = adapter.model.register_forward_hook(
        lambda m, i, o: sizes.append(len(i[0])) if o.requires_grad else None
    )
    adapter(x)
    handle.remove()
    return sizes


def test_the_replay_comes_before_the_batch_enters_and_is_bounded() -> None:
    config = Obao.Config(margin=ALL, replay_batch=5, buffer_size=7)
    adapter = Obao(Small(), config, source=labelled(2, 5))
    assert sizes_passed(adapter, images(4, seed=0)) == [4, 4]
    assert sizes_passed(adapter, images(4, seed=1)) == [4, 4, 4]
    assert sizes_passed(adapter, images(4, seed=2)) == [4, 4, 5]
    assert len(adapter.buffer) == 7


def test_every_graph_is_gone_through_once() -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]
    adapter = Obao(make_tiny("batchnorm"), Obao.Config(margin=ALL), source=source)
    passes = []
    for x in noise_batches(2):
        with PassCounter(adapter.model).counting() as counter:
            adapter(x)
        passes.append((counter.entered / 8, counter.returned / 8))
    assert passes == [(3, 2), (4, 3)]  # the reference goes through the buffer's graph twice: 4


def test_a_buffer_of_one_image_waits_where_there_is_batchnorm() -> None:
    def with_one(model: nn.Module, source: Any, x: Tensor) -> Obao:
        adapter = Obao(model, source=source)
        adapter.buffer.keep(x[:1], torch.tensor([0]), torch.tensor([0.1]))
        return adapter

    x = images(4, seed=0)
    assert sizes_passed(with_one(Small(), labelled(2, 5), x), x) == [4, 4]
    x = noise_batches(1)[0]
    source = [(x, torch.arange(8) % 5)]
    assert sizes_passed(with_one(make_tiny("groupnorm"), source, x), x) == [8, 8, 1]


def test_nothing_sure_still_learns_from_the_teacher() -> None:
    adapter = Obao(Small(), Obao.Config(margin=0.0), source=labelled(2, 5))
    before = parameters_of(adapter.model)
    adapter(images(4, seed=0))
    assert len(adapter.buffer) == 0
    assert adapter.last.signals["sure"] == 0
    assert not torch.equal(adapter.model.get_parameter("conv.weight"), before["conv.weight"])


def test_the_margin_grows_with_the_number_of_classes() -> None:
    """Uniform over 2 of 3 classes has the entropy ln 2 = .63 ln 3."""
    for margin, sure in ((0.62, 0.0), (0.64, 1.0)):
        model = Small()
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.copy_(torch.tensor([0.0, 0.0, -50.0]))
        adapter = Obao(model, Obao.Config(margin=margin), source=labelled(2, 5))
        adapter(images(4, seed=0))
        assert adapter.last.signals["sure"] == sure


def test_one_image_alone() -> None:
    adapter = Obao(Small(), Obao.Config(margin=ALL), source=labelled(2, 5))
    adapter(images(4, seed=1))
    before = tree_hash(adapter.state_dict())
    x = images(1, seed=0)
    plain = [deepcopy(m).eval() for m in (adapter.model, adapter.teacher.model)]
    assert torch.equal(adapter(x), (plain[0](x) + plain[1](x)).detach() / 2)
    assert tree_hash(adapter.state_dict()) == before


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    adapter = Obao(Small(), Obao.Config(margin=ALL), source=labelled(2, 5))
    adapter(images(4, seed=0))
    adapter.relations.fill_(float("nan"))
    kept = {k: v for k, v in adapter.state_dict().items() if k != "generator"}
    before = tree_hash(kept)
    assert adapter(images(4, seed=1)).isfinite().all()
    assert adapter.last.events[0]["event"] == "step dropped"
    assert tree_hash({k: adapter.state_dict()[k] for k in kept}) == before


@pytest.mark.parametrize("kind", ["batchnorm", "vit"])
def test_resumes_with_a_full_buffer_but_no_source(kind: str, tmp_path: Path) -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(3)]
    config = Obao.Config(margin=ALL, buffer_size=20, replay_batch=6)
    adapter = Obao(make_tiny(kind), config, source=source)
    batches = [*noise_batches(6), noise_batches(7)[6][:3]]
    for x in batches[:4]:
        adapter(x)
    assert len(adapter.buffer) == 20
    adapter.save(tmp_path)
    other = bombus.load(tmp_path, make_tiny(kind))
    for x in batches[4:]:
        assert torch.equal(adapter(x), other(x))
        assert adapter.last.signals == other.last.signals
    assert tree_hash(adapter.state_dict()) == tree_hash(other.state_dict())
    other.reset()
    assert isinstance(other, Obao)
    assert len(other.buffer) == 0


@pytest.mark.parametrize("kind", ["batchnorm", "groupnorm", "vit"])
def test_half_precision_keeps_its_losses_single(kind: str) -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]
    full, half = (Obao(make_tiny(kind), Obao.Config(margin=ALL), source=source) for _ in range(2))
    for x in noise_batches(2):
        full(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            assert half(x).isfinite().all()
    for name in ("self_training", "replay", "relation"):
        assert half.last.signals[name] == pytest.approx(full.last.signals[name], rel=0.03)


@pytest.mark.parametrize(
    ("settings", "source", "words"),
    [
        ({"buffer_size": 1}, labelled(1, 5), "expected at least 2"),
        ({"replay_batch": 1}, labelled(1, 5), "expected at least 2"),
        ({}, [], "no source batches"),
        ({}, [(images(1, seed=0), torch.tensor([1]))], "no source batches"),
        ({}, [images(4, seed=0)], "needs labelled source data"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, int], source: Any, words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        Obao(Small(), Obao.Config(**settings), source=source)


def test_a_source_that_runs_dry_after_one_pass_is_enough() -> None:
    once = Obao(Small(), source=iter(labelled(3, 5)))
    again = Obao(Small(), source=labelled(3, 5))
    assert torch.equal(once.relations, again.relations)


def test_published_settings() -> None:
    chosen = {b: Obao.Config.for_benchmark(b) for b in ("cifar10-c", "cifar100-c", "imagenet-c")}
    facts = {
        b: (c.optimizer, c.lr, c.margin, c.buffer_size, c.replay_batch, c.replay_weight,
            c.relation_weight, c.momentum)
        for b, c in chosen.items()
    }  # fmt: skip
    assert facts == {
        "cifar10-c": ("adam", 1e-3, 0.1, 1000, 200, 1.0, 1.0, 0.999),
        "cifar100-c": ("adam", 1e-3, 0.1, 200, 200, 1.0, 200.0, 0.999),
        "imagenet-c": ("sgd", 1e-2, 0.2, 1000, 64, 0.5, 1.0, 0.999),
    }
