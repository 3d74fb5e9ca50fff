"""Numbers others have printed, kept as data in tables/, one file for each table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    method: str  # by its name in bombus
    label: str  # as printed
    benchmark: str
    backbone: str
    mean: float  # as printed, which is not always the mean of the columns: see notes
    short: str  # who says so, for a row's label
    origin: str  # who says so, in full
    samples: int  # images a domain
    batch_size: int
    std: float | None = None
    domains: dict[str, float] | None = None  # None where only the mean is printed
    variant: dict[str, Any] = field(default_factory=dict)  # an ablation's settings; {} if none
    notes: tuple[str, ...] = ()  # misprints, and what stands in the way of a comparison


def published_rows(
    benchmark: str, backbone: str, method: str | None = None, *, variants: bool = False
) -> list[PublishedRow]:
    """What is printed for a network on a benchmark; with `variants`, the ablations instead.

    "bee-paper" is what is printed as BEE, read literally: it has BEE's figures.
    """
    method = method and method.removesuffix("-paper")
    return [
        row
        for row in all_rows()
        if (row.benchmark, row.backbone) == (benchmark, backbone)
        and method in (None, row.method)
        and bool(row.variant) == variants
    ]


@cache
def all_rows() -> tuple[PublishedRow, ...]:
    folder = files("bombus.report") / "tables"
    tables = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return tuple(
        row for table in tables for row in _rows(json.loads(table.read_text(encoding="utf-8")))
    )


def _rows(table: dict[str, Any]) -> list[PublishedRow]:
    rows = []
    for block in table["blocks"]:
        shared = {k: block[k] for k in ("benchmark", "backbone", "samples", "batch_size")}
        for stored in block["rows"]:
            notes = (*stored.get("notes", ()), *block.get("notes", ()))
            own = {**shared, **stored, "notes": notes}
            rows.append(PublishedRow(short=table["short"], origin=table["origin"], **own))
    return rows
