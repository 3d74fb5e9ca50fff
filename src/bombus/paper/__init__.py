"""The paper's tables and figures, one file each: what is run, and how it is shown.

An experiment is a module with

    TITLE, CLAIM              what it is called, and what the paper concludes from it
    cells(place) -> [Cell]    the runs it takes, without seeds: plain settings
    show(finished, out)       writes tables and figures from the finished runs, returns the files

`bombus paper NAME` runs the cells of a module one after the other (`run.py`) and shows them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from bombus.errors import UnknownNameError
from bombus.fields import Count, check_fields
from bombus.metrics.interval import half_width
from bombus.names import ExperimentName, Precision
from bombus.report.records import RunResult
from bombus.settings import RunSettings

NAMES: tuple[str, ...] = get_args(ExperimentName)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an experiment is run: on the embedded images, or on a real benchmark."""

    full: bool = False
    embedded: Literal["demo", "demo-vit"] = "demo"  # where it is not full
    benchmark: str | None = None  # None: the experiment's own
    backbone: str | None = None
    weights: tuple[Path, ...] = ()
    data: Path | None = None
    source: Path | None = None  # clean training images
    warmup: Path | None = None  # `bee`'s preparation as a file, in the place of source images
    clean: Path | None = None  # clean test images, for what was forgotten
    samples: Count | None = None
    batch_size: Count | None = None
    precision: Precision = "fp32"
    device: str = "auto"
    own: dict[str, dict[str, str]] = field(default_factory=dict)  # settings by method, as text

    def __post_init__(self) -> None:
        check_fields(self)

    def images(self, benchmark: str) -> str:
        """`benchmark` in full, unless the user names another; the embedded one otherwise."""
        return (self.benchmark or benchmark) if self.full else self.embedded

    def settings(self, method: str, benchmark: str, **chosen: Any) -> RunSettings:
        """A cell's settings, on the images of `benchmark` or what stands for them.

        What a cell chooses is what sets it apart, so it goes before the user's own choice.
        """
        return RunSettings(
            method=method,
            benchmark=self.images(benchmark),
            backbone=self.backbone,
            weights=self.weights,
            data=self.data,
            source=self.warmup if method == "bee" and self.warmup else self.source,
            samples=self.samples,
            batch_size=self.batch_size,
            precision=self.precision,
            device=self.device,
            set=self.own.get(method, {}) | {n: as_text(value) for n, value in chosen.items()},
        )

    def small(self, samples: int, batch_size: int) -> Place:
        """The same, with fewer images where these are the embedded ones and nobody said."""
        if self.full:
            return self
        return replace(
            self, samples=self.samples or samples, batch_size=self.batch_size or batch_size
        )


@dataclass(frozen=True)
class Cell:
    """One run of an experiment, for every seed."""

    name: str  # in tables
    settings: RunSettings
    facts: dict[str, Any] = field(default_factory=dict)  # what sets it apart, by column
    published: float | None = None  # the paper's mean error of it, on its own benchmark


@dataclass(frozen=True)
class Finished:
    cell: Cell
    folders: tuple[Path, ...]  # one a seed
    runs: tuple[RunResult, ...]

    @property
    def means(self) -> list[float]:
        return [run.mean_error for run in self.runs]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.means)

    @property
    def spread(self) -> float | None:
        """Half of the 95 % interval of the mean; none of one seed."""
        return half_width(self.means)

    def with_facts(self, found: dict[str, Any]) -> Finished:
        """With columns that are known only now that it is run."""
        return replace(self, cell=replace(self.cell, facts=self.cell.facts | found))


class Experiment(Protocol):
    TITLE: str
    CLAIM: str

    @staticmethod
    def cells(place: Place) -> list[Cell]: ...

    @staticmethod
    def show(finished: Sequence[Finished], out: Path) -> list[Path]: ...


def find_experiment(name: str) -> Experiment:
    if name not in NAMES:
        raise UnknownNameError("experiment of the paper", name, NAMES)
    return cast(Experiment, import_module(f"bombus.paper.{name.replace('-', '_')}"))


def as_text(value: Any) -> str:
    """A setting as the command line would give it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
