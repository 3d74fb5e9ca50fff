"""Crash-safe storage of nested state: tensors in safetensors, everything else in one JSON manifest.

A state comes in named parts. A folder holds `manifest.json` and the tensor files it names, one a
part. A tensor file is written and synced under a name made of its own hash (so a part that has not
changed is not written again), then the manifest is replaced in one step, then files it no longer
names go. Killed at any moment, the folder holds the old state or the new one, whole. The hashes are
checked on loading, because safetensors does not notice a flipped bit. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from bombus.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 2


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, or leave it as it was: never something in between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def is_temporary(path: Path) -> bool:
    """Left behind by a kill in the middle of `write_bytes`."""
    return path.name.startswith(".") and path.suffix == ".tmp"


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def finite(value: Any) -> Any:
    """As JSON can hold it, which has no word for a number that is not finite: None instead."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_state(folder: Path, parts: Mapping[str, Any], meta: dict[str, Any]) -> None:
    """Store trees of dicts, lists, tensors, numbers and strings, with a JSON header beside them."""
    try:
        _write_state(folder, parts, meta)
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {folder} cannot be written: {error.strerror or error}; choose a "
            "folder that is new or yours, on a disk with room. What it held before is still whole."
        ) from error


def _write_state(folder: Path, parts: Mapping[str, Any], meta: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_a_strangers_manifest(folder)
    stored: dict[str, dict[str, Any]] = {}
    for part, tree in parts.items():
        tensors: dict[str, Tensor] = {}
        skeleton = _strip_tensors(tree, tensors, f"/{part}")
        data = format_tensors(tensors)
        digest = hashlib.sha256(data).hexdigest()
        name = f"{part}-{digest[:16]}.safetensors"
        if not _is_whole(folder / name, digest, len(data)):
            write_bytes(folder / name, data)
        stored[part] = {"tensors": name, "sha256": digest, "state": skeleton}
    body = {"format": FORMAT, "meta": meta, "parts": stored}
    write_json(folder / MANIFEST, {**body, "manifest_sha256": _digest(body)})
    for part, kept in stored.items():
        # Only names of ours: somebody may keep other files in this folder.
        for old in folder.glob(f"{part}-{'[0-9a-f]' * 16}.safetensors"):
            if old.name != kept["tensors"]:
                old.unlink(missing_ok=True)


def _refuse_a_strangers_manifest(folder: Path) -> None:
    """Other tools keep a manifest.json too; a damaged one of ours may be replaced."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return
    if not isinstance(found, dict) or not {"format", "meta"} <= found.keys():
        raise CheckpointError(
            f"{folder} holds a {MANIFEST} that is no checkpoint's, and saving there would replace "
            "it; choose another folder."
        )


def _is_whole(path: Path, digest: str, size: int) -> bool:
    """Whether an earlier save left this very file, undamaged."""
    if not path.exists() or path.stat().st_size != size:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == digest


def load_meta(folder: Path) -> dict[str, Any]:
    """The header alone, checked, without reading the tensors."""
    meta: dict[str, Any] = _read_manifest(folder)["meta"]
    return meta


def load_state(
    folder: Path, *, device: torch.device | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts and the header."""
    body = _read_manifest(folder)
    parts = {}
    for name, part in body["parts"].items():
        tensors = _read_tensors(folder, part)
        if device is not None:
            tensors = {key: t.to(device) for key, t in tensors.items()}
        parts[name] = _refill_tensors(part["state"], tensors)
    return parts, body["meta"]


def _read_tensors(folder: Path, part: dict[str, Any]) -> dict[str, Tensor]:
    path = folder / part["tensors"]
    try:
        data = path.read_bytes()
    except OSError:
        raise CheckpointError(
            f"The checkpoint {folder} names {part['tensors']}, which is not there; "
            "restore the file or start anew."
        ) from None
    if hashlib.sha256(data).hexdigest() != part["sha256"]:
        raise CheckpointError(
            f"The checkpoint file {path} is damaged (its sha256 differs from the recorded one); "
            "restore it from a copy or start anew."
        )
    try:
        return parse_tensors(data)
    except SafetensorError as error:
        raise CheckpointError(f"The checkpoint file {path} cannot be read: {error}.") from None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        expected = manifest.pop("manifest_sha256")
    except FileNotFoundError:
        raise CheckpointError(
            f"There is no checkpoint in {folder} (no {MANIFEST}); check the path."
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint manifest {path} cannot be read: {error.strerror or error}; give the "
            "folder that adapter.save wrote."
        ) from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CheckpointError(
            f"The checkpoint manifest {path} is cut off or not JSON; restore it or start anew."
        ) from None
    if _digest(manifest) != expected:
        raise CheckpointError(
            f"The checkpoint manifest {path} is damaged (its sha256 differs from the recorded "
            "one); restore it from a copy or start anew."
        )
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"The checkpoint {folder} has format {manifest['format']}, this version reads "
            f"{FORMAT}; load it with the version of bombus that wrote it."
        )
    body: dict[str, Any] = manifest
    return body


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _strip_tensors(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Move tensors out of a tree. Dicts become lists of pairs: integer keys survive JSON so."""
    if isinstance(value, Tensor):
        # Shared storage (a view, an expanded tensor) would be refused by safetensors: own bytes.
        tensors[path] = value.detach().cpu().clone().contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        pairs = [[k, _strip_tensors(v, tensors, f"{path}/{k}")] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        items = [_strip_tensors(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"State at {path} is a {type(value).__name__}, which cannot be stored.")


def _refill_tensors(node: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _refill_tensors(child, tensors) for key, child in content}
    if kind in ("list", "tuple"):
        items = [_refill_tensors(child, tensors) for child in content]
        return tuple(items) if kind == "tuple" else items
    return content


def _sync_folder(folder: Path) -> None:
    # Without this the new name itself can be lost when the power fails. Windows has no such call.
    if os.name == "posix":
        with _descriptor(folder) as descriptor:
            os.fsync(descriptor)


@contextmanager
def _descriptor(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
