"""How far a method's confidence can be believed: calibration error and log-likelihood.

A batch leaves sums behind, not samples, so that a run's figures come from its log alone.

Shapes: N samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BINS = 15  # as in Guo et al., ICML 2017

Bins = list[list[float]]  # a row a bin of confidence: samples, right answers, summed confidence


def confidence_bins(logits: Tensor, y: Tensor) -> Bins:
    """Sums over one batch, by confidence; answers that are not finite are left out.

    Whoever sums up must count those: left out of a mean, a method's worst answers flatter it.
    """
    answered = logits.isfinite().all(1)
    probabilities = logits[answered].double().softmax(1)
    confidence, answer = probabilities.max(1)
    right = answer == y.to(logits.device)[answered]
    # Bins (0, 1/15], (1/15, 2/15], ...: a confidence of 1 belongs to the last.
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    sums = torch.zeros(BINS, 3, dtype=torch.float64, device=logits.device)
    rows = torch.stack([torch.ones_like(confidence), right.double(), confidence], 1)
    bins: Bins = sums.index_add_(0, place, rows).tolist()
    return bins


def add_bins(batches: Sequence[Bins]) -> Bins:
    return [
        [math.fsum(values) for values in zip(*rows, strict=True)]
        for rows in zip(*batches, strict=True)
    ]


def calibration_error(bins: Bins) -> float:
    """Expected calibration error in per cent: |accuracy - confidence| by bin, weighted by size."""
    total = sum(samples for samples, _, _ in bins)
    return 100 * math.fsum(abs(right - confidence) for _, right, confidence in bins) / total


def log_loss(logits: Tensor, y: Tensor) -> tuple[float, int]:
    """-log p of the true class in nats, summed over finite answers, and their number."""
    answered = logits.isfinite().all(1)
    log_p = logits[answered].double().log_softmax(1)
    chosen = log_p.gather(1, y.to(logits.device)[answered].long()[:, None])
    return -float(chosen.sum()), int(answered.sum())
