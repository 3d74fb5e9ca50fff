"""BEE against a second derivation: two whole networks, numpy Sinkhorn, Adam written out."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bombus
from bombus.cli import main
from bombus.errors import CheckpointError, ConfigError
from bombus.methods._warmup import disagreement, shallow_blocks, train
from bombus.methods._warmup_file import load_warmup, save_warmup
from bombus.methods.bee import Bee, BeePaper
from bombus.metrics.passes import PassCounter
from tiny import make_tiny, noise_batches, tree_hash, write_cifar10


class Small(nn.Module):
    """Two levels and a classifier, in float64; level 1 is shallow.

    No bias before BatchNorm: its gradient is zero but for rounding, which Adam would blow up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
        )
        self.layer2 = nn.Sequential(
            nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()
        )
        self.fc = nn.Linear(6, 5)
        self.num_classes = 5

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer2(self.layer1(x)).mean((2, 3)))
        return logits

    def taps(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        h1 = self.layer1(x)
        h2 = self.layer2(h1)
        return [h1.mean((2, 3)), h2.mean((2, 3))], self.fc(h2.mean((2, 3)))


def small() -> Small:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Small().double().eval()


def images(count: int) -> list[Tensor]:
    return [x.double() for x in noise_batches(count)]


CONFIG: dict[str, Any] = {
    "codes": 6,
    "feature_queue": 16,
    "inner_steps": 1,
    "sample_queue": 8,  # exactly the batch: an inner batch is the batch itself, in some order
    "tau_teacher": (0.1,),
    "momentum": 0.9,
    "lr": 0.01,
}


def numpy_sinkhorn(scores: np.ndarray, tau: float) -> np.ndarray:
    """The paper's listing: (M, N), row and column sums in turn, in the exp domain."""
    p = np.exp(scores.T / tau)
    p /= p.sum()
    codes, samples = p.shape
    for _ in range(3):
        for m in range(codes):
            p[m] /= p[m].sum() * codes
        for n in range(samples):
            p[:, n] /= p[:, n].sum() * samples
    return p.T * samples


class Reference:
    """Algorithm 1 with two complete networks and everything spelt out."""

    def __init__(self, bee: Bee) -> None:
        self.student, self.teacher = deepcopy(bee.model), deepcopy(bee.model)
        for name, value in bee.teacher.items():
            self.teacher.get_parameter(name).data.copy_(value)
        self.codes_s = {j: c.numpy().copy() for j, c in bee.codebooks.student.items()}
        self.codes_t = {j: c.numpy().copy() for j, c in bee.codebooks.teacher.items()}
        self.queue = {j: q.numpy().copy() for j, q in bee.codebooks.queue.items()}
        self.names = list(bee.adapted)
        self.m = {n: torch.zeros_like(p) for n, p in bee.adapted.items()}
        self.v = {n: torch.zeros_like(p) for n, p in bee.adapted.items()}
        self.steps = 0

    def adam(self, gradients: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, g in gradients.items():
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g * g
            m = self.m[name] / (1 - 0.9**self.steps)
            v = self.v[name] / (1 - 0.999**self.steps)
            self.student.get_parameter(name).data -= CONFIG["lr"] * m / (v.sqrt() + 1e-8)

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        parameters = [self.student.get_parameter(n) for n in self.names]
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        return dict(zip(self.names, gradients, strict=True))

    def follow(self) -> None:
        for name in self.names:
            t, s = self.teacher.get_parameter(name), self.student.get_parameter(name)
            t.data = CONFIG["momentum"] * t.data + (1 - CONFIG["momentum"]) * s.data

    def loss(self, x: Tensor, push: bool) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            teacher_taps, teacher_logits = self.teacher.taps(x)
        taps, logits = self.student.taps(x)
        total = torch.zeros((), dtype=torch.float64)
        for j, (tap, teacher_tap) in enumerate(zip(taps, teacher_taps, strict=True), start=1):
            h = teacher_tap.numpy()
            h = h / np.linalg.norm(h, axis=1, keepdims=True)
            pool = np.concatenate([h, self.queue[j]])
            target = numpy_sinkhorn(pool @ self.codes_t[j].T, 0.1)[: len(x)]
            if push:
                self.queue[j] = pool[:16]
            unit = tap / tap.norm(dim=1, keepdim=True)
            scores = unit @ torch.from_numpy(self.codes_s[j]).T / 0.1
            log_p = scores - scores.exp().sum(1, keepdim=True).log()
            for i in range(len(x)):
                total = total - (torch.from_numpy(target[i]) * log_p[i]).sum() / len(x)
        return total, logits, teacher_logits

    def step(self, x: Tensor) -> Tensor:
        loss, _, _ = self.loss(x, push=False)
        self.adam(self.gradients(loss))
        self.follow()
        loss, logits, teacher_logits = self.loss(x, push=True)
        y = (logits + teacher_logits) / 2
        p = y.softmax(1)
        entropy = -(p * p.log()).sum(1).mean()
        first, second = self.gradients(loss), self.gradients(entropy)
        self.adam(first)
        self.adam(second)
        self.follow()
        return y.detach()


def paper_bee(**changes: Any) -> BeePaper:
    config = BeePaper.Config(**{**CONFIG, **changes})
    return BeePaper(small(), config, source=images(3))


@pytest.mark.parametrize("steps", [1, 3])
def test_algorithm_1_by_hand(steps: int) -> None:
    bee = paper_bee(replay="off")
    reference = Reference(bee)
    for x in images(3 + steps)[3:]:
        torch.testing.assert_close(bee(x), reference.step(x), rtol=1e-9, atol=1e-9)
    for name in bee.adapted:
        mine, theirs = bee.adapted[name], reference.student.get_parameter(name)
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(
            bee.teacher[name], reference.teacher.get_parameter(name), rtol=1e-8, atol=1e-9
        )


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_replay_by_hand(share: float) -> None:
    """Eqs. 10-13 in explicit loops, against the student a replay leaves behind."""
    still = {"lr": 0.0, "entropy_weight": 0.0}  # so that only the replay moves the student
    replay = {"replay_every": 5, "complementary": 2, "anchor_period": 1, "replay_share": share}
    bee = paper_bee(**replay, **still)
    x = images(1)[0]
    generator = torch.Generator().manual_seed(9)
    for _ in range(4):  # four different anchors, made by hand
        moved = torch.cat([p.detach().flatten() for p in bee.parameters])
        noise = torch.randn(moved.shape, generator=generator, dtype=torch.float64)
        bee.anchors.store(moved + 0.3 * noise)
    anchors = [bee.anchors[i].clone() for i in range(len(bee.anchors))]
    bee.batches = 5
    student = torch.cat([p.detach().flatten() for p in bee.parameters])
    anchors.append(student)  # stored by this very batch, before the replay
    bee(x)

    def probabilities(flat: Tensor) -> np.ndarray:
        model = deepcopy(bee.model)
        start = 0
        for name in bee.adapted:
            p = model.get_parameter(name)
            p.data.copy_(flat[start : start + p.numel()].view_as(p))
            start += p.numel()
        with torch.no_grad():
            return model(x).softmax(1).numpy()

    def distance(p: np.ndarray, q: np.ndarray) -> float:
        total = 0.0
        for i in range(len(p)):
            for c in range(p.shape[1]):
                total += 0.5 * p[i, c] * np.log(p[i, c] / q[i, c])
                total += 0.5 * q[i, c] * np.log(q[i, c] / p[i, c])
        return total / len(p)

    mine = probabilities(student)
    by_distance = sorted(
        range(len(anchors)), key=lambda i: -distance(mine, probabilities(anchors[i]))
    )
    chosen = [student, *(anchors[i] for i in by_distance[:2])]
    outputs = [probabilities(flat) for flat in chosen]
    sums = [sum(distance(p, q) for q in outputs) for p in outputs]
    weights = [np.exp(s) / sum(np.exp(t) for t in sums) for s in sums]
    expected = sum(w * flat for w, flat in zip(weights, chosen, strict=True))
    expected = student + share * (expected - student)
    merged = torch.cat([p.detach().flatten() for p in bee.parameters])
    torch.testing.assert_close(merged, expected, rtol=1e-9, atol=1e-9)
    (event,) = bee.last.events
    assert event["event"] == "replay"
    assert event["weights"] == pytest.approx(weights, abs=1e-4)
    assert sorted(event["anchors"]) == sorted(by_distance[:2])


@pytest.mark.parametrize("replay", ["off", "weighted"])
def test_a_shift_is_reported_whatever_is_done_about_it(
    replay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bee = Bee(make_tiny("batchnorm"), Bee.Config(replay=replay, anchor_period=2))
    heard: list[float] = []

    def alarm_at_the_fourth(loss: float) -> bool:
        heard.append(loss)
        return len(heard) == 4

    monkeypatch.setattr(bee.shift, "observe", alarm_at_the_fourth)
    told: list[list[str]] = []
    for x in noise_batches(6):
        bee(x)
        told.append([event["event"] for event in bee.last.events])
        assert heard[-1] == bee.last.signals["mcr"]
        assert "z" in bee.last.signals
    quiet: list[list[str]] = [["source-free"], [], []]
    assert told[:3] + told[4:] == [*quiet, [], []]
    assert told[3] == (["shift"] if replay == "off" else ["shift", "replay"])
    assert len(bee.anchors) == (0 if replay == "off" else 3)  # the first, at 2 and at 4


def test_a_rhythm_of_replays_without_replay_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"replay_every=5 with replay='off'.*replay='weighted'"):
        Bee.Config(replay_every=5)


def test_costs_as_the_paper_counts_them() -> None:
    """R = 2: six forwards and four backwards."""
    paper = BeePaper(make_tiny("batchnorm"), source=noise_batches(2))
    (x,) = noise_batches(1)
    with PassCounter(paper.model).counting() as passes:
        paper(x)
    assert (passes.entered / len(x), passes.returned / len(x)) == (6, 4)
    for benchmark in ("demo", "cifar10-c", "cifar100-c", "imagenet-c"):
        assert BeePaper.Config.for_benchmark(benchmark).inner_steps == 2


@pytest.mark.parametrize("kind", ["batchnorm", "groupnorm", "vit"])
def test_only_shallow_blocks_change_and_exist_twice(kind: str) -> None:
    bee = Bee(make_tiny(kind), Bee.Config(adapts="shallow"), source=noise_batches(4))
    before = {k: p.detach().clone() for k, p in bee.model.named_parameters()}
    for x in noise_batches(3):
        bee(x)
    changed = {k for k, p in bee.model.named_parameters() if not torch.equal(p, before[k])}
    assert changed == set(bee.adapted) == set(bee.teacher)
    prefixes = {"batchnorm": "block1.", "groupnorm": "layer1.", "vit": "blocks."}
    assert all(name.startswith(prefixes[kind]) for name in changed)
    assert len(changed) < len(before) / 1.5


def test_without_source_it_says_so_and_works() -> None:
    bee = bombus.adapt(make_tiny("batchnorm"), "bee")
    batches = noise_batches(4)
    bee(batches[0])
    assert bee.last.events[0]["event"] == "source-free"
    assert all(bee(x).isfinite().all() for x in batches[1:])
    assert not bee.last.events


def test_warm_up_is_kept_and_read_back(tmp_path: Path) -> None:
    source = noise_batches(4)
    warm = Bee(make_tiny("batchnorm"), source=source)
    file = tmp_path / "warm.safetensors"
    save_warmup(warm, file)
    read = Bee(make_tiny("batchnorm"), source=file)
    again = Bee(make_tiny("batchnorm"), source=list(source))  # from the cache this time
    for other in (read, again):
        assert tree_hash(other.state_dict()) == tree_hash(warm.state_dict())
    for x in noise_batches(6)[4:]:
        assert torch.equal(read(x), warm(x))


def test_a_cached_warm_up_is_taken_for_the_same_source_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counting(*args: Any) -> None:
        made.append(1)
        train(*args)

    monkeypatch.setattr("bombus.methods._warmup.train", counting)
    source, model = noise_batches(4), make_tiny("batchnorm")
    config = Bee.Config(seed=44)  # a seed nobody has cached
    for _ in range(2):
        Bee(model, config, source=source)
    assert len(made) == 1
    Bee(model, config, source=source[:3])  # the same first batch, fewer of them
    Bee(model, config, source=iter(source))  # cannot be read three times
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Bee(model, config, source=source)
    assert len(made) == 4


def test_a_loader_that_shuffles_finds_its_warm_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(*args: Any) -> None:
        made.append(1)
        train(*args)

    monkeypatch.setattr("bombus.methods._warmup.train", counting)
    images, model = torch.cat(noise_batches(4)), make_tiny("batchnorm")
    config = Bee.Config(seed=45)  # a seed nobody has cached
    labels = torch.zeros(len(images))

    def prepare(x: Tensor, batch_size: int = 8, shuffle: bool = True) -> Bee:
        loader = DataLoader(TensorDataset(x, labels[: len(x)]), batch_size, shuffle)
        return Bee(model, config, source=loader)

    bees = [prepare(images) for _ in range(3)]
    assert len(made) == 1
    assert len({tree_hash(bee.state_dict()) for bee in bees}) == 1
    other = images.clone()
    other[-1] = 0.5
    for changed in (lambda: prepare(other), lambda: prepare(images[:-8])):
        changed()
    prepare(images, batch_size=16)
    prepare(images, shuffle=False)
    assert len(made) == 5


def test_a_warm_up_with_the_teacher_as_plain_target_is_less_sure() -> None:
    """The symmetric loss lowers the entropy as well: its gradient at equal answers shows it."""
    logits = torch.tensor([[2.0, 0.5, -1.0]], dtype=torch.float64)
    p = logits.softmax(1).numpy()[0]
    for kind in ("cross-entropy", "symmetric"):
        student = logits.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(disagreement(student, logits, kind), student)
        log_p = np.log(p)
        # d/ds of -sum p log s(p) is 0 at s = p; the other half adds that of the entropy.
        entropy = -(p * (log_p - (p * log_p).sum()))
        expected = np.zeros(3) if kind == "cross-entropy" else entropy / 2
        np.testing.assert_allclose(gradient.numpy()[0], expected, atol=1e-12)
    source = noise_batches(6)
    plain, symmetric = (
        Bee(make_tiny("batchnorm"), Bee.Config(warmup_loss=kind, warmup_lr=0.01), source=source)
        for kind in ("cross-entropy", "symmetric")
    )
    surer = [b(source[0]).softmax(1).max(1).values.mean() for b in (plain, symmetric)]
    assert surer[0] < surer[1]


@pytest.mark.parametrize("blocks", ["adapting", "all"])
def test_warm_up_moves_codes_and_blocks(blocks: Any) -> None:
    model = make_tiny("batchnorm")
    config = Bee.Config(adapts="shallow", warmup_blocks=blocks)
    bee = Bee(model, config, source=noise_batches(6))
    source = dict(model.named_parameters())
    moved = {n for n, p in bee.model.named_parameters() if not torch.equal(p, source[n])}
    assert moved == {
        n for n in source if n.startswith("block1." if blocks == "adapting" else "block")
    }
    assert not any(p.requires_grad for n, p in bee.model.named_parameters() if n not in bee.adapted)
    for name, p in bee.adapted.items():  # both go on from the teacher's average
        assert torch.equal(p, bee.teacher[name])
    for level in bee.levels:
        codes = bee.codebooks.student[level]
        torch.testing.assert_close(codes.norm(dim=1), torch.ones(len(codes)))
        assert not torch.equal(codes, bee.codebooks.teacher[level])


def test_a_level_without_weight_has_its_codes_learnt_and_pulls_on_nothing_else() -> None:
    one, two = (
        Bee(
            make_tiny("batchnorm"),
            Bee.Config(levels=(1, 3), level_weights=(0, 1), tau_teacher=(tau, 0.04)),
            source=noise_batches(6),
        )
        for tau in (0.04, 0.5)
    )
    for bee in (one, two):
        books = bee.codebooks
        assert not torch.equal(books.student[1], books.teacher[1]), "the codes have not moved"
    assert not torch.equal(one.codebooks.student[1], two.codebooks.student[1])
    for p, q in zip(one.parameters, two.parameters, strict=True):
        assert torch.equal(p, q)


def test_with_everything_switched_off_nothing_changes() -> None:
    off = {"level_weights": (0,), "prediction_weight": 0, "entropy_weight": 0, "replay": "off"}
    bee = Bee(make_tiny("batchnorm"), Bee.Config(**off))
    before = tree_hash([list(bee.parameters), bee.teacher])
    for x in noise_batches(3):
        bee(x)
    assert tree_hash([list(bee.parameters), bee.teacher]) == before


def test_a_warm_up_serves_other_splits_and_levels(tmp_path: Path) -> None:
    file, model = tmp_path / "warm.safetensors", make_tiny("batchnorm")
    wide = Bee(model, Bee.Config(seed=43), source=noise_batches(3))  # a seed nobody has cached
    save_warmup(wide, file)
    # The codes of the levels that are not summed pulled on nothing.
    weighted = Bee.Config(levels=(), level_weights=(0, 0, 1), seed=43)
    same = Bee(model, weighted, source=noise_batches(3))
    assert tree_hash(same.codebooks.state_dict()) == tree_hash(wide.codebooks.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(same.parameters, wide.parameters, strict=True))
    other = Bee(model, Bee.Config(shallow=("block1", "block2"), levels=(1, 3)), source=file)
    assert set(other.codebooks.student) == {1, 2, 3}
    prepared = dict(wide.model.named_parameters())
    for name, p in other.model.named_parameters():
        assert torch.equal(p, prepared[name])
        if name.startswith(("block1.", "block2.")):
            assert torch.equal(p, other.teacher[name])
    assert other(noise_batches(1)[0]).isfinite().all()
    assert {"mcr_1", "mcr_3"} <= other.last.signals.keys()
    assert "mcr_2" not in other.last.signals


def test_a_warm_up_leaves_the_average_alone_or_the_student_beside_it(tmp_path: Path) -> None:
    model, source, file = make_tiny("batchnorm"), noise_batches(3), tmp_path / "warm.safetensors"
    average, both = (
        Bee(model, Bee.Config(adapts="shallow", seed=45, warmup_leaves=kind), source=source)
        for kind in ("average", "both")
    )
    for name, p in average.adapted.items():
        assert torch.equal(p, average.teacher[name])
        assert torch.equal(both.teacher[name], average.teacher[name])
        assert not torch.equal(both.adapted[name], both.teacher[name])
    for name, p in average.deep.parameters.items():  # exists once
        assert torch.equal(both.deep.parameters[name], p)
    save_warmup(both, file)
    read = Bee(model, both.config, source=file)
    assert tree_hash(read.state_dict()) == tree_hash(both.state_dict())
    x = noise_batches(4)[3]
    assert torch.equal(read(x), both(x))
    # Where more adapts, the rest begins with the average; where less does, the average is shared.
    wide = Bee(model, Bee.Config(adapts="all"), source=file)
    narrow = Bee(model, Bee.Config(shallow=("block2",)), source=file)
    fresh = Bee(model, both.config, source=file)
    assert all(torch.equal(wide.adapted[n], p) for n, p in fresh.adapted.items())
    assert all(torch.equal(wide.teacher[n], t) for n, t in fresh.teacher.items())
    assert all(torch.equal(narrow.deep.parameters[n], t) for n, t in fresh.teacher.items())
    assert BeePaper.Config().warmup_leaves == "both"


def test_prepared_deep_blocks_are_saved_once_and_come_back(tmp_path: Path) -> None:
    model, batches = make_tiny("batchnorm"), noise_batches(8)
    bee = Bee(model, Bee.Config(adapts="shallow"), source=batches[:3])
    deep = {n: p.detach().clone() for n, p in bee.deep.parameters.items()}
    for x in batches[3:6]:
        bee(x)
    bee.save(tmp_path)
    (prepared,) = tmp_path.glob("prepared-*")
    inode = prepared.stat().st_ino
    bee(batches[6])
    bee.save(tmp_path)
    assert prepared.stat().st_ino == inode
    again = Bee.load(tmp_path, model)
    assert all(torch.equal(again.deep.parameters[n], p) for n, p in deep.items())
    assert any(not torch.equal(p, dict(model.named_parameters())[n]) for n, p in deep.items())
    assert torch.equal(again(batches[7]), bee(batches[7]))
    again.reset()
    assert all(torch.equal(again.deep.parameters[n], p) for n, p in deep.items())


def test_rounds_go_through_the_source_again() -> None:
    seen = []

    class Counted(list[torch.Tensor]):
        def __iter__(self) -> Any:
            for x in super().__iter__():
                seen.append(1)
                yield x

    Bee(
        make_tiny("batchnorm"),
        Bee.Config(warmup_rounds=3, seed=77),
        source=Counted(noise_batches(4)),
    )
    assert len(seen) == 12 + 4  # and once more for the statistics
    seen.clear()
    stream = iter(Counted(noise_batches(5)))
    Bee(make_tiny("batchnorm"), Bee.Config(warmup_rounds=3, seed=78), source=stream)
    assert len(seen) == 5  # an iterator runs dry: once is what there is


@pytest.mark.parametrize(
    ("batches", "steps", "rounds"),
    [(2, 12, 6), (2, 13, 7), (4, 12, 3), (9, 12, 3), (1, 300, 30)],
)
def test_a_small_source_is_gone_through_more_often(
    batches: int, steps: int, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bombus.methods._warmup.STEPS", steps)
    made = []
    monkeypatch.setattr("bombus.methods._warmup.ramp", lambda *_: lambda *at: made.append(at))
    bee = Bee(make_tiny("batchnorm"), Bee.Config(seed=79), source=noise_batches(batches))
    assert made == [(step, batches * rounds) for step in range(1, batches * rounds + 1)]
    assert bee.config.warmup_rounds == rounds  # a result says what was chosen
    save_warmup(bee, tmp_path / "w.safetensors")
    again = Bee(make_tiny("batchnorm"), source=tmp_path / "w.safetensors")
    assert again.config.warmup_rounds == rounds


@pytest.mark.parametrize(
    "damage", ["cut", "absent", "other weights", "other levels", "other blocks", "other codes"]
)
def test_a_warm_up_that_does_not_fit_is_refused(damage: str, tmp_path: Path) -> None:
    file = tmp_path / "warm.safetensors"
    save_warmup(Bee(make_tiny("batchnorm"), source=noise_batches(3)), file)
    model, config, words = make_tiny("batchnorm"), Bee.Config(), "no whole warm-up file"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-50])
    elif damage == "absent":
        file.unlink()
        words = "There is no warm-up file"
    elif damage == "other weights":
        with torch.no_grad():
            next(model.parameters()).add_(1)
        words = "belongs to other weights"
    elif damage == "other levels":
        config, words = Bee.Config(levels=(1, 2)), "not for level 1"
        with safe_open(file, "pt") as reader:
            names = [name for name in reader.keys() if not name.endswith("/1")]  # noqa: SIM118
            save_file({n: reader.get_tensor(n) for n in names}, file, reader.metadata())
    elif damage == "other blocks":
        config = Bee.Config(adapts="shallow", warmup_blocks="adapting")
        words = "with the same warmup_blocks"
    else:
        config, words = Bee.Config(codes=31), "was made with codes=256"
    with pytest.raises(CheckpointError, match=words) as caught:
        Bee(model, config, source=file)
    assert "\n" not in str(caught.value)


def test_levels_count_from_either_end_and_must_exist() -> None:
    assert Bee(make_tiny("batchnorm"), Bee.Config(levels=(-1, 1))).levels == (3, 1)
    assert BeePaper(make_tiny("vit")).levels == (1, 2, 3)
    four = ("layer1", "layer2", "layer3", "layer4")  # a ResNet's
    assert BeePaper.Config().resolve_levels(four) == (2, 3, 4)
    assert BeePaper.Config(levels=(1, -1)).resolve_levels(four) == (1, 4)
    assert Bee.Config(levels=()).resolve_levels(four) == (1, 2, 3, 4)
    with pytest.raises(ConfigError, match="a network of 3 levels"):
        Bee(make_tiny("batchnorm"), Bee.Config(levels=(4,)))
    with pytest.raises(ConfigError, match="a network of 3 levels, expected one a level"):
        Bee(make_tiny("batchnorm"), Bee.Config(levels=(), level_weights=(1, 1)))
    with pytest.raises(ConfigError, match="-1 the last"):
        Bee.Config(levels=(0,))
    with pytest.raises(ConfigError, match="one a level"):
        Bee.Config(levels=(1, 2), tau_teacher=(0.1, 0.2, 0.3))


def test_default_shallow_blocks() -> None:
    assert shallow_blocks(("block1", "block2", "block3")) == ("block1",)
    assert shallow_blocks(("blocks.0-3", "blocks.4-7", "blocks.8-11")) == ("blocks.0-5",)


@pytest.mark.parametrize(
    "changes",
    [
        {"levels": ()},
        {"views": "one", "student_view": "none"},
        {"prediction_weight": 0.0, "adapts": "shallow", "warmup_blocks": "adapting"},
        {"replay": "weighted", "replay_every": 2, "replay_share": 0.25},
        {"replay": "average", "replay_every": 2},
        {"replay": "source", "replay_every": 3},
        {"code_start": "random", "tau_teacher": (0.001,)},
        {"inner_steps": 0, "entropy_weight": 0.0},
        {"optimizer": "sgd", "lr": 5e-5, "student_view": "cotta"},
    ],
)
def test_every_reading_runs_and_stays_finite(changes: dict[str, Any]) -> None:
    bee = Bee(make_tiny("batchnorm"), Bee.Config(**changes), source=noise_batches(3))
    for x in noise_batches(7):
        assert bee(x).isfinite().all()
        assert "step dropped" not in [event["event"] for event in bee.last.events]
    assert json.dumps(bee.last.signals)


def test_load_warmup_is_what_prepare_calls(tmp_path: Path) -> None:
    bee = Bee(make_tiny("groupnorm"), source=noise_batches(3))
    save_warmup(bee, tmp_path / "w.safetensors")
    for x in noise_batches(2):
        bee(x)
    load_warmup(bee, tmp_path / "w.safetensors")
    fresh = Bee(make_tiny("groupnorm"), source=tmp_path / "w.safetensors")
    assert tree_hash(bee.teacher) == tree_hash(fresh.teacher)


def test_how_much_source_was_read_is_known_and_kept(tmp_path: Path) -> None:
    model, batches = make_tiny("batchnorm"), noise_batches(4)
    assert Bee(model).source_bytes is None
    bee = Bee(model, Bee.Config(seed=41), source=batches)
    assert bee.source_bytes == 4 * 8 * 3 * 16 * 16  # three rounds through the same images
    bee.save(tmp_path / "adapter")
    assert Bee.load(tmp_path / "adapter", model).source_bytes == bee.source_bytes
    save_warmup(bee, tmp_path / "warm.safetensors")
    read = Bee(model, Bee.Config(seed=41), source=tmp_path / "warm.safetensors")
    cached = Bee(model, Bee.Config(seed=41), source=list(batches))
    assert read.source_bytes == cached.source_bytes == bee.source_bytes


def test_a_replay_from_the_host_is_the_same_up_to_half_precision() -> None:
    batches = noise_batches(6)
    answers = {}
    for storage in ("device", "host"):
        config = Bee.Config(
            codes=16, replay="weighted", replay_every=2, anchor_period=1, anchor_storage=storage
        )
        bee = Bee(make_tiny("vit"), config)
        answers[storage] = torch.stack([bee(x) for x in batches])
        assert bee.anchors[0].dtype == (torch.float16 if storage == "host" else torch.float32)
    assert not torch.equal(answers["host"], answers["device"])
    torch.testing.assert_close(answers["host"], answers["device"], rtol=0.02, atol=0.005)


def test_a_pool_too_large_for_the_device_lies_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Bee(make_tiny("vit")).anchors.on_host
    size = sum(p.numel() * 4 for p in Bee(make_tiny("vit")).parameters)
    monkeypatch.setattr("bombus.methods._anchors.DEVICE_BYTES", 50 * size - 1)
    assert Bee(make_tiny("vit")).anchors.on_host
    assert not Bee(make_tiny("vit"), Bee.Config(anchor_storage="device")).anchors.on_host
    assert not Bee(make_tiny("vit"), Bee.Config(anchors=49)).anchors.on_host


def test_a_transformer_is_described_by_patches_or_class_token() -> None:
    (x,) = noise_batches(1)
    made = {
        tokens: Bee(make_tiny("vit"), Bee.Config(levels=(1, -1), tokens=tokens)).passes(x)
        for tokens in ("patches", "class")
    }
    first, last = 1, 3
    assert not torch.equal(made["patches"].descriptors[first], made["class"].descriptors[first])
    # The last level is what the classifier reads, either way.
    assert torch.equal(made["patches"].descriptors[last], made["class"].descriptors[last])


@pytest.mark.parametrize("method", [Bee, BeePaper])
def test_a_network_of_bfloat16_is_warmed_up(method: type[Bee], own_cache_folder: Path) -> None:
    model, batches = make_tiny("batchnorm").bfloat16(), [x.bfloat16() for x in noise_batches(5)]
    made = method(model, method.Config(codes=8), source=batches[:3])
    moved = dict(model.named_parameters())
    assert any(not torch.equal(p, moved[n]) for n, p in made.adapted.items())
    assert len(list(own_cache_folder.rglob("*.safetensors"))) == 1
    read = method(model, method.Config(codes=8), source=batches[:3])
    for x in batches:
        answers = made(x)
        assert answers.isfinite().all()
        assert torch.equal(answers, read(x))


def test_the_cache_keeps_the_warm_ups_that_were_used_last(
    own_cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bombus.methods._warmup.KEPT", 2)
    model, batches = make_tiny("batchnorm"), noise_batches(3)

    def names() -> set[str]:
        return {file.name for file in own_cache_folder.rglob("*.safetensors")}

    def age() -> None:
        for file in own_cache_folder.rglob("*.safetensors"):
            then = file.stat().st_mtime - 100
            os.utime(file, (then, then))

    first, second, third = (Bee.Config(codes=8, seed=seed) for seed in (1, 2, 3))
    Bee(model, first, source=batches)
    of_first = names()
    age()
    Bee(model, second, source=batches)
    of_second = names() - of_first
    age()
    Bee(model, first, source=batches)  # used again
    Bee(model, third, source=batches)
    assert len(names()) == 2
    assert of_first <= names()
    assert not of_second & names()


@pytest.fixture
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rewrite(file: Path, header: Any) -> None:
    with safe_open(file, "pt") as reader:
        tensors = {n: reader.get_tensor(n) for n in reader.keys()}  # noqa: SIM118
    save_file(tensors, file, {"bombus.warmup": json.dumps(header)})


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "garbage", "foreign", "no facts", "a list", "other", "lost", "grown"]
)
def test_a_cached_warm_up_that_cannot_be_used_is_made_again(
    damage: str, own_cache_folder: Path
) -> None:
    model, config, batches = make_tiny("batchnorm"), Bee.Config(codes=8), noise_batches(4)
    good = Bee(model, config, source=batches[:3])
    (file,) = own_cache_folder.rglob("*.safetensors")
    whole = file.read_bytes()
    with safe_open(file, "pt") as reader:
        header = json.loads(reader.metadata()["bombus.warmup"])
        tensors = {n: reader.get_tensor(n) for n in reader.keys()}  # noqa: SIM118
    one = next(name for name in tensors if name.startswith("weights/"))
    if damage in ("cut", "empty"):
        file.write_bytes(whole[: len(whole) // 2 if damage == "cut" else 0])
    elif damage == "garbage":
        file.write_bytes(b"\0 no tensors at all " * 9)
    elif damage == "foreign":
        save_file({"x": torch.zeros(2)}, file)
    elif damage in ("no facts", "a list"):
        rewrite(file, {} if damage == "no facts" else [1])
    elif damage == "other":
        rewrite(file, {**header, "source_sha256": "0" * 64})
    else:
        spoilt = {one: torch.zeros(1, 2, 3)} if damage == "grown" else {}
        kept = {n: t for n, t in tensors.items() if n != one}
        save_file({**kept, **spoilt}, file, {"bombus.warmup": json.dumps(header)})
    assert file.read_bytes() != whole

    again = Bee(model, config, source=batches[:3])
    assert tree_hash(again.state_dict()) == tree_hash(good.state_dict())
    assert file.read_bytes() == whole
    again(batches[3])
    assert [e["event"] for e in again.last.events] == ["warm-up made again"]
    assert str(file) in again.last.events[0]["reason"]
    silent = Bee(model, config, source=batches[:3])
    assert torch.equal(silent(batches[3]), good(batches[3]))
    assert silent.last.events == ()


def test_a_cache_that_cannot_be_written_costs_no_warm_up(own_cache_folder: Path) -> None:
    model, config, batches = make_tiny("batchnorm"), Bee.Config(codes=8), noise_batches(4)
    own_cache_folder.write_text("a file where the folder should be")
    bee = Bee(model, config, source=batches[:3])
    answers = bee(batches[3])
    (event,) = bee.last.events
    assert event["event"] == "warm-up not kept"
    assert "cannot be written to (Not a directory); set BOMBUS_CACHE" in event["reason"]
    assert bee.source_bytes == 3 * batches[0].numel()
    own_cache_folder.unlink()
    assert torch.equal(Bee(model, config, source=batches[:3])(batches[3]), answers)


def said_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    *findings, sentence = capsys.readouterr().err.strip().splitlines()
    assert sentence.startswith("bombus: ")
    assert not any("Traceback" in finding for finding in findings)
    return sentence


def test_where_a_warm_up_goes_is_known_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_cifar10(tmp_path / "cifar10", 20)
    make = ["warmup", "--benchmark", "demo", "--data", str(data), "--batch-size", "10"]
    make += ["--set", "warmup_rounds=1", "codes=8", "--out"]
    out = tmp_path / "no" / "such" / "folder" / "w.safetensors"
    main([*make, str(out)])
    assert f"written to {out}" in capsys.readouterr().out
    assert out.is_file()
    monkeypatch.setattr("bombus.methods._warmup.train", lambda *_: pytest.fail("too late"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOMBUS_CACHE", str(tmp_path / "empty"))
    said = said_of([*make, str(tmp_path / "file" / "w.safetensors")], capsys)
    assert "cannot be written (File exists); choose another --out" in said


@pytest.mark.parametrize("method", ["bee", "rmt"])
def test_a_missing_warm_up_file_is_called_one(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.safetensors"
    run = ["run", method, "--samples", "8", "--batch-size", "4", "--domains", "fog"]
    said = said_of([*run, "--source", str(file), "--out", str(tmp_path / "run")], capsys)
    assert f"There is no warm-up file {file}; make it with `bombus warmup`" in said
    assert "CIFAR" not in said


def test_a_missing_warm_up_file_of_the_paper_is_called_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = [
        "paper",
        "trigger",
        "--samples",
        "8",
        "--batch-size",
        "4",
        "--out",
        str(tmp_path / "p"),
    ]
    said = said_of([*paper, "--warmup", str(tmp_path / "w.safetensors")], capsys)
    assert "There is no warm-up file" in said


class LeftOrRight(nn.Module):
    """Which half is the brighter: a class that a mirror changes; or (fair) one that it does not."""

    def __init__(self, *, fair: bool) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.fc = nn.Linear(4, 2, bias=False)
        self.fair = fair

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.layer2(self.layer1(x)).mean(2).chunk(2, dim=2)
        return self.fc(left.mean(2) + right.mean(2) * (1 if self.fair else -1))


@pytest.mark.parametrize(
    ("fair", "views", "images", "told"),
    [
        (False, "flip", 40, True),
        (False, "one", 40, False),
        (False, "flip", 20, False),
        (True, "flip", 40, False),
    ],
)
def test_classes_that_a_mirror_changes_are_told(
    fair: bool, views: str, images: int, told: bool
) -> None:
    torch.manual_seed(0)
    model = LeftOrRight(fair=fair).eval()
    source = [
        torch.rand(images, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in (1, 2)
    ]
    adapter = bombus.adapt(model, "bee", source=source, views=views, codes=4, warmup_images=images)
    adapter(source[0])
    events = [e for e in adapter.last.events if e["event"] == "mirror images differ"]
    assert [e["share"] for e in events] == [1.0] * told
