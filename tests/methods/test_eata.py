"""EATA's update, derived by hand: plain loops in float64, Fisher, filters and optimisers too."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.errors import ConfigError, DataError
from bombus.methods._norm import use_batch_statistics
from bombus.methods.eata import Eata
from tiny import KINDS, make_tiny, noise_batches, tree_hash

CLASSES = 3
Images = list[list[list[float]]]  # (N, channels, pixels)


class OneNorm(nn.Module):
    """Small enough to differentiate by hand: a norm over 2 channels, then class sums."""

    def __init__(self, mix: Tensor, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.BatchNorm2d(2)
        self.mix = nn.Parameter(mix)
        self.num_classes = mix.shape[1]
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x[:, :2]).mean((2, 3)) @ self.mix


def make_mix(scale: float = 4.0) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return scale * torch.randn(2, CLASSES, generator=generator, dtype=torch.float64)


def make_images(*sizes: int, seed: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, 2, generator=generator, dtype=torch.float64) for n in sizes]


def affine(adapter: Eata) -> list[float]:
    norm = adapter.model.get_submodule("norm")
    return torch.cat([norm.weight, norm.bias]).tolist()


@dataclass
class ByHand:
    """EATA on OneNorm with BatchNorm, written out."""

    mix: list[list[float]]
    optimizer: str = "adam"
    lr: float = 0.02
    e0: float = 0.4 * math.log(CLASSES)
    epsilon: float = 0.4
    weight: float = 1.0
    theta: list[float] = field(default_factory=lambda: [1.0, 1.0, 0.0, 0.0])
    fisher: list[float] = field(default_factory=lambda: [0.0] * 4)
    mean: list[float] | None = None
    unreliable: int = 0
    redundant: int = 0
    first: list[float] = field(default_factory=lambda: [0.0] * 4)
    second: list[float] = field(default_factory=lambda: [0.0] * 4)
    steps: int = 0

    def pooled(self, x: Images) -> list[list[float]]:
        """Normalised with the batch's own statistics and averaged over pixels."""
        features = [[0.0, 0.0] for _ in x]
        for c in range(2):
            values = [v for image in x for v in image[c]]
            mean = sum(values) / len(values)
            variance = sum((v - mean) ** 2 for v in values) / len(values)
            for i, image in enumerate(x):
                normed = [(v - mean) / math.sqrt(variance + 1e-5) for v in image[c]]
                features[i][c] = sum(normed) / len(normed)
        return features

    def answer(self, feature: list[float]) -> list[float]:
        scaled = [feature[c] * self.theta[c] + self.theta[2 + c] for c in range(2)]
        logits = [sum(scaled[c] * self.mix[c][k] for c in range(2)) for k in range(CLASSES)]
        total = sum(math.exp(v) for v in logits)
        return [math.exp(v) / total for v in logits]

    def spread(self, d_logits: list[float], feature: list[float]) -> list[float]:
        """From a sample's logits back to scale and shift."""
        d_feature = [sum(d_logits[k] * self.mix[c][k] for k in range(CLASSES)) for c in range(2)]
        return [d_feature[c] * feature[c] for c in range(2)] + d_feature

    def take_fisher(self, batches: list[Images]) -> None:
        for x in batches:
            gradient = [0.0] * 4
            for feature in self.pooled(x):
                p = self.answer(feature)
                label = p.index(max(p))
                d_logits = [(p[k] - (k == label)) / len(x) for k in range(CLASSES)]
                for j, g in enumerate(self.spread(d_logits, feature)):
                    gradient[j] += g
            for j, g in enumerate(gradient):
                self.fisher[j] += g * g / len(batches)

    def choose(self, p: list[float]) -> bool:
        if -sum(v * math.log(v) for v in p) >= self.e0:
            self.unreliable += 1
            return False
        if self.mean is not None:
            product = sum(a * b for a, b in zip(p, self.mean, strict=True))
            if product / math.hypot(*p) / math.hypot(*self.mean) >= self.epsilon:
                self.redundant += 1
                return False
        return True

    def step(self, x: Images) -> None:
        answers = [(feature, self.answer(feature)) for feature in self.pooled(x)]
        kept = [(feature, p) for feature, p in answers if self.choose(p)]
        if not kept:
            return
        gradient = [
            2 * self.weight * f * (now - start)
            for f, now, start in zip(self.fisher, self.theta, [1.0, 1.0, 0.0, 0.0], strict=True)
        ]
        for feature, p in kept:
            entropy = -sum(v * math.log(v) for v in p)
            factor = math.exp(self.e0 - entropy) / len(kept)
            d_logits = [-factor * v * (math.log(v) + entropy) for v in p]
            for j, g in enumerate(self.spread(d_logits, feature)):
                gradient[j] += g
        batch = [sum(p[k] for _, p in kept) / len(kept) for k in range(CLASSES)]
        before = self.mean or batch
        self.mean = [0.9 * a + 0.1 * b for a, b in zip(before, batch, strict=True)]
        self.descend(gradient)

    def descend(self, gradient: list[float]) -> None:
        self.steps += 1
        m, v = self.first, self.second
        for j, g in enumerate(gradient):
            if self.optimizer == "adam":
                m[j], v[j] = 0.9 * m[j] + 0.1 * g, 0.999 * v[j] + 0.001 * g * g
                root = math.sqrt(v[j] / (1 - 0.999**self.steps)) + 1e-8
                self.theta[j] -= self.lr * m[j] / (1 - 0.9**self.steps) / root
            else:
                m[j] = g if self.steps == 1 else 0.9 * m[j] + g
                self.theta[j] -= self.lr * (g + 0.9 * m[j])


def as_lists(x: Tensor) -> Images:
    images: Images = x.flatten(2).tolist()
    return images


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_update_by_hand(optimizer: str, steps: int) -> None:
    """With a penalty that matters, and a last batch that is shorter than the others."""
    mix, source = make_mix(), make_images(6, 6, seed=8)
    config = Eata.Config(optimizer=optimizer, lr=0.02, fisher_weight=20.0, redundancy=0.8)
    adapter = Eata(OneNorm(mix), config, source=source)
    hand = ByHand(mix.tolist(), optimizer, weight=20.0, epsilon=0.8)
    free = ByHand(mix.tolist(), optimizer, weight=0.0, epsilon=0.8)
    hand.take_fisher([as_lists(x) for x in source])
    assert adapter.fisher.tolist() == pytest.approx(hand.fisher, rel=1e-9)
    for x in make_images(16, 16, 16, 16, 16, 5)[:steps]:
        adapter(x)
        assert adapter.last.signals["kept"] > 0
        hand.step(as_lists(x))
        free.step(as_lists(x))
    assert affine(adapter) == pytest.approx(hand.theta, abs=1e-10, rel=1e-8)
    assert adapter.mean.tolist() == pytest.approx(hand.mean, abs=1e-10)
    # What would make this a test of nothing:
    assert hand.steps == steps, "a batch had nothing to learn from"
    assert hand.unreliable > 0
    assert steps == 1 or hand.redundant > 0
    assert steps == 1 or hand.theta != pytest.approx(free.theta, rel=1e-3)


def test_predicts_before_it_updates() -> None:
    (x,) = make_images(8)
    adapter = Eata(OneNorm(make_mix()), source=make_images(6))
    before = adapter.predict(x)
    assert torch.equal(adapter(x), before)
    assert not torch.equal(adapter.predict(x), before)


# The Fisher


def test_fisher_takes_the_first_images_and_counts_a_short_batch_in_full() -> None:
    mix, source = make_mix(), make_images(4, 4, 4, seed=8)
    hand = ByHand(mix.tolist())
    hand.take_fisher([as_lists(source[0]), as_lists(source[1][:2])])
    adapter = Eata(OneNorm(mix), Eata.Config(fisher_images=6), source=source)
    assert adapter.fisher.tolist() == pytest.approx(hand.fisher, rel=1e-9)


def test_fisher_reads_no_more_source_than_it_needs() -> None:
    read = []

    def source() -> Any:
        for i, x in enumerate(make_images(4, 4, 4, 4)):
            read.append(i)
            yield x

    Eata(OneNorm(make_mix()), Eata.Config(fisher_images=8), source=source())
    assert read == [0, 1]


def test_fisher_uses_its_own_labels() -> None:
    """The weights of the classifier, not whatever came with the images."""
    (x,) = make_images(6)
    plain = Eata(OneNorm(make_mix()), source=[x])
    labelled = Eata(OneNorm(make_mix()), source=[(x, torch.zeros(6, dtype=torch.long))])
    assert torch.equal(plain.fisher, labelled.fisher)


def test_fisher_is_of_batch_means_and_batch_statistics() -> None:
    """So it depends on how the source is cut, and on nothing that training left in the buffers."""
    (x,) = make_images(8)
    whole = Eata(OneNorm(make_mix()), source=[x])
    halves = Eata(OneNorm(make_mix()), source=[x[:4], x[4:]])
    assert not torch.allclose(whole.fisher, halves.fisher, rtol=0.1)
    shifted = OneNorm(make_mix())
    shifted.norm.running_mean += 7.0
    assert torch.equal(Eata(shifted.eval(), source=[x]).fisher, whole.fisher)


def test_a_single_source_image_is_no_batch() -> None:
    mix, source = make_mix(), make_images(4, 1)
    alone = Eata(OneNorm(mix), source=source[:1])
    assert torch.equal(Eata(OneNorm(mix), source=source).fisher, alone.fisher)
    with pytest.raises(DataError, match="batches of more than 1"):
        Eata(OneNorm(mix), source=source[1:])
    layer = OneNorm(mix, nn.GroupNorm(1, 2))
    assert Eata(layer, source=source[1:]).fisher.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_without_images_or_with_nan_is_refused(kind: str) -> None:
    (x,) = noise_batches(1)
    with pytest.raises(DataError, match="gave 0"):
        Eata(make_tiny(kind), source=[])
    with pytest.raises(ConfigError, match="fisher_images=0"):
        Eata(make_tiny(kind), Eata.Config(fisher_images=0), source=[x])
    with pytest.raises(DataError, match="None of the 8 source images"):
        Eata(make_tiny(kind), source=[x * float("nan")])


def test_without_weight_there_is_no_fisher() -> None:
    mix = make_mix()
    adapter = Eata(OneNorm(mix), Eata.Config(lr=0.02, fisher_weight=0.0), source=[])
    hand = ByHand(mix.tolist())
    for x in make_images(8, 8):
        adapter(x)
        hand.step(as_lists(x))
    assert adapter.fisher is None
    assert affine(adapter) == pytest.approx(hand.theta, abs=1e-10)


# What is not learnt from


def test_nothing_reliable_means_no_step_not_even_back_to_the_source() -> None:
    """The penalty has a gradient of its own by then, and must not be followed alone."""
    adapter = Eata(OneNorm(make_mix()), Eata.Config(lr=0.02), source=make_images(6))
    (x,) = make_images(8)
    adapter(x)
    assert affine(adapter) != [1.0, 1.0, 0.0, 0.0]
    before = {k: v for k, v in adapter.state_dict().items() if k != "batches"}
    hashed = tree_hash(before)
    adapter(torch.full_like(x, 0.5))  # normalises to nothing: every class alike
    assert adapter.last.signals == {"reliable": 0.0, "kept": 0.0}
    after = {k: v for k, v in adapter.state_dict().items() if k != "batches"}
    assert tree_hash(after) == hashed
    assert adapter.batches == 2


def test_nothing_reliable_at_first_leaves_the_filter_open() -> None:
    adapter = Eata(OneNorm(make_mix(1e-3)), source=make_images(6))
    for x in make_images(8, 8):
        adapter(x)
    assert adapter.mean is None
    assert not adapter.optimizer.state
    assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]


def test_one_class_only_is_learnt_once() -> None:
    """The same sure answer for every image: new in the first batch, redundant ever after."""
    mix = torch.tensor([[30.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    model = OneNorm(mix)
    with torch.no_grad():
        model.norm.bias.fill_(2.0)
        model.norm.weight.fill_(0.05)
    adapter = Eata(model, source=make_images(6))
    first, second = make_images(8, 8)
    assert set(adapter(first).argmax(1).tolist()) == {0}
    assert adapter.last.signals["kept"] == 1.0
    mean, theta = adapter.mean.clone(), affine(adapter)
    adapter(second)
    assert adapter.last.signals["reliable"] == 1.0
    assert adapter.last.signals["kept"] == 0.0
    assert torch.equal(adapter.mean, mean)
    assert affine(adapter) == theta


def test_a_network_of_one_class_has_nothing_to_be_unsure_of() -> None:
    adapter = Eata(OneNorm(make_mix()[:, :1].clone()), source=make_images(6))
    (x,) = make_images(8)
    assert adapter(x).shape == (8, 1)
    assert adapter.last.signals["kept"] == 0


def test_a_single_image_needs_no_batch_statistics() -> None:
    (x,) = make_images(8)
    model = OneNorm(make_mix())
    adapter = Eata(model, source=make_images(6))
    alone = adapter(x[:1])
    with torch.no_grad():
        torch.testing.assert_close(alone, model.eval()(x[:1]))
    assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]
    assert adapter.mean is None
    group = Eata(OneNorm(make_mix(20), nn.GroupNorm(1, 2)), source=make_images(6))
    group(x[:1])
    assert affine(group) != [1.0, 1.0, 0.0, 0.0]


def test_a_step_that_is_not_finite_is_dropped_and_not_remembered() -> None:
    adapter = Eata(OneNorm(make_mix()), source=make_images(6))
    adapter.fisher.fill_(float("inf"))
    (x,) = make_images(8)
    assert adapter(x).isfinite().all()
    assert adapter.last.events[0]["event"] == "step dropped"
    assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]
    assert adapter.mean is None


# The contract, where there is something to learn: an untrained network is never sure


def make_sure(kind: str) -> nn.Module:
    """A tiny network whose logits are spread out, so that it is sure, and of different classes."""
    model = make_tiny(kind)
    head = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    use_batch_statistics(probe := deepcopy(model))
    with torch.no_grad():
        logits = probe(torch.cat(noise_batches(4)))
        scale = 4 / logits.std(0)
        head.weight *= scale[:, None]
        head.bias.copy_(scale * (head.bias - logits.mean(0)))
    return model


def make_busy(kind: str, **settings: Any) -> Eata:
    config = Eata.Config(lr=1e-2, redundancy=0.9, fisher_weight=10.0, **settings)
    return Eata(make_sure(kind), config, source=noise_batches(3))


@pytest.mark.parametrize("kind", KINDS)
def test_resumes_exactly_from_every_batch(kind: str, tmp_path: Path) -> None:
    batches = [*noise_batches(8), noise_batches(9)[8][:3]]
    adapter = make_busy(kind)
    start, logits, learnt = affine_of(adapter), [], 0
    for k, x in enumerate(batches):
        adapter.save(tmp_path / str(k))
        logits.append(adapter(x))
        learnt += adapter.last.signals["kept"] > 0
    assert learnt > 4
    assert not torch.equal(affine_of(adapter), start)
    for k in range(len(batches)):
        again = bombus.load(tmp_path / str(k), make_sure(kind))
        assert isinstance(again, Eata)
        assert torch.equal(again.fisher, adapter.fisher)
        assert tree_hash([again(x) for x in batches[k:]]) == tree_hash(logits[k:])
        assert tree_hash(again.state_dict()) == tree_hash(adapter.state_dict())


def affine_of(adapter: Eata) -> Tensor:
    return torch.cat([p.detach().flatten() for p in adapter.parameters])


@pytest.mark.parametrize("kind", KINDS)
def test_reset_forgets_the_mean_and_keeps_the_fisher(kind: str) -> None:
    adapter = make_busy(kind)
    fisher, batches = adapter.fisher.clone(), noise_batches(4)
    first = [adapter(x) for x in batches]
    adapter.reset()
    assert adapter.mean is None
    assert torch.equal(adapter.fisher, fisher)
    assert tree_hash([adapter(x) for x in batches]) == tree_hash(first)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_norms_are_trained(kind: str) -> None:
    adapter, source = make_busy(kind), dict(make_sure(kind).named_parameters())
    for x in noise_batches(3):
        adapter(x)
    norms = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
    expected = {
        f"{name}.{kind}"
        for name, m in adapter.model.named_modules()
        if isinstance(m, norms)
        for kind in ("weight", "bias")
    }
    changed = {n for n, p in adapter.model.named_parameters() if not torch.equal(p, source[n])}
    assert changed
    assert changed <= expected
    assert {n for n, p in adapter.model.named_parameters() if p.requires_grad} == expected


def test_learns_under_bfloat16_in_float32() -> None:
    adapter = make_busy("batchnorm")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x in noise_batches(3):
            assert adapter(x).isfinite().all()
    assert adapter.last.signals["kept"] > 0
    assert adapter.mean.dtype == torch.float32
    assert adapter.mean.sum().item() == pytest.approx(1, abs=1e-5)


def test_published_settings() -> None:
    rows = {
        ("cifar10-c", "cnn"): ("adam", 1e-3, 0.4, 0.4, 1.0, 2000),
        ("cifar100-c", "cnn"): ("adam", 1e-3, 0.4, 0.1, 1.0, 2000),
        ("imagenet-c", "cnn"): ("sgd", 2.5e-4, 0.4, 0.05, 2000.0, 2000),
        ("imagenet-c", "vit"): ("sgd", 1e-3, 0.4, 0.05, 2000.0, 2000),
    }
    for (benchmark, family), row in rows.items():
        c = Eata.Config.for_benchmark(benchmark, family)
        found = (c.optimizer, c.lr, c.margin, c.redundancy, c.fisher_weight, c.fisher_images)
        assert found == row
