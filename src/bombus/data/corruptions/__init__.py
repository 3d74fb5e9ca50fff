"""The image corruptions of CIFAR-C and ImageNet-C, for batches, on any device.

`corrupt` gives the same bytes for the same (seed, corruption, severity, sample index), whatever
batch the sample comes in. The corruptions and their constants are those of Hendrycks & Dietterich,
"Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019,
https://arxiv.org/abs/1903.12261. The random numbers are our own, so the pictures look like the
published ones without being the same; each module says what else differs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bombus.data.corruptions import blur, digital, ice, noise, spatter, weather
from bombus.data.corruptions.constants import TABLES, ConstantSet, Level
from bombus.data.corruptions.random import Draws
from bombus.errors import DataError, InputError, UnknownNameError

__all__ = ["EXTRA", "NAMES", "STANDARD", "VERSION", "ConstantSet", "corrupt"]

VERSION = 1  # raised whenever a pixel changes, so that old and new files cannot mix in a folder

Corruption = Callable[[Tensor, Draws, Level], Tensor]

_STANDARD: dict[str, Corruption | None] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": None,  # needs its textures; see `corrupt`
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
_EXTRA: dict[str, Corruption | None] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}

STANDARD: tuple[str, ...] = tuple(_STANDARD)
EXTRA: tuple[str, ...] = tuple(_EXTRA)
NAMES: tuple[str, ...] = STANDARD + EXTRA
_CORRUPTIONS = _STANDARD | _EXTRA
_PIXELS_AT_ONCE = 2**21  # 2,048 images of 32 px, 41 of 224 px: some 500 MB of intermediate values


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    index: Tensor,
    seed: int = 0,
    constants: ConstantSet = "cifar",
    frost_photos: Path | None = None,
) -> Tensor:
    """uint8 (N, 3, H, W) to the same, corrupted.

    Args:
        images: Colour pictures; the result stays on their device.
        name: One of `NAMES`.
        severity: 1 (slight) to 5 (severe).
        index: Each sample's number (N,); with the seed it decides the sample's random numbers.
        seed: Another seed, another draw of the whole benchmark.
        constants: Whose constants to use: CIFAR-C's, made for 32 px, or ImageNet-C's, for 224 px.
        frost_photos: A folder with the original photographs of ice; without it the ice is drawn.
    """
    _check(images, name, severity, index, constants)
    table = TABLES[name]
    level = (table.cifar if constants == "cifar" else table.imagenet)[severity - 1]
    # The bytes do not depend on the batch, so a large one can go in pieces that fit the memory.
    pixels = images.shape[2] * images.shape[3]
    if name == "fog":
        pixels = max(pixels, int(level[2]) ** 2)  # its map may be larger than the picture
    piece = max(_PIXELS_AT_ONCE // max(pixels, 1), 1)
    parts = zip(
        torch.split(images, piece), torch.split(index.to(images.device), piece), strict=True
    )
    purpose = f"{name}/{severity}"
    done = [
        _corrupt_piece(part, name, level, Draws(seed, purpose, numbers), frost_photos)
        for part, numbers in parts
        if len(part)
    ]
    return torch.cat(done) if done else images.clone()


def _corrupt_piece(
    images: Tensor, name: str, level: Level, draws: Draws, frost_photos: Path | None
) -> Tensor:
    corruption = _CORRUPTIONS[name]
    if corruption is None:
        sheets = _ice_larger_than(images, level[2], frost_photos)
        values = weather.frost(images, draws, level, sheets)
    else:
        values = corruption(images, draws, level)
    # Cut, not rounded: so were the published files.
    return values if values.dtype == torch.uint8 else values.clamp_(0, 255).to(torch.uint8)


def _ice_larger_than(images: Tensor, scale: float, photographs: Path | None) -> list[Tensor]:
    sheets = ice.textures(images.device, scale, photographs)
    height, width = images.shape[2:]
    fitting = []
    for number, sheet in enumerate(sheets):
        rows, columns = sheet.shape[1:]
        if photographs is None:
            # Drawn ice has no seams: it can be laid side by side.
            fitting.append(sheet.repeat(1, height // rows + 1, width // columns + 1))
        elif rows > height and columns > width:
            fitting.append(sheet)
        else:
            raise DataError(
                f"The frost photograph {ice.PHOTOGRAPHS[number]} is {rows} x {columns} px after "
                f"scaling, too small for images of {height} x {width} px; leave frost_photos out "
                "for drawn ice of any size."
            )
    return fitting


def _check(images: Tensor, name: str, severity: int, index: Tensor, constants: str) -> None:
    if name not in NAMES:
        raise UnknownNameError("corruption", name, NAMES)
    if constants not in ("cifar", "imagenet"):
        raise UnknownNameError("set of constants", str(constants), ("cifar", "imagenet"))
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise InputError(f"The severity is {severity!r}; give a whole number from 1 to 5.")
    if images.dtype != torch.uint8:
        raise InputError(
            f"The images are {images.dtype}; corruptions work on bytes, so give torch.uint8 "
            "(from [0, 1]: (images * 255).round().to(torch.uint8))."
        )
    if images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"The images have shape {tuple(images.shape)}; give (N, 3, H, W), channels first."
        )
    if index.shape != (len(images),) or index.is_floating_point():
        raise InputError(
            f"The index is {index.dtype} of shape {tuple(index.shape)} for {len(images)} images; "
            "give one whole number per image, such as torch.arange(len(images))."
        )
