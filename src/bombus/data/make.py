"""CIFAR-10-C and CIFAR-100-C made here: clean test images and our generator, published format.

A sidecar bombus.json says what the folder holds: generator, seed, severities, and the sha256 of
each finished file, so that a broken-off run is taken up where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from bombus.data.cifar import Variant as CleanVariant
from bombus.data.cifar import load_cifar
from bombus.data.cifar_c import ALL_SEVERITIES, CLASSES, SIDECAR, Variant, read_sidecar
from bombus.errors import ConfigError, DataError, UnknownNameError
from bombus.fields import Seed, check

Progress = Callable[[int, int], None]
CLEAN: dict[str, CleanVariant] = {"cifar10-c": "cifar10", "cifar100-c": "cifar100"}


def make_cifar_c(
    clean_folder: Path | str,
    out: Path | str,
    *,
    variant: Variant = "cifar10-c",
    severities: Sequence[int] = ALL_SEVERITIES,
    corruptions: Sequence[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
    batch: int = 1000,
    frost_photos: Path | None = None,
) -> Path:
    """Write one .npy per corruption and labels.npy into `out`, and return it.

    `corruptions` are the standard 15 unless named. `progress(done, total)` counts images. With
    fewer than five severities the files hold only these, and the sidecar says so. `frost_photos`
    is a folder with the original photographs of ice; without it the ice is drawn.
    """
    from bombus.data import corruptions as generator

    names = tuple(generator.STANDARD if corruptions is None else corruptions)
    _check(variant, severities, names, generator.NAMES, batch)
    check("seed", seed, Seed)
    held = sorted(severities)
    images, labels = load_cifar(clean_folder, "test", CLEAN[variant])
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    planned: dict[str, Any] = {
        "variant": variant,
        "severities": held,
        "seed": seed,
        "generator": {
            "name": "bombus.data.corruptions",
            "version": generator.VERSION,
            "constants": "cifar",
            "seed": seed,
            "ice": "drawn" if frost_photos is None else "photographs",
        },
        "clean_sha256": hashlib.sha256(images.tobytes()).hexdigest(),
    }
    files = _finished(out, planned)
    total = len(names) * len(held) * len(images)
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    def write(file: str, array: Iterator[NDArray[Any]], shape: tuple[int, ...], dtype: str) -> None:
        files[file] = {"sha256": _write_npy(out / file, array, shape, dtype)}
        _write_sidecar(out, planned, files)

    # The sidecar comes first: not even a half-made folder may pass for the published files.
    _write_sidecar(out, planned, files)
    if "labels.npy" not in files:
        tiled = np.tile(labels, len(held))
        write("labels.npy", iter([tiled]), tiled.shape, "<i8")
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())  # (N, 3, 32, 32)

    def corrupted(name: str) -> Iterator[NDArray[np.uint8]]:
        for severity in held:
            for start in range(0, len(pixels), batch):
                clean = pixels[start : start + batch].to(device)
                index = torch.arange(start, start + len(clean), device=device)
                made = generator.corrupt(
                    clean,
                    name,
                    severity,
                    index=index,
                    seed=seed,
                    constants="cifar",
                    frost_photos=frost_photos,
                )
                yield made.permute(0, 2, 3, 1).contiguous().cpu().numpy()
                count(len(clean))

    for name in names:
        if f"{name}.npy" in files:
            count(len(held) * len(images))
            continue
        shape = (len(held) * len(images), 32, 32, 3)
        write(f"{name}.npy", corrupted(name), shape, "|u1")
    return out


def _check(
    variant: str, severities: Sequence[int], names: Sequence[str], known: Sequence[str], batch: int
) -> None:
    if variant not in CLASSES:
        raise UnknownNameError("variant of CIFAR-C", variant, CLASSES)
    if not severities or sorted(set(severities) & set(ALL_SEVERITIES)) != sorted(severities):
        raise ConfigError(
            f"The severities are {list(severities)}, but they must be some of 1 to 5, each once."
        )
    for name in names:
        if name not in known:
            raise UnknownNameError("corruption", name, known)
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            f"The corruptions are {list(names)}, but at least one is needed and none twice."
        )
    if batch < 1:
        raise ConfigError(f"The batch is {batch} images, but it must be at least 1.")


def _finished(out: Path, planned: dict[str, Any]) -> dict[str, Any]:
    """Files of an earlier run with the same settings that are whole; all others are made anew."""
    sidecar = read_sidecar(out)
    if not sidecar:
        if any(out.glob("*.npy")):
            raise DataError(
                f"{out} holds .npy files that bombus did not make (there is no {SIDECAR}); "
                "choose another folder for the new ones."
            )
        return {}
    for key, value in planned.items():
        if sidecar.get(key) != value:
            raise DataError(
                f"{out} was made with {key} {sidecar.get(key)!r}, not {value!r}; "
                "choose another folder, or delete this one."
            )
    recorded = sidecar.get("files", {})
    if not isinstance(recorded, dict) or not all(isinstance(e, dict) for e in recorded.values()):
        raise DataError(
            f"{out / SIDECAR} does not list the folder's files as bombus writes them; choose "
            "another folder, or delete this one."
        )
    return {
        name: entry
        for name, entry in recorded.items()
        if (out / name).is_file() and _sha256(out / name) == entry.get("sha256")
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_npy(
    path: Path, parts: Iterator[NDArray[Any]], shape: tuple[int, ...], dtype: str
) -> str:
    """Rows as they come, so that no whole file has to fit into memory; returns its sha256."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    digest = hashlib.sha256()
    with _replacing(path) as file:
        rows = (np.ascontiguousarray(part, dtype=dtype).tobytes() for part in parts)
        for block in itertools.chain([header.getvalue()], rows):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _write_sidecar(out: Path, planned: dict[str, Any], files: dict[str, Any]) -> None:
    # Sorted, so that a run taken up again ends in the same bytes.
    content = {**planned, "files": dict(sorted(files.items()))}
    with _replacing(out / SIDECAR) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """The file appears under its name whole, or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.chmod(0o644)  # mkstemp's files are for their owner alone
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
