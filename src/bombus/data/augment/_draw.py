"""Random parameters, drawn on the CPU in float32 and moved to where the images are."""

from __future__ import annotations

import torch
from torch import Tensor

from bombus.errors import InputError
from bombus.transfer import send

Range = tuple[float, float]


def working(x: Tensor) -> Tensor:
    """The images in the precision they are computed in: float32, or float64 if they are."""
    if x.ndim != 4 or x.shape[1] != 3 or not x.is_floating_point():
        raise InputError(
            f"augmentations take images as floats in [0, 1] of shape (N, 3, H, W), "
            f"not {x.dtype} of shape {tuple(x.shape)}"
        )
    return x if x.dtype == torch.float64 else x.float()


def count(x: Tensor, per_sample: bool) -> int:
    """How many sets of parameters a batch gets; a single one is broadcast over it."""
    return len(x) if per_sample else 1


def uniform(bounds: Range, n: int, generator: torch.Generator, like: Tensor) -> Tensor:
    low, high = bounds
    u = _rand(n, generator)
    return send(low + (high - low) * u, like.device).to(like.dtype)  # (n, 1, 1, 1)


def coin(p: float, n: int, generator: torch.Generator, like: Tensor) -> Tensor:
    u = _rand(n, generator)
    return send(u < p, like.device)  # (n, 1, 1, 1)


def _rand(n: int, generator: torch.Generator) -> Tensor:
    # Where the generator is, whatever torch.set_default_device says.
    return torch.rand(n, 1, 1, 1, generator=generator, dtype=torch.float32, device=generator.device)
