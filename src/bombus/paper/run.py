"""Running an experiment's cells: each once, whatever interrupts, with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bombus.data.benchmarks import find_benchmark
from bombus.paper import Cell, Finished
from bombus.report.records import RESULT, read_run

if TYPE_CHECKING:
    from bombus.data.images import ImageSet
    from bombus.runs import Progress

Watcher = Callable[["Progress"], None]


def _unwatched(_: str) -> AbstractContextManager[Watcher | None]:
    return nullcontext()


def run_cells(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    out: Path,
    watching: Callable[[str], AbstractContextManager[Watcher | None]] = _unwatched,
) -> list[Finished]:
    """Every cell with every seed, in folders below `out`; what is finished there is not run again.

    Args:
        watching: given what is run next and how long the rest will take, a context whose value is
            called after every batch.
    """
    from bombus.runs import Run

    jobs = [(cell, seed, out / f"{cell.name}-seed{seed}") for seed in seeds for cell in cells]
    waiting = [job for job in jobs if not (job[2] / RESULT).is_file()]
    done = len(jobs) - len(waiting)
    images: dict[tuple[str, Path | None], ImageSet] = {}  # opened once, as the demo's are made once
    begun = time.perf_counter()
    for number, (cell, seed, folder) in enumerate(waiting):
        settings = replace(cell.settings, seed=seed)
        place = f"{done + number + 1}/{len(jobs)}"
        left = _time_left(time.perf_counter() - begun, number, len(waiting))
        key = (settings.benchmark, settings.data)
        if key not in images:
            images[key] = find_benchmark(settings.benchmark).open(settings.data)
        with watching(f"{place} {cell.name}{left}") as watch:
            Run(settings, images=images[key]).execute(folder, resume=True, watch=watch)
    return [_finished(cell, seeds, out) for cell in cells]


def _finished(cell: Cell, seeds: Sequence[int], out: Path) -> Finished:
    folders = tuple(out / f"{cell.name}-seed{seed}" for seed in seeds)
    return Finished(cell, folders, tuple(map(read_run, folders)))


def _time_left(seconds: float, done: int, total: int) -> str:
    if not done:
        return ""
    minutes = seconds / done * (total - done) / 60
    return f" ({minutes:.0f} min left)" if minutes >= 1 else " (< 1 min left)"
