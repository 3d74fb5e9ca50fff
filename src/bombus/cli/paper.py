"""bombus paper: the paper's tables and figures, one command each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bombus.names import ExperimentName, Precision

if TYPE_CHECKING:
    from bombus.runs import Progress


def paper(
    name: Annotated[ExperimentName, tyro.conf.Positional],
    /,
    *,
    scale: Literal["demo", "full"] = "demo",
    seeds: int = 1,
    first_seed: int = 1,
    out: Path | None = None,
    runs: Path | None = None,
    benchmark: Literal["cifar10-c", "cifar100-c", "imagenet-c"] | None = None,
    backbone: str | None = None,
    weights: tuple[Path, ...] = (),
    data: Path | None = None,
    source: Path | None = None,
    warmup: Path | None = None,
    clean: Path | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    precision: Precision = "fp32",
    methods: tuple[str, ...] = (),
    rows: tuple[str, ...] = (),
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="METHOD.NAME=VALUE")] = (),
) -> None:
    """Re-create a table or figure of the BEE paper: run what it takes, then lay it out.

    Writes OUT/results.json, OUT/table.txt, .md and .tex, and the figure as .svg and .png. Called
    again, it goes on where it stopped: no run is made twice, nor one that another table has made.
    Started in several terminals at once, or on several GPUs with --device, they share the runs.

    Examples:
        bombus paper ablation
        bombus paper cifar-cnn --scale full --weights WRN.safetensors --source CIFAR10 --seeds 3
        bombus paper cifar-cnn --methods tent cotta --set tent.lr=3e-3 cotta.lr=1e-4

    Args:
        name: which table or figure.
        scale: demo takes the embedded images and minutes; full the real benchmark and a GPU.
        seeds: how many; tables of several give their spread (bombus compare --intervals: the 95 %
            intervals).
        first_seed: of those; one machine may make seed 1, another seed 2, a last call lays out all.
        out: folder; by default paper/NAME-SCALE.
        runs: folder of the runs, which tables may share; by default paper/runs, or OUT/runs where
            an OUT was given.
        benchmark: in full: other images than the experiment's own.
        backbone: the network, if not the benchmark's own.
        weights: in full: the trained network's file or shards, or a published name.
        data: in full: folder of the benchmark's images; by default where `bombus data` puts them.
        source: clean training images; without them methods that cannot do without are left out
            (the demo has 1,000 of its own, which bee and bee-paper get if given "embedded").
        warmup: BEE's preparation, made by `bombus warmup`, in the place of source images; "{seed}"
            in its name stands for each seed.
        clean: of forgetting, in full: folder of clean test images.
        samples: images a domain; by default all in full, few in the demo.
        batch_size: by default the published one in full, smaller in the demo.
        device: cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.
        precision: fp32, tf32 (fp32 with fast matrix units), or bf16 autocast.
        methods: only the runs of these.
        rows: only these rows of the table, by name (every-40, line-2, tent-queue).
        set: settings of a method for a network that is not the published one; what sets the lines
            of an ablation apart stays as it is.
    """
    from dataclasses import replace

    from bombus.cli.run import pairs
    from bombus.cli.view import RunView, say
    from bombus.data.benchmarks import EMBEDDED
    from bombus.errors import ConfigError, UnknownNameError
    from bombus.fields import Count, Seed, check
    from bombus.methods import find_method
    from bombus.paper import Place, find_experiment
    from bombus.paper.run import run_cells
    from bombus.provenance import versions

    check("--seeds", seeds, Count)
    check("--first-seed", first_seed, Seed)
    check("the last seed", first_seed + seeds - 1, Seed)
    if scale == "demo" and (benchmark or weights or data or backbone or clean):
        raise ConfigError(
            "The demo scale runs on the embedded images and network; add --scale full to use "
            "--benchmark, --backbone, --weights, --data or --clean."
        )
    own: dict[str, dict[str, str]] = {}
    for setting, value in pairs(set).items():
        method, dot, field = setting.partition(".")
        if not dot:
            raise ConfigError(
                f"Got --set {setting}={value}, expected METHOD.NAME=VALUE, e.g. --set tent.lr=3e-3."
            )
        own.setdefault(method, {})[field] = value
    experiment = find_experiment(name)
    place = Place(
        full=scale == "full",
        benchmark=benchmark,
        backbone=backbone,
        weights=weights,
        data=data,
        source=source,
        warmup=warmup,
        clean=clean,
        samples=samples,
        batch_size=batch_size,
        precision=precision,
        device=device,
        own=own,
    )
    cells = experiment.cells(place)
    runnable = dict.fromkeys(cell.settings.method for cell in cells)
    for asked in (*methods, *own):
        if find_method(asked).name not in runnable:
            given = experiment.cells(replace(place, source=source or EMBEDDED))
            needy = asked in (cell.settings.method for cell in given)
            why = "; it needs --source" if needy else ""
            raise ConfigError(f"{name} runs {', '.join(runnable)} here, not {asked}{why}.")
    for row in rows:
        if row not in (names := [cell.name for cell in cells]):
            raise UnknownNameError(f"row of {name}", row, names)
    cells = [
        cell
        for cell in cells
        if (not methods or cell.settings.method in methods) and (not rows or cell.name in rows)
    ]
    if not cells:
        raise ConfigError("No row has both one of these --methods and one of these --rows.")
    folder = out or Path("paper") / f"{name}-{scale}"
    shelf = runs or (Path("paper") if out is None else out) / "runs"

    @contextmanager
    def watching(title: str) -> Iterator[Callable[[Progress], None]]:
        with RunView(title) as view:
            yield view.update

    chosen = range(first_seed, first_seed + seeds)
    finished = run_cells(cells, chosen, shelf, watching)
    paths = experiment.show(finished, folder)
    say((folder / "table.txt").read_text())
    say(f"The paper: {experiment.CLAIM}")
    if scale == "demo":
        say("A demo on few images need not agree; --scale full is the paper's experiment.")
    code = versions()["code"]
    if other := [r.path.parent.name for f in finished for r in f.runs if r.code != code]:
        say(f"Run by other code than this: {', '.join(other)}; delete those folders to run anew.")
    say(f"Written to {folder}: {', '.join(p.name for p in paths)}; the runs are in {shelf}.")
