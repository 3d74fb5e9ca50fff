"""Mean error by visit, of streams that come back, or by severity, of streams that climb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from bombus.errors import DataError
from bombus.report.columns import Column
from bombus.report.groups import group_runs, labels_of, shared_seeds, split_by_task
from bombus.report.layout import (
    Cell,
    Row,
    Table,
    error_cell,
    heading_of,
    mark_best,
    marked,
    section_of,
    spread_note,
    without_lone_section,
)
from bombus.report.records import RunResult

Part = Literal["visit", "severity"]
PARTS: tuple[Part, ...] = get_args(Part)


def errors_of(run: RunResult, part: Part) -> tuple[float, ...]:
    return run.visits if part == "visit" else run.severities


def parts_tables(
    runs: Sequence[RunResult], part: Part, *, intervals: bool = False, digits: int = 1
) -> list[Table]:
    """A table a task that has such parts; the others are left out, but not all of them."""
    found = [task for task in split_by_task(runs) if any(errors_of(run, part) for run in task)]
    if runs and not found:
        stream = "recurring" if part == "visit" else "gradual"
        raise DataError(
            f"None of these {len(runs)} runs has errors by {part}, which runs over a {stream} "
            f"stream have; make one with --stream {stream}, or leave out --by."
        )
    return [_table(task, part, intervals, digits) for task in found]


def _table(runs: Sequence[RunResult], part: Part, intervals: bool, digits: int) -> Table:
    groups = sorted(group_runs(runs), key=lambda g: g.runs[0].source_access != "none")
    count = max(len(errors_of(run, part)) for run in runs)
    names = [f"{part} {number}" for number in range(1, count + 1)]
    columns = [Column(name, name, "domain", digits) for name in names]
    columns.append(Column("mean", "Mean", "mean", digits))
    rows = []
    for group, label in zip(groups, labels_of(groups), strict=True):
        by_part = [errors_of(run, part) for run in group.runs]
        cells = [
            error_cell([errors[i] for errors in by_part], intervals)
            if all(i < len(errors) for errors in by_part)
            else Cell()
            for i in range(count)
        ]
        cells.append(error_cell([run.mean_error for run in group.runs], intervals))
        method, seeds = group.runs[0].method, len(group.runs)
        section = section_of(group.runs)
        rows.append(Row(marked(label, group.runs), method, seeds, tuple(cells), section=section))
    rows = without_lone_section(mark_best(rows, columns))
    several = any(row.seeds > 1 for row in rows)
    notes = (spread_note(intervals, shared_seeds(groups)),) if several else ()
    heading = f"{heading_of(runs[0])}, error by {part}"
    return Table(heading, tuple(columns), tuple(rows), notes, intervals)
