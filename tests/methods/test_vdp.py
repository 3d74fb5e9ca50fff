"""VDP's update by hand, in float64: gradients as formulas, Adam, averages, Λ; and its borders."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.data.augment import cotta_view
from bombus.errors import ConfigError, InputError
from bombus.methods.vdp import LARGEST, Vdp, decorate, importance
from bombus.metrics.passes import PassCounter
from tiny import KINDS, make_adapter, make_tiny, noise_batches, tree_hash

CLASSES, HEIGHT, WIDTH = 4, 8, 12
K, L = 2, 3  # of a prompt: a quarter of each side


class Linear(nn.Module):
    """Every pixel has a weight for every class."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.weight = nn.Parameter(
            0.5 * torch.randn(CLASSES, 3, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nchw,kchw->nk", x, self.weight)


class Brittle(Linear):
    """Finite logits whose gradient is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + (0 * logits).abs().sqrt()


def pictures(count: int, size: int = 6, light: float = 1.0) -> list[Tensor]:
    """Float64 images; the last batch of a stream is shorter."""
    generator = torch.Generator().manual_seed(5)
    shape = (size, 3, HEIGHT, WIDTH)
    batches = [
        light * torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(count)
    ]
    batches[-1] = batches[-1][: size // 2]
    return batches


def small(network: nn.Module | None = None, **settings: Any) -> Vdp:
    usual = {"lr": 0.02, "momentum": 0.9, "patch": 0.25, "damping": 1e-4, "seed": 7}
    return Vdp(network or Linear(), Vdp.Config(**{**usual, **settings}))


def corners(pixels: Tensor) -> tuple[Tensor, Tensor]:
    return pixels[..., :K, :L], pixels[..., HEIGHT - K :, WIDTH - L :]


def softmax(logits: Tensor) -> Tensor:
    powers = (logits - logits.max(1, keepdim=True).values).exp()
    return powers / powers.sum(1, keepdim=True)


class ByHand:
    """Everything as vectors of length 2: [DSP, DAP]."""

    def __init__(self, adapter: Vdp) -> None:
        self.config = adapter.config
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self.weight = adapter.model.weight.detach().clone()

        def zeros() -> Tensor:
            return torch.zeros(2, 3, K, L, dtype=torch.float64)

        self.student, self.teacher = zeros(), zeros()
        self.first, self.second, self.steps = zeros(), zeros(), 0
        self.anchor, self.importance, self.gain = zeros()[0], zeros()[0], zeros()[0]
        self.usual: float | None = None
        self.changes: list[int] = []

    def logits(self, x: Tensor, prompts: Tensor) -> Tensor:
        x = x.clone()
        for corner, prompt in zip(corners(x), prompts, strict=True):
            corner += prompt  # a view: it is written into x
        return x.flatten(1) @ self.weight.flatten(1).T

    def watch(self, p: Tensor) -> None:
        now = p.max(1).values.mean().item()
        if self.usual is not None and abs(now - self.usual) > self.config.threshold:
            self.changes.append(self.steps)
            moved = self.student[1] - self.anchor
            for place in torch.cartesian_prod(*map(torch.arange, moved.shape)):
                i = tuple(place.tolist())
                grown = max(self.gain[i].item(), 0) / (moved[i].item() ** 2 + self.config.damping)
                self.importance[i] += grown
            self.anchor = self.student[1].clone()
            self.gain = torch.zeros_like(self.gain)
            self.usual = now
        else:
            m = self.config.confidence_momentum
            self.usual = now if self.usual is None else m * self.usual + (1 - m) * now

    def see(self, x: Tensor) -> Tensor:
        target = self.logits(x, self.teacher)
        t = softmax(target)
        self.watch(t)
        view = cotta_view(x, self.generator, per_sample=False)
        s = softmax(self.logits(view, self.student))
        d_logits = (s - t) / len(x)  # of -sum t log s
        d_pixels = torch.einsum("nk,kchw->chw", d_logits, self.weight)
        g = torch.stack(corners(d_pixels))
        pull = 2 * self.config.penalty * self.importance * (self.student[1] - self.anchor)
        self.penalised = pull.abs().max().item() > 1e-6
        total = torch.stack([g[0], g[1] + pull])

        before = self.student.clone()
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * total
        self.second = 0.999 * self.second + 0.001 * total * total
        root = (self.second / (1 - 0.999**self.steps)).sqrt() + 1e-8
        self.student = before - self.config.lr * self.first / (1 - 0.9**self.steps) / root
        self.gain = self.gain - g[1] * (self.student[1] - before[1])
        m = self.config.momentum
        self.teacher = m * self.teacher + (1 - m) * self.student
        return target


def near(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def compare(adapter: Vdp, hand: ByHand) -> None:
    near(torch.stack([p.detach() for p in adapter.prompts.parameters]), hand.student)
    near(torch.stack(adapter.averages), hand.teacher)
    for name in ("anchor", "importance", "gain"):
        mine = getattr(adapter, name)
        near(mine.expand(3, K, L), getattr(hand, name))
    assert adapter.confidence == pytest.approx(hand.usual, rel=1e-9)


def changing() -> list[Tensor]:
    """Three bright batches, then dark ones, then bright again; sure where they are bright."""
    bright, dark = pictures(5), pictures(4, light=0.2)
    return [*bright[:3], *dark[:3], *bright[3:]]


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("confidence_momentum", [0.9, 0.0])
def test_update_by_hand(steps: int, confidence_momentum: float) -> None:
    adapter = small(threshold=0.15, penalty=3.0, confidence_momentum=confidence_momentum)
    hand = ByHand(adapter)
    penalised, found = [], []
    for number, x in enumerate(changing()[:steps]):
        expected = hand.see(x)
        near(adapter(x), expected)
        compare(adapter, hand)
        penalised.append(hand.penalised)
        found += [number for e in adapter.last.events if e["event"] == "domain change"]
        if not hand.penalised:
            assert adapter.last.signals["penalty"] == pytest.approx(0, abs=1e-12)
    assert found == hand.changes
    assert hand.student.abs().max() > 0.01
    if steps == 8:
        assert found == [3, 6]
        assert penalised == [False] * 4 + [True, True, False, True]
        assert (hand.importance > 0).any()


def test_signals_say_what_is_minimised() -> None:
    adapter = small(threshold=0.15, penalty=3.0)
    hand = ByHand(adapter)
    for x in changing()[:5]:
        adapter(x), hand.see(x)
    x = changing()[5]
    away = hand.student[1] - hand.anchor
    penalty = 3 * (hand.importance * away**2).sum().item()
    t = softmax(hand.logits(x, hand.teacher))
    generator = torch.Generator()
    generator.set_state(hand.generator.get_state())
    s = softmax(hand.logits(cotta_view(x, generator, per_sample=False), hand.student))
    adapter(x)
    assert penalty > 0
    assert adapter.last.signals == pytest.approx(
        {
            "confidence": t.max(1).values.mean().item(),
            "loss": -(t * s.log()).sum(1).mean().item(),
            "penalty": penalty,
        }
    )


# What is answered


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("statistics", "twin"), [("source", "source"), ("batch", "bn")])
def test_the_first_answer_is_the_source_models(kind: str, statistics: str, twin: str) -> None:
    first, second = noise_batches(2)
    first[0, :, 0, 0], first[1, :, -1, -1] = 1.1, -0.1  # resampled images overshoot: no clipping
    model = make_tiny(kind)
    adapter = Vdp(model, Vdp.Config(statistics=statistics, lr=0.1, momentum=0.5))
    expected = make_adapter(twin, model)
    assert torch.equal(adapter.predict(first), expected(first))
    assert torch.equal(adapter(first), expected(first))
    assert not torch.equal(adapter(second), expected(second))


def test_the_answer_is_the_teachers_before_the_update() -> None:
    first, second, _ = pictures(3)
    adapter = small(momentum=0.5)
    adapter(first)
    expected = adapter.predict(second)
    near(expected, adapter.model(decorate(second, *adapter.averages)))
    student = adapter.model(decorate(second, *adapter.prompts.parameters))
    assert not torch.allclose(expected, student)
    assert torch.equal(adapter(second), expected)
    assert not torch.equal(adapter.predict(second), expected)


def test_only_the_prompts_learn() -> None:
    adapter = Vdp(make_tiny("batchnorm"))
    source = {k: v.clone() for k, v in adapter.model.state_dict().items()}
    for x in noise_batches(3):
        adapter(x)
    assert all(torch.equal(v, source[k]) for k, v in adapter.model.state_dict().items())
    trained = adapter.optimizer.param_groups[0]["params"]
    assert [p.shape for p in trained] == [(3, 2, 2)] * 2
    assert all(p.abs().max() > 0 for p in trained)


def test_two_forwards_and_a_backward() -> None:
    adapter = small()
    (x,) = pictures(1)
    counter = PassCounter(adapter.model)
    with counter.counting():
        adapter(x)
    assert (counter.entered, counter.returned) == (2 * len(x), len(x))


# Domains


def test_a_domain_change_fixes_what_the_last_domain_taught() -> None:
    adapter = small(threshold=0.15)
    batches = changing()
    for x in batches[:3]:
        adapter(x)
        assert adapter.last.events == ()
    assert torch.equal(adapter.importance, torch.zeros_like(adapter.importance))
    agnostic, usual = adapter.prompts.agnostic.clone(), adapter.confidence
    gain = adapter.gain.clone()
    adapter(batches[3])
    (event,) = adapter.last.events
    assert event["event"] == "domain change"
    assert event["usual"] == usual
    assert event["confidence"] == adapter.last.signals["confidence"] == adapter.confidence
    assert torch.equal(adapter.anchor, agnostic), "where it was before the new domain's first step"
    assert torch.equal(adapter.importance > 0, gain > 0)
    assert (adapter.importance >= 0).all()
    first_step = adapter.prompts.agnostic - agnostic
    assert (adapter.gain.abs() > 0).any(), "the new domain's own"
    assert torch.equal(adapter.gain == 0, first_step == 0)
    one = adapter.importance.clone()
    for x in batches[4:7]:
        adapter(x)
    assert adapter.last.events
    assert (adapter.importance >= one).all()
    assert not torch.equal(adapter.importance, one)


def test_a_change_as_large_as_the_threshold_is_none() -> None:
    first, second, _ = pictures(3)
    probe = small(threshold=0.9)
    probe(first)
    usual = probe.confidence
    probe(second)
    change = abs(probe.last.signals["confidence"] - usual)
    for threshold, events in ((change, 0), (math.nextafter(change, 0), 1)):
        adapter = small(threshold=threshold)
        adapter(first), adapter(second)
        assert len(adapter.last.events) == events


def test_the_penalty_holds_the_agnostic_prompt_alone() -> None:
    free, held = small(penalty=0.0, threshold=1.0), small(penalty=1e3, threshold=1.0)
    first, second, _ = pictures(3)
    for adapter in (free, held):
        adapter(first)
        adapter.importance = torch.ones(3, K, L, dtype=torch.float64)
        adapter.anchor = adapter.prompts.agnostic + 0.5
        adapter(second)
    assert torch.equal(free.prompts.parameters[0], held.prompts.parameters[0])
    near_it, far = ((a.prompts.agnostic - a.anchor).abs() for a in (held, free))
    assert (near_it < 0.49).all()
    assert (far > 0.5).any(), "which the loss alone does not do"


def test_importance_pixel_by_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    gain, moved = torch.randn(2, 3, 2, 2, generator=generator, dtype=torch.float64)
    found = importance(gain, moved, 0.01)
    for w, d, f in zip(gain.flatten(), moved.flatten(), found.flatten(), strict=True):
        assert f.item() == pytest.approx(max(w.item(), 0) / (d.item() ** 2 + 0.01), rel=1e-12)


def test_importance_is_half_the_curvature_of_a_parabola() -> None:
    """Down ½ c φ² in small steps, from 2 to its bottom: c/2, whatever the distance."""
    for curvature in (0.3, 5.0):
        place, gain = 2.0, 0.0
        while place > 1e-4:
            step = -1e-4 * place
            gain -= curvature * place * step
            place += step
        found = importance(torch.tensor(gain), torch.tensor(2.0 - place), 1e-6)
        assert found.item() == pytest.approx(curvature / 2, rel=1e-3)


@pytest.mark.parametrize("gain", [math.inf, -math.inf, math.nan, 3e38, -3e38, 0.0])
def test_importance_is_never_negative_or_infinite(gain: float) -> None:
    for moved in (0.0, 1e-30, 1e30):
        found = importance(torch.tensor(gain), torch.tensor(moved), 1e-5).item()
        assert 0 <= found <= LARGEST


def test_importance_stays_finite_on_an_endless_stream_of_changes() -> None:
    adapter = small(threshold=0.0, damping=1e-30, lr=0.5)
    adapter(pictures(1)[0])
    adapter.importance = torch.full((3, K, L), LARGEST, dtype=torch.float64)
    for x in changing():
        assert adapter(x).isfinite().all()
        assert [e["event"] for e in adapter.last.events] == ["domain change"]
    assert adapter.importance.max().item() == LARGEST


# Prompts on images


def test_where_the_prompts_are() -> None:
    x = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    specific, agnostic = torch.full((3, 2, 3), 10.0), torch.full((3, 2, 3), 200.0)
    found = decorate(x, specific, agnostic) - x
    for row in range(5):
        for column in range(7):
            expected = 10.0 * (row < 2 and column < 3) + 200.0 * (row >= 3 and column >= 4)
            assert (found[:, :, row, column] - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("patch", "side", "expected"),
    [(1 / 8, 32, 4), (1 / 8, 224, 28), (1 / 8, 3, 1), (1.0, 5, 5), (0.5, 6, 3)],
)
def test_the_size_of_the_prompts(patch: float, side: int, expected: int) -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))
    adapter = Vdp(model, Vdp.Config(patch=patch))
    adapter(noise_batches(1, size=2, side=side)[0])
    assert [p.shape for p in adapter.prompts.parameters] == [(3, expected, expected)] * 2


def test_images_of_another_size_are_refused_and_change_nothing() -> None:
    adapter = Vdp(make_tiny("groupnorm"))
    (x,), (other,) = noise_batches(1, side=16), noise_batches(1, side=12)
    fresh = tree_hash(adapter.state_dict())
    assert adapter.predict(other).isfinite().all(), "no size is taken by looking"
    assert tree_hash(adapter.state_dict()) == fresh
    adapter(x)
    before = tree_hash(adapter.state_dict())
    for call in (adapter, adapter.predict):
        with pytest.raises(InputError, match=r"12 x 12 .* 16 x 16; resize .* reset") as caught:
            call(other)
        assert "\n" not in str(caught.value)
    assert tree_hash(adapter.state_dict()) == before
    adapter.reset()
    assert tree_hash(adapter.state_dict()) == fresh
    assert adapter(other).isfinite().all()


# Few images, bad numbers


def test_one_image_with_batchnorm_is_answered_with_source_statistics() -> None:
    model = make_tiny("batchnorm")
    x, other = noise_batches(2)
    adapter = Vdp(model, Vdp.Config(lr=0.1, momentum=0.5))
    fresh = tree_hash(adapter.state_dict())
    adapter(x[:1])
    assert tree_hash(adapter.state_dict()) == fresh
    adapter(x)
    before = tree_hash(adapter.state_dict())
    with torch.no_grad():
        expected = model(decorate(other[:1], *adapter.averages))
    assert torch.equal(adapter(other[:1]), expected)
    assert tree_hash(adapter.state_dict()) == before


@pytest.mark.parametrize(
    ("kind", "statistics"), [("vit", "batch"), ("groupnorm", "batch"), ("batchnorm", "source")]
)
def test_one_image_is_learnt_from_elsewhere(kind: str, statistics: str) -> None:
    adapter = Vdp(make_tiny(kind), Vdp.Config(statistics=statistics))
    for x in noise_batches(3):
        assert adapter(x[:1]).isfinite().all()
    assert all(p.abs().max() > 0 for p in adapter.prompts.parameters)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    first, second, _ = pictures(3)
    adapter = small(Brittle(), threshold=1.0)
    adapter(first)
    before = [tree_hash(v) for k, v in adapter.state_dict().items() if k != "generator"]
    adapter.confidence = None  # the same from the same batch
    assert adapter(first).isfinite().all()
    assert [e["event"] for e in adapter.last.events] == ["step dropped"]
    assert before == [tree_hash(v) for k, v in adapter.state_dict().items() if k != "generator"]
    assert adapter(second).isfinite().all()
    assert adapter.prompts.parameters[0].abs().max() == 0


def test_logits_that_are_no_numbers_say_nothing_of_the_domain() -> None:
    class Blind(Linear):
        blind = False

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (math.nan if self.blind else 1.0)

    first, second, third, _ = pictures(4)
    adapter, twin = small(Blind()), small()
    adapter(first), twin(first)
    before = tree_hash({k: v for k, v in adapter.state_dict().items() if k != "generator"})
    adapter.model.blind = True
    assert adapter(second).isnan().all()
    assert tree_hash({k: v for k, v in adapter.state_dict().items() if k != "generator"}) == before
    adapter.model.blind = False
    twin.generator.set_state(adapter.generator.get_state())
    assert torch.equal(adapter(third), twin(third))


# State and settings


@pytest.mark.parametrize("kind", KINDS)
def test_resumes_exactly_from_every_batch(kind: str, tmp_path: Path) -> None:
    """Over changes of domain, which the contract's untrained networks never see."""
    batches = noise_batches(6)
    batches[-1] = batches[-1][:3]
    probe = Vdp(make_tiny(kind), Vdp.Config(threshold=1.0))
    confidences = []
    for x in batches:
        probe(x)
        confidences.append(probe.last.signals["confidence"])
    steps = sorted(abs(b - a) for a, b in pairwise(confidences))
    config = Vdp.Config(threshold=(steps[2] + steps[3]) / 2, confidence_momentum=0.0, penalty=10.0)
    adapter = Vdp(make_tiny(kind), config)
    logits, changes = [], 0
    for k, x in enumerate(batches):
        adapter.save(tmp_path / str(k))
        logits.append(adapter(x))
        changes += len(adapter.last.events)
    assert 1 <= changes <= 4
    for k in range(len(batches)):
        resumed = Vdp.load(tmp_path / str(k), make_tiny(kind))
        for x, expected in zip(batches[k:], logits[k:], strict=True):
            assert torch.equal(resumed(x), expected)
        assert tree_hash(resumed.state_dict()) == tree_hash(adapter.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_learns_in_bfloat16(kind: str) -> None:
    """Under autocast, and with a network that is bfloat16 itself: prompts stay float32."""
    adapter = Vdp(make_tiny(kind))
    with torch.autocast("cpu", torch.bfloat16):
        for x in noise_batches(3):
            assert adapter(x).isfinite().all()
    half = Vdp(make_tiny(kind).bfloat16())
    for x in noise_batches(3):
        assert half(x.bfloat16()).isfinite().all()
    for each in (adapter, half):
        assert not each.last.events
        for p in (*each.prompts.parameters, *each.averages, each.gain):
            assert p.dtype == torch.float32
            assert p.abs().max() > 0


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 channels"):
        Vdp(make_tiny("groupnorm"), input=bombus.Input(channels=1))
    with pytest.raises(ConfigError, match=r"\[0, 255\]"):
        Vdp(make_tiny("groupnorm"), input=bombus.Input(high=255))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"patch": 0.0}, "patch=0.0"),
        ({"patch": 1.5}, "patch=1.5"),
        ({"patch": math.nan}, "patch=nan"),
        ({"momentum": 1.1}, "momentum=1.1"),
        ({"confidence_momentum": 1.0}, "confidence_momentum=1.0"),
        ({"lr": -1e-3}, "lr=-0.001"),
        ({"lr": math.inf}, "lr=inf"),
        ({"threshold": -0.1}, "threshold=-0.1"),
        ({"threshold": math.nan}, "threshold=nan"),
        ({"penalty": -1.0}, "penalty=-1.0"),
        ({"damping": 0.0}, "damping=0.0"),
        ({"statistics": "running"}, "statistics='running'"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Vdp.Config(**settings)
    assert "\n" not in str(caught.value)


def test_settings_by_benchmark() -> None:
    names = ("lr", "damping", "threshold", "momentum", "patch", "penalty", "statistics")
    cifar, imagenet = (
        [getattr(Vdp.Config.for_benchmark(benchmark, "vit"), name) for name in names]
        for benchmark in ("cifar100-c", "imagenet-c")
    )
    assert cifar == [1e-3, 1e-3, 0.05, 0.999, 1 / 8, 1.0, "batch"]
    assert imagenet == [1e-4, 1e-5, 0.1, 0.999, 1 / 8, 1.0, "batch"]
