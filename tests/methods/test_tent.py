"""TENT's update, derived by hand: plain loops in float64, Adam and SGD written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bombus.methods.tent import Tent


class OneNorm(nn.Module):
    """Small enough to differentiate by hand: BatchNorm over 2 channels, then class sums."""

    def __init__(self, mix: Tensor) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.mix = nn.Parameter(mix)
        self.num_classes = 3

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x[:, :2]).mean((2, 3)) @ self.mix


def entropy_gradient(
    x: list[list[list[float]]], mix: list[list[float]], scale: list[float], shift: list[float]
) -> tuple[list[float], list[float]]:
    """d mean entropy / d (scale, shift); x is (N, channels, pixels)."""
    n, channels, classes = len(x), 2, 3
    pooled = [[0.0] * channels for _ in range(n)]  # the normalised features, averaged over pixels
    for c in range(channels):
        values = [v for sample in x for v in sample[c]]
        mean = sum(values) / len(values)
        variance = sum((v - mean) ** 2 for v in values) / len(values)
        for i in range(n):
            normed = [(v - mean) / math.sqrt(variance + 1e-5) for v in x[i][c]]
            pooled[i][c] = sum(normed) / len(normed)
    d_scale, d_shift = [0.0] * channels, [0.0] * channels
    for i in range(n):
        feature = [pooled[i][c] * scale[c] + shift[c] for c in range(channels)]
        logits = [sum(feature[c] * mix[c][k] for c in range(channels)) for k in range(classes)]
        total = sum(math.exp(v) for v in logits)
        p = [math.exp(v) / total for v in logits]
        entropy = -sum(v * math.log(v) for v in p)
        # dH/dlogit_k = -p_k (log p_k + H)
        d_logits = [-p[k] * (math.log(p[k]) + entropy) / n for k in range(classes)]
        for c in range(channels):
            d_feature = sum(d_logits[k] * mix[c][k] for k in range(classes))
            d_scale[c] += d_feature * pooled[i][c]
            d_shift[c] += d_feature
    return d_scale, d_shift


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps", [1, 3])
def test_update_by_hand(optimizer: str, steps: int) -> None:
    generator = torch.Generator().manual_seed(2)
    mix = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    adapter = Tent(OneNorm(mix).double(), Tent.Config(optimizer=optimizer, lr=0.01))
    theta = [1.0, 1.0, 0.0, 0.0]
    m, v = [0.0] * 4, [0.0] * 4
    for step in range(1, steps + 1):
        x = torch.rand(4, 3, 2, 2, generator=generator, dtype=torch.float64)
        adapter(x)
        gradient = [
            g
            for part in entropy_gradient(x.flatten(2).tolist(), mix.tolist(), theta[:2], theta[2:])
            for g in part
        ]
        for i, g in enumerate(gradient):
            if optimizer == "adam":
                m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
                unbiased = math.sqrt(v[i] / (1 - 0.999**step)) + 1e-8
                theta[i] -= 0.01 * m[i] / (1 - 0.9**step) / unbiased
            else:
                m[i] = g if step == 1 else 0.9 * m[i] + g
                theta[i] -= 0.01 * (g + 0.9 * m[i])
    norm = adapter.model.get_submodule("norm")
    updated = torch.cat([norm.weight, norm.bias]).tolist()
    assert updated == pytest.approx(theta, abs=1e-10, rel=1e-5)


def test_predicts_before_it_updates() -> None:
    model = OneNorm(torch.randn(2, 3, generator=torch.Generator().manual_seed(4)))
    x = torch.rand(6, 3, 4, 4)
    adapter = Tent(model)
    before = adapter.predict(x)
    assert torch.equal(adapter(x), before)
    assert not torch.equal(adapter.predict(x), before)


def test_a_step_that_is_not_finite_is_dropped() -> None:
    model = OneNorm(torch.full((2, 3), 1e38))
    adapter = Tent(model)
    x = torch.rand(6, 3, 4, 4)
    adapter(x)
    assert adapter.last.events[0]["event"] == "step dropped"
    assert torch.equal(adapter.model.get_submodule("norm").weight, torch.ones(2))
