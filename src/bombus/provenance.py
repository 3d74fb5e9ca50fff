"""Where a result comes from: versions, device, and the command that made it."""

from __future__ import annotations

import hashlib
import platform
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

import bombus


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


def command_line(arguments: Sequence[str]) -> str:
    """The command as typed, but for the folders of absolute paths: they are nobody's business."""
    kept = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return shlex.join(["bombus", *kept])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"
