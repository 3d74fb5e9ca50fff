"""Histograms of oriented gradients (Dalal and Triggs, CVPR 2005), as MaskFeat has them.

Wei et al., Masked Feature Prediction for Self-Supervised Visual Pre-Training, CVPR 2022,
https://arxiv.org/abs/2112.09133. Sobel's gradient of each colour by itself, the border reflected;
directions in half a turn, light to dark the same as dark to light; each pixel votes with the length
of its gradient for one bin, the cell's votes are one unit vector. No window, no larger blocks.

Additions alone, no convolution: a CPU and a GPU differ by roundings at most, in any precision mode.

Shapes: N images, C colours, B bins, T patches.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bombus.losses.precision import at_least_single

BINS = 9
CELLS = 2  # a side of a patch


def cell_histograms(x: Tensor, cell: int) -> Tensor:
    """The histogram (N, C, B, H / cell, W / cell) of every cell of images (N, C, H, W).

    Bin b has the directions from b to b + 1 ninths of half a turn, from a gradient along a column
    (b = 0) by way of one along a row (the middle of b = 4). A cell without any gradient is zero.
    """
    across, down = sobel(at_least_single(x))
    length = torch.hypot(across, down)
    bins = (torch.atan2(across, down) * (BINS / math.pi)).floor() % BINS
    n, c, height, width = x.shape
    cells = (n, c, height // cell, cell, width // cell, cell)
    # One bin at a time: all at once they would be nine images an image.
    votes = [torch.where(bins == b, length, 0).view(cells).sum((3, 5)) for b in range(BINS)]
    return F.normalize(torch.stack(votes, 2), dim=2)


def patch_histograms(x: Tensor, patch: int) -> Tensor:
    """What a patch (patch x patch pixels) looks like in 36 C numbers: (N, T, C * B * 2 * 2).

    A patch has 2 x 2 cells whatever its size, so that 16 pixels have MaskFeat's cells of 8.
    Patches go row by row.
    """
    cells = cell_histograms(x, patch // CELLS)
    n, c, b, rows, columns = cells.shape
    grid = cells.view(n, c * b, rows // CELLS, CELLS, columns // CELLS, CELLS)
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def sobel(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eight times the slope of images (N, C, H, W), along the rows and along the columns."""
    around = F.pad(x, (1, 1, 1, 1), mode="reflect")
    across = around[..., 2:] - around[..., :-2]
    down = around[..., 2:, :] - around[..., :-2, :]
    return (
        across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :],
        down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:],
    )
