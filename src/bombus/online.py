"""The loop: batches come, the adapter answers, the answers are scored. Labels go no further."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bombus.data.batch import Batch
from bombus.methods.base import Adapter, Report
from bombus.metrics.calibration import confidence_bins, log_loss
from bombus.metrics.cost import timed
from bombus.metrics.error import count_errors
from bombus.metrics.passes import PassCounter
from bombus.names import Precision


def adapt_online(
    adapter: Adapter,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: Precision = "fp32",
) -> Iterator[dict[str, Any]]:
    """Answer every batch once, in order, and yield one record for each."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    passes = PassCounter(adapter.model)
    for batch in batches:
        x = batch.x.to(device)
        with timed(device) as watch, passes.counting(), autocast(device, precision):
            logits = adapter(x) if batch.adapts else adapter.predict(x)
        # Scored in float64, which not every GPU has.
        answers = logits[-len(batch.y) :].float().cpu()
        counts = count_errors(answers, batch.y, batch.domains)
        last = adapter.last if batch.adapts else Report()
        yield {
            "batch": batch.position,
            "domains": {d: {"wrong": w, "samples": n} for d, (w, n) in counts.items()},
            "log_loss": round(log_loss(answers, batch.y)[0], 4),
            "confidence": [
                [int(samples), int(right), round(confidence, 5)]
                for samples, right, confidence in confidence_bins(answers, batch.y)
            ],
            "largest": {"answer": _largest(answers.argmax(1)), "label": _largest(batch.y)},
            "signals": last.signals,
            "events": list(last.events),
            "ms": round(watch.ms, 3),
            "phases_ms": last.phases,
            "forwards": round(passes.entered / len(batch.y), 4),
            "backwards": round(passes.returned / len(batch.y), 4),
        }


def _largest(classes: Tensor) -> float:
    """The share of the most frequent class."""
    return round(float(classes.bincount().max() / len(classes)), 4) if len(classes) else 0.0


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    if precision != "bf16":
        return nullcontext()
    # Without the cache: a method that steps twice in one call would see stale copies of weights.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
