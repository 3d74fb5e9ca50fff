"""BEE's multi-level consistency: descriptors of blocks, compared with codes, student to teacher.

Shapes: N samples, D features of a block, M codes. Float32 at least, whatever the network's dtype.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bombus.losses.precision import at_least_single

Tokens = Literal["patches", "class"]


def describe(h: Tensor, tokens: Tokens = "patches") -> Tensor:
    """The output of a block as one unit vector a sample, (N, D).

    Feature maps (N, C, H, W) are averaged over places, tokens (N, T, D) over patches, or their
    class token is taken; (N, D) is taken as it is. A class token is known by the rest being a
    square number of patches.
    """
    dtype = torch.promote_types(h.dtype, torch.float32)
    if h.dim() == 4:
        h = h.mean((2, 3), dtype=dtype)  # (N, C)
    elif h.dim() == 3:
        patches = h.shape[1] - 1
        has_class = patches > 0 and math.isqrt(patches) ** 2 == patches
        if tokens == "class" and not has_class:
            raise ValueError(
                f"Got a block output of shape {tuple(h.shape)}, in which no class token stands "
                'before a square of patches; choose tokens="patches".'
            )
        if has_class:
            h = h[:, :1] if tokens == "class" else h[:, 1:]
        h = h.mean(1, dtype=dtype)  # (N, D)
    elif h.dim() != 2:
        raise ValueError(
            f"Got a block output of shape {tuple(h.shape)}, expected (N, C, H, W), (N, T, D) or "
            "(N, D); choose other blocks as levels."
        )
    # Unit length, so that Eq. 5's products are cosines and τ means the same at every level.
    return normalize(h.to(dtype), dim=1)


def log_assignment(descriptor: Tensor, codes: Tensor, tau: float) -> Tensor:
    """log p over the codes, (N, M): softmax of the cosines over tau (Eq. 5).

    Args:
        descriptor: (N, D), rows of unit length.
        codes: (M, D), rows of unit length; the paper's codebook Q, transposed.
        tau: the temperature τ_s.
    """
    # Autocast would multiply in 16 bits, and 1 / tau would blow up what that rounds away.
    with torch.autocast(descriptor.device.type, enabled=False):
        cosines = descriptor @ codes.to(descriptor.dtype).T  # (N, M)
        return (cosines / tau).log_softmax(1)


def consistency(log_student: Tensor, target: Tensor) -> Tensor:
    """Mean over samples of -sum_m target_m log student_m, one level of Eq. 9.

    The teacher is the target. Eq. 9 prints H(p_s, p_t), which by Eq. 3's definition of H would
    take the logarithm of the Sinkhorn targets: many are zero, and the student, as the weight,
    would only be drawn to the teacher's largest code. Eq. 3 has the teacher first.
    """
    return -(target.detach() * log_student).sum(1).mean()


def perplexity(p: Tensor) -> Tensor:
    """How many codes a sample is spread over: the mean over rows of exp(entropy), from 1 to M."""
    p = at_least_single(p)
    entropy: Tensor = torch.special.entr(p).sum(1)  # (N,), with 0 log 0 = 0
    return entropy.exp().mean()
