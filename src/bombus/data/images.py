"""What every data set offers (ImageSet), and how image files become arrays.

Shapes: N images, H x W pixels, 3 channels. Files and arrays are (N, H, W, 3) uint8,
networks get (N, 3, H, W) float32 in [0, 1].
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from bombus.data.corruptions import NAMES
from bombus.errors import DataError, UnknownNameError

# A photograph from any camera fits; a file that would decode to gigabytes does not.
MAX_PIXELS = 50_000_000
FORMATS = ("JPEG", "PNG", "BMP", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


class ImageSet(Protocol):
    """Labelled images in several domains; `index` counts from 0 to size(domain) - 1."""

    name: str
    classes: int
    domains: tuple[str, ...]  # the standard corruptions first, in the published order
    aligned: bool  # image i is the same picture in every domain, whatever was done to it

    def size(self, domain: str) -> int: ...

    def labels_of(self, domain: str) -> NDArray[np.int64]:  # (size,)
        """For those who put images in order and count errors: no method sees them."""
        ...

    def severities_of(self, domain: str) -> tuple[int, ...]:
        """Those that can be loaded; none where the domain is no corruption."""
        ...

    def load(
        self, domain: str, severity: int, index: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:  # (N, 3, H, W) float32 in [0, 1], (N,) int64
        ...

    def describe(self) -> dict[str, Any]:
        """What a run records: enough to tell later whether two runs saw the same images."""
        ...


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Published corruptions first and in their order, all other domains after them by name."""
    rank = {name: place for place, name in enumerate(NAMES)}
    return tuple(sorted(names, key=lambda name: (rank.get(name, len(rank)), name)))


def check_domain(domain: str, available: Sequence[str], where: Path) -> None:
    if domain in available:
        return
    if domain in NAMES:
        raise DataError(
            f"The corruption {domain!r} is not in {where}, which holds: {', '.join(available)}."
        )
    raise UnknownNameError("domain", domain, available)


def check_index(index: NDArray[np.int64], size: int, domain: str) -> None:
    # Negative numbers would silently count from the end.
    if index.size and (index.min() < 0 or index.max() >= size):
        raise DataError(
            f"Images {index.min()} to {index.max()} of {domain!r} were asked for, "
            f"but it has images 0 to {size - 1}."
        )


def to_tensors(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return pixels.to(torch.float32).div_(255), torch.from_numpy(labels.astype(np.int64))


def subfolders(folder: Path) -> list[Path]:
    # scandir knows what is a folder without asking the disk again for each of its entries.
    with os.scandir(folder) as entries:
        return sorted(
            Path(entry) for entry in entries if not entry.name.startswith(".") and entry.is_dir()
        )


def image_files(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(
            Path(entry)
            for entry in entries
            if not entry.name.startswith(".")
            and entry.name.lower().endswith(SUFFIXES)
            and entry.is_file()
        )


def read_image(path: Path, resize: int | None = None, crop: int | None = None) -> NDArray[np.uint8]:
    """One file as (H, W, 3): turned as its EXIF says, its shorter side resized, its centre cut."""
    try:
        with Image.open(path, formats=FORMATS) as opened:
            # The size is known from the header, before anything is decoded.
            _check_pixels(path, *opened.size)
            image = _to_rgb(ImageOps.exif_transpose(opened))
    except FileNotFoundError:
        raise DataError(f"The image {path} is missing.") from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        raise DataError(
            f"{path} could not be decoded as {', '.join(FORMATS)} ({error}); "
            "replace it or remove it."
        ) from error
    if resize is not None:
        # The longer side is cut to a whole number, as the usual evaluation pipelines do.
        width, height = (resize * side // min(image.size) for side in image.size)
        _check_pixels(path, width, height)  # a thin strip can blow up here
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if crop is not None:
        left, top = round((image.width - crop) / 2), round((image.height - crop) / 2)
        image = image.crop((left, top, left + crop, top + crop))
    return np.asarray(image, dtype=np.uint8)


def _check_pixels(path: Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{path} comes to {width} x {height} pixels, more than the {MAX_PIXELS:,} allowed; "
            "scale it down."
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey: convert() would clip it to white
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P":  # a palette with transparency converts to RGB only by way of RGBA
        image = image.convert("RGBA")
    return image.convert("RGB")


def read_images(
    paths: Sequence[Path],
    pixels: tuple[int, int],
    remedy: str,
    *,
    resize: int | None = None,
    crop: int | None = None,
) -> NDArray[np.uint8]:
    """Many files as (N, H, W, 3), all of `pixels` = (H, W); else an error that ends in `remedy`."""

    def read(path: Path) -> NDArray[np.uint8]:
        image = read_image(path, resize, crop)
        if image.shape[:2] != pixels:
            raise DataError(
                f"{path} is {image.shape[1]} x {image.shape[0]} pixels, but the set's first "
                f"image is {pixels[1]} x {pixels[0]}; {remedy}."
            )
        return image

    if not paths:
        return np.zeros((0, *pixels, 3), np.uint8)
    # Pillow lets go of the GIL while it decodes, so threads help. One pool per call keeps the
    # data sets free of threads: they can be pickled and forked.
    with ThreadPoolExecutor(min(8, len(paths), os.cpu_count() or 1)) as pool:
        return np.stack(list(pool.map(read, paths)))


def fingerprint(path: Path) -> str:
    """Sha256 of the length and the first and last 64 KiB: cheap for files of any length."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            digest.update(str(length).encode())
            for start in (0, max(0, length - 65536)):
                file.seek(start)
                digest.update(file.read(65536))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from error
    return digest.hexdigest()
