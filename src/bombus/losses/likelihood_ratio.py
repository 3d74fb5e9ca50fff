"""The soft likelihood ratio: a confidence loss whose pull does not fade on confident samples.

Mummadi et al., Test-Time Adaptation to Distribution Shift by Confidence Maximization and Input
Transformation, 2021, https://arxiv.org/abs/2106.14999; ROID trains on it. Shapes: N samples,
C classes.
"""

from __future__ import annotations

from torch import Tensor

from bombus.losses.precision import at_least_single


def soft_likelihood_ratio(logits: Tensor, clip: float = 0.99, eps: float = 1e-5) -> Tensor:
    """-sum_c p_c log(p_c / (1 - p_c)), the expected log-odds, one number a sample, (N,).

    The gradient enters both factors. As in ROID's code, probabilities are cut at `clip`, without
    which the loss has no lower bound: a class above it is sure enough and drives no more; `eps`
    stands for the odds of a class that cannot be.
    """
    p = at_least_single(logits).softmax(1).clamp(max=clip)  # (N, C)
    return -(p * (p / (1 - p) + eps).log()).sum(1)
