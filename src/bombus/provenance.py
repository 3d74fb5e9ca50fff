"""Where a result comes from: versions, device, and the command that made it."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import bombus


def versions() -> dict[str, str]:
    return {
        "bombus": bombus.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def command_line(arguments: Sequence[str]) -> str:
    """The command as typed, but for the folders of absolute paths: they are nobody's business."""
    kept = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return shlex.join(["bombus", *kept])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"
