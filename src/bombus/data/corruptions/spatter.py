"""Spatter: drops of water (severity 1 to 3) or spots of mud (severity 4 and 5) on the lens.

Differs from the published generator in: the random numbers; and the steps it takes from an image
library (edges after Canny, 5 x 5 chamfer distances, histogram equalisation) are our own, for a
whole batch at once. A layer without any liquid leaves the picture as it is.

Legend: N images, H x W pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bombus.data.corruptions import filters
from bombus.data.corruptions.constants import Level
from bombus.data.corruptions.random import Draws

_MUD = (63, 42, 20)
_WATER = (175, 238, 238)  # pale turquoise
_FARTHEST = 20  # distances from a drop's rim count up to here
_FAR = 1 << 20
# Chamfer steps to the neighbours, in 1/65536 of a pixel: straight, diagonal, knight's move.
_STRAIGHT, _DIAGONAL, _KNIGHT = 65536, 91750, 143976


def spatter(images: Tensor, draws: Draws, level: Level) -> Tensor:
    """uint8 (N, 3, H, W) to 0 .. 255, real."""
    mean, spread, sigma, threshold, strength, mud = level
    height, width = images.shape[2:]
    layer = filters.snap(draws.normal(height, width).mul_(spread).add_(mean))
    layer = filters.gaussian(layer, sigma)
    layer = torch.where(layer < threshold, 0.0, layer)
    colours = images.double()
    if mud:
        spots = filters.gaussian((layer > threshold).to(torch.uint8), strength)
        spots = torch.where(spots < 0.8, 0.0, spots)[:, None]
        return colours * (1 - spots) + spots * _colour(_MUD, images)
    drops = (layer * 255).to(torch.uint8)
    light = drops * _relief(drops)
    brightest = light.amax(dim=(1, 2), keepdim=True).clamp(min=1)
    glint = (light / brightest * strength)[:, None]
    return colours + glint * _colour(_WATER, images)


def _colour(rgb: tuple[int, int, int], like: Tensor) -> Tensor:
    return torch.tensor(rgb, dtype=torch.float64, device=like.device)[:, None, None]


def _relief(drops: Tensor) -> Tensor:
    """How light falls on drops, bytes (N, H, W): the embossed distance to their rims."""
    distance = _distance(_edges(drops.int())).clamp_(max=_FARTHEST << 16)
    # The mean of 3 x 3 distances, cut to whole pixels.
    smooth = _sum3x3(distance.long()) // (9 << 16)
    embossed = _emboss(_equalised(smooth)).clamp_(0, 255)
    return torch.div(2 * _sum3x3(embossed) + 9, 18, rounding_mode="floor").double()


def _padded(values: Tensor, border: filters.Border) -> Tensor:
    """(N, H, W) with one more pixel on each side: "nearest" aa|abc|c or "mirror" b|abc|b."""
    for dim in (1, 2):
        size = values.shape[dim]
        place = np.arange(-1, size + 1)
        seen = (
            place.clip(0, size - 1) if border == "nearest" else filters.mirrored(place, size, False)
        )
        values = values.index_select(dim, torch.from_numpy(seen).to(values.device))
    return values


def _neighbour(padded: Tensor, dy: int, dx: int, margin: int = 1) -> Tensor:
    height, width = padded.shape[1] - 2 * margin, padded.shape[2] - 2 * margin
    top, left = margin + dy, margin + dx
    return padded[:, top : top + height, left : left + width]


def _sum3x3(values: Tensor) -> Tensor:
    padded = _padded(values, "mirror")
    line = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return line[:, :, :-2] + line[:, :, 1:-1] + line[:, :, 2:]


def _emboss(values: Tensor) -> Tensor:
    padded = _padded(values, "mirror")
    lit = 2 * (_neighbour(padded, 1, 1) - _neighbour(padded, -1, -1))
    lit += _neighbour(padded, 0, 0) + _neighbour(padded, 0, 1) + _neighbour(padded, 1, 0)
    return lit - _neighbour(padded, -1, 0) - _neighbour(padded, 0, -1)


def _edges(values: Tensor, low: int = 50, high: int = 150) -> Tensor:
    """Canny's edges of int32 (N, H, W): Sobel slopes, thinned; strong ones and their weak ends."""
    padded = _padded(values, "nearest")
    east = _neighbour(padded, -1, 1) + 2 * _neighbour(padded, 0, 1) + _neighbour(padded, 1, 1)
    west = _neighbour(padded, -1, -1) + 2 * _neighbour(padded, 0, -1) + _neighbour(padded, 1, -1)
    south = _neighbour(padded, 1, -1) + 2 * _neighbour(padded, 1, 0) + _neighbour(padded, 1, 1)
    north = _neighbour(padded, -1, -1) + 2 * _neighbour(padded, -1, 0) + _neighbour(padded, -1, 1)
    slope_x, slope_y = east - west, south - north
    steepness = slope_x.abs() + slope_y.abs()

    # Thinning: an edge pixel is steeper than both neighbours across the edge.
    around = torch.nn.functional.pad(steepness, (1, 1, 1, 1))
    tangent = 13573  # tan(22.5 degrees) in 1/32768
    flat, steep = slope_x.abs().long(), slope_y.abs().long() << 15
    across_x = steep < flat * tangent
    across_y = steep > flat * (tangent + (1 << 16))
    falling = (slope_x ^ slope_y) >= 0  # the slope points along the main diagonal

    def peak(dy: int, dx: int, ties: bool) -> Tensor:
        before, after = _neighbour(around, -dy, -dx), _neighbour(around, dy, dx)
        return (steepness > before) & ((steepness >= after) if ties else (steepness > after))

    diagonal = torch.where(falling, peak(1, 1, False), peak(1, -1, False))
    thin = torch.where(
        across_x, peak(0, 1, True), torch.where(across_y, peak(1, 0, True), diagonal)
    )
    weak = thin & (steepness > low)
    edges = weak & (steepness > high)
    while True:  # grow the strong edges along the weak ones; ends in the same set for any batch
        near = torch.nn.functional.max_pool2d(edges[:, None].float(), 3, 1, 1)[:, 0] > 0
        grown = weak & near
        if torch.equal(grown, edges):
            return edges
        edges = grown


def _distance(edges: Tensor) -> Tensor:
    """Chamfer distance (N, H, W) to the nearest edge, int32 in 1/65536 pixel, up to `_FARTHEST`."""
    moves = [(dy, dx) for dy in range(-2, 3) for dx in range(-2, 3)]
    costs = {1: _STRAIGHT, 2: _DIAGONAL, 5: _KNIGHT}
    far = _FAR << 10
    distance = torch.where(edges, 0, far).int()
    for _ in range(_FARTHEST):  # each move is at least a pixel long, so that many reach far enough
        around = torch.nn.functional.pad(distance, (2, 2, 2, 2), value=far)
        for dy, dx in moves:
            cost = costs.get(dy * dy + dx * dx)
            if cost is not None:
                distance = torch.minimum(distance, _neighbour(around, dy, dx, margin=2) + cost)
    return distance


def _equalised(values: Tensor) -> Tensor:
    """Whole numbers 0 .. 20 (N, H, W) spread over 0 .. 255, so that all levels are used alike."""
    count, height, width = values.shape
    flat = values.flatten(1)
    bins = torch.zeros(count, _FARTHEST + 1, dtype=torch.int64, device=values.device)
    bins.scatter_add_(1, flat, torch.ones_like(flat))
    first = flat.amin(dim=1, keepdim=True)
    lowest = bins.gather(1, first)
    rest = height * width - lowest
    below = bins.cumsum(dim=1) - lowest
    table = (below.clamp(min=0).double() * 255 / rest.clamp(min=1)).round()
    table = torch.where(rest == 0, first.to(table.dtype), table)  # a single level stays
    return table.long().gather(1, flat).reshape(values.shape)
