"""Source data for methods that prepare on it: clean training images in shuffled batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bombus.data.cifar import Arrays
from bombus.data.imagenet_c import read_lines
from bombus.data.images import image_files, read_image, read_images, subfolders, to_tensors
from bombus.errors import DataError


class SourceBatches:
    """Labelled images that are in memory, or `count` of them, in the same order for a seed."""

    def __init__(
        self, images: Arrays, batch_size: int, *, count: int | None = None, seed: int = 0
    ) -> None:
        self.images, self.labels = images
        self.order = _order(len(self.images), seed)[:count]
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.order), self.batch_size):
            index = np.sort(self.order[start : start + self.batch_size])
            yield to_tensors(self.images[index], self.labels[index])


class FolderBatches:
    """Labelled training images as class/image, e.g. ImageNet's train folder, read when asked for.

    Args:
        class_names: the test images' classes in the order of their numbers. Else the folder's
            classes.txt says it, one name a line; else the sorted names of its class folders.
        classes: how many classes the task has; refuses to number a part of them by themselves.
        size: the shorter side is brought to the first, the centre square of the second kept.
    """

    def __init__(
        self,
        folder: Path,
        batch_size: int,
        *,
        class_names: Sequence[str] | None = None,
        classes: int | None = None,
        size: tuple[int, int] | None = None,
        seed: int = 0,
    ) -> None:
        if not folder.is_dir():
            raise DataError(
                f"There is no folder {folder} of training images; it should hold class/image."
            )
        found = {place.name: image_files(place) for place in subfolders(folder)}
        self.files = [file for files in found.values() for file in files]
        if not self.files:
            raise DataError(f"{folder} holds no images as class/image, such as ImageNet's train.")
        rank = {name: n for n, name in enumerate(_numbering(folder, found, class_names, classes))}
        if strangers := sorted(name for name in found if name not in rank):
            raise DataError(
                f"{folder / strangers[0]} is of none of the {len(rank)} classes of the test images."
            )
        self.labels = np.array([rank[file.parent.name] for file in self.files], np.int64)
        self.order = _order(len(self.files), seed)
        self.batch_size = batch_size
        self._scale = (None, None) if size is None else size
        height, width, _ = read_image(self.files[0], *self._scale).shape
        self._pixels = (height, width)

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.order), self.batch_size):
            index = self.order[start : start + self.batch_size]
            images = read_images(
                [self.files[place] for place in index],
                self._pixels,
                "bring them all to one size",
                resize=self._scale[0],
                crop=self._scale[1],
            )
            yield to_tensors(images, self.labels[index])


def _numbering(
    folder: Path,
    found: dict[str, list[Path]],
    class_names: Sequence[str] | None,
    classes: int | None,
) -> Sequence[str]:
    listed = folder / "classes.txt"
    if class_names is not None:
        return class_names
    if listed.is_file():
        return read_lines(listed)
    if classes not in (None, len(found)):
        raise DataError(
            f"{folder} holds {len(found)} class folders, but the task has {classes} classes; list "
            f"them all in {listed}, one name a line, so that they can be numbered."
        )
    return sorted(found)


def _order(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64(seed)).permutation(count).astype(np.int64)
