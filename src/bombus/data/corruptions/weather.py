"""Snow, frost and fog.

Differs from the published generator in: the random numbers; and frost lays our own drawn ice
(see ice.py) over the picture unless a folder with the original photographs is given.

Legend: N images, H x W pixels; every function takes uint8 (N, 3, H, W) and returns 0 .. 255, real.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bombus.data.corruptions import filters
from bombus.data.corruptions.constants import Level
from bombus.data.corruptions.random import Draws


def snow(images: Tensor, draws: Draws, level: Level) -> Tensor:
    mean, spread, zoom, threshold, radius, sigma, kept = level
    height, width = images.shape[2:]
    flakes = filters.snap(draws.normal(1, height, width).mul_(spread).add_(mean))
    flakes = filters.clipped_zoom(flakes, zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp_(0, 1).mul_(255).to(torch.uint8)
    degrees = draws.uniform(1)[:, 0] * 90 - 135
    falling = filters.motion_blur(flakes, radius, sigma, degrees)  # (N, 1, H, W)

    colours = images.double()
    red, green, blue = colours.unbind(1)
    grey = (red * 0.299 + green * 0.587 + blue * 0.114)[:, None]
    whitened = torch.maximum(colours, grey * 1.5 + 127.5)
    return colours * kept + whitened * (1 - kept) + falling + falling.flip(2, 3)


def frost(images: Tensor, draws: Draws, level: Level, textures: list[Tensor]) -> Tensor:
    """`textures`: uint8 (3, H', W') on the images' device, each larger than the images."""
    picture_weight, ice_weight = level[:2]
    height, width = images.shape[2:]
    chosen = draws.integer(0, len(textures), 1)[:, 0]
    corner = draws.uniform(2)
    y = torch.arange(height, device=images.device)[:, None]
    x = torch.arange(width, device=images.device)
    ice = torch.empty_like(images)
    for number, texture in enumerate(textures):
        mine = chosen == number
        rows, columns = texture.shape[1:]
        top = (corner[mine, 0] * (rows - height)).long()[:, None, None]
        left = (corner[mine, 1] * (columns - width)).long()[:, None, None]
        place = (top + y) * columns + (left + x)  # (n, H, W)
        ice[mine] = texture.flatten(1)[:, place].transpose(0, 1)
    return images.double() * picture_weight + ice.double() * ice_weight


def fog(images: Tensor, draws: Draws, level: Level) -> Tensor:
    strength, decay, side = level[0], level[1], int(level[2])
    height, width = images.shape[2:]
    while side < max(height, width):
        side *= 2
    mist = _plasma(draws, side, decay)[:, None, :height, :width]
    colours = images.double()
    brightest = colours.amax(dim=(1, 2, 3), keepdim=True)
    white = 255 * strength
    return (colours + mist * white) * (brightest / (brightest + white))


def _plasma(draws: Draws, side: int, decay: float) -> Tensor:
    """Diamond-square height maps (N, side, side) in [0, 1] that wrap around at the borders."""
    heights = draws.zeros(side, side)
    step, roughness = side, 100.0

    def roughened(total: Tensor) -> Tensor:
        # The published code multiplies by the roughness twice, and so falls twice as fast.
        wobble = draws.uniform(*total.shape[1:]).mul_(2).sub_(1).mul_(roughness * roughness)
        return total / 4 + wobble

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        beside = corners + corners.roll(-1, 1)
        centres = roughened(beside + beside.roll(-1, 2))
        heights[:, half::step, half::step] = centres
        across = corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)
        heights[:, ::step, half::step] = roughened(across)
        down = corners + corners.roll(-1, 1) + centres + centres.roll(1, 2)
        heights[:, half::step, ::step] = roughened(down)
        step = half
        roughness /= decay
    heights = heights - heights.amin(dim=(1, 2), keepdim=True)
    return heights / heights.amax(dim=(1, 2), keepdim=True)
