"""CoTTA's update by hand, in float64: gradients as formulas, optimiser, teacher, restore."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.data.augment import cotta_view
from bombus.errors import ConfigError
from bombus.methods.cotta import Cotta, chosen_positions
from bombus.metrics.passes import PassCounter
from tiny import KINDS, make_tiny, noise_batches, tree_hash

CLASSES = 4


class Small(nn.Module):
    """BatchNorm over the colours, the mean over pixels, a linear layer: 6 + 3 C + C numbers."""

    def __init__(self, strength: float = 3.0, classes: int = CLASSES) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, classes)
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for p in (self.head.weight, self.head.bias):
                p.copy_(strength * torch.randn(p.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x).mean((2, 3)))
        return logits


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def network(theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (N, C), features (N, 3) and normalised means (N, 3) of Small."""
    scale, shift = theta[:3], theta[3:6]
    weight, bias = theta[6 : 6 + 3 * CLASSES].view(CLASSES, 3), theta[-CLASSES:]
    channels = x.transpose(0, 1).flatten(1)  # (3, N * pixels)
    mean, spread = channels.mean(1), channels.var(1, unbiased=False)
    z = (x.mean((2, 3)) - mean) / (spread + 1e-5).sqrt()
    feature = z * scale + shift
    return feature @ weight.T + bias, feature, z


def log_softmax(logits: Tensor) -> Tensor:
    shifted = logits - logits.max(1, keepdim=True).values
    return shifted - shifted.exp().sum(1, keepdim=True).log()


class ByHand:
    def __init__(self, adapter: Cotta) -> None:
        self.config = adapter.config
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.source = vector(adapter.model)
        self.student, self.teacher = self.source.clone(), self.source.clone()
        self.first, self.second = torch.zeros_like(self.source), torch.zeros_like(self.source)
        self.steps = 0

    def confidence(self, x: Tensor) -> float:
        return log_softmax(network(self.source, x)[0]).exp().max(1).values.mean().item()

    def target(self, x: Tensor) -> Tensor:
        if self.confidence(x) >= self.config.threshold:
            return network(self.teacher, x)[0]
        total = torch.zeros(len(x), CLASSES, dtype=torch.float64)
        for _ in range(self.config.augmentations):
            view = cotta_view(x, self.generator, per_sample=False)
            total += network(self.teacher, view)[0]
        return total / self.config.augmentations

    def gradient(self, x: Tensor, target: Tensor) -> Tensor:
        logits, feature, z = network(self.student, x)
        log_s, log_t = log_softmax(logits), log_softmax(target)
        s, t = log_s.exp(), log_t.exp()
        d_logits = (s - t) / len(x)  # of -sum t log s
        if self.config.loss == "symmetric":  # and of -sum s log t
            surprise = -log_t - (s * -log_t).sum(1, keepdim=True)
            d_logits = (d_logits + s * surprise / len(x)) / 2
        weight = self.student[6 : 6 + 3 * CLASSES].view(CLASSES, 3)
        d_feature = d_logits @ weight
        parts = [(d_feature * z).sum(0), d_feature.sum(0), d_logits.T @ feature, d_logits.sum(0)]
        return torch.cat([part.flatten() for part in parts])

    def descend(self, g: Tensor) -> None:
        self.steps += 1
        if self.config.optimizer == "adam":
            self.first = 0.9 * self.first + 0.1 * g
            self.second = 0.999 * self.second + 0.001 * g * g
            root = (self.second / (1 - 0.999**self.steps)).sqrt() + 1e-8
            self.student -= self.config.lr * self.first / (1 - 0.9**self.steps) / root
        else:
            self.first = g if self.steps == 1 else 0.9 * self.first + g
            self.student -= self.config.lr * (g + 0.9 * self.first)

    def see(self, x: Tensor) -> Tensor:
        target = self.target(x)
        self.descend(self.gradient(x, target))
        m = self.config.momentum
        self.teacher = m * self.teacher + (1 - m) * self.student
        count = len(self.source)
        for i in chosen_positions(count, self.config.restore, self.generator).tolist():
            self.student[i] = self.source[i]
        return target


def pictures(count: int, size: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    batches = [
        torch.rand(size, 3, 8, 8, generator=generator, dtype=torch.float64)
        * torch.rand(size, 3, 1, 1, generator=generator, dtype=torch.float64)
        for _ in range(count)
    ]
    batches[-1] = batches[-1][: size // 2]  # the last of a stream is shorter
    return batches


def small(**settings: Any) -> Cotta:
    usual = {"lr": 0.05, "augmentations": 3, "momentum": 0.9, "restore": 0.2, "seed": 7}
    return Cotta(Small().double(), Cotta.Config(**{**usual, **settings}))


def counted(adapter: Cotta, x: Tensor) -> tuple[Tensor, float]:
    """The answer, and how many forwards it took."""
    counter = PassCounter(adapter.model)
    with counter.counting():
        logits = adapter(x)
    assert counter.returned == (len(x) if len(x) > 1 else 0)
    return logits, counter.entered / len(x)


def middle(batches: list[Tensor]) -> float:
    """A threshold with batches on either side."""
    hand = ByHand(small())
    seen = sorted(hand.confidence(x) for x in batches)
    return (seen[0] + seen[1]) / 2


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    ("loss", "views"),
    [
        ("cross-entropy", "always"),
        # Not "never": a student that starts as its teacher would have nothing to learn but
        # rounding errors, which Adam takes for gradients. The first batch has views here.
        ("cross-entropy", "sometimes"),
        ("symmetric", "always"),
        ("symmetric", "sometimes"),
        ("symmetric", "never"),
    ],
)
def test_update_by_hand(views: str, loss: str, optimizer: str, steps: int) -> None:
    batches = sorted(pictures(3), key=ByHand(small()).confidence)
    threshold = {"never": 0.0, "always": 1.1, "sometimes": middle(batches)}[views]
    adapter = small(threshold=threshold, loss=loss, optimizer=optimizer)
    hand = ByHand(adapter)
    counts = []
    for x in batches[:steps]:
        (logits, forwards), expected = counted(adapter, x), hand.see(x)
        counts.append(forwards)
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(vector(adapter.model), hand.student, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            vector(adapter.teacher.model), hand.teacher, rtol=1e-9, atol=1e-9
        )
    if views == "sometimes" and steps == 3:
        assert set(counts) == {3, 5}
    assert (hand.teacher - hand.source).abs().max() > 1e-3


def test_the_source_decides_by_its_batch_statistics() -> None:
    """The confidence is the source's for ever, whatever student and teacher have become."""
    x, later, _ = pictures(3)
    adapter = small(threshold=1.1, lr=0.5)
    hand = ByHand(adapter)
    for _ in range(3):
        adapter(x)
    adapter(later)
    assert adapter.last.signals["confidence"] == pytest.approx(hand.confidence(later), rel=1e-9)
    assert torch.equal(vector(adapter.source_model), hand.source)


def test_the_threshold_itself_is_confident_enough() -> None:
    (x,) = pictures(1)
    adapter = small()
    adapter(x)
    exact = adapter.last.signals["confidence"]
    assert 0.5 < exact < 1
    for threshold, forwards in ((exact, 3), (math.nextafter(exact, 2), 2 + 3)):
        assert counted(small(threshold=threshold), x)[1] == forwards


def test_the_answer_is_the_teachers_before_the_update() -> None:
    first, second, _ = pictures(3)
    adapter = small(threshold=0.0, loss="symmetric")
    adapter(first)
    teacher, student = adapter.predict(second), adapter.model(second)
    assert not torch.allclose(teacher, student)
    assert torch.equal(adapter(second), teacher)
    assert not torch.equal(adapter.predict(second), teacher)


def test_the_teacher_follows_before_the_restore() -> None:
    adapter = small(threshold=1.1, restore=1 - 1e-15)
    source = vector(adapter.model)
    adapter(pictures(1)[0])
    assert torch.equal(vector(adapter.model), source), "all of the student is back"
    assert not torch.equal(vector(adapter.teacher.model), source)


def test_restore_returns_a_share_of_the_weights() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 500), nn.Tanh(), nn.Linear(500, 5))
    config = Cotta.Config(lr=0.01, augmentations=1, restore=0.03)
    adapter = Cotta(wide, config, input=bombus.Input())
    source = vector(wide)
    adapter(noise_batches(1, side=8)[0])
    back = (vector(adapter.model) == source).double()
    expected = 0.03 * len(back)
    assert abs(back.sum().item() - expected) < 5 * math.sqrt(expected) + 50


def test_unread_views_change_only_the_cost() -> None:
    batches = pictures(4)
    threshold = middle(batches)
    confident = [x for x in batches if ByHand(small()).confidence(x) >= threshold]
    assert len(confident) == 3
    # Without restore nothing else is drawn, so that what unread views take is not missed.
    settings = {"threshold": threshold, "restore": 0.0, "loss": "symmetric"}
    thrifty, official = small(**settings), small(**settings, always_augment=True)
    for x in confident:
        (short, few), (long, many) = counted(thrifty, x), counted(official, x)
        assert torch.equal(short, long)
        assert (few, many) == (3, 3 + 3)
    assert torch.equal(vector(thrifty.model), vector(official.model))


def test_one_image_is_answered_by_the_teacher_with_source_statistics() -> None:
    x, other, _ = pictures(3)
    model = Small().double()
    model.norm.running_mean.fill_(0.2)
    adapter = Cotta(model, Cotta.Config(threshold=1.1, augmentations=2, lr=0.05))
    adapter(x)
    before = tree_hash(adapter.state_dict())
    scale, shift, weight, bias = (p.detach() for p in adapter.teacher.model.parameters())
    feature = (other[0].mean((1, 2)) - 0.2) / math.sqrt(1 + 1e-5) * scale + shift
    logits, forwards = counted(adapter, other[:1])
    torch.testing.assert_close(logits[0], weight @ feature + bias)
    assert forwards == 1
    assert tree_hash(adapter.state_dict()) == before, "it was learnt from, or a number drawn"


def test_one_image_is_learnt_from_without_batchnorm() -> None:
    adapter = Cotta(make_tiny("vit"), Cotta.Config(augmentations=2))
    before = vector(adapter.model)
    adapter(noise_batches(1)[0][:1])
    assert not torch.equal(vector(adapter.model), before)


def test_one_class_is_nothing_to_learn() -> None:
    adapter = Cotta(Small(classes=1).double(), Cotta.Config(augmentations=2))
    source = vector(adapter.model)
    for x in pictures(3):
        assert adapter(x).isfinite().all()
    assert torch.equal(vector(adapter.model), source)


class Brittle(Small):
    """Finite logits whose gradient is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + (0 * logits).abs().sqrt()


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    adapter = Cotta(Brittle().double(), Cotta.Config(augmentations=2, restore=0.5))
    with torch.no_grad():  # as if it had moved before: a restore would be seen
        for p in adapter.parameters:
            p.add_(0.1)
    before = [tree_hash(adapter.state_dict()[k]) for k in ("model", "teacher", "optimizer")]
    assert adapter(pictures(1)[0]).isfinite().all()
    assert adapter.last.events[0]["event"] == "step dropped"
    after = [tree_hash(adapter.state_dict()[k]) for k in ("model", "teacher", "optimizer")]
    assert after == before


@pytest.mark.parametrize("kind", KINDS)
def test_all_parameters_learn(kind: str) -> None:
    """A ViT's class token and positions too."""
    adapter = Cotta(make_tiny(kind), Cotta.Config(augmentations=2, restore=0.0))
    source = {name: p.detach().clone() for name, p in adapter.model.named_parameters()}
    for x in noise_batches(2):
        adapter(x)
    for name, p in adapter.model.named_parameters():
        assert p.requires_grad
        assert not torch.equal(p, source[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_resumes_exactly_from_every_batch(kind: str, tmp_path: Path) -> None:
    """With and without views; the contract's networks, untrained, are always in doubt."""
    batches = noise_batches(5)
    batches[-1] = batches[-1][:3]
    probe = Cotta(make_tiny(kind), Cotta.Config(augmentations=1))
    confidences = []
    for x in batches:
        probe(x)
        confidences.append(probe.last.signals["confidence"])
    threshold = sum(sorted(confidences)[2:4]) / 2
    adapter = Cotta(make_tiny(kind), Cotta.Config(augmentations=2, threshold=threshold))
    logits, doubtful = [], []
    for k, x in enumerate(batches):
        adapter.save(tmp_path / str(k))
        logits.append(adapter(x))
        doubtful.append(adapter.last.signals["confidence"] < threshold)
    assert set(doubtful) == {True, False}
    for k in range(len(batches)):
        resumed = Cotta.load(tmp_path / str(k), make_tiny(kind))
        for x, expected in zip(batches[k:], logits[k:], strict=True):
            assert torch.equal(resumed(x), expected)
        assert tree_hash(resumed.state_dict()) == tree_hash(adapter.state_dict())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["cross-entropy", "symmetric"])
def test_learns_in_bfloat16(kind: str, loss: str) -> None:
    adapter = Cotta(make_tiny(kind), Cotta.Config(augmentations=2, loss=loss))
    source = vector(adapter.model)
    with torch.autocast("cpu", torch.bfloat16):
        for x in noise_batches(3):
            logits = adapter(x)
            assert logits.isfinite().all()
            assert logits.dtype == torch.float32, "views are averaged in single precision"
    assert not adapter.last.events
    assert vector(adapter.model).isfinite().all()
    assert not torch.equal(vector(adapter.model), source)


def test_what_cannot_be_augmented_is_refused() -> None:
    model = make_tiny("groupnorm")
    with pytest.raises(ConfigError, match="3 channels"):
        Cotta(model, input=bombus.Input(channels=1))
    with pytest.raises(ConfigError, match=r"\[0, 255\]"):
        Cotta(model, input=bombus.Input(high=255))
    with pytest.raises(ConfigError, match=r"restore=1\.0"):
        Cotta(model, Cotta.Config(restore=1.0))
    with pytest.raises(ConfigError, match="augmentations=0"):
        Cotta(model, Cotta.Config(augmentations=0))


def test_published_settings() -> None:
    chosen = {
        (benchmark, family): Cotta.Config.for_benchmark(benchmark, family)
        for benchmark in ("cifar10-c", "cifar100-c", "imagenet-c")
        for family in ("cnn", "vit")
    }
    facts = {key: (c.optimizer, c.lr, c.loss, c.threshold, c.restore) for key, c in chosen.items()}
    assert facts == {
        ("cifar10-c", "cnn"): ("adam", 1e-3, "cross-entropy", 0.92, 0.01),
        ("cifar10-c", "vit"): ("adam", 1e-3, "cross-entropy", 0.92, 0.01),
        ("cifar100-c", "cnn"): ("adam", 1e-3, "cross-entropy", 0.72, 0.01),
        ("cifar100-c", "vit"): ("adam", 3e-4, "cross-entropy", 0.92, 0.01),
        ("imagenet-c", "cnn"): ("sgd", 1e-2, "symmetric", 0.1, 0.001),
        ("imagenet-c", "vit"): ("sgd", 1e-4, "symmetric", 0.1, 0.001),
    }
    assert all(c.augmentations == 32 and c.momentum == 0.999 for c in chosen.values())


# The draw of what returns


@pytest.mark.parametrize("chance", [0.01, 0.3, 0.97])
def test_positions_are_chosen_each_by_itself(chance: float) -> None:
    count, trials = 12, 8000
    generator = torch.Generator().manual_seed(3)
    hits = torch.zeros(trials, count, dtype=torch.float64)
    for hit in hits:
        positions = chosen_positions(count, chance, generator)
        assert (positions.diff() > 0).all()
        hit[positions] = 1

    def near(rate: Tensor, expected: float) -> None:
        error = math.sqrt(expected * (1 - expected) / trials)
        assert ((rate - expected).abs() < 5 * error).all()

    near(hits.mean(0), chance)
    for distance in (1, 2, 11):
        near((hits[:, distance:] * hits[:, :-distance]).mean(0), chance**2)
    # As many together as independent coins show: a binomial variance.
    assert hits.sum(1).var().item() == pytest.approx(count * chance * (1 - chance), rel=0.15)


def test_many_positions() -> None:
    positions = chosen_positions(2_000_000, 0.001, torch.Generator().manual_seed(3))
    assert abs(len(positions) - 2000) < 5 * math.sqrt(2000)
    assert positions.unique().numel() == len(positions)
    assert 0 <= positions.min() < 20_000
    assert 1_980_000 < positions.max() < 2_000_000


@pytest.mark.parametrize(("count", "chance"), [(0, 0.5), (10, 0.0), (10, 1e-300)])
def test_no_positions(count: int, chance: float) -> None:
    positions = chosen_positions(count, chance, torch.Generator().manual_seed(3))
    assert positions.tolist() == []
    assert positions.dtype == torch.long
