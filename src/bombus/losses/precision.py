"""Losses are computed in float32 at least, whatever the precision of the network."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_single(x: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; float64 stays, for checks by hand."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
