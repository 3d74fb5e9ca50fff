"""Defocus, glass, motion, zoom and Gaussian blur.

Differs from the published generator in: sums are exact, so that a flat patch stays flat where the
published floating-point sums may fall one level short; the shuffle of glass blur is resolved for
all pixels at once (see `_shuffle_sources`), to the same result as its walk from pixel to pixel.

Legend: N images, H x W pixels; every function takes uint8 (N, 3, H, W) and returns 0 .. 255, real.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bombus.data.corruptions import filters
from bombus.data.corruptions.constants import Level
from bombus.data.corruptions.random import Draws


def gaussian_blur(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    (sigma,) = level
    return filters.gaussian(images, sigma)


def defocus_blur(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    radius, softness = level
    return filters.correlate(images, disk(radius, softness))


def disk(radius: float, softness: float) -> filters.Array:
    """A disk of whole pixels, its rim softened by a Gaussian of 3 taps (5 for the large disks)."""
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    line = np.arange(-reach, reach + 1)
    full = (line[:, None] ** 2 + line[None, :] ** 2 <= radius**2).astype(np.float64)
    offsets = np.arange(taps) - taps // 2
    weights = np.exp(-0.5 * (offsets / softness) ** 2)
    soften = np.zeros((len(line), len(line)))
    for offset, weight in zip(offsets, weights / weights.sum(), strict=True):
        seen = filters.mirrored(np.arange(len(line)) + offset, len(line), False)
        np.add.at(soften, (np.arange(len(line)), seen), weight)
    kernel: filters.Array = soften @ full @ soften.T
    kernel /= kernel.sum()
    return kernel


def motion_blur(images: Tensor, draws: Draws, level: Level) -> Tensor:
    radius, sigma = level
    degrees = draws.uniform(1)[:, 0] * 90 - 45
    return filters.motion_blur(images, radius, sigma, degrees)


def zoom_blur(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    stop, step = level
    factors = np.arange(1, stop, step)  # with numpy's own idea of where a range of floats ends
    total = images.double()
    for factor in factors:
        total += filters.clipped_zoom(images, float(factor))
    return filters.divided(total, len(factors) + 1)


def glass_blur(images: Tensor, draws: Draws, level: Level) -> Tensor:
    sigma, reach, rounds = level[0], int(level[1]), int(level[2])
    count, channels, height, width = images.shape
    flat = filters.gaussian(images, sigma).to(torch.uint8).reshape(count, channels, -1)
    for _ in range(rounds):
        offsets = draws.integer(-reach, reach, 2, height, width)
        sources = _shuffle_sources(offsets, reach)
        flat = flat.gather(2, sources[:, None].expand_as(flat))
    return filters.gaussian(flat.reshape(images.shape), sigma)


def _shuffle_sources(offsets: Tensor, reach: int) -> Tensor:
    """Where each pixel comes from after one round of shuffling; flat positions (N, H * W).

    The published walk goes from the bottom right to the top left and, at each pixel inside the
    frame, copies the pixel found at the offset (it means to swap, but writes through views). A
    pixel visited before already holds a copy, so its own source is the true one: chains of such
    visits are followed by doubling, and every chain ends because it only goes back in time.
    """
    count, _, height, width = offsets.shape
    device = offsets.device
    place = torch.arange(height * width, device=device)
    y, x = place // width, place % width
    inside = (y > reach) & (y <= height - reach) & (x > reach) & (x <= width - reach)
    step = (offsets[:, 1] * width + offsets[:, 0]).reshape(count, -1)
    source = place + step * inside  # (N, H * W)
    # The walk visits places in falling order: a source at a higher place was visited before.
    if reach > 1:  # with a reach of 1 the offsets are -1 and 0, which never lead back
        revisits = (source > place) & inside & inside[source]
        earlier = torch.where(revisits, source, place)
        while True:
            further = earlier.gather(1, earlier)
            if torch.equal(further, earlier):
                break
            earlier = further
        source = source.gather(1, earlier)
    return source
