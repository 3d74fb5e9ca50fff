"""Figure: how much R, K, the anchor period and the pool's size matter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bombus.paper import Cell, Finished, Place
from bombus.paper.layout import write_variants
from bombus.report.figures import COLOURS, clear_axes, drawing, save_pictures

TITLE = "Sensitivity to R, K, anchor period and pool size"
CLAIM = (
    "The error falls with R, more slowly after 2; K = 5 is best; longer anchor periods and larger "
    "pools are better."
)
# Setting, its sign in the paper, what it counts, and the values tried.
PANELS: tuple[tuple[str, str, str, tuple[int, ...]], ...] = (
    ("inner_steps", "R", "steps on the queue", (0, 1, 2, 4)),
    ("complementary", "K", "anchors merged", (1, 3, 5, 10)),
    ("anchor_period", "ξ", "batches an anchor", (10, 30, 60)),
    ("anchors", "C_a", "anchors kept", (5, 20, 50)),
)


def cells(place: Place) -> list[Cell]:
    place = place.small(samples=150, batch_size=50)
    # A short stream hardly triggers a replay: there it comes every few batches.
    rhythm = {} if place.full else {"replay_every": 8, "anchor_period": 30 // 8}
    base = {"replay": "weighted", **rhythm}
    # So short, it leaves 15 anchors: the periods are shorter, and the pools smaller (2 at least).
    shorter = {} if place.full else {"anchor_period": 8, "anchors": 4}
    made = []
    for name, sign, _, values in PANELS:
        for value in values:
            scaled = max(2 if name == "anchors" else 0, value // shorter.get(name, 1))
            settings = place.settings("bee", "cifar10-c", **{**base, name: scaled})
            made.append(Cell(f"{name}-{value}", settings, {"setting": sign, "value": scaled}))
    return made


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    return [*write_variants(TITLE, CLAIM, finished, out), *_draw(finished, out)]


def _draw(finished: Sequence[Finished], out: Path) -> list[Path]:
    with drawing((10.0, 2.8)) as figure:
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (_, sign, counted, _) in zip(panels, PANELS, strict=True):
            own = [f for f in finished if f.cell.facts["setting"] == sign]
            places = range(len(own))
            means = [f.mean for f in own]
            spread = [f.spread or 0.0 for f in own]
            axes.errorbar(places, means, yerr=spread, color=COLOURS[0], marker="o", capsize=3)
            axes.set_xticks(list(places), [str(f.cell.facts["value"]) for f in own])
            axes.set_xlabel(f"{sign}: {counted}")
            clear_axes(axes)
        panels[0].set_ylabel("mean error (%)")
        return save_pictures(figure, out / "figure")
