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
from bombus.report.records import main_domain

Records = Sequence[dict[str, Any]]

ONE_SIDED = 0.3  # of a batch's images
GUESSING = 0.9  # of the error of guessing


def summarise_quality(records: Records, classes: int, *, settles: bool = True) -> dict[str, Any]:
    """Calibration error (%), log loss (nats), batches to adapt, collapse, error on clean images.

    Batches to adapt are unknown where the stream does not settle (`Stream.settles`).
    The first two are unknown as soon as one answer is not finite: such an answer has no confidence,
    and over the others alone a run that diverged would look better than a sound one.
    """
    bins = add_bins([record["confidence"] for record in records])
    answered = sum(samples for samples, _, _ in bins)
    samples = sum(c["samples"] for record in records for c in record["domains"].values())
    not_finite = int(samples - answered)
    known = answered and not not_finite
    total = math.fsum(record["log_loss"] for record in records)
    quality: dict[str, Any] = {
        "calibration_error": round(calibration_error(bins), 4) if known else None,
        "log_loss": round(total / answered, 5) if known else None,
        "not_finite": not_finite,
        "batches_to_adapt": _speed(records) if settles else None,
        "collapsed": has_collapsed(records, classes),
    }
    after = [
        {"domain": main_domain(record), "error": record["clean_error"]}
        for record in records
        if "clean_error" in record
    ]
    if after:
        quality["clean"] = {"before": records[0]["clean_before"], "after": after}
    return quality


def has_collapsed(records: Records, classes: int) -> bool:
    """Whether a method ended, in the last quarter of its stream, where no answer means anything.

    Its most frequent answer takes up far more of a batch than the most frequent label does, or its
    error is nearly that of guessing.
    """
    last = records[-max(1, len(records) // 4) :]
    excess = [r["largest"]["answer"] - r["largest"]["label"] for r in last]
    counts = [count for r in last for count in r["domains"].values()]
    error = sum(c["wrong"] for c in counts) / sum(c["samples"] for c in counts)
    return statistics.fmean(excess) > ONE_SIDED or error >= GUESSING * (1 - 1 / classes)


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
