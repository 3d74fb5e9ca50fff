"""Sheets of ice for frost: five textures drawn here, or the original photographs from a folder.

The published photographs are not ours to ship. Ours are drawn from noise of three kinds: clouds
(thick and thin ice), grain (rime) and feathers (crystals that grow along a slowly turning
direction), coloured and mixed so that colours, spread and smoothness match what the photographs do
to a picture. They are drawn at full size; CIFAR-C reads every fifth pixel, as the published
resizing does.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from bombus.errors import DataError

# The published code holds six photographs and draws one of the first five.
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")

_SIDE = 700  # pixels; a multiple of 5, so that every fifth pixel still tiles without a seam
_DIRECTIONS = 12
_Array = NDArray[np.float64]


class Sheet(NamedTuple):
    colour: tuple[float, float, float]  # mean of red, green, blue
    spread: tuple[float, float, float]  # standard deviation of red, green, blue
    clouds: float  # shares of the three kinds of noise, as standard deviations
    grain: float
    feathers: float
    bend: float  # above 0: bright crystals on dark ice; below: dark specks on bright ice
    tint: float  # how far red goes its own way


SHEETS = (
    Sheet((73, 146, 163), (25, 15, 14), 0.8, 0.7, 0.25, 0.15, 0.8),  # clear blue-green ice
    Sheet((145, 163, 175), (28, 26, 26), 0.55, 0.75, 0.4, 0.0, 0.1),  # grey rime
    Sheet((195, 198, 206), (20, 21, 22), 0.6, 0.65, 0.35, -0.25, 0.05),  # white rime, warm
    Sheet((203, 208, 218), (19, 20, 20), 0.65, 0.6, 0.3, -0.25, 0.05),  # white rime, cold
    Sheet((104, 115, 128), (35, 35, 34), 0.5, 0.5, 0.75, 0.15, 0.02),  # crystals on dark glass
)


def textures(device: torch.device, scale: float, photographs: Path | None) -> list[Tensor]:
    """uint8 (3, H, W) each, on the device; drawn or read once."""
    return _textures(str(device), scale, photographs)


@cache
def _textures(device: str, scale: float, photographs: Path | None) -> list[Tensor]:
    full = _drawn() if photographs is None else _read(photographs)
    step = round(1 / scale)
    start = step // 2  # where a linear resize by 1/5 without smoothing lands: on whole pixels
    return [
        torch.from_numpy(sheet[start::step, start::step].transpose(2, 0, 1).copy()).to(device)
        for sheet in full
    ]


def _read(folder: Path) -> list[NDArray[np.uint8]]:
    missing = [name for name in PHOTOGRAPHS if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"The folder {str(folder)!r} lacks the frost photograph(s) {', '.join(missing)}; put "
            f"the originals ({', '.join(PHOTOGRAPHS)}) there, or leave frost_photos out for "
            "drawn ice."
        )
    sheets = []
    for name in PHOTOGRAPHS:
        try:
            with Image.open(folder / name) as picture:
                sheets.append(np.asarray(picture.convert("RGB")))
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(
                f"The frost photograph {str(folder / name)!r} cannot be read ({error}); "
                "copy the original file there again."
            ) from error
    return sheets


@cache
def _drawn() -> list[NDArray[np.uint8]]:
    return [draw(sheet, number) for number, sheet in enumerate(SHEETS)]


def draw(sheet: Sheet, number: int) -> NDArray[np.uint8]:
    """One texture (H, W, 3) that continues seamlessly at its borders."""
    random = np.random.Generator(np.random.Philox(number))
    clouds = _clouds(random)
    # Rime and crystals come in patches: rough here, smooth there.
    patches = np.exp(0.35 * _clouds(random))
    ice = _unit(
        sheet.clouds * clouds
        + sheet.grain * _unit(_grain(random) * patches)
        + sheet.feathers * _unit(_feathers(random) * patches)
    )
    if sheet.bend:
        ice = _unit(np.expm1(sheet.bend * ice) / sheet.bend)
    own_way = _clouds(random) if sheet.tint else ice
    colours = []
    for channel, (mean, spread) in enumerate(zip(sheet.colour, sheet.spread, strict=True)):
        tint = sheet.tint if channel == 0 else 0.0
        shade = _unit(ice + tint * own_way) + 0.05 * _grain(random)
        colours.append(mean + spread * _unit(shade))
    return np.stack(colours, axis=2).round().clip(0, 255).astype(np.uint8)


def _unit(field: _Array) -> _Array:
    unit: _Array = (field - field.mean()) / field.std()
    return unit


def _frequencies() -> tuple[_Array, _Array]:
    """Cycles per pixel, down (V, 1) and across (1, U)."""
    down: _Array = np.fft.fftfreq(_SIDE)[:, None].astype(np.float64)
    across: _Array = np.fft.rfftfreq(_SIDE)[None, :].astype(np.float64)
    return down, across


def _shaped(random: np.random.Generator, amplitude: _Array) -> _Array:
    """Gaussian noise with the given amplitude at each spatial frequency; unit variance."""
    spectrum = np.fft.rfft2(random.standard_normal((_SIDE, _SIDE))) * amplitude
    return _unit(np.fft.irfft2(spectrum, s=(_SIDE, _SIDE)))


def _clouds(random: np.random.Generator) -> _Array:
    """Noise that looks alike at every scale, up to 200 pixels."""
    v, u = _frequencies()
    return _shaped(random, (np.hypot(u, v) ** 2 + 0.003**2) ** -0.85)


def _grain(random: np.random.Generator) -> _Array:
    """Spots of one or two pixels."""
    v, u = _frequencies()
    return _shaped(random, np.exp(-2 * (np.pi * 1.2) ** 2 * (u**2 + v**2)))


def _feathers(random: np.random.Generator) -> _Array:
    """Needles, 9 by 1.5 pixels, along a direction that turns slowly over the sheet."""
    v, u = _frequencies()
    turning = 2.2 * _shaped(random, np.exp(-2 * (np.pi * 30) ** 2 * (u**2 + v**2)))
    needles = np.zeros((_SIDE, _SIDE))
    total = np.zeros((_SIDE, _SIDE))
    for angle in np.arange(_DIRECTIONS) * np.pi / _DIRECTIONS:
        along, across = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
        shape = np.exp(-2 * np.pi**2 * ((9 * along) ** 2 + (1.5 * across) ** 2))
        weight = np.exp(8 * (np.cos(2 * (turning - angle)) - 1))
        needles += weight * _shaped(random, shape)
        total += weight**2
    return _unit(needles / np.sqrt(total))
