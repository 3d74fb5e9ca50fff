"""Figure: error against time and memory, one dot a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bombus.paper import Cell, Finished, Place
from bombus.paper.cifar_cnn import METHODS, runnable
from bombus.paper.layout import write_variants
from bombus.report.columns import COST, costs_of, format_value, quickest
from bombus.report.figures import COLOURS, clear_axes, drawing, name_points, save_pictures
from bombus.report.published import PublishedRow, published_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Error against cost"
CLAIM = (
    "BEE has the lowest error, at nearly half the time and 3/4 of the memory of the next, OBAO, "
    "and at 4.3 ms and 729 MB more than the other consistency methods on average."
)


def cells(place: Place) -> list[Cell]:
    place = place.small(samples=100, batch_size=50)
    return [
        Cell(name, place.settings(name, "cifar10-c"))
        for name in runnable(METHODS, place, "cifar10-c")
    ]


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    rows, origins = [], dict[str, None]()
    for f in finished:
        printed = _printed(f)
        cell = replace(f.cell, published=printed.mean if printed else None)
        rows.append(replace(f, cell=cell).with_facts(_costs(f)))
        if printed:
            origins[f"published ({printed.short}): {printed.origin}."] = None
    return [*write_variants(TITLE, CLAIM, rows, out, [*origins]), *_draw(finished, out)]


def _printed(f: Finished) -> PublishedRow | None:
    """Of the same network on the same benchmark, the paper's own figure before others'."""
    run = f.runs[0]
    lines = published_rows(run.benchmark, run.backbone, run.method)
    return min(lines, key=lambda line: line.short != "BEE paper", default=None)


def _costs(f: Finished) -> dict[str, str]:
    costs = costs_of(f.runs)
    return {column.head: format_value(costs[column.name], column) for column in COST}


def _draw(finished: Sequence[Finished], out: Path) -> list[Path]:
    from matplotlib.ticker import LogLocator, NullLocator

    with drawing((10.0, 4.2)) as figure:
        by_time, by_memory = figure.subplots(1, 2, sharey=True)
        points: dict[Axes, list[tuple[float, float, str]]] = {by_time: [], by_memory: []}
        for f in finished:
            error = f.mean
            name = f.cell.name
            colour = COLOURS[1] if name.startswith("bee") else COLOURS[0]
            for axes, cost in (
                (by_time, quickest(f.runs)),
                (by_memory, max(run.cost.peak_memory_mb for run in f.runs)),
            ):
                axes.plot([cost], [error], "o", color=colour)
                points[axes].append((cost, error, name))
        by_time.set_xscale("log")
        by_time.set_yscale("log")  # or the frozen network's error presses all others together
        ticks = ((by_time.xaxis, (1, 2, 5)), (by_time.yaxis, (1, 1.2, 1.5, 2, 3, 4, 5, 7)))
        for axis, steps in ticks:
            axis.set_major_locator(LogLocator(subs=steps))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())
        by_time.set_xlabel("ms a batch")
        by_memory.set_xlabel("peak memory (MiB)")
        by_time.set_ylabel("mean error (%)")
        for axes, own in points.items():
            axes.margins(0.08)
            clear_axes(axes)
            name_points(axes, own)
        return save_pictures(figure, out / "figure")
