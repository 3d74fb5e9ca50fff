"""An experiment of `bombus paper` from runs made at different times and places: table and figures.

    python lab/gather.py ablation --runs results/paper/ablation/runs --out results/paper/ablation
    python lab/gather.py trigger --runs runs/runs --out results/paper/trigger --figures docs/paper

RUNS hold results, as files of a ledger or as folders of runs; a cell takes those that were run with
its settings, whatever they are called. They are checked to be of one network and one set of
settings a cell. OUT/results.json is what `bombus compare` makes the table from: a file of the
ledger is named there where it lies, a folder's result goes to OUT/runs as CELL-seedN.json. Figures
that show a run batch by batch need folders. COSTS hold further runs of the same methods on the same
architecture, for seeds that shared a GPU: milliseconds a batch are the quickest run's. WITHOUT are
cells to leave out, such as a method that no run has timed on a GPU of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bombus.methods import find_method
from bombus.paper import Cell, Finished, Place, find_experiment
from bombus.report.records import RESULT, RunResult, find_runs, read_run
from bombus.settings import RunSettings, make_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("name", help="the experiment, as `bombus paper` calls it")
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--costs", type=Path, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", help="only these; by default all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--without", nargs="+", default=[], metavar="CELL")
    parser.add_argument("--partial", action="store_true", help="leave out cells without runs")
    asked = parser.parse_args()
    experiment = find_experiment(asked.name)
    runs = [read_run(path) for path in find_runs(asked.runs)]
    others = [read_run(path) for path in find_runs(asked.costs)]
    place = Place(
        full=True,
        weights=tuple(map(Path, json.loads(runs[0].path.read_bytes())["weights"])),
        data=Path("cifar10-c"),
        source=Path("cifar10"),
        clean=Path("cifar10"),
        precision=runs[0].precision,
    )
    with tempfile.TemporaryDirectory() as temporary:
        laid_out, finished = Path(temporary), []
        lies_at: dict[str, Path] = {}
        for cell in experiment.cells(place):
            if cell.name in asked.without:
                continue
            found = {
                run.seed: run
                for run in _of_cell(cell, runs)
                if not asked.seeds or run.seed in asked.seeds
            }
            if not found:
                if not asked.partial:
                    raise SystemExit(f"No run of {cell.name}; --partial leaves it out.")
                print(f"no run of {cell.name}")
                continue
            own = [found[seed] for seed in sorted(found)]
            _require_alike(own)
            folders = [_lay_out(cell, run, laid_out) for run in own]
            lies_at |= {f.name: run.path for f, run in zip(folders, own, strict=True)}
            timed = [_quickest_cost(run, others) for run in map(read_run, folders)]
            finished.append(Finished(cell, tuple(folders), tuple(timed)))
        experiment.show(finished, laid_out)
        if asked.out:
            _keep(laid_out / "results.json", lies_at, asked.out)
        if asked.figures:
            asked.figures.mkdir(parents=True, exist_ok=True)
            for picture in laid_out.glob("*.png"):
                name = picture.stem.replace("figure", asked.name)
                shutil.copy(picture, asked.figures / f"{name}.png")
        print((laid_out / "table.txt").read_text())


def _of_cell(cell: Cell, runs: list[RunResult]) -> Iterator[RunResult]:
    """Those that were run with its settings; of two of a seed the last counts: one with batches."""
    settings = cell.settings
    wanted = _config(settings)
    for run in sorted(runs, key=lambda run: _batches(run).is_file()):
        stream = (run.stream["kind"], run.stream["samples"], run.stream["severity"])
        if (run.method, *stream) != (settings.method, "continual", settings.samples, 5):
            continue
        # Who looked at clean images in between has run the same; who did not has not seen them.
        if settings.clean and "clean" not in json.loads(run.path.read_bytes()):
            continue
        if all(_same(wanted.get(name), value) for name, value in run.config.items()):
            yield run


def _config(settings: RunSettings) -> dict[str, Any]:
    config = asdict(make_config(find_method(settings.method), settings))
    return json.loads(json.dumps(config)) | {"seed": None}


def _same(wanted: Any, stored: Any) -> bool:
    """None leaves the choice to the method; a setting that exists no longer is not asked for."""
    return wanted is None or wanted == stored


def _require_alike(runs: list[RunResult]) -> None:
    """A setting that only one of them has is younger than the other."""
    first, *others = runs
    own = {**first.config, "weights": first.weights_sha256, "seed": None}
    for run in others:
        other = {**run.config, "weights": run.weights_sha256, "seed": None}
        if differing := [k for k in own.keys() & other.keys() if own[k] != other[k]]:
            raise SystemExit(f"{run.path} differs from {first.path} in {differing}.")


def _quickest_cost(run: RunResult, others: list[RunResult]) -> RunResult:
    """With the least milliseconds that any run of the method took on such a network and device."""

    def machine(run: RunResult) -> tuple[str, ...]:
        return run.method, run.backbone, run.device, run.precision

    alike = [run, *(other for other in others if machine(other) == machine(run))]
    quickest = min(other.cost.ms_per_batch for other in alike)
    return replace(run, cost=replace(run.cost, ms_per_batch=quickest))


def _keep(results: Path, lies_at: dict[str, Path], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    stored = json.loads(results.read_bytes())
    for cell in stored["cells"]:
        for i, name in enumerate(cell["runs"]):
            if (path := lies_at[name]).name != RESULT:
                cell["runs"][i] = Path(os.path.relpath(path.with_suffix(""), out)).as_posix()
                continue
            (out / "runs").mkdir(exist_ok=True)
            shutil.copy(path, out / "runs" / f"{name}.json")
    (out / results.name).write_text(json.dumps(stored, indent=1) + "\n")


def _batches(run: RunResult) -> Path:
    return run.path.with_name("batches.jsonl")


def _lay_out(cell: Cell, run: RunResult, out: Path) -> Path:
    folder = out / f"{cell.name}-seed{run.seed}"
    folder.mkdir()
    shutil.copy(run.path, folder / "run.json")
    if _batches(run).is_file():
        shutil.copy(_batches(run), folder)
    return folder


if __name__ == "__main__":
    main()
