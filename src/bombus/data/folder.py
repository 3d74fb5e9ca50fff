"""Any tree of images laid out as domain/class/image.

Classes are numbered by name, over all domains together: a class may be missing in some of them.
There are no severities in such a tree, so the severity asked for is ignored.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bombus.data.images import (
    SUFFIXES,
    check_domain,
    check_index,
    image_files,
    in_order,
    read_image,
    read_images,
    subfolders,
    to_tensors,
)
from bombus.errors import ConfigError, DataError


class ImageFolder:
    """With `size`, each image's shorter side is brought to it and the centre square kept."""

    aligned = False  # a name may be that of another picture in each domain

    def __init__(self, root: Path | str, size: int | None = None) -> None:
        if size is not None and size < 1:
            raise ConfigError(f"The image size is {size}, but it must be at least 1.")
        self.root = Path(root)
        self._size = size
        if not self.root.is_dir():
            raise DataError(
                f"There is no folder {self.root}; it should hold images as domain/class/image."
            )
        found = {
            domain.name: [path for folder in subfolders(domain) for path in image_files(folder)]
            for domain in subfolders(self.root)
        }
        empty = [domain for domain, files in found.items() if not files]
        if empty or not found:
            where = self.root / empty[0] if empty else self.root
            raise DataError(
                f"{where} holds no images; the layout is domain/class/image with files ending in "
                f"{', '.join(SUFFIXES)}."
            )
        self.name = self.root.resolve().name
        self.domains = in_order(found)
        self.class_names = tuple(sorted({path.parent.name for f in found.values() for path in f}))
        self.classes = len(self.class_names)
        self._files = found
        rank = {name: place for place, name in enumerate(self.class_names)}
        self._labels = {
            domain: np.array([rank[path.parent.name] for path in files], np.int64)
            for domain, files in found.items()
        }
        height, width, _ = read_image(found[self.domains[0]][0], size, size).shape
        self._pixels = (height, width)

    def size(self, domain: str) -> int:
        check_domain(domain, self.domains, self.root)
        return len(self._files[domain])

    def labels_of(self, domain: str) -> NDArray[np.int64]:
        check_domain(domain, self.domains, self.root)
        return self._labels[domain]

    def severities_of(self, domain: str) -> tuple[int, ...]:
        check_domain(domain, self.domains, self.root)
        return ()

    def load(
        self,
        domain: str,
        severity: int,  # noqa: ARG002 - the protocol has it, a plain tree does not
        index: NDArray[np.int64],
    ) -> tuple[Tensor, Tensor]:  # (N, 3, H, W), (N,)
        check_index(index, self.size(domain), domain)
        images = read_images(
            [self._files[domain][place] for place in index],
            self._pixels,
            "bring them all to one size (in Python: ImageFolder(folder, size=224))",
            resize=self._size,
            crop=self._size,
        )
        return to_tensors(images, self._labels[domain][index])

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "folder": self.name,
            "images": {domain: len(self._files[domain]) for domain in self.domains},
            "class_names": list(self.class_names),
            "preprocessing": "none, uint8 / 255"
            if self._size is None
            else f"shorter side {self._size} bilinear, centre crop, uint8 / 255",
            "severities": "none; the severity asked for is ignored",
            "fingerprint": self._fingerprint(),
        }

    def _fingerprint(self) -> str:
        """Sha256 of all names and lengths: notices added, lost and replaced files."""
        digest = hashlib.sha256()
        for domain in self.domains:
            for path in self._files[domain]:
                name = path.relative_to(self.root).as_posix()
                digest.update(f"{name}\0{path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()
