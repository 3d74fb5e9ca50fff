"""Table 4: what each part of BEE is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bombus.paper import Cell, Finished, Place
from bombus.paper.ladder import draw_ladder
from bombus.paper.layout import write_variants

TITLE = "Ablation of BEE's components"
CLAIM = (
    "Entropy alone 70.2; every deeper level of consistency lowers the error, the shallowest raises "
    "it (58.7, 60.1); the sample queue is worth 0.4, replay 0.1 without the queue and 0.4 with it."
)
# The levels of Eq. 9 in use (counted from the last), the sample queue, replay; the paper's error.
LINES: tuple[tuple[tuple[int, ...], bool, bool, float | None], ...] = (
    ((), False, False, 70.2),
    ((-1,), False, False, 61.7),
    ((-2, -1), False, False, 59.2),
    ((-3, -2, -1), False, False, 58.7),
    ((-1,), True, False, 58.3),
    ((-1,), False, True, 58.6),
    ((-1,), True, True, 57.9),
)


def cells(place: Place) -> list[Cell]:
    """Line by line as the paper has them.

    `bee` sums the last level alone, so the lines with queue and replay build on that one; a network
    of three levels has no fourth, so the paper's line 5 (all four) is line 4 here.
    """
    place = place.small(samples=200, batch_size=50)
    # Not in the paper, and needed to read it: what the warm-up is worth before anything adapts.
    nothing = place.settings("bee", "cifar10-c", **line((), False, False), entropy_weight=0)
    made = [Cell("no-adaptation", nothing)]
    for number, (levels, queue, replay, printed) in enumerate(LINES, start=1):
        settings = place.settings("bee", "cifar10-c", **line(levels, queue, replay))
        facts = {
            "entropy": True,
            "last level": -1 in levels,
            "next": -2 in levels,
            "first": -3 in levels,
            "queue": queue,
            "replay": replay,
        }
        made.append(Cell(f"line-{number}", settings, facts, printed))
    return made


def line(levels: tuple[int, ...], queue: bool, replay: bool) -> dict[str, Any]:
    """The settings of `bee` with these parts only."""
    chosen: dict[str, Any] = {
        "inner_steps": 1 if queue else 0,
        "replay": "weighted" if replay else "off",
    }
    if not levels:
        return chosen | {
            "level_weights": (0,),
            "prediction_weight": 0,
            "student_view": "none",
        }
    return chosen | {"levels": levels}


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    return [*write_variants(TITLE, CLAIM, finished, out), *draw_ladder(finished, out)]
