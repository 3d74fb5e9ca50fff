"""Figure: what the adapted network still knows of the source, with and without replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bombus.data.benchmarks import EMBEDDED
from bombus.errors import ConfigError
from bombus.paper import Cell, Finished, Place
from bombus.paper.layout import write_variants
from bombus.report.figures import COLOURS, clear_axes, drawing, save_pictures
from bombus.report.records import RESULT

TITLE = "Accuracy on clean source images after each domain"
CLAIM = "Source accuracy falls at large shifts; replay brings it back or slows its decline."


def cells(place: Place) -> list[Cell]:
    place = place.small(samples=200, batch_size=50)
    clean = place.clean if place.full else EMBEDDED
    if clean is None:
        raise ConfigError(
            "Forgetting is measured on clean test images; add --clean FOLDER with them (CIFAR's "
            "own files, or ImageNet's validation images as class/image)."
        )
    variants: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("bee", "bee", {"replay": "weighted"}),
        ("bee-no-replay", "bee", {"replay": "off"}),
        ("tent", "tent", {}),
    )
    return [
        Cell(
            name,
            replace(place.settings(method, "cifar10-c", **chosen), clean=clean),
            {"method": method, "replay": chosen.get("replay") == "weighted"},
        )
        for name, method, chosen in variants
    ]


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    curves = [_curve(f) for f in finished]
    rows = []
    for f, (before, _, after) in zip(finished, curves, strict=True):
        clean = {"before": before, "lowest": min(after), "at the end": after[-1]}
        facts = {name: f"{accuracy:.2f}" for name, accuracy in clean.items()}
        rows.append(f.with_facts(facts))
    note = "before, lowest, at the end: accuracy on clean images, looked at after each domain."
    tables = write_variants(TITLE, CLAIM, rows, out, [note])
    with drawing((9.0, 3.6)) as figure:
        axes = figure.add_subplot()
        for f, (before, names, after), colour in zip(finished, curves, COLOURS, strict=False):
            axes.plot(
                range(len(after) + 1),
                [before, *after],
                marker="o",
                color=colour,
                label=f.cell.name,
            )
            axes.set_xticks(
                range(len(after) + 1),
                ["before", *(name.replace("_", " ") for name in names)],
                rotation=40,
                ha="right",
            )
        axes.set_ylabel("accuracy on clean images (%)")
        clear_axes(axes)
        figure.legend(loc="outside upper right", ncols=3, frameon=False)
        return [*tables, *save_pictures(figure, out / "figure")]


def _curve(f: Finished) -> tuple[float, list[str], list[float]]:
    """Accuracy before the stream, the domains, accuracy after each; means over seeds."""
    stored: list[dict[str, Any]] = [
        json.loads((folder / RESULT).read_text())["clean"] for folder in f.folders
    ]
    before = [100 - clean["before"] for clean in stored]
    names = [visit["domain"] for visit in stored[0]["after"]]
    after = [[100 - visit["error"] for visit in clean["after"]] for clean in stored]
    columns = [sum(values) / len(values) for values in zip(*after, strict=True)]
    return sum(before) / len(before), names, columns
