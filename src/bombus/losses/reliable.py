"""Which predictions are worth learning from: the sure ones, and of those what adds something.

The criteria of EATA (Niu et al., ICML 2022, https://arxiv.org/abs/2204.02610), which RDumb and SAR
take over. Shapes: N samples, C classes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def entropy_margin(classes: int, fraction: float) -> float:
    """E0: a fraction of ln C, the entropy of pure guessing; predictions below it are reliable."""
    return fraction * math.log(classes)


def is_reliable(entropy: Tensor, margin: float) -> Tensor:
    """(N,) bool: strictly below the margin. An entropy that is no number is not."""
    return entropy.detach() < margin


def is_new(probabilities: Tensor, mean: Tensor | None, margin: float) -> Tensor:
    """(N,) bool: at a cosine below `margin` to the mean prediction (C,) of what was learnt from.

    Everything is new while there is no mean. Probabilities are not negative, so neither is the
    cosine, and the absolute value that the reference takes of it changes nothing.
    """
    if mean is None:
        return torch.ones(len(probabilities), dtype=torch.bool, device=probabilities.device)
    return F.cosine_similarity(probabilities, mean[None], dim=1) < margin


def weighted_entropy(entropy: Tensor, kept: Tensor, margin: float) -> Tensor:
    """The mean over the kept of exp(E0 - H) H: the surer, the more it counts.

    The weight is a constant to the gradient. The mean is over the kept alone, not over the batch,
    and `kept` (N,) marks at least one.
    """
    chosen = entropy[kept]
    return ((margin - chosen.detach()).exp() * chosen).mean()


def mean_prediction(mean: Tensor | None, probabilities: Tensor, momentum: float) -> Tensor:
    """The running mean (C,) after one more batch of learnt predictions (at least one of them)."""
    latest = probabilities.mean(0)
    return latest if mean is None else momentum * mean + (1 - momentum) * latest
