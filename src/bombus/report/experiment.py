"""A table of variants: a row a variant, what sets it apart in columns, its mean error last.

`bombus paper` writes such a table's contents to results.json, which names the runs behind each row;
the table can be made again from those runs alone. Free of torch, as all reading of results is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bombus.errors import DataError, UnknownNameError
from bombus.metrics.interval import half_width
from bombus.report.columns import Column
from bombus.report.layout import Cell, Row, Table, mark_best, spread_note
from bombus.report.records import RunResult, read_json, read_run

TICK = "x"


@dataclass(frozen=True)
class Variant:
    name: str
    facts: dict[str, Any]  # what sets it apart, by column
    published: float | None  # the paper's mean error of it, on its own benchmark
    runs: tuple[RunResult, ...]  # one a seed


def variants_table(
    title: str,
    variants: Sequence[Variant],
    notes: Sequence[str] = (),
    *,
    published: bool = True,
    digits: int = 2,
) -> Table:
    """`notes` say what "published" is of, where any of the variants has a printed figure."""
    first = variants[0].runs[0]
    heading = f"{title}, {first.benchmark}, {first.backbone}"
    names = list(dict.fromkeys(name for v in variants for name in v.facts))
    columns = [Column(name, name, "cost", None) for name in names]
    columns.append(Column("mean", "mean error", "mean", digits))
    printed = published and any(v.published is not None for v in variants)
    columns += [Column("published", "published", "cost", 1)] if printed else []
    rows = []
    for v in variants:
        facts = [Cell(_fact(v.facts.get(name))) for name in names]
        means = [run.mean_error for run in v.runs]
        mean = Cell(statistics.fmean(means), half_width(means))
        last = [Cell(v.published)] if printed else []
        rows.append(Row(v.name, v.runs[0].method, len(v.runs), (*facts, mean, *last)))
    said = list(notes)
    if any(len(v.runs) > 1 for v in variants):
        said.append(spread_note(intervals=True))
    return Table(heading, tuple(columns), tuple(mark_best(rows, columns)), tuple(said), True)


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return TICK if value else ""
    return "" if value is None else str(value)


def is_experiment(path: Path) -> bool:
    if path.suffix != ".json" or not path.is_file():
        return False
    stored = read_json(path)
    return isinstance(stored, dict) and "cells" in stored


def read_experiment(
    path: Path, *, rows: Sequence[str] = (), published: bool = True, digits: int = 2
) -> Table:
    """The table of a results.json, made from the runs it names.

    They lie in `runs` beside the file, or beside its folder: a folder each, or a JSON file each. A
    ledger may also name those of another experiment, by their paths from the file's folder.
    """
    stored = read_json(path)
    try:
        variants = [
            Variant(
                str(cell["name"]),
                dict(cell["facts"]),
                None if cell["published"] is None else float(cell["published"]),
                tuple(_find(name, path) for name in cell["runs"]),
            )
            for cell in stored["cells"]
        ]
        if empty := [v.name for v in variants if not v.runs]:
            raise ValueError(f"{empty[0]} has no runs")
        by_name = {v.name: v for v in variants}
        if strangers := [name for name in rows if name not in by_name]:
            raise UnknownNameError(f"row of {path}", strangers[0], by_name)
        variants = [by_name[name] for name in rows] or variants
        return variants_table(
            str(stored["title"]),
            variants,
            [str(note) for note in stored["notes"]],
            published=published,
            digits=digits,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{path} is no whole result of `bombus paper` ({error}); make it again."
        ) from None


def _find(name: str, path: Path) -> RunResult:
    for shelf in (path.parent / "runs", path.parent.parent / "runs", path.parent):
        for place in (shelf / name, shelf / f"{name}.json"):
            if place.exists():
                return read_run(place)
    raise DataError(
        f"There is no run {name}, which {path} names, in {path.parent / 'runs'}; call the same "
        "`bombus paper` again."
    )
