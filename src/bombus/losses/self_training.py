"""The self-training term of RMT, which OBAO has taken over.

Shapes: N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bombus.losses.divergence import symmetric_cross_entropy


def self_training(views: Sequence[Tensor], teacher: Tensor) -> Tensor:
    """How far the student's logits of each view are from the teacher's of the plain images.

    The mean over views and samples of the symmetric cross-entropy; all tensors are (N, C). With
    the plain images and one augmented view it is RMT's ½ SCE(s(x), t(x)) + ½ SCE(s(aug x), t(x)).
    """
    return torch.stack([symmetric_cross_entropy(s, teacher).mean() for s in views]).mean()
