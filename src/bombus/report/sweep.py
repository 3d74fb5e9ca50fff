"""A table of a sweep: a row a setting that was tried, a column a visit, the mean error last.

`lab/sweep.py` writes a line a setting: its name, the settings of its run, the error of each visit
to each domain. Of domains that come several times the mean of each time round is a column.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bombus.errors import DataError, UnknownNameError
from bombus.report.columns import Column
from bombus.report.layout import Cell, Row, Table, mark_best


@dataclass(frozen=True)
class Tried:
    """One line of a sweep."""

    name: str
    method: str
    task: tuple[str, ...]  # what lines of one table must share: benchmark, domains, images of each
    times: int  # how often the domains come
    errors: tuple[float, ...]  # per cent, a visit to a domain each

    @property
    def rounds(self) -> list[float]:
        size = len(self.errors) // self.times
        return [statistics.fmean(self.errors[i * size : (i + 1) * size]) for i in range(self.times)]


def is_sweep(path: Path) -> bool:
    return path.suffix == ".jsonl" and path.is_file()


def read_sweep(path: Path) -> list[Tried]:
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            stored = json.loads(line)
            settings, errors = stored["settings"], tuple(map(float, stored["errors"]))
            visited = list(map(str, settings["domains"]))
            if not errors or len(errors) != len(visited):
                raise ValueError(f"{len(errors)} errors of {len(visited)} domains")
            count = len(set(visited))
            images = f"{settings['samples']:,}" if settings["samples"] else "all"
            domains = f"{count} domain{'s' if count > 1 else ''}"
            task = (settings["benchmark"], domains, f"{images} images a visit")
            times, rest = divmod(len(errors), count)
            times = 1 if rest else times  # some domains come more often than others
            found.append(Tried(str(stored["name"]), settings["method"], task, times, errors))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"Line {number} of {path} is no result of a sweep ({error}); lab/sweep.py --out "
                "writes them, a line a setting."
            ) from None
    if not found:
        raise DataError(f"{path} is empty, expected a line a setting, as lab/sweep.py writes them.")
    return found


def sweep_table(tried: Sequence[Tried], *, rows: Sequence[str] = (), digits: int = 2) -> Table:
    """All lines in their order, or those of the names in `rows`, in theirs."""
    if rows:
        tried = [one for name in rows for one in _named(tried, name)]
    tasks = sorted({one.task for one in tried})
    if len(tasks) > 1:
        told = "; ".join(", ".join(task) for task in tasks)
        raise DataError(
            f"The lines are of several streams ({told}); choose those of one with --rows, or lay "
            "out a file at a time."
        )
    times = max(one.times for one in tried)
    heads = [f"visit {number}" for number in range(1, times + 1)] if times > 1 else []
    columns = [Column(head, head, "domain", digits) for head in heads]
    columns.append(Column("mean", "Mean", "mean", digits))
    made = []
    for one in tried:
        visits = one.rounds if times > 1 else []
        cells = [Cell(error) for error in visits] + [Cell()] * (len(heads) - len(visits))
        cells.append(Cell(statistics.fmean(one.errors)))
        made.append(Row(one.name, one.method, 1, tuple(cells)))
    return Table(", ".join(tasks[0]), tuple(columns), tuple(mark_best(made, columns)))


def _named(tried: Sequence[Tried], name: str) -> list[Tried]:
    found = [one for one in tried if one.name == name]
    if not found:
        raise UnknownNameError("row", name, dict.fromkeys(one.name for one in tried))
    return found
