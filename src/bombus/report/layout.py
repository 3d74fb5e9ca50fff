"""What stands where in a table, and what is best: a row a method, a column a domain, mean last."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bombus.report.groups import Group, group_runs, split_by_task
from bombus.report.published import PublishedRow, published_rows
from bombus.report.records import RunResult

Mark = Literal["", "best", "second"]
# Whoever has seen source data before must not be set beside whoever has not as if they were alike.
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
class Column:
    name: str
    head: str  # short
    kind: Literal["domain", "mean", "cost"]
    digits: int | None  # None: as many as it takes


COST = (
    Column("ms_per_batch", "ms/batch", "cost", 1),
    Column("forwards", "forwards", "cost", None),
    Column("backwards", "backwards", "cost", None),
    Column("peak_memory_mb", "peak MB", "cost", 0),
    Column("source_access", "source data", "cost", None),
    Column("source_mb", "source MB", "cost", 0),
)


@dataclass(frozen=True)
class Cell:
    value: float | str | None = None
    spread: float | None = None  # standard deviation over seeds
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


def make_tables(
    runs: Sequence[RunResult], *, published: bool = True, cost: bool = False, digits: int = 1
) -> list[Table]:
    """One table for each benchmark, network, severity and list of domains among the runs.

    Args:
        runs: those that differ only in their seed are averaged.
        published: put what others printed for the same task and network below our rows.
        cost: add time, passes, memory and access to source data.
        digits: decimals of an error; what is equal at this precision is equally good.
    """
    return [_table(task, published, cost, digits) for task in split_by_task(runs)]


def _table(runs: Sequence[RunResult], published: bool, cost: bool, digits: int) -> Table:
    first = runs[0]
    groups = sorted(group_runs(runs), key=lambda g: g.runs[0].source_access != "none")
    names = tuple(d.name for d in first.domains)
    columns = [Column(n, SHORT.get(n, n), "domain", digits) for n in names]
    columns.append(Column("mean", "Mean", "mean", digits))
    columns += COST if cost else ()
    ours = _marked([_row(group, cost) for group in groups], columns)
    severity = first.stream.get("severity")
    standard = names == tuple(SHORT)
    rows: list[Row] = []
    notes: dict[str, None] = {}
    if any(row.seeds > 1 for row in ours):
        notes["± is the standard deviation over seeds."] = None
    for group, row in zip(groups, ours, strict=True):
        rows.append(row)
        variants = [g for g in groups if g.method == group.method]
        if not (published and standard and severity == 5) or group is not variants[-1]:
            continue
        for printed in published_rows(first.benchmark, first.backbone, group.method):
            rows.append(replace(_published_row(printed, variants, columns), section=row.section))
            notes[f"published ({printed.short}): {printed.origin}."] = None
            notes.update(dict.fromkeys(printed.notes))
    if cost:
        devices = dict.fromkeys(run.device for run in runs)
        notes[f"ms/batch and peak MB on: {'; '.join(devices)}."] = None
    if len({row.section for row in rows}) < 2:  # nothing to set apart
        rows = [replace(row, section="") for row in rows]
    heading = f"{first.benchmark}, {first.backbone}, severity {severity}"
    if not standard:
        heading += f", {len(names)} domain{'s' if len(names) > 1 else ''}"
    return Table(heading, tuple(columns), tuple(rows), tuple(notes))


def _row(group: Group, cost: bool) -> Row:
    runs = group.runs
    means = [run.mean_error for run in runs]
    by_domain = zip(*(run.domains for run in runs), strict=True)
    cells = [Cell(statistics.fmean(d.error for d in same)) for same in by_domain]
    spread = statistics.stdev(means) if len(runs) > 1 else None
    cells.append(Cell(statistics.fmean(means), spread))
    if cost:
        costs = [run.cost for run in runs]
        cells += [
            Cell(statistics.fmean(c.ms_per_batch for c in costs)),
            Cell(statistics.fmean(c.forwards_per_batch for c in costs)),
            Cell(statistics.fmean(c.backwards_per_batch for c in costs)),
            Cell(max(c.peak_memory_mb for c in costs)),
            Cell(runs[0].source_access),
            Cell(_source_mb(runs)),
        ]
    section = FREE if runs[0].source_access == "none" else ASSISTED
    return Row(group.label, group.method, len(runs), tuple(cells), section=section)


def _source_mb(runs: Sequence[RunResult]) -> float | None:
    if runs[0].source_access == "none":
        return 0.0
    read = [r.cost.source_bytes for r in runs if r.cost.source_bytes is not None]
    return max(read) / 1e6 if read else None


def _published_row(
    printed: PublishedRow, variants: Sequence[Group], columns: Sequence[Column]
) -> Row:
    runs = [run for group in variants for run in group.runs]
    other = [printed.short]
    if any(d.samples != printed.samples for run in runs for d in run.domains):
        other.append(f"{printed.samples:,} images")
    if any(run.stream.get("batch_size") != printed.batch_size for run in runs):
        other.append(f"batches of {printed.batch_size}")
    domains = printed.domains or {}
    cells = [
        Cell(printed.mean, printed.std) if c.kind == "mean" else Cell(domains.get(c.name))
        for c in columns
    ]
    brief = f"({', '.join(other)})"
    return Row(f"published {brief}", printed.method, 0, tuple(cells), published=True, brief=brief)


def _marked(rows: list[Row], columns: Sequence[Column]) -> list[Row]:
    """Best and second best of each error column. Of one row alone nothing can be said."""
    if len(rows) < 2:
        return rows
    marks: list[list[Mark]] = []
    for i, column in enumerate(columns):
        if column.kind == "cost":
            marks.append([""] * len(rows))
            continue
        shown = [float(format_value(row.cells[i].value, column)) for row in rows]
        # Two that are best leave no second, as at the Olympics and in the papers.
        ranks = [1 + sum(other < value for other in shown) for value in shown]
        marks.append(["best" if r == 1 else "second" if r == 2 else "" for r in ranks])
    return [
        replace(
            row,
            cells=tuple(replace(c, mark=marks[i][j]) for i, c in enumerate(row.cells)),
        )
        for j, row in enumerate(rows)
    ]


def format_value(value: float | str | None, column: Column) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:g}" if column.digits is None else f"{value:.{column.digits}f}"
