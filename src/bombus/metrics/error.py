"""Classification error from counts: per domain, and the mean over domains as the papers report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bombus.errors import DataError

Counts = dict[str, tuple[int, int]]  # domain -> (wrong, samples)


def count_errors(logits: Tensor, y: Tensor, domains: Sequence[str]) -> Counts:
    """Wrong answers and samples of one batch, by domain. No answer (a NaN row) counts as wrong."""
    classes = logits.shape[1]
    if y.dtype.is_floating_point or y.dtype == torch.bool or y.shape != logits.shape[:1]:
        raise DataError(
            f"Got labels of shape {tuple(y.shape)} and dtype {y.dtype} for logits of shape "
            f"{tuple(logits.shape)}, expected one whole number a sample."
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise DataError(
            f"Got labels from {int(y.min())} to {int(y.max())} for a model of {classes} classes, "
            f"expected 0 to {classes - 1}; is this the right data set for this model?"
        )
    wrong = (logits.argmax(1) != y.to(logits.device)) | logits.isnan().any(1)
    counts: Counts = {}
    for is_wrong, domain in zip(wrong.tolist(), domains, strict=True):
        before, samples = counts.get(domain, (0, 0))
        counts[domain] = (before + is_wrong, samples + 1)
    return counts


@dataclass
class ErrorMeter:
    """Running totals; domains in the order in which they first came."""

    counts: Counts = field(default_factory=dict)

    def add(self, counts: Counts) -> None:
        for domain, (wrong, samples) in counts.items():
            before, total = self.counts.get(domain, (0, 0))
            self.counts[domain] = (before + wrong, total + samples)

    def error(self, domain: str) -> float:
        wrong, samples = self.counts[domain]
        return 100.0 * wrong / samples

    def mean(self) -> float:
        """Per cent, each domain counting the same."""
        return sum(map(self.error, self.counts)) / len(self.counts)

    def rows(self, order: Iterable[str] = ()) -> list[dict[str, Any]]:
        """A row a domain: those of `order` first, then the others as they came."""
        names = [d for d in dict.fromkeys([*order, *self.counts]) if d in self.counts]
        return [
            {"name": d, "samples": self.counts[d][1], "error": round(self.error(d), 4)}
            for d in names
        ]


def errors_by_part(parts: Sequence[int], counts: Sequence[Counts]) -> list[float]:
    """The mean error of each part of a stream, by number; `parts` says which a batch belongs to."""
    meters: dict[int, ErrorMeter] = {}
    for part, count in zip(parts, counts, strict=True):
        meters.setdefault(part, ErrorMeter()).add(count)
    return [round(meters[part].mean(), 4) for part in sorted(meters)]
