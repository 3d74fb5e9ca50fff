"""The multi-level consistency loss over the stream, and where the method noticed a shift in it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bombus.errors import DataError
from bombus.report.figures import (
    COLOURS,
    draw_domains,
    drawing,
    find_stretches,
    label_images_seen,
    save_pictures,
)
from bombus.report.records import RESULT, read_batches, result_file
from bombus.report.triggers import marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Values = NDArray[np.float64]

TOTAL = "mcr"
TOTAL_COLOUR, RED, SCORE, GREY = "#202020", "#D7191C", "#332288", "#505050"
# Without those that black, red and the score's colour are too near to.
LEVELS = tuple(c for c in COLOURS if c not in ("#000000", "#D55E00", "#332288"))
HIGHEST = 5  # the score's panel ends at so many thresholds
LEVEL = re.compile(rf"{TOTAL}_(\d+)")


def loss_figure(run: Path, out: Path) -> list[Path]:
    """Draw a run's consistency loss, its levels and its shift score, to OUT.svg and OUT.png.

    Args:
        run: folder of a run whose batches carry the signal "mcr"; it need not be finished.
        out: path without suffix.
    """
    folder = run if run.is_dir() else result_file(run).parent
    records = read_batches(folder)
    total = signal_of(records, TOTAL)
    if np.isnan(total).all():
        names = sorted({name for record in records for name in record.get("signals", {})})
        if TOTAL in names:
            raise DataError(f"The loss of {folder} was never a finite number; nothing to draw.")
        raise DataError(
            f"{folder} recorded no consistency loss (the signal {TOTAL!r}), so there is none to "
            f"draw; its signals: {', '.join(names) or 'none'}."
        )
    levels = {number: signal_of(records, f"{TOTAL}_{number}") for number in levels_of(records)}
    z = signal_of(records, "z")
    marked, alarm = marks(records)
    at = np.array(marked, dtype=np.intp)
    stretches = find_stretches(records)
    visits = [stretch.visit for stretch in stretches]
    x = np.concatenate([stretch.x for stretch in stretches])
    has_z = not np.isnan(z).all()

    with drawing((10.0, 5.8 if has_z else 4.4)) as figure:
        if has_z:
            above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        else:
            above = below = figure.add_subplot()
        draw_domains(above, visits)
        _draw_loss(above, x, total, levels)
        _mark(above, x, total, at, alarm)
        if has_z:
            draw_domains(below, visits, names=False)
            _draw_score(below, x, z, limits_of(folder))
            for position in x[at]:
                below.axvline(position, color=RED, linewidth=0.8, alpha=0.6, zorder=1)
        label_images_seen(below)
        figure.align_ylabels()
        figure.legend(loc="outside right upper", frameon=False, alignment="left")
        return save_pictures(figure, out)


def _draw_loss(axes: Axes, x: Values, total: Values, levels: dict[int, Values]) -> None:
    label = "consistency loss"
    if len(levels) == 1:
        (number, only), *_ = levels.items()
        if np.allclose(only, total, equal_nan=True):
            label, levels = f"{label} (level {number})", {}
    dot = _dot(x)
    axes.plot(x, total, color=TOTAL_COLOUR, linewidth=1.1, marker=dot, zorder=3, label=label)
    for place, (number, values) in enumerate(levels.items()):
        colour = LEVELS[place % len(LEVELS)]
        axes.plot(x, values, color=colour, linewidth=0.8, marker=dot, label=f"level {number}")
    axes.set_ylabel("loss")


def _mark(axes: Axes, x: Values, total: Values, at: NDArray[np.intp], label: str) -> None:
    """A circle around the loss of each batch in which the method noticed a shift."""
    if not len(at):
        return
    for position in x[at]:
        axes.axvline(position, color=RED, linewidth=0.8, alpha=0.35, zorder=1)
    axes.plot(
        x[at],
        total[at],
        linestyle="none",
        marker="o",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=RED,
        markeredgewidth=1.4,
        zorder=4,
        clip_on=False,
        label=f"{label} ({len(at)})",
    )


def _draw_score(axes: Axes, x: Values, z: Values, limits: tuple[float, ...]) -> None:
    if not limits:
        axes.plot(x, z, color=SCORE, linewidth=0.9, marker=_dot(x), zorder=3)
    else:
        # One great spike would press all the rest flat: an arrow shows where it leaves.
        furthest = HIGHEST * limits[0]
        shown = np.clip(z, -furthest, furthest)  # NaN stays NaN
        axes.plot(x, shown, color=SCORE, linewidth=0.9, marker=_dot(x), zorder=3)
        arrows: dict[str, Any] = {"linestyle": "none", "markersize": 5, "color": SCORE, "zorder": 4}
        for edge, off, marker in ((furthest, z > furthest, "^"), (-furthest, z < -furthest, "v")):
            if off.any():
                axes.plot(x[off], np.full(off.sum(), edge), marker=marker, **arrows, clip_on=False)
    axes.set_ylabel("shift score z")
    for limit in limits:
        axes.axhline(limit, color=GREY, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2)
        label = axes.annotate(
            f"threshold {limit:g}",
            (1.0, limit),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            verticalalignment="center",
            color=GREY,
        )
        label.set_in_layout(False)  # it lies below the legend, where there is room


def _dot(x: Values) -> str | None:
    """One batch is a point, which no line would show."""
    return "." if len(x) == 1 else None


def signal_of(records: Sequence[dict[str, Any]], name: str) -> Values:
    """One number a batch; NaN, a gap in the line, where there is none."""
    values = [_finite(record.get("signals", {}).get(name)) for record in records]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def levels_of(records: Sequence[dict[str, Any]]) -> list[int]:
    names = {name for record in records for name in record.get("signals", {})}
    return sorted(int(match[1]) for match in map(LEVEL.fullmatch, names) if match)


def limits_of(folder: Path) -> tuple[float, ...]:
    """Where the shift score is an alarm, as the run's settings say: above, or either way."""
    if not (folder / RESULT).is_file():
        return ()  # still under way
    config = json.loads((folder / RESULT).read_bytes()).get("config", {})
    threshold = _finite(config.get("threshold"))
    if threshold is None or threshold <= 0:
        return ()
    return (threshold, -threshold) if config.get("trigger") == "level" else (threshold,)


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None
