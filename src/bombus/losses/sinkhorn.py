"""Sinkhorn-Knopp: balanced soft targets from the teacher's scores, BEE's Eqs. 7-8.

Shapes: N samples, M codes. The listing in the paper's appendix works on the transpose (M, N).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bombus.losses.precision import at_least_single


@torch.no_grad()
def sinkhorn(scores: Tensor, tau: float, iterations: int = 3) -> Tensor:
    """Targets near softmax(scores / tau) that use all codes alike; constants, without gradient.

    Every sample's row sums to 1; every code's column approaches N / M as the iterations grow.
    Float32 at least. Eq. 7 as printed has no entropy term and would give one-hot targets; the
    listing, and this, solve it with one of weight tau, on the scores rather than on their softmax.

    Args:
        scores: (N, M) cosines of descriptors and codes.
        tau: the teacher's temperature τ_t; small is sharp.
        iterations: rounds of both normalisations, at least 1.
    """
    if not tau > 0 or iterations < 1:
        raise ValueError(
            f"Got tau={tau} and {iterations} iterations, expected tau > 0 and at least 1 iteration."
        )
    # The plan's logarithm: exp(scores / tau) itself would overflow float32 where scores > 88 tau.
    # The listing's first division by the total, and its 1/M, 1/N and N, cancel in what follows.
    log_plan = at_least_single(scores) / tau  # (N, M)
    for _ in range(iterations):
        # Eq. 7, codes: every column has the same mass, so no code takes all samples.
        log_plan = log_plan - log_plan.logsumexp(0, keepdim=True)
        # Eq. 7, samples: every row has the same mass, 1, so each is a distribution. Comes last:
        # this one holds exactly when the iterations stop, the other one nearly.
        log_plan = log_plan.log_softmax(1)
    return log_plan.exp()
