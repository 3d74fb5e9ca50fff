"""ImageNet-C as published: <corruption>/<severity>/<wnid>/<name>.JPEG.

Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019,
https://arxiv.org/abs/1903.12261

A class's number is the rank of its WordNet id among the sorted ids of the tree, which for the
full 1000 is the usual ImageNet numbering. Trees with fewer classes number those they have, unless
a list says otherwise: the `classes` argument or a `classes.txt` in the folder, one id per line,
numbered from 0 in the order written.

Published tables use 5,000 of the 50,000 images, named in a text file, one wnid/name.JPEG per line:
the `file_list` argument, or RobustBench's imagenet_test_image_ids.txt put into the folder. Without
either, 5,000 are chosen by a hash of their names, the same everywhere.

Two ways of preprocessing are published. Most take the files, which are 224 x 224 already, as they
are ("none"); the CoTTA and ViDA repositories resize them to 256 and cut the centre 224 x 224 out
("resize256-crop224"), which is a small zoom. Their errors differ and never share a table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bombus.data.images import (
    check_domain,
    check_index,
    fingerprint,
    image_files,
    in_order,
    read_image,
    read_images,
    subfolders,
    to_tensors,
)
from bombus.errors import DataError, UnknownNameError

Preprocess = Literal["none", "resize256-crop224"]
PROTOCOL_SIZE = 5000
PROTOCOL_LIST = "imagenet_test_image_ids.txt"
SEVERITIES = ("1", "2", "3", "4", "5")
LINE = re.compile(r"[^/\\]+/[^/\\]+")


class ImageNetC:
    """`preprocess="none"` takes the published files, which are 224 x 224 already, as they are."""

    aligned = True

    def __init__(
        self,
        folder: Path | str,
        file_list: Path | str | None = None,
        preprocess: Preprocess = "none",
        classes: Sequence[str] | None = None,
    ) -> None:
        if preprocess not in get_args(Preprocess):
            raise UnknownNameError("preprocessing", preprocess, get_args(Preprocess))
        self.name = "imagenet-c"
        self.preprocess = preprocess
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(
                f"There is no folder {self.folder} with ImageNet-C; unpack the published archives "
                "there, so that it holds gaussian_noise/5/n01440764/*.JPEG and so on."
            )
        self._held = _held_severities(self.folder)
        self.domains = in_order(self._held)
        if not self.domains:
            raise DataError(
                f"{self.folder} holds no corruption folder such as gaussian_noise/5; "
                "unpack the published archives there."
            )
        self.class_names, self._classes_from = self._find_classes(classes)
        self.classes = len(self.class_names)
        # The severest pictures of the first corruption stand for all: every corruption and
        # severity of the benchmark holds the same files.
        sample = self.folder / self.domains[0] / self._held[self.domains[0]][-1]
        if file_list is None and (self.folder / PROTOCOL_LIST).is_file():
            file_list = self.folder / PROTOCOL_LIST
        if file_list is None:
            self._files = _choose(sample)
            self._list_from = f"the first {PROTOCOL_SIZE} by sha256 of wnid/name"
        else:
            self._files = _read_list(Path(file_list))
            self._list_from = Path(file_list).name
        rank = {name: place for place, name in enumerate(self.class_names)}
        for line in self._files:
            if line.split("/")[0] not in rank:
                raise DataError(
                    f"The image {line} is of a class that is not among the {self.classes} of "
                    f"{self.folder} (taken from {self._classes_from})."
                )
        self._labels = np.array([rank[line.split("/")[0]] for line in self._files], np.int64)
        self._scale = (256, 224) if preprocess == "resize256-crop224" else (None, None)
        height, width, _ = read_image(sample / self._files[0], *self._scale).shape
        self._pixels = (height, width)

    def size(self, domain: str) -> int:
        check_domain(domain, self.domains, self.folder)
        return len(self._files)

    def labels_of(self, domain: str) -> NDArray[np.int64]:
        check_domain(domain, self.domains, self.folder)
        return self._labels

    def severities_of(self, domain: str) -> tuple[int, ...]:
        check_domain(domain, self.domains, self.folder)
        return tuple(int(severity) for severity in self._held[domain])

    def load(
        self, domain: str, severity: int, index: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:  # (N, 3, H, W), (N,)
        check_index(index, self.size(domain), domain)
        held = self._held[domain]
        if str(severity) not in held:
            raise DataError(
                f"{self.folder / domain} holds severity {', '.join(held)}, but severity "
                f"{severity} was asked for; unpack the published archive again."
            )
        place = self.folder / domain / str(severity)
        images = read_images(
            [place / self._files[number] for number in index],
            self._pixels,
            'use preprocess="resize256-crop224" (--benchmark imagenet-c-resized) to bring them '
            "all to one size",
            resize=self._scale[0],
            crop=self._scale[1],
        )
        return to_tensors(images, self._labels[index])

    def describe(self) -> dict[str, Any]:
        listed = "\n".join(self._files).encode()
        first = self._files[0]
        return {
            "name": self.name,
            "folder": self.folder.name,
            "images": len(self._files),
            "list": self._list_from,
            "list_sha256": hashlib.sha256(listed).hexdigest(),
            "classes": self.classes,
            "classes_from": self._classes_from,
            "severities": {domain: [int(s) for s in self._held[domain]] for domain in self.domains},
            "preprocessing": f"{self.preprocess}, uint8 / 255",
            # One picture of each corruption: reading all of them would take minutes.
            "fingerprints": {
                domain: fingerprint(self.folder / domain / self._held[domain][-1] / first)
                for domain in self.domains
            },
        }

    def _find_classes(self, given: Sequence[str] | None) -> tuple[tuple[str, ...], str]:
        listed = self.folder / "classes.txt"
        if given is not None:
            names, source = list(given), "the classes argument"
        elif listed.is_file():
            names, source = read_lines(listed), listed.name
        else:
            found = {
                path.name
                for domain in self.domains
                for severity in self._held[domain]
                for path in subfolders(self.folder / domain / severity)
            }
            names, source = sorted(found), f"the sorted ids of the tree, {len(found)} found"
        if not names or len(set(names)) != len(names):
            raise DataError(
                f"{self.folder} has {len(names)} classes by {source}, but at least one is needed "
                "and none may come twice."
            )
        return tuple(names), source


def _held_severities(folder: Path) -> dict[str, list[str]]:
    held = {
        corruption.name: [name for name in SEVERITIES if (corruption / name).is_dir()]
        for corruption in subfolders(folder)
    }
    return {name: severities for name, severities in held.items() if severities}


def _choose(sample: Path) -> list[str]:
    """The same images on every machine, and in mixed order: a hash knows no numpy version."""
    names = [
        f"{folder.name}/{path.name}"
        for folder in subfolders(sample)
        for path in image_files(folder)
    ]
    if not names:
        raise DataError(f"{sample} holds no image as wnid/name.JPEG; unpack the archive again.")
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:PROTOCOL_SIZE]


def _read_list(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(
            f"There is no image list {path}; it should have one wnid/name.JPEG per line."
        )
    lines = read_lines(path)
    for line in lines:
        # An absolute path or one with dots in it could read outside of the tree.
        if not LINE.fullmatch(line) or ".." in line.split("/") or line.startswith((".", "~")):
            raise DataError(f"{path} has the line {line!r}, which is not wnid/name.JPEG.")
    if not lines or len(set(lines)) != len(lines):
        raise DataError(
            f"{path} lists {len(lines)} images, {len(set(lines))} of them different; "
            "it needs at least one and none twice."
        )
    return lines


def read_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as text ({error}).") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
