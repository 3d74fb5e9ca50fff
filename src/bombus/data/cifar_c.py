"""CIFAR-10-C and CIFAR-100-C as published: one .npy per corruption, all severities in a row.

Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019,
https://arxiv.org/abs/1903.12261

`fog.npy` is (50000, 32, 32, 3) uint8: 10,000 test images at severity 1, the same at severity 2,
and so on; `labels.npy` is (50000,). A folder that holds other severities says so in a sidecar
`bombus.json`, which make_cifar_c writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bombus.data.images import check_domain, check_index, fingerprint, in_order, to_tensors
from bombus.errors import DataError, UnknownNameError

Variant = Literal["cifar10-c", "cifar100-c"]
CLASSES = {"cifar10-c": 10, "cifar100-c": 100}
SIDECAR = "bombus.json"
ALL_SEVERITIES = (1, 2, 3, 4, 5)


class CifarC:
    """Files are mapped anew for each batch, so the set holds nothing open and can be pickled."""

    aligned = True

    def __init__(self, folder: Path | str, variant: Variant = "cifar10-c") -> None:
        if variant not in CLASSES:
            raise UnknownNameError("variant of CIFAR-C", variant, CLASSES)
        self.name: str = variant
        self.classes = CLASSES[variant]
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(
                f"There is no folder {self.folder} with the .npy files of {variant}; make them "
                f"with `bombus data make {variant}`, or unpack the published archive there."
            )
        self._sidecar = read_sidecar(self.folder)
        self.severities = _severities(self.folder, self._sidecar, variant)
        self._labels = self._read_labels()
        found = [path.stem for path in self.folder.glob("*.npy") if not path.name.startswith(".")]
        self.domains = in_order(name for name in found if name != "labels")
        if not self.domains:
            raise DataError(
                f"{self.folder} holds no corruption file such as gaussian_noise.npy; "
                f"make them with `bombus data make {variant}`."
            )
        for domain in self.domains:
            self._open(domain)

    def size(self, domain: str) -> int:
        check_domain(domain, self.domains, self.folder)
        return len(self._labels)

    def labels_of(self, domain: str) -> NDArray[np.int64]:
        check_domain(domain, self.domains, self.folder)
        return self._labels

    def severities_of(self, domain: str) -> tuple[int, ...]:
        check_domain(domain, self.domains, self.folder)
        return self.severities

    def load(
        self, domain: str, severity: int, index: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:  # (N, 3, 32, 32), (N,)
        check_index(index, self.size(domain), domain)
        if severity not in self.severities:
            held = ", ".join(map(str, self.severities))
            raise DataError(
                f"{self.folder} holds severity {held}, but severity {severity} was asked for; "
                f"make it in another folder with `bombus data make {self.name}`."
            )
        start = self.severities.index(severity) * len(self._labels)
        images = np.asarray(self._open(domain)[start + index])
        return to_tensors(images, self._labels[index])

    def describe(self) -> dict[str, Any]:
        files = [f"{name}.npy" for name in (*self.domains, "labels")]
        return {
            "name": self.name,
            "folder": self.folder.name,
            "images": len(self._labels),
            "severities": list(self.severities),
            "preprocessing": "uint8 / 255",
            "generator": self._sidecar.get("generator", "as published"),
            "fingerprints": {name: fingerprint(self.folder / name) for name in files},
        }

    def _open(self, domain: str) -> NDArray[np.uint8]:
        path = self.folder / f"{domain}.npy"
        array = _open_npy(path)
        rows = len(self._labels) * len(self.severities)
        if array.dtype != np.uint8 or array.shape != (rows, 32, 32, 3):
            raise DataError(
                f"{path} is {array.dtype} {array.shape}, but labels.npy asks for uint8 "
                f"{(rows, 32, 32, 3)}; replace the file, or move what is no corruption elsewhere."
            )
        return array

    def _read_labels(self) -> NDArray[np.int64]:
        """Labels of one severity; all severities must repeat them."""
        path = self.folder / "labels.npy"
        if not path.is_file():
            raise DataError(
                f"{path} is missing; it belongs to the published archive, and "
                f"`bombus data make {self.name}` writes it too."
            )
        labels = np.array(_open_npy(path))
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
            raise DataError(f"{path} is {labels.dtype} {labels.shape}, not a row of whole numbers.")
        if labels.min() < 0 or labels.max() >= self.classes:
            raise DataError(
                f"{path} has labels from {labels.min()} to {labels.max()}, but {self.name} has "
                f"classes 0 to {self.classes - 1}; is it the other variant's file?"
            )
        count = len(self.severities)
        if len(labels) % count:
            raise DataError(
                f"{path} has {len(labels)} rows, which are not {count} severities of equal length."
            )
        parts = labels.reshape(count, -1).astype(np.int64)
        # Also catches a file of one severity that nothing declares as such.
        if (parts != parts[0]).any():
            raise DataError(
                f"{path} does not repeat the same labels for each of severities "
                f"{', '.join(map(str, self.severities))}; files with other severities need a "
                f"{SIDECAR} that says which."
            )
        return np.array(parts[0], np.int64)


def _open_npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} has gone missing since the folder was opened.") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{path} is not a complete .npy file ({error}); fetch or make it again."
        ) from error
    return array


def read_sidecar(folder: Path) -> dict[str, Any]:
    """What make_cifar_c wrote about its files, or {} for the published ones."""
    path = folder / SIDECAR
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); make the folder again with `bombus data make`."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} does not describe a data set; make the folder again.")
    return content


def _severities(folder: Path, sidecar: dict[str, Any], variant: str) -> tuple[int, ...]:
    if not sidecar:
        return ALL_SEVERITIES
    if sidecar.get("variant") != variant:
        raise DataError(
            f"{folder / SIDECAR} says the folder holds {sidecar.get('variant')!r}, not {variant!r}."
        )
    listed = sidecar.get("severities")
    # type() rather than isinstance(): true is no severity.
    fits = isinstance(listed, list) and all(type(severity) is int for severity in listed)
    if not fits or not listed or sorted(set(listed) & set(ALL_SEVERITIES)) != sorted(listed):
        raise DataError(f"{folder / SIDECAR} lists the severities {listed!r}, not some of 1 to 5.")
    return tuple(listed)
