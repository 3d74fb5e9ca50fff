"""From the computer's memory to where a network computes."""

from __future__ import annotations

import torch
from torch import Tensor


def send(x: Tensor, device: torch.device) -> Tensor:
    """x on the device. A GPU is not waited for: its queue would run dry at every small draw."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)
