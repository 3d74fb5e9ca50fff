"""The figure of an ablation: a dot a row, in the table's order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bombus.paper import Finished
from bombus.report.figures import COLOURS, clear_axes, drawing, save_pictures

NARROWEST = 1.0  # points from edge to edge: a tenth of one is not to look like much


def draw_ladder(finished: Sequence[Finished], out: Path) -> list[Path]:
    """Mean errors from the top down, the lowest in the other colour.

    Dots, for bars would have to begin at zero, and what a part is worth is far less than that.
    """
    best = min(f.mean for f in finished)
    with drawing((7.0, 0.9 + 0.28 * len(finished))) as figure:
        axes = figure.add_subplot()
        for place, f in enumerate(finished):
            colour, spread = COLOURS[f.mean == best], f.spread or 0.0
            axes.errorbar(f.mean, place, xerr=spread, color=colour, marker="o", capsize=3)
            axes.annotate(
                f"{f.mean:.2f}", (f.mean, place), (0, 5), textcoords="offset points", ha="center"
            )
        axes.set_yticks(range(len(finished)), [_label(f) for f in finished])
        axes.set_ylim(len(finished) - 0.5, -0.9)  # the first row on top, room for its number
        axes.margins(x=0.08)
        low, high = axes.get_xlim()
        short = max(0.0, NARROWEST - (high - low)) / 2
        axes.set_xlim(low - short, high + short)
        axes.set_xlabel("mean error (%)")
        clear_axes(axes)
        return save_pictures(figure, out / "figure")


def _label(f: Finished) -> str:
    """What is switched on, where the row says so; its name else."""
    parts = [name for name, value in f.cell.facts.items() if value is True]
    return " + ".join(parts) or f.cell.name
