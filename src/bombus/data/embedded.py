"""The demo's images, shipped with the package: 1,000 CIFAR-10 test images, corrupted on the fly.

Beside them 1,000 clean training images with their labels, for methods that prepare on some.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bombus.data.cifar import Arrays
from bombus.data.corruptions import NAMES, STANDARD, corrupt
from bombus.data.images import check_domain, check_index, to_tensors

FOLDER = Path(__file__).parents[1] / "demo"


def training_images() -> Arrays:
    """The first 1,000 training images of CIFAR-10 and their labels."""
    return _read("source.png", "source-labels.json")


def _read(strip: str, labels: str) -> Arrays:
    with Image.open(FOLDER / strip) as image:  # one row an image
        images = np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
    return images, np.array(json.loads((FOLDER / labels).read_text()), dtype=np.int64)


class EmbeddedImages:
    """The first 1,000 test images of CIFAR-10 under our corruptions."""

    name = "demo"
    classes = 10
    domains = NAMES
    aligned = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.clean, self.labels = _read("images.png", "labels.json")
        self._corrupted = lru_cache(maxsize=len(STANDARD))(self._corrupt)  # 3 MB a domain

    def size(self, domain: str) -> int:
        check_domain(domain, self.domains, FOLDER)
        return len(self.clean)

    def labels_of(self, domain: str) -> NDArray[np.int64]:
        check_domain(domain, self.domains, FOLDER)
        return self.labels

    def severities_of(self, domain: str) -> tuple[int, ...]:
        check_domain(domain, self.domains, FOLDER)
        return (1, 2, 3, 4, 5)

    def load(self, domain: str, severity: int, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        check_index(index, self.size(domain), domain)
        return to_tensors(self._corrupted(domain, severity)[index], self.labels[index])

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "images": "first 1,000 CIFAR-10 test images",
            "corruptions": "bombus, cifar constants",
            "corruption_seed": self.seed,
        }

    def _corrupt(self, domain: str, severity: int) -> NDArray[np.uint8]:
        images = torch.from_numpy(self.clean.transpose(0, 3, 1, 2).copy())
        index = torch.arange(len(images))
        corrupted = corrupt(images, domain, severity, index=index, seed=self.seed)
        rows: NDArray[np.uint8] = corrupted.permute(0, 2, 3, 1).contiguous().numpy()
        return rows
