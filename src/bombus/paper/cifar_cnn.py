"""Table 2: every method on CIFAR10-C (WRN-28-10) or CIFAR100-C (ResNeXt-29)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bombus.data.benchmarks import find_benchmark
from bombus.methods import find_method
from bombus.models import runs_without_source
from bombus.paper import Cell, Finished, Place
from bombus.paper.layout import write_results, write_tables
from bombus.report.figures import stream_figure
from bombus.report.layout import make_tables

TITLE = "CIFAR10-C and CIFAR100-C with convolutional networks"
CLAIM = "BEE has 12.7 on CIFAR10-C and 27.8 on CIFAR100-C: below all others."
METHODS = (
    "source",
    "bn",
    "tent",
    "eata",
    "sar",
    "cotta",
    "adacontrast",
    "rmt",
    "rmt-free",
    "dplot",
    "obao",
    "roid",
    "rdumb",
    "bee-paper",
    "bee",
    "bee-rehearsal",
)


def cells(place: Place) -> list[Cell]:
    """One benchmark a call: CIFAR10-C, or with --benchmark cifar100-c the other."""
    place = place.small(samples=100, batch_size=50)
    return table_cells(place, METHODS, "cifar10-c")


def table_cells(place: Place, methods: Sequence[str], benchmark: str) -> list[Cell]:
    return [
        Cell(name, place.settings(name, benchmark), {"method": name})
        for name in runnable(methods, place, benchmark)
    ]


def runnable(methods: Sequence[str], place: Place, benchmark: str) -> list[str]:
    """Those that can run here: without source images, the ones that can do without."""
    if place.source is not None:
        return list(methods)
    images = find_benchmark(place.images(benchmark))
    return [name for name in methods if runs_without_source(find_method(name), images)]


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    return show_methods(TITLE, CLAIM, finished, out)


def show_methods(title: str, claim: str, finished: Sequence[Finished], out: Path) -> list[Path]:
    """A row a method, a column a domain, and the error over the stream."""
    results = write_results(title, claim, finished, out)
    tables = make_tables([run for f in finished for run in f.runs], cost=True)
    folders = [folder for f in finished for folder in f.folders]
    return [results, *write_tables(tables, out), *stream_figure(folders, out / "figure")]
