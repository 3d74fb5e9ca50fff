"""The counter-based random numbers: distributions, independence, and no memory of the batch."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from bombus.data.corruptions.noise import poisson_steps, shot_noise
from bombus.data.corruptions.random import Draws

INDEX = torch.arange(400)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].item()


def test_uniforms_are_uniform_and_open() -> None:
    numbers = Draws(0, "test", INDEX).uniform(500)
    assert 0 < numbers.min() < numbers.max() < 1
    counts = torch.histc(numbers, bins=100, min=0, max=1)
    # chi-squared with 99 degrees of freedom: mean 99, standard deviation 14
    chi = ((counts - 2000) ** 2 / 2000).sum().item()
    assert 99 - 5 * 14 < chi < 99 + 5 * 14


def test_normals_are_normal() -> None:
    numbers = Draws(1, "test", INDEX).normal(501)
    size = numbers.numel()
    assert abs(numbers.mean().item()) < 5 / math.sqrt(size)
    assert numbers.var().item() == pytest.approx(1, abs=5 * math.sqrt(2 / size))
    assert stats.kstest(numbers.flatten().numpy(), "norm").pvalue > 1e-4
    assert (numbers.abs() > 3).double().mean().item() == pytest.approx(0.0027, abs=0.0006)


def test_integers_cover_their_range_alike() -> None:
    numbers = Draws(2, "test", INDEX).integer(-3, 4, 300)
    values, counts = numbers.unique(return_counts=True)
    assert values.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert (counts / numbers.numel() - 1 / 7).abs().max() < 0.005


def test_samples_positions_calls_seeds_and_purposes_are_independent() -> None:
    draws = Draws(0, "test", INDEX)
    first, second = draws.normal(500), draws.normal(500)
    limit = 5 / math.sqrt(first.numel())
    assert abs(correlation(first, second)) < limit
    assert abs(correlation(first[:-1], first[1:])) < limit  # neighbouring samples
    assert abs(correlation(first[:, :-1], first[:, 1:])) < limit  # neighbouring positions
    assert abs(correlation(first[:, :250], first[:, 250:])) < limit * math.sqrt(2)  # cos and sin
    assert abs(correlation(first, Draws(1, "test", INDEX).normal(500))) < limit
    assert abs(correlation(first, Draws(0, "other", INDEX).normal(500))) < limit
    uniform = Draws(0, "test", INDEX).uniform(500)
    assert abs(correlation(uniform[:-1], uniform[1:])) < limit
    assert len(torch.cat([first.flatten(), second.flatten()]).unique()) > 0.98 * 2 * first.numel()


def test_numbers_belong_to_the_sample_not_to_the_batch() -> None:
    whole = Draws(7, "test", INDEX)
    part = Draws(7, "test", INDEX[[123, 5]])
    for _ in range(2):
        assert torch.equal(whole.normal(77)[[123, 5]], part.normal(77))
        assert torch.equal(whole.uniform(3, 11)[[123, 5]], part.uniform(3, 11))


def test_poisson_steps_are_the_exact_distribution() -> None:
    for photons in (3.0, 50.0, 500.0):
        steps = poisson_steps(photons)
        for value in (0, 1, 100, 255):
            exact = stats.poisson.cdf(range(steps.shape[1]), value / 255 * photons)
            assert (steps[value] - torch.from_numpy(exact)).abs().max() < 1e-10


@pytest.mark.parametrize(("photons", "value"), [(3.0, 255), (50.0, 40), (500.0, 200)])
def test_shot_noise_has_the_mean_and_variance_of_poisson(photons: float, value: int) -> None:
    images = torch.full((50, 3, 32, 32), value, dtype=torch.uint8)
    noisy = shot_noise(images, Draws(0, "test", torch.arange(50)), (photons,))
    counts = noisy * photons / 255
    mean = value / 255 * photons
    assert torch.allclose(counts, counts.round(), atol=1e-9)
    assert counts.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(mean / counts.numel()))
    assert counts.var().item() == pytest.approx(mean, rel=0.03)
