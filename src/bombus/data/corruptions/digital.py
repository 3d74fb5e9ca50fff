"""Brightness, contrast, saturation, elastic transform, pixelation and JPEG.

Differs from the published generator in: the random numbers of the elastic transform; and the HSV
formulas are solved for the colours, which gives the same values without the trip through hue.

Legend: N images, H x W pixels; every function takes uint8 (N, 3, H, W) and returns 0 .. 255, real.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bombus.data.corruptions import filters
from bombus.data.corruptions.constants import Level
from bombus.data.corruptions.random import Draws


def brightness(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    (shift,) = level
    colours = images.double()
    value = colours.amax(dim=1, keepdim=True)
    brighter = (value + shift * 255).clamp_(max=255)
    # Hue and saturation stay, so all three channels grow with the value; black has neither.
    grown = colours * brighter / value.clamp(min=1)
    return torch.where(value > 0, grown, brighter)


def saturate(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    factor, shift = level
    colours = images.double()
    value = colours.amax(dim=1, keepdim=True)
    chroma = value - colours.amin(dim=1, keepdim=True)
    saturation = (chroma / value.clamp(min=1) * factor + shift).clamp_(max=1)
    stretched = value - (value - colours) * (saturation * value / chroma.clamp(min=1))
    # Grey has no hue; HSV counts it as red, so a saturation added from nothing is red.
    reddened = value * (1 - saturation)
    grey = torch.cat([value, reddened, reddened], dim=1)
    return torch.where(chroma > 0, stretched, grey)


def contrast(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    (share,) = level
    height, width = images.shape[2:]
    total = images.sum(dim=(2, 3), keepdim=True, dtype=torch.int64)  # exact in any order
    mean = filters.divided(total.double(), height * width)
    return (images.double() - mean) * share + mean


def elastic_transform(images: Tensor, draws: Draws, level: Level) -> Tensor:
    displacement, sigma, jitter = level
    height, width = images.shape[2:]
    device = images.device
    y = torch.arange(height, device=device, dtype=torch.float64)[:, None]
    x = torch.arange(width, device=device, dtype=torch.float64)

    # An affine map sends three corners of a square in the middle to jittered places. Its inverse
    # says where each pixel comes from: it takes the jittered sides a and b back to the square's.
    square = min(height, width) // 3
    middle = torch.tensor([width // 2, height // 2], device=device, dtype=torch.float64)
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1]], device=device) * square + middle
    moved = corners + (draws.uniform(3, 2) * 2 - 1) * jitter  # (N, 3, xy)
    a, b = moved[:, 0] - moved[:, 1], moved[:, 1] - moved[:, 2]
    scale = 2 * square / (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
    x_from_x, x_from_y = -a[:, 1] * scale, a[:, 0] * scale
    y_from_x, y_from_y = b[:, 1] * scale, -b[:, 0] * scale
    x_shift = corners[0, 0] - x_from_x * moved[:, 0, 0] - x_from_y * moved[:, 0, 1]
    y_shift = corners[0, 1] - y_from_x * moved[:, 0, 0] - y_from_y * moved[:, 0, 1]

    def affine(from_x: Tensor, from_y: Tensor, shift: Tensor) -> Tensor:
        place = from_x[:, None, None] * x + from_y[:, None, None] * y + shift[:, None, None]
        return (place * 32 + 0.5).floor_() / 32  # the published warp knows 32nds of a pixel

    warped = _interpolate(
        images.double(),
        affine(y_from_x, y_from_y, y_shift),
        affine(x_from_x, x_from_y, x_shift),
        repeat_edge=False,
    )
    if displacement == 0:
        return warped
    field = filters.snap(draws.uniform(2, height, width) * 2 - 1)
    field = filters.gaussian(field, sigma, truncate=3.0, border="mirror") * displacement
    return _interpolate(warped, y + field[:, 1], x + field[:, 0], repeat_edge=True)


def _interpolate(images: Tensor, y: Tensor, x: Tensor, repeat_edge: bool) -> Tensor:
    """Bilinear values of (N, C, H, W) at real places y, x (N, H, W), mirrored at the borders."""
    height, width = images.shape[2:]
    flat = images.flatten(2)
    top, left = y.floor(), x.floor()
    down, right = (y - top).flatten(1)[:, None], (x - left).flatten(1)[:, None]  # (N, 1, H * W)

    def fold(place: Tensor, size: int) -> Tensor:
        period = 2 * size if repeat_edge else max(2 * size - 2, 1)
        folded = place.long().remainder_(period)
        return torch.minimum(folded, period - folded - int(repeat_edge))

    def line(row: Tensor) -> Tensor:
        start = fold(row, height) * width
        first = (start + fold(left, width)).flatten(1)[:, None].expand_as(flat)
        second = (start + fold(left + 1, width)).flatten(1)[:, None].expand_as(flat)
        near, far = flat.gather(2, first), flat.gather(2, second)
        return near + (far - near) * right

    upper, lower = line(top), line(top + 1)
    return (upper + (lower - upper) * down).reshape(images.shape)


def pixelate(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    (share,) = level
    height, width = images.shape[2:]
    small = _box_resize(images, max(int(height * share), 1), max(int(width * share), 1))
    return _box_resize(small, height, width)


def _box_resize(images: Tensor, height: int, width: int) -> Tensor:
    """Pillow's BOX filter: means of whole pixels, along x, then along y, rounded twice."""
    return _box_axis(_box_axis(images, width, 3), height, 2)


def _box_axis(images: Tensor, size: int, dim: int) -> Tensor:
    scale = images.shape[dim] / size
    support = max(scale, 1.0) / 2
    centre = (np.arange(size) + 0.5) * scale
    first = np.floor(centre - support + 0.5).astype(np.int64).clip(0)
    last = np.floor(centre + support + 0.5).astype(np.int64).clip(max=images.shape[dim])
    length = last - first
    shape = [1, 1, 1, 1]
    shape[dim] = size
    total: Tensor | None = None
    for step in range(int(length.max())):
        used = step < length
        place = torch.from_numpy(np.where(used, first + step, first)).to(images.device)
        seen = images.index_select(dim, place).int()
        seen *= torch.from_numpy(used.astype(np.int32).reshape(shape)).to(images.device)
        total = seen if total is None else total.add_(seen)
    assert total is not None
    pixels = torch.from_numpy(length.astype(np.int32).reshape(shape)).to(images.device)
    return torch.div(2 * total + pixels, 2 * pixels, rounding_mode="floor").to(torch.uint8)


def jpeg_compression(images: Tensor, draws: Draws, level: Level) -> Tensor:  # noqa: ARG001
    quality = int(level[0])

    def round_trip(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        with BytesIO() as stream:
            Image.fromarray(picture).save(stream, "JPEG", quality=quality)
            with Image.open(stream) as decoded:
                return np.asarray(decoded)

    pictures = images.permute(0, 2, 3, 1).contiguous().cpu().numpy()
    with ThreadPoolExecutor(max_workers=4) as pool:
        coded = np.stack(list(pool.map(round_trip, pictures)))
    return torch.from_numpy(coded).permute(0, 3, 1, 2).to(images.device)
