"""RMT against its formulas written out in float64, and the decisions its file names."""

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
from bombus.losses.self_training import self_training
from bombus.methods import rmt
from bombus.methods.rmt import Rmt, RmtFree, contrastive_loss, make_projector, nearest_prototypes
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
    warm_up_by_hand,
)
from tiny import make_tiny, noise_batches, tree_hash

# --- the update ------------------------------------------------------------------------------


def found_by_its_views(projected: list[list[Tensor]], temperature: float) -> Tensor:
    """The contrastive term: projected[v][i] is view v of sample i."""
    everyone = [(v, i) for v in range(len(projected)) for i in range(len(projected[0]))]
    total, anchors = torch.zeros((), dtype=torch.float64), 0
    for v, i in everyone:
        scores = {
            (w, j): cosine(projected[v][i], projected[w][j]) / temperature
            for w, j in everyone
            if (w, j) != (v, i)
        }
        normaliser = sum(s.exp() for s in scores.values()).log()
        positives = [(w, i) for w in range(len(projected)) if w != v]
        total = total - sum(scores[p] - normaliser for p in positives) / len(positives)
        anchors += 1
    return total / anchors


class ByHand:
    """RMT on `Small`: no module, optimiser or store of the library's."""

    def __init__(self, adapter: Any, kind: str, source: list[tuple[Tensor, Tensor]]) -> None:
        self.config = adapter.config
        self.student = parameters_of(Small())
        self.teacher = dict(self.student)
        self.descent = Descent(kind, self.config.lr)
        self.source = source
        self.prototypes = self._prototypes()
        warmup = getattr(self.config, "warmup_images", 0) // len(source[0][0])
        batches = [x for x, _ in source][:warmup]
        warm_up_by_hand(self.student, self.teacher, batches, self.descent, self.config.momentum)
        names = ("0.weight", "0.bias", "2.weight", "2.bias")  # as they were drawn: tested below
        drawn = dict(adapter.projector.named_parameters())
        self.student |= {f"projector.{name}": drawn[name].detach().clone() for name in names}

    nearest: list[Tensor]  # of the last batch

    def _prototypes(self) -> list[Tensor]:
        seen: dict[int, list[Tensor]] = {}
        for x, y in self.source:
            _, features = small_forward(self.student, x)
            for feature, label in zip(features, y.tolist(), strict=True):
                seen.setdefault(label, []).append(feature)
        return [sum(seen[c]) / len(seen[c]) for c in sorted(seen)]  # type: ignore[misc]

    def _project(self, p: Params, feature: Tensor) -> Tensor:
        hidden = p["projector.0.weight"] @ feature + p["projector.0.bias"]
        hidden = torch.where(hidden > 0, hidden, torch.zeros_like(hidden))
        return p["projector.2.weight"] @ hidden + p["projector.2.bias"]

    def __call__(self, x: Tensor) -> Tensor:
        view = half_light(x, torch.Generator(), per_sample=False)
        taught, _ = small_forward(self.teacher, x)
        before, plain = small_forward(self.student, x)
        nearest = self.nearest = [
            max(self.prototypes, key=lambda q: float(cosine(f, q))) for f in plain
        ]

        def loss(p: Params) -> Tensor:
            logits, features = small_forward(p, x)
            view_logits, view_features = small_forward(p, view)
            total = 0.5 * agreement(logits, taught) + 0.5 * agreement(view_logits, taught)
            total = self.config.self_training_weight * total
            trio = (nearest, features, view_features)
            projected = [[self._project(p, f) for f in view_of] for view_of in trio]
            contrast = found_by_its_views(projected, self.config.temperature)
            total = total + self.config.contrast_weight * contrast
            if getattr(self.config, "source_weight", 0):
                # All kept images: as many as the batch has.
                xs = torch.cat([b for b, _ in self.source])[: len(x)]
                ys = torch.cat([b for _, b in self.source])[: len(x)].tolist()
                for row, y in zip(small_forward(p, xs)[0], ys, strict=True):
                    total = total - self.config.source_weight * (
                        row[y] - row.exp().sum().log()
                    ) / len(ys)
            return total

        self.descent.step(self.student, loss)
        follow(self.teacher, self.student, self.config.momentum)
        return (before + taught) / 2


SETTINGS = {
    "rmt-free": (RmtFree, {}),
    "rmt, no warm-up": (Rmt, {"source_images": 4, "warmup_images": 0}),
    "rmt": (Rmt, {"source_images": 4, "warmup_images": 10}),
    "other weights": (
        Rmt,
        {
            "source_images": 4,
            "warmup_images": 5,
            "source_weight": 0.3,
            "contrast_weight": 1.7,
            "self_training_weight": 0.4,
            "temperature": 0.5,
        },
    ),
    "no replay": (Rmt, {"warmup_images": 5, "source_weight": 0.0}),
}


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("name", SETTINGS)
def test_update_by_hand(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rmt, "cotta_view", half_light)
    chosen, settings = SETTINGS[name]
    source = labelled(2, 5)
    config = chosen.Config(optimizer=kind, lr=0.01, momentum=0.9, projection=6, **settings)
    adapter = chosen(Small(), config, source=source)
    mine = ByHand(adapter, kind, source)
    for step in range(3):
        x = images(4, seed=20 + step)
        torch.testing.assert_close(adapter(x), mine(x), rtol=1e-9, atol=1e-9)
        assert len({id(prototype) for prototype in mine.nearest}) > 1, "all are near the same one"
        if step in (0, 2):
            assert_same(mine.student, adapter.model, 1e-8)
            assert_same(mine.teacher, adapter.teacher.model, 1e-8)
            projector = {k[10:]: p for k, p in mine.student.items() if k.startswith("projector.")}
            assert_same(projector, adapter.projector, 1e-8)


def test_contrast_of_one_sample_and_of_twins() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    z[0, 1] = z[0, 3]  # two samples with the same prototype: still each other's negatives
    for projected in (z, z[:, :1], z[:2]):
        expected = found_by_its_views([list(view) for view in projected], 0.1)
        torch.testing.assert_close(contrastive_loss(projected, 0.1), expected)
    # Were they positives, as labels would make them, or left out, it would be another number.
    alone = contrastive_loss(z[:, [1]], 0.1)
    assert contrastive_loss(z[:, [1, 3]], 0.1) > alone + 0.1
    close = torch.ones(3, 4, 2, requires_grad=True)
    loss = contrastive_loss(close, 0.1)
    assert float(loss.detach()) == pytest.approx(math.log(11))
    (gradient,) = torch.autograd.grad(loss, close)
    assert gradient.isfinite().all()


def test_the_nearest_prototype_is_by_angle_and_carries_no_graph() -> None:
    prototypes = torch.tensor([[10.0, 0.0], [0.1, 0.1], [-3.0, 1.0]])
    features = torch.tensor([[1.0, 0.9], [5.0, 0.1], [-1.0, 0.0]], requires_grad=True)
    nearest = nearest_prototypes(features, prototypes)
    assert torch.equal(nearest, prototypes[[1, 0, 2]])
    assert not nearest.requires_grad


def test_self_training_is_the_mean_over_the_views() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b, t = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    t.requires_grad_(True)
    loss = self_training([a.requires_grad_(True), b], t)
    torch.testing.assert_close(loss, 0.5 * agreement(a, t) + 0.5 * agreement(b, t))
    assert torch.autograd.grad(loss, [a, t], allow_unused=True)[1] is None


# --- what is prepared ------------------------------------------------------------------------


def test_projector_is_drawn_as_torch_draws_and_from_our_generator_alone() -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    like = torch.zeros(1, 400, dtype=torch.float64)
    made = [make_projector(like, 64, torch.Generator().manual_seed(s)) for s in (5, 5, 6)]
    assert torch.equal(torch.rand(3), expected), "everybody's generator was used"
    hashes = [tree_hash(parameters_of(p)) for p in made]
    assert hashes[0] == hashes[1] != hashes[2]
    for layer, inputs in ((made[0][0], 400), (made[0][2], 64)):
        assert isinstance(layer, nn.Linear)
        assert layer.weight.shape == (64, inputs)
        assert layer.weight.dtype == torch.float64
        for p in layer.parameters():  # uniform in ±1 / sqrt(inputs)
            assert p.abs().max() < inputs**-0.5
        assert float(layer.weight.detach().std()) == pytest.approx(inputs**-0.5 / 3**0.5, rel=0.05)


def test_free_keeps_no_source_and_starts_from_the_source_weights() -> None:
    source = labelled(2, 5)
    free = RmtFree(Small(), source=source)
    assert_same(parameters_of(Small()), free.model, 0)
    assert_same(parameters_of(Small()), free.teacher.model, 0)
    assert not free.optimizer.state
    assert not hasattr(free, "source")
    assert free.prepared == ("prototypes",)
    full = Rmt(Small(), source=source)
    assert not torch.equal(full.model.get_parameter("head.weight"), Small().head.weight)
    moments = {float(s["step"]) for s in full.optimizer.state.values()}
    assert moments == {2.0}, "the warm-up's moments go on into the stream"
    assert (free.needs, full.needs) == ("labels", "labels")


def test_prototypes_are_of_the_source_model_not_of_the_warmed_one() -> None:
    full, free = Rmt(Small(), source=labelled(2, 5)), RmtFree(Small(), source=labelled(2, 5))
    assert torch.equal(full.prototypes, free.prototypes)


def test_a_class_without_source_images_has_no_prototype() -> None:
    source = [(images(6, seed=1), torch.tensor([0, 0, 0, 1, 1, 1]))]
    adapter = RmtFree(Small(), source=source)
    assert adapter.prototypes.shape == (2, 4)
    assert (adapter.prototypes.abs().sum(1) > 0).all()
    adapter(images(4, seed=2))
    assert not adapter.last.events


@pytest.mark.parametrize("limit", [7, 10])
def test_prototypes_read_no_more_source_than_asked(limit: int) -> None:
    source = labelled(4, 5)
    few = RmtFree(Small(), RmtFree.Config(prototype_images=limit), source=source)
    assert torch.equal(few.prototypes, RmtFree(Small(), source=source[:2]).prototypes)
    assert not torch.equal(few.prototypes, RmtFree(Small(), source=source).prototypes)


def test_source_batches_of_one_image_are_left_out_with_batchnorm() -> None:
    one = (images(1, seed=9), torch.tensor([2]))
    source = labelled(2, 5)
    config = Rmt.Config(warmup_images=0)
    with_one = Rmt(Small(), config, source=[source[0], one, source[1]])
    assert torch.equal(with_one.prototypes, Rmt(Small(), config, source=source).prototypes)
    assert len(with_one.source) == 10
    with pytest.raises(DataError, match="no source batches"):
        Rmt(Small(), config, source=[one])


def test_the_store_is_bounded_and_in_bytes() -> None:
    source = labelled(3, 4)
    adapter = Rmt(Small(), Rmt.Config(source_images=6), source=source)
    kept = adapter.source.state_dict()
    assert kept["images"].dtype == torch.uint8
    assert torch.equal(kept["images"].double() / 255, torch.cat([x for x, _ in source])[:6])
    assert torch.equal(kept["labels"], torch.cat([y for _, y in source])[:6])


def test_without_replay_nothing_is_kept() -> None:
    adapter = Rmt(Small(), Rmt.Config(source_weight=0.0), source=labelled(2, 5))
    assert len(adapter.source) == 0
    assert sizes_passed(adapter, images(4, seed=0)) == [4, 4]
    assert "source" not in adapter.last.signals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": iter(labelled(2, 5))}, "an iterator was given"),
        ({"settings": {"source_images": 1}}, "expected at least 2"),
        ({"input": bombus.Input(low=-1.0)}, "3 channels in \\[0, 1\\]"),
        ({"source": [images(4, seed=0)]}, "needs labelled source data"),
    ],
    ids=["iterator", "one image", "other range", "no labels"],
)
def test_what_cannot_work_is_refused(change: dict[str, Any], words: str) -> None:
    settings = change.pop("settings", {})
    with pytest.raises((ConfigError, DataError), match=words):
        Rmt(Small(), Rmt.Config(**settings), **{"source": labelled(2, 5), **change})


def test_published_settings() -> None:
    for chosen in (Rmt, RmtFree):
        cifar, imagenet = (chosen.Config.for_benchmark(b) for b in ("cifar100-c", "imagenet-c"))
        assert (cifar.optimizer, cifar.lr) == ("adam", 1e-3)
        assert (imagenet.optimizer, imagenet.lr) == ("sgd", 1e-2)
        assert (imagenet.momentum, imagenet.temperature, imagenet.projection) == (0.999, 0.1, 128)
    assert Rmt.Config().source_images == 50_000
    assert Rmt.Config.for_benchmark("imagenet-c").source_images == 5_000
    assert Rmt.Config.for_benchmark("imagenet-c").warmup_images == 50_000


# --- edges -----------------------------------------------------------------------------------


def sizes_passed(adapter: Any, x: Tensor) -> list[int]:
    """The batch sizes that the student learns from while the adapter answers x."""
    sizes = []
    handle = adapter.model.register_forward_hook(
        lambda m, i, o: sizes.append(len(i[0])) if o.requires_grad else None
    )
    adapter(x)
    handle.remove()
    return sizes


@pytest.mark.parametrize(("chosen", "passes"), [(Rmt, (4, 3)), (RmtFree, (3, 2))])
def test_cost(chosen: Any, passes: tuple[int, int]) -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]
    adapter = chosen(make_tiny("batchnorm"), source=source)
    with PassCounter(adapter.model).counting() as counter:
        adapter(noise_batches(1)[0])
    assert (counter.entered / 8, counter.returned / 8) == passes


def test_the_replay_is_as_large_as_the_batch() -> None:
    adapter = Rmt(Small(), Rmt.Config(warmup_images=0), source=labelled(3, 5))
    assert sizes_passed(adapter, images(6, seed=0)) == [6, 6, 6]
    assert sizes_passed(adapter, images(2, seed=1)) == [2, 2, 2]  # the stream's short end
    assert sizes_passed(adapter, images(20, seed=2)) == [20, 20, 15]  # more than there are


def test_one_image_alone() -> None:
    adapter = Rmt(Small(), source=labelled(2, 5))
    before = tree_hash(adapter.state_dict())
    x = images(1, seed=0)
    plain = [deepcopy(m).eval() for m in (adapter.model, adapter.teacher.model)]
    assert torch.equal(adapter(x), (plain[0](x) + plain[1](x)).detach() / 2)
    assert tree_hash(adapter.state_dict()) == before
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]
    other = Rmt(make_tiny("groupnorm"), source=source)
    before = tree_hash(other.state_dict())
    other(noise_batches(1)[0][:1])
    assert tree_hash(other.state_dict()) != before, "without BatchNorm one image is a batch"


@pytest.mark.parametrize("chosen", [Rmt, RmtFree])
def test_a_gradient_that_is_not_finite_changes_nothing(chosen: Any) -> None:
    adapter = chosen(Small(), source=labelled(2, 5))
    adapter(images(4, seed=0))
    with torch.no_grad():
        adapter.projector[0].weight.fill_(float("inf"))
    kept = {k: v for k, v in adapter.state_dict().items() if k != "generator"}
    before = tree_hash(kept)
    logits = adapter(images(4, seed=1))
    assert logits.isfinite().all()
    assert adapter.last.events[0]["event"] == "step dropped"
    assert tree_hash({k: adapter.state_dict()[k] for k in kept}) == before


def test_one_class_only() -> None:
    source = [(images(6, seed=1), torch.zeros(6, dtype=torch.long))]
    adapter = Rmt(Small(), source=source)
    same = images(1, seed=3).repeat(4, 1, 1, 1)
    for x in (images(4, seed=2), same):
        assert adapter(x).isfinite().all()
        assert not adapter.last.events


def test_resumes_with_store_and_projector_but_no_source(tmp_path: Path) -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(3)]
    adapter = Rmt(make_tiny("batchnorm"), Rmt.Config(source_images=20), source=source)
    batches = [*noise_batches(5), noise_batches(6)[5][:3]]
    for x in batches[:3]:
        adapter(x)
    adapter.save(tmp_path)
    other = bombus.load(tmp_path, make_tiny("batchnorm"))
    assert isinstance(other, Rmt)
    assert len(other.source) == 20
    for x in batches[3:]:
        assert torch.equal(adapter(x), other(x))
        assert adapter.last.signals == other.last.signals
    assert tree_hash(adapter.state_dict()) == tree_hash(other.state_dict())


def test_what_is_kept_takes_no_more_memory_than_was_said(caplog: pytest.LogCaptureFixture) -> None:
    """Noise takes four bytes a value: five images of 3 x 16 x 16 fit into 16 kB."""
    source = [(x, torch.arange(8) % 5) for x in noise_batches(3)]
    adapter = Rmt(make_tiny("batchnorm"), Rmt.Config(source_mb=16e-3), source=source)
    assert len(adapter.source) == 5
    assert "replay cut short: 5 source images are kept where 50,000" in caplog.text
    assert adapter(noise_batches(4)[3]).isfinite().all()


def test_the_stream_changes_nothing_that_was_prepared() -> None:
    adapter = Rmt(Small(), source=labelled(2, 5))
    before = tree_hash([adapter.prototypes, adapter.source.state_dict()])
    for seed in range(3):
        adapter(images(4, seed=seed))
    assert tree_hash([adapter.prototypes, adapter.source.state_dict()]) == before


@pytest.mark.parametrize("kind", ["batchnorm", "groupnorm", "vit"])
def test_half_precision_keeps_its_losses_single(kind: str) -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]
    full, half = (Rmt(make_tiny(kind), source=source) for _ in range(2))
    x = noise_batches(3)[2]
    full(x)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        logits = half(x)
    assert logits.isfinite().all()
    assert half.projector[0].weight.dtype == torch.float32
    for name, value in full.last.signals.items():
        assert half.last.signals[name] == pytest.approx(value, rel=0.02)


def test_every_parameter_learns() -> None:
    source = [(x, torch.arange(8) % 5) for x in noise_batches(2)]
    adapter = RmtFree(make_tiny("vit"), source=source)
    before = parameters_of(adapter.model)
    for x in noise_batches(2):
        adapter(x)
    still = [k for k, p in adapter.model.named_parameters() if torch.equal(p, before[k])]
    assert not still, "the class token and the positions are parameters too"
