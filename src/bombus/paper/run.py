"""Running an experiment's cells: each once, whatever interrupts, with the time that is left.

Processes that share a folder of runs share the work: each takes what none of the others is at.

A run's folder is named after its settings, so experiments that share a folder of runs share the
runs too: BEE as it is stands in six of the ten. It is prepared once a seed, by its own settings and
those of a cell that are about the warm-up, whatever the cell switches off afterwards: what a part
is worth on the stream is then one question, what it is worth in the preparation another.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bombus.data.benchmarks import find_benchmark
from bombus.lock import locked
from bombus.methods import find_method
from bombus.models import find_source
from bombus.paper import Cell, Finished, as_text
from bombus.provenance import file_digests
from bombus.report.records import RESULT, read_run
from bombus.settings import RunSettings, make_config

if TYPE_CHECKING:
    from bombus.data.images import ImageSet
    from bombus.methods.base import BaseConfig
    from bombus.runs import Progress

Watcher = Callable[["Progress"], None]
SEED = "{seed}"  # in the name of a warm-up file: each seed has its own


def _unwatched(_: str) -> AbstractContextManager[Watcher | None]:
    return nullcontext()


def run_cells(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    runs: Path,
    watching: Callable[[str], AbstractContextManager[Watcher | None]] = _unwatched,
) -> list[Finished]:
    """Every cell with every seed, in folders below `runs`; what is finished is not run again.

    Args:
        watching: given what is run next and how long the rest will take, a context whose value is
            called after every batch.
    """
    from bombus.runs import Run

    jobs = {folder_of(cell, seed, runs): (cell, seed) for seed in seeds for cell in cells}
    images: dict[tuple[str, Path | None], ImageSet] = {}  # opened once, as the demo's are made once
    spent: dict[str, list[float]] = {}  # seconds of a run, by method

    def open_run(settings: RunSettings) -> Run:
        key = (settings.benchmark, settings.data)
        if key not in images:
            images[key] = find_benchmark(settings.benchmark).open(settings.data)
        return Run(settings, images=images[key])

    def run(folder: Path) -> None:
        cell, seed = jobs[folder]
        begun = time.perf_counter()
        left = [job.settings.method for other, (job, _) in jobs.items() if not _is_finished(other)]
        title = f"{len(jobs) - len(left) + 1}/{len(jobs)} {cell.name}{time_left(spent, left)}"
        settings = _prepared(for_seed(cell.settings, seed), runs)
        with watching(title) as watch:
            open_run(settings).execute(folder, resume=True, watch=watch)
        spent.setdefault(settings.method, []).append(time.perf_counter() - begun)

    if waiting := [folder for folder in jobs if not _is_finished(folder)]:
        # What is refused leaves no folder behind.
        asked = [for_seed(cell.settings, seed) for cell, seed in map(jobs.__getitem__, waiting)]
        size = open_run(asked[0]).stream.batch_size
        needy = {s.source: s for s in asked if find_method(s.method).needs != "none"}
        for settings in needy.values():
            find_source(settings, size)
    runs.mkdir(parents=True, exist_ok=True)
    while waiting := [folder for folder in jobs if not _is_finished(folder)]:
        taken = 0
        for folder in waiting:
            with locked(_lock(folder), wait=False) as ours:
                if not ours:
                    taken += 1
                    continue
                if not _is_finished(folder):
                    run(folder)
                _forget(_lock(folder))
        if taken == len(waiting):  # others are at all that is left; should one die, it is ours
            cell, _ = jobs[waiting[0]]
            with watching(f"{cell.name}, by another process"), locked(_lock(waiting[0])):
                if _is_finished(waiting[0]):  # else the lock is still what the others wait at
                    _forget(_lock(waiting[0]))
    return [_finished(cell, seeds, runs) for cell in cells]


def _is_finished(folder: Path) -> bool:
    return (folder / RESULT).is_file()


def _lock(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


def _forget(lock: Path) -> None:
    """Of what is finished; only by who holds it."""
    with suppress(OSError):  # Windows keeps what is open
        lock.unlink()


def folder_of(cell: Cell, seed: int, runs: Path) -> Path:
    """The same for cells of the same settings, however they are spelt and wherever files lie.

    Named after all of the method's settings, not only those that were asked for: where a later
    version chooses otherwise, it is another run.
    """
    settings = for_seed(cell.settings, seed)
    files = file_digests(settings.weights, settings.source)
    asked = {**cell.settings.to_dict(), "seed": None, "set": _chosen(settings), "files": files}
    asked["device"] = "auto"  # whichever of several GPUs makes it, it is the same run
    return runs / f"{cell.settings.method}-{_digest(asked)}-seed{seed}"


def essential(settings: RunSettings) -> RunSettings:
    """Without what the method would have chosen anyway."""
    own, chosen = _config(replace(settings, set={})), _config(settings)
    changed = {n for n in settings.set if getattr(own, n) != getattr(chosen, n)}
    return replace(settings, set={n: as_text(getattr(chosen, n)) for n in sorted(changed)})


def for_seed(settings: RunSettings, seed: int) -> RunSettings:
    source = settings.source and Path(str(settings.source).replace(SEED, str(seed)))
    return replace(essential(settings), seed=seed, source=source)


def _config(settings: RunSettings) -> BaseConfig:
    return make_config(find_method(settings.method), settings)


def _chosen(settings: RunSettings) -> dict[str, Any]:
    """All of the method's settings but the seed."""
    return {k: v for k, v in asdict(_config(settings)).items() if k != "seed"}


def _prepared(settings: RunSettings, runs: Path) -> RunSettings:
    """With the warm-up file of this seed in the place of `bee`'s source images, made if need be."""
    from bombus.warmup import make_warmup

    if settings.method != "bee" or settings.source is None or settings.source.is_file():
        return settings
    deciding = ("method", "benchmark", "backbone", "weights", "source", "batch_size", "precision")
    plain = replace(settings, set={n: v for n, v in settings.set.items() if n.startswith("warmup")})
    asked = {name: plain.to_dict()[name] for name in deciding}
    asked |= {"set": _chosen(plain), "files": file_digests(plain.weights, None)}
    file = runs / f"bee-prepared-{_digest(asked)}-seed{settings.seed}.safetensors"
    with locked(_lock(file)):
        if not file.exists():
            make_warmup(plain, file)
        _forget(_lock(file))
    return replace(settings, source=file)


def _digest(asked: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:10]


def _finished(cell: Cell, seeds: Sequence[int], runs: Path) -> Finished:
    folders = tuple(folder_of(cell, seed, runs) for seed in seeds)
    return Finished(cell, folders, tuple(map(read_run, folders)))


def time_left(spent: Mapping[str, Sequence[float]], left: Sequence[str]) -> str:
    """In words, from the seconds that runs of each method took and the methods still to run.

    A method that has not been run yet counts as the dearest of those that have: in most tables it
    is dearer still, for the simple ones come first.
    """
    if not spent:
        return ""
    usual = {method: statistics.fmean(seconds) for method, seconds in spent.items()}
    minutes = sum(usual.get(method, max(usual.values())) for method in left) / 60
    if not usual.keys() >= set(left):
        return f" (at least {minutes:.0f} min left)" if minutes >= 1 else ""
    return f" ({minutes:.0f} min left)" if minutes >= 1 else " (< 1 min left)"
