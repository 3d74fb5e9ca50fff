"""Figure: error against time and memory, one dot a method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bombus.paper import Cell, Finished, Place
from bombus.paper.cifar_cnn import METHODS, runnable
from bombus.paper.layout import write_results, write_tables
from bombus.report.columns import quickest
from bombus.report.figures import COLOURS, clear_axes, drawing, name_points, save_pictures
from bombus.report.layout import make_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Error against cost"
CLAIM = "BEE has the lowest error at a moderate cost in time and memory."


def cells(place: Place) -> list[Cell]:
    place = place.small(samples=100, batch_size=50)
    return [
        Cell(name, place.settings(name, "cifar10-c"), {"method": name})
        for name in runnable(METHODS, place)
    ]


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    tables = make_tables([run for f in finished for run in f.runs], cost=True)
    results = write_results(TITLE, CLAIM, finished, out)
    return [results, *write_tables(tables, out), *_draw(finished, out)]


def _draw(finished: Sequence[Finished], out: Path) -> list[Path]:
    from matplotlib.ticker import LogLocator, NullLocator

    with drawing((10.0, 4.2)) as figure:
        by_time, by_memory = figure.subplots(1, 2, sharey=True)
        points: dict[Axes, list[tuple[float, float, str]]] = {by_time: [], by_memory: []}
        for f in finished:
            error = sum(f.means) / len(f.means)
            name = f.cell.facts["method"]
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
        by_memory.set_xlabel("peak memory (MB)")
        by_time.set_ylabel("mean error (%)")
        for axes, own in points.items():
            axes.margins(0.08)
            clear_axes(axes)
            name_points(axes, own)
        return save_pictures(figure, out / "figure")
