"""Figure: do other methods gain from BEE's sample queue?

Before every batch a method takes R steps on images drawn from the recent ones, as BEE does. The
paper tuned each method anew for this; here they keep their published settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from bombus.data.queue import SampleQueue
from bombus.methods import find_method, known_methods, register
from bombus.methods.base import Adapter
from bombus.paper import Cell, Finished, Place
from bombus.paper.cifar_cnn import runnable
from bombus.paper.layout import write_variants
from bombus.report.figures import COLOURS, clear_axes, drawing, save_pictures

TITLE = "The sample queue on other methods"
CLAIM = "All other methods become worse with the sample queue, so it is not the extra steps alone."
METHODS = ("tent", "eata", "sar", "roid", "rmt")
STEPS = 2  # the paper's R
IMAGES = 2000


def with_queue(method: type[Adapter]) -> type[Adapter]:
    """A method that also learns from recent images before each batch; its answers are as before."""

    class Queued(method):  # type: ignore[misc, valid-type]
        stateful = (*method.stateful, "recent")

        def setup(self) -> None:
            super().setup()
            self.recent = SampleQueue(IMAGES)

        def step(self, x: Tensor) -> Tensor:
            self.recent.push(x)
            # Drawn before the first step: a method that starts anew within one empties the queue.
            for drawn in [self.recent.draw(len(x), self.generator) for _ in range(STEPS)]:
                super().step(drawn)
            answer: Tensor = super().step(x)
            return answer

    Queued.__name__ = Queued.__qualname__ = f"{method.__name__}WithQueue"
    Queued.__doc__ = f"{method.name} with BEE's queue: {STEPS} steps on recent images before each."
    return Queued


def cells(place: Place) -> list[Cell]:
    place = place.small(samples=200, batch_size=50)
    made = []
    for name in runnable(METHODS, place, "cifar10-c"):
        queued = f"{name}-queue"
        if queued not in known_methods():
            register(queued)(with_queue(find_method(name)))
        for variant in (name, queued):
            facts: dict[str, Any] = {"method": name, "queue": variant == queued}
            made.append(Cell(variant, place.settings(variant, "cifar10-c"), facts))
    return made


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    return [*write_variants(TITLE, CLAIM, finished, out), *_draw(finished, out)]


def _draw(finished: Sequence[Finished], out: Path) -> list[Path]:
    names = list(dict.fromkeys(f.cell.facts["method"] for f in finished))
    with drawing((7.0, 3.4)) as figure:
        axes = figure.add_subplot()
        for number, queue in enumerate((False, True)):
            own = [f for f in finished if f.cell.facts["queue"] == queue]
            axes.bar(
                [names.index(f.cell.facts["method"]) + 0.38 * (number - 0.5) for f in own],
                [f.mean for f in own],
                width=0.36,
                yerr=[f.spread or 0.0 for f in own],
                color=COLOURS[number],
                label="with the queue" if queue else "as published",
            )
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("mean error (%)")
        clear_axes(axes)
        figure.legend(loc="outside upper right", ncols=2, frameon=False)
        return save_pictures(figure, out / "figure")
