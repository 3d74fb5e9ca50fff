"""Where each number comes from: all that a run wrote down about itself, folded away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bombus.report.groups import Group
from bombus.report.markup import Html, join, tag
from bombus.report.records import RunResult

# What a reader looks for first; then whatever else the run tells, under its own name.
FIRST = {
    "command": "command",
    "seed": "seed",
    "config": "settings",
    "stream": "stream",
    "weights": "weights",
    "weights_sha256": "SHA-256 of the weights",
    "notes": "notes on the weights",
    "data": "data",
    "input": "input",
    "precision": "precision",
    "device": "device",
    "versions": "versions",
    "source_access": "source data",
    "predicts": "predicts",
    "preflight": "preflight findings",
    "events": "events",
}
IN_THE_TABLES = ("method", "benchmark", "backbone", "domains")


def provenance(groups: Sequence[Group]) -> list[Html]:
    return [_run(run, group.name_of(run)) for group in groups for run in group.runs]


def _run(run: RunResult, name: str) -> Html:
    stored: dict[str, Any] = json.loads(run.path.read_bytes())
    head = f"{name}: {run.mean_error:.2f} %"
    names = [*(n for n in FIRST if n in stored), *(n for n in stored if n not in FIRST)]
    # Of the path the end: the same page wherever the runs lie.
    facts = {"file": "/".join(run.path.parts[-2:])}
    facts |= {FIRST.get(n, _words(n)): stored[n] for n in names if n not in IN_THE_TABLES}
    return tag("details", tag("summary", head), _show(facts), class_="run")


def _show(value: Any) -> Html:
    """Any JSON value, as lists in lists."""
    if isinstance(value, dict) and value:
        pairs = [(tag("dt", str(name)), tag("dd", _show(inner))) for name, inner in value.items()]
        return tag("dl", *(tag("div", *pair) for pair in pairs))
    if isinstance(value, list) and any(_is_long(inner) for inner in value):
        return tag("ul", *(tag("li", _line(inner)) for inner in value))
    return join([_line(value)])


def _is_long(value: Any) -> bool:
    return isinstance(value, dict | list) or (isinstance(value, str) and " " in value)


def _line(value: Any) -> str:
    if isinstance(value, dict) and value:
        return ", ".join(f"{name}: {_line(inner)}" for name, inner in value.items())
    if isinstance(value, list) and value:
        return ", ".join(map(_line, value))
    if isinstance(value, str):
        return value
    return json.dumps(value) if value or value in (0, False) else "none"


def _words(name: str) -> str:
    return name.replace("_", " ")
