"""ROID a second way: the network in plain Python, gradients by differences, optimisers by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bombus
from bombus.losses.divergence import mutual_cross_entropy
from bombus.methods.roid import (
    Roid,
    certainty_diversity_weights,
    roid_view,
    smoothed_prior,
)
from bombus.metrics.passes import PassCounter
from tiny import make_tiny, noise_batches, tree_hash

Images = list[list[list[float]]]  # sample, channel, pixel
Rows = list[list[float]]


class OneNorm(nn.Module):
    """Small enough to write out: BatchNorm over 2 channels, tanh, mean over pixels, class sums."""

    def __init__(self, mix: Tensor) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.mix = nn.Parameter(mix)
        self.num_classes = mix.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x[:, :2]).tanh().mean((2, 3)) @ self.mix


def one_norm(dtype: torch.dtype = torch.float64) -> OneNorm:
    mix = 4 * torch.randn(2, 3, generator=torch.Generator().manual_seed(2), dtype=dtype)
    model = OneNorm(mix).to(dtype).eval()
    with torch.no_grad():
        model.norm.weight.copy_(torch.tensor([1.2, 0.7]))
        model.norm.bias.copy_(torch.tensor([0.1, -0.2]))
    return model


def images(*sizes: int) -> list[Tensor]:
    return [x[:n].double() for x, n in zip(noise_batches(len(sizes)), sizes, strict=True)]


# --- the second derivation -------------------------------------------------------------------


def network(x: Tensor, theta: list[float], mix: Rows) -> Rows:
    pixels: Images = x.flatten(2).tolist()
    n, classes = len(pixels), len(mix[0])
    pooled = [[0.0, 0.0] for _ in range(n)]
    for c in range(2):
        values = [v for sample in pixels for v in sample[c]]
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + 1e-5)
        for i in range(n):
            out = [
                math.tanh((v - mean) / deviation * theta[c] + theta[2 + c]) for v in pixels[i][c]
            ]
            pooled[i][c] = sum(out) / len(out)
    return [[sum(f[c] * mix[c][k] for c in range(2)) for k in range(classes)] for f in pooled]


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(v) for v in row)
    return [math.exp(v) / total for v in row]


def entropy(p: list[float]) -> float:
    return -sum(v * math.log(v) for v in p)


def ratio(p: list[float]) -> float:
    cut = [min(v, 0.99) for v in p]
    return -sum(v * math.log(v / (1 - v) + 1e-5) for v in cut)


def apart(p: list[float], q: list[float]) -> float:
    one = -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
    other = -sum(b * math.log(a) for a, b in zip(p, q, strict=True))
    return (one + other) / 2


def scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(v - low) / (high - low) for v in values]


def weigh(ps: Rows, usual: list[float], temperature: float) -> list[float]:
    cosines = []
    for p in ps:
        dot = sum(a * b for a, b in zip(p, usual, strict=True))
        cosines.append(dot / math.hypot(*p) / math.hypot(*usual))
    diversity = scaled([1 - c for c in cosines])
    certainty = scaled([-entropy(p) for p in ps])
    mean = sum(diversity) / len(diversity)
    return [
        0.0 if d < mean else math.exp(d * c / temperature)
        for d, c in zip(diversity, certainty, strict=True)
    ]


class HandOptimizer:
    def __init__(self, name: str, lr: float) -> None:
        self.name, self.lr, self.t = name, lr, 0
        self.m, self.v = [0.0] * 4, [0.0] * 4

    def step(self, theta: list[float], gradient: list[float]) -> None:
        self.t += 1
        for i, g in enumerate(gradient):
            if self.name == "adam":
                self.m[i] = 0.9 * self.m[i] + 0.1 * g
                self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
                unbiased = math.sqrt(self.v[i] / (1 - 0.999**self.t)) + 1e-8
                theta[i] -= self.lr * self.m[i] / (1 - 0.9**self.t) / unbiased
            else:
                self.m[i] = g if self.t == 1 else 0.9 * self.m[i] + g
                theta[i] -= self.lr * (g + 0.9 * self.m[i])


SWITCHED: list[dict[str, Any]] = [
    {},
    {"weighting": False},
    {"consistency": False},
    {"ensembling": False},
    {"prior_correction": "probabilities"},
    {"prior_correction": "off"},
    {"view_per_sample": True},
    {"weighting": False, "consistency": False, "ensembling": False, "prior_correction": "off"},
]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("switches", SWITCHED, ids=lambda s: ",".join(s) or "all on")
@pytest.mark.parametrize("steps", [1, 3])
def test_update_by_hand(optimizer: str, switches: dict[str, Any], steps: int) -> None:
    config = Roid.Config(
        optimizer=optimizer, lr=0.02, source_momentum=0.9, prediction_momentum=0.6, **switches
    )
    adapter = Roid(one_norm(), config)
    mix = one_norm().mix.tolist()
    theta = [1.2, 0.7, 0.1, -0.2]
    theta = [float(torch.tensor(v)) for v in theta]  # the network was filled in single precision
    source, hand = list(theta), HandOptimizer(optimizer, 0.02)
    usual = [1 / 3] * 3
    for x in images(8, 8, 5)[:steps]:  # the last one shorter: it is divided by 8 all the same
        generator = torch.Generator()
        generator.set_state(adapter.generator.get_state())
        logits = network(x, theta, mix)
        ps = [softmax(row) for row in logits]
        weights = weigh(ps, usual, 1 / 3) if config.weighting else [1.0] * len(x)
        kept = [i for i, w in enumerate(weights) if w > 0]
        if config.weighting:
            assert 1 < len(kept) < len(x)
        view = roid_view(x[kept], generator, per_sample=config.view_per_sample)

        def loss(t: list[float], x: Tensor = x, w: list[float] = weights, k: list[int] = kept,
                 view: Tensor = view) -> float:  # fmt: skip
            first = [softmax(row) for row in network(x, t, mix)]
            total = sum(w[i] * ratio(first[i]) for i in k)
            if config.consistency:
                second = [softmax(row) for row in network(view, t, mix)]
                total += sum(w[i] * apart(first[i], q) for i, q in zip(k, second, strict=True))
            return total / 8

        gradient = []
        for i in range(4):
            up, down = list(theta), list(theta)
            up[i] += 1e-5
            down[i] -= 1e-5
            gradient.append((loss(up) - loss(down)) / 2e-5)
        answers = adapter(x)

        prior = [sum(p[c] for p in ps) / len(ps) for c in range(3)]
        smooth = max(1 / len(x), 1 / 3) / max(prior)
        prior = [(v + smooth) / (1 + 3 * smooth) for v in prior]
        for row, answer in zip(logits, answers.tolist(), strict=True):
            if config.prior_correction == "logits":
                row = [3 * v * q for v, q in zip(row, prior, strict=True)]
            elif config.prior_correction == "probabilities":
                row = [v + math.log(3 * q) for v, q in zip(row, prior, strict=True)]
            assert answer == pytest.approx(row, abs=1e-6)

        hand.step(theta, gradient)
        if config.ensembling:
            theta = [0.9 * t + 0.1 * s for t, s in zip(theta, source, strict=True)]
        usual = [0.6 * u + 0.4 * sum(p[c] for p in ps) / len(ps) for c, u in enumerate(usual)]
        norm = adapter.model.get_submodule("norm")
        updated = torch.cat([norm.weight, norm.bias]).tolist()
        assert updated == pytest.approx(theta, abs=1e-7)
        assert adapter.mean_prediction is not None
        assert adapter.mean_prediction.tolist() == pytest.approx(usual, abs=1e-7)


# --- parts -----------------------------------------------------------------------------------


def test_the_published_settings() -> None:
    config = Roid.Config()
    assert (config.optimizer, config.lr, config.temperature) == ("adam", 1e-3, 1 / 3)
    assert (config.source_momentum, config.prediction_momentum) == (0.99, 0.9)
    assert config.weighting
    assert config.consistency
    assert config.ensembling
    assert (config.prior_correction, config.view_per_sample) == ("logits", False)
    for family in ("cnn", "vit"):
        large = Roid.Config.for_benchmark("imagenet-c", family)
        assert (large.optimizer, large.lr) == ("sgd", 2.5e-4)


@pytest.mark.parametrize("count", [1, 4])
def test_samples_all_alike_count_one_each(count: int) -> None:
    """The reference divides nothing by nothing here, and every weight is NaN from then on."""
    logits = torch.tensor([[2.0, 1.0, -1.0]]).expand(count, -1)
    weights = certainty_diversity_weights(logits, torch.full((3,), 1 / 3), 1 / 3)
    assert weights.tolist() == [1.0] * count


def test_something_is_always_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    for spread in (1e-6, 1e-3, 1.0, 30.0):
        logits = spread * torch.randn(16, 5, generator=generator)
        weights = certainty_diversity_weights(logits, torch.full((5,), 0.2), 1 / 3)
        assert weights.isfinite().all()
        assert (weights > 0).any()
        assert weights.max() <= math.exp(3) + 1e-3


def test_the_usual_prediction_is_left_out() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0], [4.0, 0.1, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 3.0]])
    weights = certainty_diversity_weights(logits, torch.tensor([0.9, 0.05, 0.05]), 1 / 3)
    assert (weights > 0).tolist() == [False, False, True, True]
    assert weights[2] > weights[3] == 1  # as diverse, but the more certain one of the two


def test_both_sides_of_the_agreement_learn() -> None:
    generator = torch.Generator().manual_seed(3)
    one, other = (
        torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(2)
    )
    assert torch.autograd.gradcheck(mutual_cross_entropy, (one, other))
    gradients = torch.autograd.grad(mutual_cross_entropy(one, other).sum(), (one, other))
    assert all(g.abs().max() > 0.01 for g in gradients)


def test_the_prior_is_smoothed_by_what_a_sample_is_worth() -> None:
    sure = torch.eye(4)[[0, 0, 1]]  # 3 samples of 4 classes: prior 2/3, 1/3, 0, 0
    addition = (1 / 3) / (2 / 3)
    expected = [(v + addition) / (1 + 4 * addition) for v in (2 / 3, 1 / 3, 0, 0)]
    assert smoothed_prior(sure).tolist() == pytest.approx(expected)
    many = torch.eye(2)[[0, 0, 0, 1]]  # more samples than classes: a class's worth
    addition = (1 / 2) / (3 / 4)
    expected = [(v + addition) / (1 + 2 * addition) for v in (3 / 4, 1 / 4)]
    assert smoothed_prior(many).tolist() == pytest.approx(expected)


class Given(nn.Module):
    """Returns its input as logits, but for a normalisation that does nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return 40 * x[:, :, 0, :3].mean(1) - 10 + 0 * self.norm(x[:, :1]).mean((1, 2, 3))[:, None]


def test_corrections() -> None:
    x = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    answers = {
        kind: Roid(Given(), Roid.Config(prior_correction=kind)).predict(x)
        for kind in ("off", "logits", "probabilities")
    }
    plain = answers["off"]
    prior = smoothed_prior(plain.softmax(1))
    # The reference's product, up to a constant factor; and Bayes' rule.
    torch.testing.assert_close(answers["logits"] / 3, plain * prior)
    bayes = plain.softmax(1) * prior
    torch.testing.assert_close(
        answers["probabilities"].softmax(1), bayes / bayes.sum(1, keepdim=True)
    )
    even = torch.stack([x[0, :, :, :3].roll(k, 2) for k in range(3)])  # every class its turn
    for kind in ("logits", "probabilities"):
        adapter = Roid(Given(), Roid.Config(prior_correction=kind))
        torch.testing.assert_close(adapter.predict(even), Given()(even).detach())


# --- the second view -------------------------------------------------------------------------


def test_one_draw_a_batch_or_one_a_sample() -> None:
    x = noise_batches(1, size=1)[0].expand(6, -1, -1, -1)
    shared = roid_view(x, torch.Generator().manual_seed(0))
    assert all(torch.equal(v, shared[0]) for v in shared)
    assert not torch.allclose(shared[0], x[0], atol=0.05)
    own = roid_view(x, torch.Generator().manual_seed(0), per_sample=True)
    assert not torch.allclose(own[0], own[1], atol=0.05)


def test_a_plain_surface_stays_plain() -> None:
    """No noise is added, and nothing black comes in from beyond the border."""
    x = torch.tensor([0.3, 0.5, 0.6])[None, :, None, None].expand(50, -1, 16, 16)
    out = roid_view(x, torch.Generator().manual_seed(0), per_sample=True)
    torch.testing.assert_close(out, out[:, :, :1, :1].expand_as(out), rtol=0, atol=1e-5)
    assert out.min() >= 0
    assert out.max() <= 1


def test_moves_by_up_to_an_eighth_and_mirrors_half() -> None:
    x = torch.zeros(400, 3, 32, 32)
    x[:, :, 14:18, 14:18] = 1  # the centre, and a mark to the right of it
    x[:, :, 15:17, 22:24] = 1
    out = roid_view(x, torch.Generator().manual_seed(0), per_sample=True).mean(1)
    bright = (out > (out.amax((1, 2), keepdim=True) + out.amin((1, 2), keepdim=True)) / 2).float()
    across = torch.arange(32.0) - 15.5
    middle = torch.einsum("nhw,h->n", bright, across) / bright.sum((1, 2))
    assert 3 < middle.abs().max() < 4 + 2  # up to 4, and what turning adds
    # Mirrored images have the mark on the left: more light there than right of the middle.
    centre = (torch.einsum("nhw,w->n", bright, across) / bright.sum((1, 2)))[:, None]
    skew = torch.einsum("nhw,nw->n", bright, (across[None] - centre) ** 3)
    assert 0.4 < (skew < 0).float().mean() < 0.6


# --- edges -----------------------------------------------------------------------------------


def test_only_normalisation_learns() -> None:
    adapter = Roid(make_tiny("batchnorm"))
    learning = {name for name, p in adapter.model.named_parameters() if p.requires_grad}
    assert learning
    assert all("bn" in name for name in learning)
    for x in noise_batches(3):
        adapter(x)
    source = dict(make_tiny("batchnorm").named_parameters())
    for name, p in adapter.model.named_parameters():
        assert torch.equal(p, source[name]) == (name not in learning), name


def test_the_weights_drawn_to_are_the_sources_also_after_resuming(tmp_path: Path) -> None:
    adapter = Roid(make_tiny("batchnorm"), Roid.Config(lr=0.05))
    batches = noise_batches(8)
    for x in batches[:4]:
        adapter(x)
    adapter.save(tmp_path)
    resumed = bombus.load(tmp_path, make_tiny("batchnorm"))
    assert isinstance(resumed, Roid)
    source = dict(make_tiny("batchnorm").named_parameters())
    names = [name for name, p in adapter.model.named_parameters() if p.requires_grad]
    for roid in (adapter, resumed):
        for name, value in zip(names, roid.source_values, strict=True):
            assert torch.equal(value, source[name])
    for x in batches[4:]:
        assert torch.equal(resumed(x), adapter(x))
    assert tree_hash(resumed.state_dict()) == tree_hash(adapter.state_dict())


def test_passes_with_and_without_the_parts() -> None:
    (x,) = noise_batches(1)
    for settings, expected in (({"weighting": False}, 2), ({"consistency": False}, 1)):
        adapter = Roid(make_tiny("groupnorm"), Roid.Config(**settings))
        with PassCounter(adapter.model).counting() as passes:
            adapter(x)
        assert (passes.entered / 8, passes.returned / 8) == (expected, expected)
    adapter = Roid(make_tiny("groupnorm"))
    with PassCounter(adapter.model).counting() as passes:
        adapter(x)
    assert 0 < adapter.last.signals["kept"] < 1  # only these have a second view
    assert passes.entered / 8 == pytest.approx(1 + adapter.last.signals["kept"])


def test_one_image_is_answered_with_the_source_statistics_and_teaches_nothing() -> None:
    model = make_tiny("batchnorm")
    adapter = Roid(model, Roid.Config(prior_correction="off"))
    adapter(noise_batches(1)[0])
    before = tree_hash(adapter.state_dict())
    (x,) = noise_batches(1, size=1)
    answer = adapter(x)
    assert tree_hash(adapter.state_dict()) == before
    adapter.reset()
    with torch.no_grad():
        torch.testing.assert_close(adapter(x), model(x))
    assert answer.shape == (1, 5)


def test_one_image_trains_a_network_without_batch_norm() -> None:
    adapter = Roid(make_tiny("groupnorm"))
    before = tree_hash(adapter.state_dict())
    adapter(noise_batches(1, size=1)[0])
    assert tree_hash(adapter.state_dict()) != before


def test_one_sample_kept_gets_no_second_view_under_batch_norm() -> None:
    """Of two images one is kept; a picture of one pixel makes no batch statistics at all."""
    adapter = Roid(one_norm(torch.float32), Roid.Config(lr=0.05))
    x = noise_batches(1)[0][:2, :, :1, :1]
    before = adapter.model.get_submodule("norm").weight.clone()
    assert adapter(x).isfinite().all()
    assert (adapter.last.signals["kept"], adapter.last.signals["consistency"]) == (0.5, 0)
    assert not torch.equal(adapter.model.get_submodule("norm").weight, before)


def test_alike_images_train_and_stay_finite() -> None:
    adapter = Roid(one_norm(torch.float32), Roid.Config(lr=0.05))
    x = noise_batches(1)[0]
    alike = x[:1].expand(8, -1, -1, -1)
    for batch in (alike, torch.zeros_like(x), x, x[:3], alike):
        assert adapter(batch).isfinite().all()
        assert not adapter.last.events
    assert all(p.isfinite().all() for p in adapter.model.parameters())


def test_a_short_batch_weighs_no_more_an_image() -> None:
    """Without weights and statistics over the batch, 2 of 8 images pull as in a batch of 8."""
    x = noise_batches(1)[0]
    moved = []
    for first in (x, x[:2]):
        config = Roid.Config(
            optimizer="sgd", lr=0.1, weighting=False, consistency=False, ensembling=False
        )
        adapter = Roid(make_tiny("groupnorm"), config)
        adapter.largest_batch = len(first)
        before = [p.detach().clone() for p in adapter.parameters]
        adapter(x[:2])
        moved.append([p.detach() - b for p, b in zip(adapter.parameters, before, strict=True)])
    for small, large in zip(*moved, strict=True):
        torch.testing.assert_close(4 * small, large, rtol=1e-4, atol=1e-6)


def test_predicts_before_it_updates() -> None:
    adapter = Roid(one_norm(torch.float32), Roid.Config(lr=0.05))
    (x,) = noise_batches(1)
    before = adapter.predict(x)
    assert torch.equal(adapter(x), before)
    assert not torch.equal(adapter.predict(x), before)


def test_a_step_that_is_not_finite_is_dropped_but_not_the_way_back() -> None:
    model = OneNorm(torch.full((2, 3), 1e38)).eval()
    adapter = Roid(model)
    norm = adapter.model.get_submodule("norm")
    with torch.no_grad():
        norm.weight.fill_(100.0)
    x = noise_batches(1)[0]
    x[:, :2] = x[:, :2].round()  # far from the mean, so that the products overflow
    adapter(x)
    assert adapter.last.events[0]["event"] == "step dropped"
    assert norm.weight.tolist() == pytest.approx([99.01, 99.01])
    assert adapter.mean_prediction is None, "what was seen of it is not finite"


def test_half_precision_trains() -> None:
    adapter = Roid(make_tiny("batchnorm"))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        logits = [adapter(x) for x in noise_batches(3)]
    assert all(y.isfinite().all() and y.dtype == torch.float32 for y in logits)
    assert not adapter.last.events
    assert adapter.mean_prediction is not None
    assert adapter.mean_prediction.dtype == torch.float32
