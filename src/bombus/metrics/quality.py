"""Beyond the error: can the confidence be believed, how soon does it adapt, what is forgotten?

Everything comes from the records of a run, one a batch, so that a resumed run says the same.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from bombus.metrics.calibration import add_bins, calibration_error
from bombus.metrics.speed import batches_to_adapt

Records = Sequence[dict[str, Any]]


def summarise_quality(records: Records) -> dict[str, Any]:
    """Calibration error (%), log loss (nats), batches to adapt (mean over visits), clean error."""
    bins = add_bins([record["confidence"] for record in records])
    answered = sum(samples for samples, _, _ in bins)
    total = math.fsum(record["log_loss"] for record in records)
    quality: dict[str, Any] = {
        "calibration_error": round(calibration_error(bins), 4) if answered else None,
        "log_loss": round(total / answered, 5) if answered else None,
        "batches_to_adapt": _speed(records),
    }
    after = [
        {"domain": next(iter(record["domains"])), "error": record["clean_error"]}
        for record in records
        if "clean_error" in record
    ]
    if after:
        quality["clean"] = {"before": records[0]["clean_before"], "after": after}
    return quality


def _speed(records: Records) -> float | None:
    """None where no visit is long enough, or where domains are mixed within batches."""
    if any(len(record["domains"]) != 1 for record in records):
        return None
    speeds = []
    for _, visit in itertools.groupby(records, key=lambda record: next(iter(record["domains"]))):
        counts = [next(iter(record["domains"].values())) for record in visit]
        wrong, samples = ([count[name] for count in counts] for name in ("wrong", "samples"))
        speeds.append(batches_to_adapt(wrong, samples))
    known = [speed for speed in speeds if speed is not None]
    return round(statistics.fmean(known), 2) if known else None
