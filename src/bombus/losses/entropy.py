"""Entropies of predictions, in nats, in float32 whatever the precision of the network."""

from __future__ import annotations

from torch import Tensor

from bombus.losses.precision import at_least_single


def softmax_entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits), one number a sample: -sum_c p_c log p_c."""
    log_p = at_least_single(logits).log_softmax(1)  # (N, C)
    return -(log_p.exp() * log_p).sum(1)  # (N,)
