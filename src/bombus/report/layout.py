"""What stands where in a table, and what is best: a row a method, a column a domain, mean last."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bombus.metrics.interval import half_width
from bombus.report.columns import (
    COST,
    QUALITY,
    SOMETIMES,
    Column,
    costs_of,
    format_value,
    qualities_of,
)
from bombus.report.groups import (
    Group,
    differing,
    group_runs,
    labels_of,
    severity_in_words,
    severity_of,
    shared_seeds,
    split_by_task,
    stream_label,
)
from bombus.report.published import PublishedRow, published_rows
from bombus.report.records import RunResult

Mark = Literal["", "best", "second"]
# Whoever has seen source data before must not be set beside whoever has not as if they were alike.
COLLAPSED = "†"
COLLAPSED_NOTE = (
    f"{COLLAPSED} collapsed: in the last quarter of the stream nearly all answers are one class, "
    "or no better than guessing."
)
FREE, ASSISTED = "source-free", "source-assisted"
# Domain -> head in narrow tables, in the order of the published ones.
SHORT = {
    "gaussian_noise": "Gauss",
    "shot_noise": "Shot",
    "impulse_noise": "Impul",
    "defocus_blur": "Defoc",
    "glass_blur": "Glass",
    "motion_blur": "Motion",
    "zoom_blur": "Zoom",
    "snow": "Snow",
    "frost": "Frost",
    "fog": "Fog",
    "brightness": "Brit",
    "contrast": "Contr",
    "elastic_transform": "Elast",
    "pixelate": "Pixel",
    "jpeg_compression": "JPEG",
}


@dataclass(frozen=True)
class Cell:
    value: float | str | None = None
    spread: float | None = None  # over seeds: standard deviation, or half of the 95 % interval
    mark: Mark = ""


@dataclass(frozen=True)
class Row:
    label: str
    method: str
    seeds: int
    cells: tuple[Cell, ...]
    published: bool = False
    brief: str = ""  # a shorter label where there is little room
    section: str = ""  # the rows of a section stand together


@dataclass(frozen=True)
class Table:
    heading: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    intervals: bool = False  # spreads are halves of 95 % intervals, not standard deviations


def make_tables(
    runs: Sequence[RunResult],
    *,
    published: bool = True,
    cost: bool = False,
    quality: bool = False,
    intervals: bool = False,
    digits: int = 1,
) -> list[Table]:
    """One table for each benchmark, network, severity, stream and list of domains among the runs.

    Args:
        runs: those that differ only in their seed are averaged.
        published: put what others printed for the same task and network beside our means, or
            below our rows where they printed every domain.
        quality: add calibration error, log loss, and batches until a domain is adapted to.
        intervals: give the 95 % interval of every error over seeds, not the mean's deviation.
        cost: add time, passes, memory and access to source data.
        digits: decimals of an error; what is equal at this precision is equally good.
    """
    extra = (*(QUALITY if quality else ()), *(COST if cost else ()))
    return [_table(t, published, extra, intervals, digits) for t in split_by_task(runs)]


def _table(
    runs: Sequence[RunResult],
    published: bool,
    extra: tuple[Column, ...],
    intervals: bool,
    digits: int,
) -> Table:
    first = runs[0]
    groups = sorted(group_runs(runs), key=lambda g: g.runs[0].source_access != "none")
    names = tuple(d.name for d in first.domains)
    columns = [Column(n, SHORT.get(n, n), "domain", digits) for n in names]
    columns.append(Column("mean", "Mean", "mean", digits))
    unknown = [n for n in SOMETIMES if all(getattr(run, n) is None for run in runs)]
    extra = tuple(column for column in extra if column.name not in unknown)
    severity, stream = severity_of(first), stream_label(first)
    # What is printed elsewhere is of the continual stream.
    as_printed = published and names == tuple(SHORT) and severity == 5 and not stream
    printed: dict[str, list[PublishedRow]] = {
        group.method: published_rows(first.benchmark, first.backbone, group.method)
        for group in groups
        if as_printed
    }
    beside = _columns_beside(printed, digits)
    columns += [*beside, *extra]
    ours = [
        _row(label, group.runs, beside, printed.get(group.method, ()), extra, intervals)
        for group, label in zip(groups, labels_of(groups), strict=True)
    ]
    ours = mark_best(ours, columns)
    rows: list[Row] = []
    notes: dict[str, None] = {}
    if any(row.seeds > 1 for row in ours):
        notes[spread_note(intervals, shared_seeds(groups))] = None
    for group, row in zip(groups, ours, strict=True):
        rows.append(row)
        variants = [g for g in groups if g.method == group.method]
        if group is not variants[-1]:
            continue
        for line in printed.get(group.method, ()):
            other = _otherwise(line, variants)
            if not beside:
                below = _published_row(line, other, columns)
                rows.append(replace(below, section=row.section))
            notes[f"published ({line.short}): {line.origin}."] = None
            if beside and other:
                notes[f"published ({line.short}), unlike ours: {', '.join(other)}."] = None
            notes.update(dict.fromkeys(line.notes))
    if set(QUALITY) & set(extra):
        said = "calib.: expected calibration error, 15 bins; log loss in nats"
        if any(column.name == "batches_to_adapt" for column in extra):
            said += "; to adapt: batches until within a point of a domain's final error"
        if any(column.name == "forgotten" for column in extra):
            said += "; forgotten: points by which the error on clean images rose over the stream"
        notes[f"{said}."] = None
        for group in groups:
            if lost := sum(run.not_finite for run in group.runs):
                notes[
                    f"{group.label}: {lost:,} answers are not finite, so there is no calibration "
                    "error and no log loss."
                ] = None
    if set(COST) & set(extra):
        devices = dict.fromkeys(run.device for run in runs)
        notes[f"ms/batch and peak MiB on: {'; '.join(devices)}."] = None
    if any(run.collapsed for run in runs):
        notes[COLLAPSED_NOTE] = None
    if caution := differing(runs):
        notes[caution] = None
    rows = without_lone_section(rows)
    return Table(heading_of(first), tuple(columns), tuple(rows), tuple(notes), intervals)


def heading_of(run: RunResult) -> str:
    """What was run: benchmark, network, severity, stream, and the domains if not the usual."""
    parts = [run.benchmark, run.backbone, severity_in_words(run), stream_label(run)]
    if tuple(d.name for d in run.domains) != tuple(SHORT):
        parts.append(f"{len(run.domains)} domain{'s' if len(run.domains) > 1 else ''}")
    return ", ".join(filter(None, parts))


def _columns_beside(printed: Mapping[str, Sequence[PublishedRow]], digits: int) -> list[Column]:
    """A column a source of printed numbers, where means are all that is printed."""
    lines = [line for own in printed.values() for line in own]
    twice = any(len({line.short for line in own}) < len(own) for own in printed.values())
    if twice or any(line.domains for line in lines):
        return []
    shorts = sorted({line.short for line in lines})
    return [Column(f"published, {short}", short, "published", digits) for short in shorts]


def _row(
    label: str,
    runs: Sequence[RunResult],
    beside: Sequence[Column],
    printed: Sequence[PublishedRow],
    extra: Sequence[Column],
    intervals: bool,
) -> Row:
    by_domain = zip(*(run.domains for run in runs), strict=True)
    cells = [error_cell([d.error for d in same], intervals) for same in by_domain]
    if not intervals:
        cells = [replace(cell, spread=None) for cell in cells]  # of the mean alone
    cells.append(error_cell([run.mean_error for run in runs], intervals))
    means = {line.short: Cell(line.mean, line.std) for line in printed}
    cells += [means.get(column.head, Cell()) for column in beside]
    facts = {**costs_of(runs), **qualities_of(runs)}
    cells += [Cell(facts[column.name]) for column in extra]
    method = runs[0].method
    return Row(marked(label, runs), method, len(runs), tuple(cells), section=section_of(runs))


def marked(label: str, runs: Sequence[RunResult]) -> str:
    """With a sign where one of the runs collapsed."""
    return f"{label} {COLLAPSED}" if any(run.collapsed for run in runs) else label


def section_of(runs: Sequence[RunResult]) -> str:
    return FREE if all(run.source_access == "none" for run in runs) else ASSISTED


def without_lone_section(rows: list[Row]) -> list[Row]:
    """Where all rows are of one section there is nothing to set apart."""
    if len({row.section for row in rows}) < 2:
        return [replace(row, section="") for row in rows]
    return rows


def spread_note(intervals: bool, seeds: int | None = None) -> str:
    """`seeds`: how many every row has, if they agree."""
    what = "half of the 95 % interval of the mean" if intervals else "the standard deviation"
    return f"± is {what} over {f'{seeds} ' if seeds else ''}seeds."


def error_cell(errors: Sequence[float], intervals: bool) -> Cell:
    several = len(errors) > 1
    spread = half_width(errors) if intervals else statistics.stdev(errors) if several else None
    return Cell(statistics.fmean(errors), spread)


def _otherwise(printed: PublishedRow, variants: Sequence[Group]) -> list[str]:
    """In what the printed experiment differs from ours."""
    runs = [run for group in variants for run in group.runs]
    other = []
    if any(d.samples != printed.samples for run in runs for d in run.domains):
        other.append(f"{printed.samples:,} images")
    if any(run.stream.get("batch_size") != printed.batch_size for run in runs):
        other.append(f"batches of {printed.batch_size}")
    return other


def _published_row(
    printed: PublishedRow, otherwise: Sequence[str], columns: Sequence[Column]
) -> Row:
    domains = printed.domains or {}
    cells = [
        Cell(printed.mean, printed.std) if c.kind == "mean" else Cell(domains.get(c.name))
        for c in columns
    ]
    brief = f"({', '.join([printed.short, *otherwise])})"
    return Row(f"published {brief}", printed.method, 0, tuple(cells), published=True, brief=brief)


def mark_best(rows: list[Row], columns: Sequence[Column]) -> list[Row]:
    """Best and second best of each error column. Of one row alone nothing can be said."""
    if len(rows) < 2:
        return rows
    marks: list[list[Mark]] = []
    for i, column in enumerate(columns):
        if column.kind in ("published", "cost"):
            marks.append([""] * len(rows))
            continue
        shown = [format_value(row.cells[i].value, column) for row in rows]
        known = [float(text) for text in shown if text]
        # Two that are best leave no second, as at the Olympics and in the papers.
        ranks = [1 + sum(other < float(text) for other in known) if text else 0 for text in shown]
        marks.append(["best" if r == 1 else "second" if r == 2 else "" for r in ranks])
    return [
        replace(
            row,
            cells=tuple(replace(c, mark=marks[i][j]) for i, c in enumerate(row.cells)),
        )
        for j, row in enumerate(rows)
    ]
