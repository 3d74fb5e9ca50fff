"""Geometry: mirror, rotation, translation, scale and crop, each sample its own."""

from __future__ import annotations

from math import pi
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bombus.data.augment._draw import Range, coin, count, uniform, working
from bombus.errors import InputError
from bombus.transfer import send

Padding = Literal["edge", "reflect", "zero"]
_GRID_SAMPLE = {"edge": "border", "reflect": "reflection", "zero": "zeros"}


def flip(x: Tensor) -> Tensor:
    """Mirror left and right."""
    return x.flip(-1)


def random_flip(
    x: Tensor, generator: torch.Generator, p: float = 0.5, *, per_sample: bool = True
) -> Tensor:
    """Mirror each sample with probability p."""
    return torch.where(coin(p, count(x, per_sample), generator, x), x.flip(-1), x)


def affine(
    x: Tensor,
    degrees: Tensor,
    right: Tensor,
    down: Tensor,
    scale: Tensor,
    *,
    padding: Padding = "edge",
    margin: int = 0,
) -> Tensor:
    """Scale and turn clockwise about the centre, then move by pixels; bilinear.

    The parameters have shape (n, 1, 1, 1), n = N or 1. `margin` more pixels are computed on every
    side of the image. "reflect" mirrors at the outer side of the border pixels, which so appear
    twice. The grid is built by elementwise arithmetic, not by torch's affine_grid, which is a
    matrix product and rounds the coordinates to eleven bits where TF32 is allowed.
    """
    height, width = x.shape[2:]
    angle = degrees * (pi / 180)
    cosine, sine = (angle.cos() / scale)[..., 0], (angle.sin() / scale)[..., 0]  # (n, 1, 1)
    across = torch.arange(-margin, width + margin, device=x.device, dtype=x.dtype)
    along = torch.arange(-margin, height + margin, device=x.device, dtype=x.dtype)
    u = (across - (width - 1) / 2) - right[..., 0]  # (n, 1, W'), pixels from the moved centre
    v = (along - (height - 1) / 2)[:, None] - down[..., 0]  # (n, H', 1)
    # The inverse map in grid_sample's units, where ±1 are the outer sides of the border pixels.
    grid = torch.stack(
        (
            cosine * u * (2 / width) + sine * v * (2 / width),
            cosine * v * (2 / height) - sine * u * (2 / height),
        ),
        dim=-1,
    )  # (n, H', W', 2)
    out = F.grid_sample(
        x,
        grid.expand(len(x), -1, -1, -1),
        mode="bilinear",
        padding_mode=_GRID_SAMPLE[padding],
        align_corners=False,
    )
    return out.clamp_(0, 1)  # the four weights sum to one up to rounding


def random_affine(
    x: Tensor,
    generator: torch.Generator,
    *,
    degrees: float = 15,
    translate: float = 1 / 16,
    scale: Range = (0.9, 1.1),
    padding: Padding = "edge",
    per_sample: bool = True,
) -> Tensor:
    """Turn by up to ±degrees, move by up to ±translate of the side, and scale.

    Translations are of any fraction of a pixel. All parameters are drawn whatever their ranges.
    """
    out = working(x)
    n = count(x, per_sample)
    height, width = x.shape[2:]
    angle = uniform((-degrees, degrees), n, generator, out)
    right = uniform((-translate * width, translate * width), n, generator, out)
    down = uniform((-translate * height, translate * height), n, generator, out)
    factor = uniform(scale, n, generator, out)
    return affine(out, angle, right, down, factor, padding=padding).to(x.dtype)


def random_crop(x: Tensor, generator: torch.Generator, pixels: int = 2) -> Tensor:
    """Pad by `pixels` by reflection and crop back: a shift by whole pixels, each sample its own.

    The border pixel is the mirror and appears once, as in torch's and numpy's "reflect".
    """
    height, width = x.shape[2:]
    if not 0 <= pixels < min(height, width):
        raise InputError(
            f"pixels={pixels} must be at least 0 and less than the side of the images, "
            f"which are {height} by {width}"
        )
    drawn = torch.randint(
        -pixels, pixels + 1, (2, len(x), 1), generator=generator, device=generator.device
    )
    shift = send(drawn, x.device)
    rows = _reflect(torch.arange(height, device=x.device) + shift[0], height)  # (N, H)
    columns = _reflect(torch.arange(width, device=x.device) + shift[1], width)  # (N, W)
    out = x.gather(2, rows[:, None, :, None].expand(x.shape))
    return out.gather(3, columns[:, None, None, :].expand(x.shape))


def _reflect(index: Tensor, size: int) -> Tensor:
    return (size - 1) - ((size - 1) - index.abs()).abs()
