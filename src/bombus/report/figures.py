"""The error over the stream as a picture, the same bytes every time."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bombus.errors import BombusError, ConfigError, DataError
from bombus.report.groups import Group, group_runs, split_by_task
from bombus.report.records import main_domain, read_batches, read_run, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow (too pale for a thin line), then three of Tol's: they
# differ in lightness too, so that everyone can tell them apart.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#332288"),
)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)))  # when the colours are used up
SOURCE = {"color": "#808080", "linestyle": "--"}
STYLE = {
    "font.size": 9.0,
    "svg.hashsalt": "bombus",  # element ids: random otherwise
    "svg.fonttype": "path",  # the same letters on machines without the font
}


@dataclass(frozen=True)
class Visit:
    """A stretch of the stream in one domain, in images seen."""

    domain: str
    start: int
    end: int


@dataclass(frozen=True)
class Stretch:
    """A visit with the batches in it; `x` is the middle of each."""

    visit: Visit
    x: NDArray[np.float64]
    records: list[dict[str, Any]]


@dataclass(frozen=True)
class Curve:
    visits: tuple[Visit, ...]
    x: tuple[NDArray[np.float64], ...]  # one array a visit
    error: tuple[NDArray[np.float64], ...]  # per cent


def stream_figure(runs: Sequence[Path], out: Path, *, window: int | None = None) -> list[Path]:
    """Draw the error of runs over one stream, a line a method, to OUT.svg and OUT.png.

    Args:
        runs: folders of finished runs over the same stream; those that differ only in their seed
            become one line.
        out: path without suffix.
        window: batches in the running mean, which begins anew with each domain; by default an
            eighth of a domain, at least 5.
    """
    if window is not None and window < 1:
        raise ConfigError(f"Got a window of {window} batches, expected at least 1.")
    if not runs:
        raise DataError("A stream figure needs at least one run, got none.")
    results = [read_run(run) for run in runs]
    if len(split_by_task(results)) > 1:
        raise DataError(
            "The runs are of different benchmarks, networks, severities, streams or domains; draw "
            "each in a figure of its own."
        )
    groups = group_runs(results)
    curves = [
        average_curves([error_curve(read_batches(r.path), window) for r in g.runs]) for g in groups
    ]
    visits = curves[0].visits
    for group, curve in zip(groups, curves, strict=True):
        if curve.visits != visits:
            raise DataError(
                f"{group.runs[0].path.parent} ran over another stream than "
                f"{groups[0].runs[0].path.parent}; draw them in separate figures."
            )
    return _draw(groups, curves, out)


def error_curve(records: Sequence[dict[str, Any]], window: int | None) -> Curve:
    stretches = find_stretches(records)
    errors = []
    for stretch in stretches:
        counts = [_totals(record) for record in stretch.records]
        wrong = np.array([w for w, _ in counts], dtype=np.float64)
        samples = np.array([n for _, n in counts], dtype=np.float64)
        width = window or max(5, len(counts) // 8)
        errors.append(100 * _running_sum(wrong, width) / _running_sum(samples, width))
    return Curve(tuple(s.visit for s in stretches), tuple(s.x for s in stretches), tuple(errors))


def average_curves(curves: Sequence[Curve]) -> Curve:
    first = curves[0]
    if any(
        c.visits != first.visits or list(map(len, c.x)) != list(map(len, first.x)) for c in curves
    ):
        raise DataError("The seeds of a method ran over different streams; draw them apart.")
    errors = tuple(np.mean(same, axis=0) for same in zip(*(c.error for c in curves), strict=True))
    return Curve(first.visits, first.x, errors)


def _running_sum(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Over `width` neighbours around each place, over those that exist near the ends."""
    before = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    first = np.maximum(place - (width - 1) // 2, 0)
    last = np.minimum(place + width // 2 + 1, len(values))
    total: NDArray[np.float64] = before[last] - before[first]
    return total


def _totals(record: dict[str, Any]) -> tuple[int, int]:
    counts = record["domains"].values()
    return sum(c["wrong"] for c in counts), sum(c["samples"] for c in counts)


def _draw(groups: Sequence[Group], curves: Sequence[Curve], out: Path) -> list[Path]:
    with drawing((10.0, 4.8)) as figure:
        axes = figure.add_subplot()
        draw_domains(axes, curves[0].visits)
        looks = itertools.product(DASHES, COLOURS)
        for group, curve in zip(groups, curves, strict=True):
            is_source = group.method == "source"
            dash, colour = (None, None) if is_source else next(looks, (DASHES[0], COLOURS[0]))
            look = SOURCE if is_source else {"color": colour, "linestyle": dash}
            mean = sum(run.mean_error for run in group.runs) / len(group.runs)
            # A gap between domains: the window begins anew, a line across would be invented.
            gap = np.array([np.nan])
            x = np.concatenate([part for piece in curve.x for part in (piece, gap)])
            y = np.concatenate([part for piece in curve.error for part in (piece, gap)])
            label = f"{mean:.1f}  {group.label}"
            # A domain of one batch is a point, which no line would show.
            marker = "." if min(map(len, curve.x)) == 1 else None
            axes.plot(x, y, label=label, linewidth=1.2, marker=marker, **look)
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
        axes.set_ylabel("error (%), running mean")
        label_images_seen(axes)
        figure.legend(
            loc="outside right upper", frameon=False, title="mean error (%)", alignment="left"
        )
        return save_pictures(figure, out)


# What every picture of a stream shares


def find_stretches(records: Sequence[dict[str, Any]]) -> list[Stretch]:
    stretches = []
    seen = 0
    for domain, group in itertools.groupby(records, key=main_domain):
        batches = list(group)
        samples = np.array([_totals(record)[1] for record in batches], dtype=np.float64)
        start, seen = seen, seen + int(samples.sum())
        centres = start + np.cumsum(samples) - samples / 2
        stretches.append(Stretch(Visit(domain, start, seen), centres, batches))
    return stretches


@contextmanager
def drawing(inches: tuple[float, float]) -> Iterator[Figure]:
    """An empty figure in our style, whatever the user's is; that is put back afterwards."""
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ImportError:
        raise BombusError(
            "Figures need matplotlib, which is not installed: pip install 'bombus[figures]'"
        ) from None
    with matplotlib.style.context(["default", STYLE]):
        yield Figure(figsize=inches, layout="constrained")


def clear_axes(axes: Axes) -> None:
    """The common look: no box, light lines across."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d8d8d8", linewidth=0.6)
    axes.set_axisbelow(True)


def draw_domains(axes: Axes, visits: Sequence[Visit], *, names: bool = True) -> None:
    """A light band behind every other domain, its name above, and the axes' common look."""
    axes.set_xlim(0, visits[-1].end)
    clear_axes(axes)
    for number, visit in enumerate(visits):
        if number % 2 == 0:
            axes.axvspan(visit.start, visit.end, color="#f2f2f2", linewidth=0, zorder=0)
        if names and len(visits) <= 45:  # of more, none could be read
            axes.annotate(
                visit.domain.replace("_", " "),
                ((visit.start + visit.end) / 2, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-3, 3),
                textcoords="offset points",
                rotation=40,
                rotation_mode="anchor",
                fontsize=8,
                color="#404040",
            )


def label_images_seen(axes: Axes) -> None:
    axes.set_xlabel("images seen")
    axes.xaxis.set_major_formatter("{x:,.0f}")


def save_pictures(figure: Figure, out: Path) -> list[Path]:
    """OUT.svg and OUT.png, without anything that changes from one time to the next."""
    paths = []
    for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
        path = out.with_name(f"{out.name}.{suffix}")
        write_file(path, buffer.getvalue())
        paths.append(path)
    return paths


def name_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """A name beside each point (x, y, name), upon no other name or point; far ones get a line."""
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # so that places on the page are known
    to_page = axes.transData.transform
    at = [tuple(map(float, to_page(point[:2]))) for point in points]
    dot = figure.dpi * 5 / 72
    taken = [Bbox.from_extents(x - dot, y - dot, x + dot, y + dot) for x, y in at]
    room = axes.get_window_extent()
    for (x, y, name), (left, low) in zip(points, at, strict=True):
        label = axes.annotate(name, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=8)
        size = label.get_window_extent()
        box = size
        for distance, side in itertools.product((7, 14, 22, 32, 44), range(8)):
            across, up = (math.cos(side * math.pi / 4), math.sin(side * math.pi / 4))
            far = distance * figure.dpi / 72
            # The nearest edge of the name, not its middle, lies on the circle.
            x0 = left + far * across + (size.width * (across - 1) / 2)
            y0 = low + far * up + (size.height * (up - 1) / 2)
            box = Bbox.from_bounds(x0, y0, size.width, size.height)
            free = not any(box.overlaps(other) for other in taken)
            if free and room.x0 <= box.x0 and box.x1 <= room.x1 and box.y0 >= room.y0:
                break
        taken.append(box)
        offset = ((box.x0 - left) * 72 / figure.dpi, (box.y0 - low) * 72 / figure.dpi)
        label.remove()
        line = {"arrowstyle": "-", "color": "#909090", "linewidth": 0.6, "shrinkB": 3}
        axes.annotate(
            name,
            (x, y),
            xytext=offset,
            textcoords="offset points",
            fontsize=8,
            arrowprops=line if distance > 7 else None,
        ).set_in_layout(False)
