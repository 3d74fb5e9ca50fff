"""What stands beside the errors in a table: what a method costs, and how good its confidence is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bombus.report.records import RunResult


@dataclass(frozen=True)
class Column:
    name: str
    head: str  # short
    kind: Literal["domain", "mean", "published", "cost"]
    digits: int | None  # None: as many as it takes


COST = (
    Column("ms_per_batch", "ms/batch", "cost", 1),
    Column("forwards", "forwards", "cost", None),
    Column("backwards", "backwards", "cost", None),
    Column("peak_memory_mb", "peak MiB", "cost", 0),
    Column("source_access", "source data", "cost", None),
    Column("source_mb", "source MB", "cost", 0),
)


QUALITY = (
    Column("calibration_error", "calib. %", "cost", 2),
    Column("log_loss", "log loss", "cost", 3),
    Column("batches_to_adapt", "to adapt", "cost", 1),
    Column("forgotten", "forgotten", "cost", 2),
)
SOMETIMES = ("batches_to_adapt", "forgotten")  # only where a run of the table has it
BY_CONFIDENCE = ("calibration_error", "log_loss")


def costs_of(runs: Sequence[RunResult]) -> dict[str, float | str | None]:
    costs = [run.cost for run in runs]
    return {
        "ms_per_batch": quickest(runs),
        "forwards": statistics.fmean(c.forwards_per_batch for c in costs),
        "backwards": statistics.fmean(c.backwards_per_batch for c in costs),
        "peak_memory_mb": max(c.peak_memory_mb for c in costs),
        "source_access": runs[0].source_access,
        "source_mb": _source_mb(runs),
    }


def quickest(runs: Sequence[RunResult]) -> float:
    """Milliseconds a batch of the quickest seed: what else a machine does can only slow a run."""
    return min(run.cost.ms_per_batch for run in runs)


def qualities_of(runs: Sequence[RunResult]) -> dict[str, float | str | None]:
    means: dict[str, float | str | None] = {}
    for column in QUALITY:
        known = [v for run in runs if (v := getattr(run, column.name)) is not None]
        if column.name in BY_CONFIDENCE and any(run.not_finite for run in runs):
            known = []  # the seeds that went well do not speak for the one that diverged
        means[column.name] = statistics.fmean(known) if known else None
    return means


def _source_mb(runs: Sequence[RunResult]) -> float | None:
    if runs[0].source_access == "none":
        return 0.0
    read = [r.cost.source_bytes for r in runs if r.cost.source_bytes is not None]
    return max(read) / 1e6 if read else None


def format_value(value: float | str | None, column: Column) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{round(value, 2):g}" if column.digits is None else f"{value:.{column.digits}f}"
