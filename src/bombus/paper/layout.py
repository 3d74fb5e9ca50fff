"""Tables of variants: a row a cell, what sets it apart in columns, its mean error last."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from bombus.metrics.interval import half_width
from bombus.paper import Finished
from bombus.report.layout import Cell, Column, Row, Table, mark_best
from bombus.report.records import write_file
from bombus.report.table import to_latex, to_markdown, to_text

TICK = "x"


def variants_table(title: str, finished: Sequence[Finished], notes: Sequence[str] = ()) -> Table:
    first = finished[0].runs[0]
    heading = f"{title}, {first.benchmark}, {first.backbone}"
    names = list(dict.fromkeys(name for f in finished for name in f.cell.facts))
    columns = [Column(name, name, "cost", None) for name in names]
    columns.append(Column("mean", "mean error", "mean", 2))
    printed = any(f.cell.published is not None for f in finished)
    columns += [Column("published", "published", "cost", 1)] if printed else []
    rows = []
    for f in finished:
        facts = [Cell(_fact(f.cell.facts.get(name))) for name in names]
        mean = Cell(statistics.fmean(f.means), half_width(f.means))
        last = [Cell(f.cell.published)] if printed else []
        method = f.cell.settings.method
        rows.append(Row(f.cell.name, method, len(f.runs), (*facts, mean, *last)))
    said = list(notes)
    if any(len(f.runs) > 1 for f in finished):
        said.append("± is half of the 95 % interval of the mean over seeds.")
    if printed:
        said.append("published: the paper's mean error, of a ResNet-50 on ImageNet-C.")
    return Table(heading, tuple(columns), tuple(mark_best(rows, columns)), tuple(said))


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return TICK if value else ""
    return "" if value is None else str(value)


def write_tables(tables: Sequence[Table], out: Path) -> list[Path]:
    """table.txt, table.md and table.tex."""
    paths = []
    for name, form in (("txt", to_text), ("md", to_markdown), ("tex", to_latex)):
        path = out / f"table.{name}"
        write_file(path, form(tables).encode())
        paths.append(path)
    return paths


def write_results(title: str, claim: str, finished: Sequence[Finished], out: Path) -> Path:
    """results.json: every cell with its settings and the mean error of every seed."""
    rows = [
        {
            "name": f.cell.name,
            **f.cell.facts,
            "mean_error": round(statistics.fmean(f.means), 4),
            "interval": half_width(f.means),
            "by_seed": {run.seed: run.mean_error for run in f.runs},
            "published": f.cell.published,
            "runs": [folder.name for folder in f.folders],
            "settings": {k: v for k, v in f.cell.settings.to_dict().items() if k != "seed"},
        }
        for f in finished
    ]
    path = out / "results.json"
    body = {"title": title, "the paper says": claim, "cells": rows}
    write_file(path, (json.dumps(body, indent=1) + "\n").encode())
    return path
