"""Source data for methods that prepare on it: clean training images in shuffled batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from bombus.data.cifar import load_cifar
from bombus.data.images import to_tensors


class SourceBatches:
    """Labelled training images of CIFAR, the same order every time for a seed."""

    def __init__(
        self,
        folder: Path,
        variant: Literal["cifar10", "cifar100"],
        batch_size: int,
        *,
        images: int | None = None,
        seed: int = 0,
    ) -> None:
        self.images, self.labels = load_cifar(folder, "train", variant)
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(self.images))
        self.order = order[:images]
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.order) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.order), self.batch_size):
            index = np.sort(self.order[start : start + self.batch_size])
            yield to_tensors(self.images[index], self.labels[index])
