"""Table 4: what each part of BEE is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bombus.backbones import create
from bombus.backbones.blocks import find_blocks
from bombus.data.benchmarks import find_benchmark
from bombus.models import choose_backbone
from bombus.paper import Cell, Finished, Place
from bombus.paper.ladder import draw_ladder
from bombus.paper.layout import PRINTED, write_variants

TITLE = "Ablation of BEE's components"
CLAIM = (
    "Entropy alone 70.2; every deeper level of consistency lowers the error, the shallowest raises "
    "it (58.7, 60.1); the sample queue is worth 0.4, replay 0.1 without the queue and 0.4 with it."
)
Line = tuple[tuple[int, ...], bool, bool, float]
# The levels of Eq. 9 in use (counted from the last), the sample queue, replay; the paper's error.
LINES: tuple[Line, ...] = (
    ((), False, False, 70.2),
    ((-1,), False, False, 61.7),
    ((-2, -1), False, False, 59.2),
    ((-3, -2, -1), False, False, 58.7),
    ((-1,), True, False, 58.3),
    ((-1,), False, True, 58.6),
    ((-1,), True, True, 57.9),
)
OTHERWISE = (
    "Lines 5 to 7 build on the last level alone, which is what `bee` sums; the paper's on the last "
    "three."
)


def cells(place: Place) -> list[Cell]:
    """Line by line as the paper has them, but its fifth, of four levels, goes by that name.

    `bee` sums the last level alone, so the lines with queue and replay build on that one. A network
    of three levels, like those of CIFAR, has no fourth.
    """
    place = place.small(samples=200, batch_size=50)
    # Not in the paper, and needed to read it: what the warm-up is worth before anything adapts.
    nothing = place.settings("bee", "cifar10-c", **line((), False, False), entropy_weight=0)
    made = [Cell("no-adaptation", nothing)]
    for name, (levels, queue, replay, printed) in _lines(place):
        settings = place.settings("bee", "cifar10-c", **line(levels, queue, replay))
        facts = {
            "entropy": True,
            "last level": -1 in levels,
            "next": -2 in levels,
            "first": -3 in levels,
            **({"fourth from last": True} if -4 in levels else {}),
            "queue": queue,
            "replay": replay,
        }
        made.append(Cell(name, settings, facts, printed))
    return made


def _lines(place: Place) -> Iterator[tuple[str, Line]]:
    four = ((-4, -3, -2, -1), False, False, 60.1)
    for number, parts in enumerate(LINES, start=1):
        yield f"line-{number}", parts
        if number == 4 and _levels(place) > 3:
            yield "four-levels", four


def _levels(place: Place) -> int:
    benchmark = find_benchmark(place.images("cifar10-c"))
    backbone = choose_backbone(place.settings("bee", "cifar10-c"), benchmark)
    return len(find_blocks(create(backbone, num_classes=benchmark.classes or 2)))


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
    notes = [PRINTED, OTHERWISE]
    return [*write_variants(TITLE, CLAIM, finished, out, notes), *draw_ladder(finished, out)]
