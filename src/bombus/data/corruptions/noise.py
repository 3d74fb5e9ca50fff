"""Gaussian, shot, impulse and speckle noise: every value of every channel on its own.

Differs from the published generator in: the random numbers, and nothing else. Shot noise draws true
Poisson numbers, by looking the uniforms up in the exact distributions.

Legend: N images, H x W pixels; every function takes uint8 (N, 3, H, W) and returns 0 .. 255, real.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bombus.data.corruptions.constants import Level
from bombus.data.corruptions.filters import divided
from bombus.data.corruptions.random import Draws


def gaussian_noise(images: Tensor, draws: Draws, level: Level) -> Tensor:
    (sigma,) = level
    noise = draws.normal(*images.shape[1:]).mul_(sigma)
    return noise.mul_(255).add_(images)


def speckle_noise(images: Tensor, draws: Draws, level: Level) -> Tensor:
    (sigma,) = level
    share = draws.normal(*images.shape[1:]).mul_(sigma).add_(1)
    return share.mul_(images)


def impulse_noise(images: Tensor, draws: Draws, level: Level) -> Tensor:
    (amount,) = level
    chance = draws.uniform(*images.shape[1:])
    noisy = torch.where(chance < amount, 0, images)
    return torch.where(chance < amount / 2, 255, noisy)


def shot_noise(images: Tensor, draws: Draws, level: Level) -> Tensor:
    (photons,) = level
    # A byte has 256 values, so there are 256 Poisson distributions. Distribution v is shifted to
    # the interval [v, v + 1], which makes one sorted list and all look-ups one search.
    steps = poisson_steps(photons)  # (256, K)
    shift = torch.arange(256, dtype=torch.float64)[:, None]
    sorted_steps = (steps + shift).reshape(-1).to(images.device)
    place = draws.uniform(*images.shape[1:]).add_(images)
    found = torch.searchsorted(sorted_steps, place, right=True)
    counts = found - images.long() * steps.shape[1]
    return divided(counts.double() * 255, photons)


def poisson_steps(photons: float) -> Tensor:
    """(256, K): row v holds P(X <= k) for k < K, X being Poisson with mean v / 255 * photons."""
    most = math.ceil(photons + 12 * math.sqrt(photons) + 20)  # beyond: less than the uniforms' grid
    mean = torch.arange(256, dtype=torch.float64)[:, None] / 255 * photons
    count = torch.arange(most, dtype=torch.float64)
    log_mass = torch.xlogy(count, mean) - mean - torch.lgamma(count + 1)
    steps = log_mass.exp().cumsum(dim=1).clamp_(max=1)
    steps[:, -1] = 1
    return steps
