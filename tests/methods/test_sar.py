"""SAR's update by hand: plain loops in float64; climb, momentum and recovery written out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bombus.backbones.resnet import BasicBlock, ResNet
from bombus.backbones.vit import VisionTransformer
from bombus.errors import ConfigError
from bombus.methods.sar import Sar, climbed
from bombus.metrics.passes import PassCounter
from tiny import KINDS, GroupNormNet, make_tiny, noise_batches, tree_hash

EPS = 1e-5


class OneNorm(nn.Module):
    """BatchNorm over 2 channels, the mean over pixels, a fixed mix of them for every class."""

    def __init__(self, mix: Tensor) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(2)
        self.mix = nn.Parameter(mix)
        self.num_classes = mix.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x[:, :2]).mean((2, 3)) @ self.mix


def entropies(
    x: list[list[list[float]]], mix: list[list[float]], theta: list[float]
) -> list[tuple[float, list[float]]]:
    """Of each sample the entropy, and its gradient by theta = (2 scales, 2 shifts)."""
    n, classes = len(x), len(mix[0])
    pooled = [[0.0, 0.0] for _ in range(n)]
    for c in range(2):
        values = [v for sample in x for v in sample[c]]
        mean = sum(values) / len(values)
        variance = sum((v - mean) ** 2 for v in values) / len(values)
        for i in range(n):
            pooled[i][c] = (sum(x[i][c]) / len(x[i][c]) - mean) / math.sqrt(variance + EPS)
    answers = []
    for i in range(n):
        feature = [pooled[i][c] * theta[c] + theta[2 + c] for c in range(2)]
        logits = [sum(feature[c] * mix[c][k] for c in range(2)) for k in range(classes)]
        top = max(logits)
        total = sum(math.exp(v - top) for v in logits)
        log_p = [v - top - math.log(total) for v in logits]
        entropy = -sum(math.exp(v) * v for v in log_p)
        d_logits = [-math.exp(v) * (v + entropy) for v in log_p]
        d_feature = [sum(d_logits[k] * mix[c][k] for k in range(classes)) for c in range(2)]
        answers.append((entropy, [d_feature[c] * pooled[i][c] for c in range(2)] + d_feature))
    return answers


def mean_gradient(of: list[tuple[float, list[float]]]) -> list[float]:
    return [sum(g[j] for _, g in of) / len(of) for j in range(4)]


class ByHand:
    """SAR on OneNorm. `log` tells how many samples passed the two filters, and where it stands."""

    def __init__(
        self, mix: list[list[float]], *, lr: float, radius: float = 0.05, floor: float = 0.2
    ) -> None:
        self.mix, self.lr, self.radius, self.floor = mix, lr, radius, floor
        self.margin = 0.4 * math.log(len(mix[0]))
        self.log: list[tuple[int, int]] = []
        self.recoveries = 0
        self.start()

    def start(self) -> None:
        self.theta, self.velocity, self.average = [1.0, 1.0, 0.0, 0.0], None, None

    theta: list[float]
    velocity: list[float] | None
    average: float | None

    def see(self, x: Tensor) -> None:
        pixels = x.flatten(2).tolist()
        first = entropies(pixels, self.mix, self.theta)
        sure = [i for i, (entropy, _) in enumerate(first) if entropy < self.margin]
        self.log.append((len(sure), 0))
        if not sure:
            return
        g = mean_gradient([first[i] for i in sure])
        length = math.sqrt(sum(v * v for v in g))
        high = [t + self.radius * v / length for t, v in zip(self.theta, g, strict=True)]
        second = entropies(pixels, self.mix, high)
        still = [second[i] for i in sure if second[i][0] < self.margin]
        self.log[-1] = (len(sure), len(still))
        if not still:
            return
        g = mean_gradient(still)
        old = self.velocity
        self.velocity = g if old is None else [0.9 * m + v for m, v in zip(old, g, strict=True)]
        self.theta = [t - self.lr * m for t, m in zip(self.theta, self.velocity, strict=True)]
        loss = sum(entropy for entropy, _ in still) / len(still)
        self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        if self.average < self.floor:
            self.recoveries += 1
            self.start()


def pictures(count: int, size: int = 8, seed: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    batches = [
        torch.rand(size, 3, 2, 2, generator=generator, dtype=torch.float64) for _ in range(count)
    ]
    batches[-1] = batches[-1][: size // 2]  # the last of a stream is shorter
    return batches


def a_mix(strength: float = 5.0, classes: int = 3, seed: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return strength * torch.randn(2, classes, generator=generator, dtype=torch.float64)


def affine(adapter: Sar) -> list[float]:
    first = adapter.model.get_submodule("first")
    return torch.cat([first.weight, first.bias]).tolist()


def passes(adapter: Sar, x: Tensor) -> tuple[float, float]:
    """Forwards and backwards that the adapter makes of a batch."""
    counter = PassCounter(adapter.model)
    with counter.counting():
        adapter(x)
    return counter.entered / len(x), counter.returned / len(x)


def confident(kind: str) -> nn.Module:
    """A tiny network, sure of some of its answers (an untrained one is sure of none)."""
    model = make_tiny(kind)
    with torch.no_grad():
        for p in (model.fc if kind == "batchnorm" else model.head).parameters():
            p.mul_({"batchnorm": 32, "groupnorm": 8, "vit": 64}[kind])
    return model


@pytest.mark.parametrize("radius", [0.05, 0.3])
@pytest.mark.parametrize("steps", [1, 3])
def test_update_by_hand(steps: int, radius: float) -> None:
    mix = a_mix()
    adapter = Sar(OneNorm(mix).double(), Sar.Config(lr=0.05, radius=radius, floor=0.0))
    hand = ByHand(mix.tolist(), lr=0.05, radius=radius, floor=0.0)
    for x in pictures(3)[:steps]:
        adapter(x)
        hand.see(x)
        assert affine(adapter) == pytest.approx(hand.theta, abs=1e-10, rel=1e-9)
        assert adapter.average == pytest.approx(hand.average, rel=1e-9)
    assert hand.theta != [1.0, 1.0, 0.0, 0.0]
    # There is a case for both filters: samples that are unsure, and some that become so.
    assert all(still <= sure < 8 for sure, still in hand.log)
    assert any(0 < still < sure for sure, still in hand.log)


@pytest.mark.parametrize("classes", [3, 7])
def test_the_margin_grows_with_the_classes(classes: int) -> None:
    mix = a_mix(classes=classes)
    adapter = Sar(OneNorm(mix).double(), Sar.Config(floor=0.0))
    hand = ByHand(mix.tolist(), lr=1e-3, floor=0.0)
    for x in pictures(3):
        adapter(x)
        hand.see(x)
        assert adapter.last.signals["reliable"] == pytest.approx(hand.log[-1][0] / len(x))
    assert affine(adapter) == pytest.approx(hand.theta, abs=1e-10, rel=1e-9)


def test_recovery_by_hand() -> None:
    """Surer and surer batches; the way back takes weights, momentum and average with it."""
    mix = a_mix()
    adapter = Sar(OneNorm(mix).double(), Sar.Config(lr=1.0, floor=0.15))
    hand = ByHand(mix.tolist(), lr=1.0, floor=0.15)
    before = 0
    for x in pictures(25):
        adapter(x)
        hand.see(x)
        recovered = [e for e in adapter.last.events if e["event"] == "recovered"]
        assert len(recovered) == hand.recoveries - before
        before = hand.recoveries
        if recovered:
            assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]
            assert adapter.optimizer.state_dict()["state"] == {}
            assert adapter.average is None, "the low average is not carried into the new life"
        assert affine(adapter) == pytest.approx(hand.theta, abs=1e-8, rel=1e-7)
    assert 2 <= hand.recoveries < 25


def test_after_a_recovery_all_is_as_new() -> None:
    mix, batches = a_mix(), pictures(3)
    used, fresh = (Sar(OneNorm(mix).double(), Sar.Config(floor=0.0)) for _ in range(2))
    used(batches[0])
    used.average = 0.0
    used.config = Sar.Config(floor=0.2)
    used(batches[1])
    assert used.last.events[0]["event"] == "recovered"
    used.config = Sar.Config(floor=0.0)
    assert torch.equal(used(batches[2]), fresh(batches[2]))
    assert affine(used) == affine(fresh)


def test_nothing_reliable_changes_nothing() -> None:
    """Not even by momentum, which the batch before has given it."""
    adapter = Sar(OneNorm(a_mix()).double(), Sar.Config(floor=0.0))
    (x,) = pictures(1)
    adapter(x)
    state = tree_hash(adapter.state_dict())
    blank = x * 0 + 0.5  # every normalised feature is 0: all classes alike
    assert passes(adapter, blank) == (1, 0)
    assert adapter.last.signals == {"reliable": 0.0}
    assert tree_hash(adapter.state_dict()) == state


def test_nothing_reliable_after_the_climb_changes_nothing() -> None:
    (x,) = pictures(1)
    adapter = Sar(OneNorm(a_mix(3.0, seed=2)).double(), Sar.Config(radius=1.0))
    hand = ByHand(a_mix(3.0, seed=2).tolist(), lr=1e-3, radius=1.0)
    hand.see(x)
    assert hand.log[0][0] > 0
    assert hand.log[0][1] == 0
    assert passes(adapter, x) == (2, 1)
    assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]
    assert adapter.optimizer.state_dict()["state"] == {}
    assert adapter.average is None


def test_a_single_class_is_never_reliable() -> None:
    """Its entropy is 0 and so is the margin; nothing to learn, and nothing that is not finite."""
    adapter = Sar(OneNorm(a_mix(classes=1)).double())
    assert adapter(pictures(1)[0]).isfinite().all()
    assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]


def test_one_image_is_answered_with_the_source_statistics() -> None:
    model = OneNorm(a_mix()).double()
    (x,) = pictures(1)
    adapter = Sar(model)
    with torch.no_grad():
        expected = model.eval()(x[:1])
    assert torch.equal(adapter(x[:1]), expected)
    assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]


def test_one_image_is_learnt_from_without_batchnorm() -> None:
    adapter = Sar(confident("vit"), Sar.Config(margin=1.0, floor=0.0))
    before = tree_hash(adapter.state_dict()["model"])
    adapter(noise_batches(1)[0][:1])
    assert tree_hash(adapter.state_dict()["model"]) != before


class Brittle(OneNorm):
    """Its n-th pass with a gradient has finite logits whose gradient is not a number."""

    def __init__(self, mix: Tensor, poisoned: int) -> None:
        super().__init__(mix)
        self.poisoned, self.calls = poisoned, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        feature = self.first(x[:, :2]).mean((2, 3))
        logits = feature @ self.mix
        if self.calls == self.poisoned:
            logits = logits + (0 * feature).abs().sqrt().sum()
        return logits


@pytest.mark.parametrize("poisoned", [1, 2])
def test_a_step_that_is_not_finite_is_dropped(poisoned: int) -> None:
    adapter = Sar(Brittle(a_mix(), poisoned).double())
    assert passes(adapter, pictures(1)[0]) == (poisoned, poisoned)
    assert adapter.last.events[0]["event"] == "step dropped"
    assert affine(adapter) == [1.0, 1.0, 0.0, 0.0]
    assert adapter.average is None


def test_predicts_before_it_updates() -> None:
    adapter = Sar(OneNorm(a_mix()).double(), Sar.Config(floor=0.0))
    (x,) = pictures(1)
    before = adapter.predict(x)
    assert torch.equal(adapter(x), before)
    assert not torch.equal(adapter.predict(x), before)


def test_a_climb_leaves_no_trace() -> None:
    p = nn.Parameter(torch.tensor([1.0, 0.1, -7.3]))
    before = p.detach().clone()

    def climb() -> None:
        with climbed([p], [torch.tensor([1e9, 1e-9, 0.3])], torch.tensor(1.7)):
            assert p[0] > 1e9
            raise RuntimeError("out of memory, say")

    with pytest.raises(RuntimeError, match="out of memory"):
        climb()
    assert torch.equal(p, before)


# Which parameters


def trained(model: nn.Module) -> set[str]:
    return {name for name, p in Sar(model).model.named_parameters() if p.requires_grad}


def norms(model: nn.Module) -> set[str]:
    kinds = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
    return {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, kinds)
        for name in ("weight", "bias")
    }


def test_a_resnet_keeps_its_last_stage() -> None:
    model = ResNet(BasicBlock, (1, 1, 1, 1), num_classes=5, name="small")
    names = trained(model)
    assert names == {name for name in norms(model) if not name.startswith("layer4.")}
    assert "layer3.0.bn2.weight" in names
    assert "bn1.bias" in names


@pytest.mark.parametrize(("depth", "free"), [(12, 9), (14, 11), (6, 3)])
def test_a_vit_keeps_its_last_three_blocks_and_its_final_norm(depth: int, free: int) -> None:
    model = VisionTransformer(size=8, patch=4, width=8, depth=depth, heads=2, num_classes=3)
    expected = {
        f"blocks.{i}.norm{j}.{name}"
        for i in range(free)
        for j in (1, 2)
        for name in ("weight", "bias")
    }
    assert trained(model) == expected
    assert trained(nn.Sequential(nn.Identity(), model)) == {f"1.{name}" for name in expected}


@pytest.mark.parametrize("kind", ["batchnorm", "groupnorm"])
def test_other_networks_train_all_their_norms(kind: str) -> None:
    assert trained(make_tiny(kind)) == norms(make_tiny(kind))


def test_stages_with_blocks_of_their_own_are_no_vit() -> None:
    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(nn.GroupNorm(1, 3), nn.GroupNorm(1, 3))

    model = nn.Sequential(Stage(), Stage())
    assert trained(model) == norms(model)


def test_a_network_with_norms_only_at_the_top_is_refused() -> None:
    model = VisionTransformer(size=8, patch=4, width=8, depth=3, heads=2, num_classes=3)
    with pytest.raises(ConfigError, match=r"blocks\.2, norm"):
        Sar(model)


def test_layer4_is_a_name_and_not_a_part_of_one() -> None:
    class Many(GroupNormNet):
        def __init__(self) -> None:
            super().__init__()
            self.layer40 = nn.GroupNorm(1, 3)

    assert "layer40.weight" in trained(Many())


# On whole networks


@pytest.mark.parametrize("kind", KINDS)
def test_resumes_exactly_from_every_batch(kind: str, tmp_path: Path) -> None:
    """Across recoveries, which the contract's unsure networks never come to."""
    batches = noise_batches(9)
    batches[-1] = batches[-1][:3]
    settings = Sar.Config(lr=0.05, floor=0.33)
    adapter = Sar(confident(kind), settings)
    logits, events = [], []
    for k, x in enumerate(batches):
        adapter.save(tmp_path / str(k))
        logits.append(adapter(x))
        events += [e["event"] for e in adapter.last.events]
    assert "recovered" in events
    for k in range(len(batches)):
        resumed = Sar.load(tmp_path / str(k), confident(kind))
        for x, expected in zip(batches[k:], logits[k:], strict=True):
            assert torch.equal(resumed(x), expected)
        assert tree_hash(resumed.state_dict()) == tree_hash(adapter.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_learns_in_bfloat16(kind: str) -> None:
    adapter = Sar(confident(kind), Sar.Config(lr=0.01, floor=0.0))
    before = tree_hash(adapter.state_dict()["model"])
    with torch.autocast("cpu", torch.bfloat16):
        for x in noise_batches(3):
            assert adapter(x).isfinite().all()
    assert not adapter.last.events
    state: dict[str, Any] = adapter.state_dict()["model"]
    assert tree_hash(state) != before
    assert all(p.isfinite().all() for p in state.values() if p.is_floating_point())


def test_a_batch_with_reliable_samples_costs_two_passes() -> None:
    for kind in KINDS:
        adapter = Sar(confident(kind), Sar.Config(floor=0.0))
        assert passes(adapter, noise_batches(1)[0]) == (2, 2)


def test_published_settings() -> None:
    assert Sar.Config().lr == Sar.Config.for_benchmark("cifar100-c").lr == 1e-3
    assert Sar.Config.for_benchmark("imagenet-c").lr == 2.5e-4
    assert Sar.Config.for_benchmark("imagenet-c", "vit").lr == 1e-3
