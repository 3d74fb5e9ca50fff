"""Where a result comes from: versions, device, files, and the command that made it."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

import bombus
from bombus.backbones._files import sha256_of_files


def versions() -> dict[str, str]:
    return {
        "bombus": bombus.__version__,
        "code": code_sha256()[:16],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


@cache
def code_sha256() -> str:
    """Of the package's own Python files: says which code ran, also where there is no repository."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix()):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
        digest.update(file.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def file_digests(weights: Sequence[Path], source: Path | None) -> dict[str, str]:
    """What tells a network or a warm-up from another of the same name, wherever the files lie.

    A warm-up counts by what it was made of, not by its bytes: made again on a GPU it differs in
    these. Names of published weights are no files; folders of images go by their names alone.
    """
    found = {}
    if weights and all(path.is_file() for path in weights):
        stats = (path.stat() for path in weights)
        found["weights"] = _sha256(tuple(weights), tuple((s.st_size, s.st_mtime_ns) for s in stats))
    if source is not None and source.is_file():
        found["source"] = _made_of(source)
    return found


@cache
def _sha256(files: tuple[Path, ...], _: tuple[tuple[int, int], ...]) -> str:
    """Read once, as long as the files stay as they are: a table asks for every cell and seed."""
    return sha256_of_files(files)


def _made_of(warmup: Path) -> str:
    try:
        with safe_open(warmup, framework="np") as reader:
            said = json.dumps(reader.metadata(), sort_keys=True)
    except SafetensorError:
        return sha256_of_files([warmup])  # no warm-up; who reads it will say so
    return hashlib.sha256(said.encode()).hexdigest()


def command_line(arguments: Sequence[str]) -> str:
    """The command as typed, but for the folders of absolute paths: they are nobody's business."""
    kept = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return shlex.join(["bombus", *kept])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type}, {threads} thread{'s' if threads != 1 else ''}"
