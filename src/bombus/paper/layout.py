"""What every experiment writes: results.json, and its tables as text, markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bombus.paper import Finished
from bombus.report.experiment import Variant, variants_table
from bombus.report.layout import Table
from bombus.report.records import write_file
from bombus.report.table import to_latex, to_markdown, to_text

# Of a table whose printed figures are not of this benchmark, whatever it was run on.
PRINTED = "published: the paper's mean error, of a ResNet-50 on ImageNet-C."


def write_variants(
    title: str, claim: str, finished: Sequence[Finished], out: Path, notes: Sequence[str] = ()
) -> list[Path]:
    """The results, and a table with a row a cell."""
    rows = [Variant(f.cell.name, f.cell.facts, f.cell.published, f.runs) for f in finished]
    table = variants_table(title, rows, notes)
    return [write_results(title, claim, finished, out, notes), *write_tables([table], out)]


def write_tables(tables: Sequence[Table], out: Path) -> list[Path]:
    """table.txt, table.md and table.tex."""
    paths = []
    for name, form in (("txt", to_text), ("md", to_markdown), ("tex", to_latex)):
        path = out / f"table.{name}"
        write_file(path, form(tables).encode())
        paths.append(path)
    return paths


def write_results(
    title: str, claim: str, finished: Sequence[Finished], out: Path, notes: Sequence[str] = ()
) -> Path:
    """results.json: every cell with its settings, its runs, and the mean error of every seed."""
    rows = [
        {
            "name": f.cell.name,
            "facts": f.cell.facts,
            "mean_error": round(f.mean, 4),
            "interval": f.spread,
            "by_seed": {run.seed: run.mean_error for run in f.runs},
            "published": f.cell.published,
            "runs": [folder.name for folder in f.folders],
            "settings": {k: v for k, v in f.cell.settings.to_dict().items() if k != "seed"},
        }
        for f in finished
    ]
    path = out / "results.json"
    body = {"title": title, "the paper says": claim, "notes": list(notes), "cells": rows}
    write_file(path, (json.dumps(body, indent=1) + "\n").encode())
    return path
