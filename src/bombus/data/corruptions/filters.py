"""Linear filters whose bytes do not depend on the batch: all sums are exact.

A library may sum in another order for another batch size, and the last bit then decides whether a
value is cut to 41 or 42. Here weights lie on a dyadic grid and inputs are integers (or on a grid as
well), so that every partial sum fits the number format and the order of summation cannot matter.

Legend: N images, C channels, H x W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Border = Literal["nearest", "mirror"]  # aa|abc|cc or ba|abc|cb

# Two passes of 18-bit weights over 16-bit inputs: 52 bits, which float64 holds exactly.
_WEIGHT_GRID = 2.0**18
_VALUE_GRID = 2.0**13
# Weights of the int32 sums: 255 * 2^22 < 2^31.
_FIXED_ONE = 2**22


def snap(values: Tensor) -> Tensor:
    """Values in (-8, 8) put on the grid that `separable` sums exactly."""
    return (values * _VALUE_GRID).round_().mul_(1 / _VALUE_GRID)


def divided(values: Tensor, by: float) -> Tensor:
    """values / by, correctly rounded on every device.

    CUDA divides by a plain number through its reciprocal, and 27 * 41 / 27 may then be cut to 40;
    by a tensor it divides properly.
    """
    return values / torch.full((), by, dtype=torch.float64, device=values.device)


def _on_grid(weights: Array, grid: float) -> Array:
    """Rows rounded to the grid, each summing to exactly one: a flat picture stays what it is."""
    total = weights.sum(axis=1, keepdims=True)
    rounded: Array = np.round(weights / total * grid)
    largest = np.abs(rounded).argmax(axis=1)
    rounded[np.arange(len(rounded)), largest] += grid - rounded.sum(axis=1)
    return rounded / grid


def separable(images: Tensor, rows: Array, columns: Array) -> Tensor:
    """rows (H', H) and columns (W', W) applied to (..., H, W); float64."""
    device = images.device
    down = torch.from_numpy(_on_grid(rows, _WEIGHT_GRID)).to(device)
    across = torch.from_numpy(_on_grid(columns, _WEIGHT_GRID)).to(device)
    return down @ (images.double() @ across.T)


def mirrored(position: NDArray[np.int64], size: int, repeat_edge: bool) -> NDArray[np.int64]:
    """Positions outside 0 .. size-1 folded back: dcba|abcd|dcba, or dcb|abcd|cba."""
    if size == 1:
        return np.zeros_like(position)
    period = 2 * size if repeat_edge else 2 * size - 2
    folded = position % period
    return np.minimum(folded, period - folded - int(repeat_edge))


def gaussian_matrix(size: int, sigma: float, truncate: float, border: Border) -> Array:
    """The Gaussian filter of one axis as a matrix."""
    radius = int(truncate * sigma + 0.5)
    matrix = np.zeros((size, size))
    if radius == 0:
        np.fill_diagonal(matrix, 1.0)
        return matrix
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    here = np.arange(size)
    for offset, weight in zip(offsets, weights / weights.sum(), strict=True):
        seen = here + offset
        seen = seen.clip(0, size - 1) if border == "nearest" else mirrored(seen, size, True)
        np.add.at(matrix, (here, seen), weight)
    return matrix


def gaussian(
    images: Tensor, sigma: float, truncate: float = 4.0, border: Border = "nearest"
) -> Tensor:
    """(..., H, W) smoothed; integers up to 255 or values from `snap`; float64, exact."""
    height, width = images.shape[-2:]
    return separable(
        images,
        gaussian_matrix(height, sigma, truncate, border),
        gaussian_matrix(width, sigma, truncate, border),
    )


def zoom_matrix(size: int, factor: float) -> Array:
    """One axis of a zoom into the middle, linear between the cropped pixels' centres."""
    cropped = math.ceil(size / factor)
    top = (size - cropped) // 2
    zoomed = round(cropped * factor)
    trim = (zoomed - size) // 2
    step = (cropped - 1) / (zoomed - 1) if zoomed > 1 else 0.0
    position = np.minimum((np.arange(size) + trim) * step, cropped - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, cropped - 1)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size), top + below), 1 - (position - below))
    np.add.at(matrix, (np.arange(size), top + above), position - below)
    return matrix


def clipped_zoom(images: Tensor, factor: float) -> Tensor:
    """(..., H, W) zoomed into the middle and cut to the same size; float64, exact."""
    height, width = images.shape[-2:]
    return separable(images, zoom_matrix(height, factor), zoom_matrix(width, factor))


def fixed_point(weights: Iterable[float]) -> list[int]:
    """Weights as integers that sum to exactly `_FIXED_ONE`."""
    return [int(w * _FIXED_ONE) for w in _on_grid(np.array([list(weights)]), _FIXED_ONE)[0]]


def correlate(images: Tensor, kernel: Array) -> Tensor:
    """(N, C, H, W) of bytes with a kernel summing to one, border dcb|abcd|cba; float64, exact."""
    height, width = images.shape[-2:]
    reach_y, reach_x = kernel.shape[0] // 2, kernel.shape[1] // 2
    device = images.device
    rows = torch.from_numpy(mirrored(np.arange(-reach_y, height + reach_y), height, False))
    columns = torch.from_numpy(mirrored(np.arange(-reach_x, width + reach_x), width, False))
    padded = images.int()[..., rows.to(device), :][..., columns.to(device)]
    total = torch.zeros(images.shape, dtype=torch.int32, device=device)
    weights = fixed_point(kernel.ravel())
    for place, weight in enumerate(weights):
        if weight:
            top, left = divmod(place, kernel.shape[1])
            total.add_(padded[..., top : top + height, left : left + width], alpha=weight)
    return total.double() / _FIXED_ONE


def motion_blur(images: Tensor, radius: float, sigma: float, degrees: Tensor) -> Tensor:
    """(N, C, H, W) of bytes smeared along an angle (N,) per image; whole numbers as float64.

    ImageMagick's filter: half a Gaussian of 2 radius + 1 taps that trails off to one side, each tap
    at the nearest whole pixel of the line, the border pixels repeated outwards.
    """
    count, channels, height, width = images.shape
    taps = 2 * math.ceil(radius) + 1
    weights = fixed_point(math.exp(-0.5 * (tap / sigma) ** 2) for tap in range(taps))
    radians = torch.deg2rad(degrees)
    # Snapped, so that the last bits of cos and sin cannot move a tap to the next pixel.
    along_x = (torch.cos(radians) * 2.0**20).round_().mul_(2.0**-20)
    along_y = (torch.sin(radians) * 2.0**20).round_().mul_(2.0**-20)
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    flat = images.int().reshape(count, channels, height * width)
    total = torch.zeros_like(flat)
    for tap, weight in enumerate(weights):
        if not weight:
            continue
        shift_x = torch.ceil(tap * along_x - 0.5).long()[:, None]  # (N, 1)
        shift_y = torch.ceil(tap * along_y - 0.5).long()[:, None]
        seen_x = (x + shift_x).clamp_(0, width - 1)  # (N, W)
        seen_y = (y + shift_y).clamp_(0, height - 1)  # (N, H)
        seen = (seen_y[:, :, None] * width + seen_x[:, None, :]).reshape(count, 1, -1)
        total.add_(flat.gather(2, seen.expand_as(flat)), alpha=weight)
    # ImageMagick rounds to 16 bits (257 to a level); the published bytes are cut from those.
    sixteen_bits = (total.double() * (257 / _FIXED_ONE) + 0.5).floor_()
    return divided(sixteen_bits, 257).floor_().reshape(images.shape)
