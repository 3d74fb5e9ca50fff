"""An experiment of `bombus paper` from runs made at different times and places: table and figures.

    python lab/gather.py ablation --runs results/paper/ablation/runs --out results/paper/ablation
    python lab/gather.py trigger --runs runs/runs --out results/paper/trigger --figures docs/paper

RUNS hold files CELL-seedN.json, or folders of runs, known by their settings whatever their names.
They are checked to be of one network and one set of settings a cell, and go to OUT/runs as
CELL-seedN.json; OUT/results.json is what `bombus compare` makes the table from. Figures that show a
run batch by batch need folders.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bombus.paper import Cell, Finished, Place, find_experiment
from bombus.paper.run import essential
from bombus.report.records import read_run

# Where files lie and their hashes, which seed, which code, and what follows from the rest.
IGNORED = ("seed", "source", "weights", "data", "device", "config", "files", "code")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("name", help="the experiment, as `bombus paper` calls it")
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--partial", action="store_true", help="leave out cells without runs")
    asked = parser.parse_args()
    experiment = find_experiment(asked.name)
    anyone = json.loads(next(_result_files(asked.runs)).read_bytes())
    place = Place(
        full=True,
        weights=tuple(map(Path, anyone["weights"])),
        data=Path("cifar10-c"),
        source=Path("cifar10"),
        clean=Path("cifar10"),
        precision=anyone["precision"],
    )
    with tempfile.TemporaryDirectory() as temporary:
        laid_out, finished = Path(temporary), []
        for cell in experiment.cells(place):
            found = {read_run(path).seed: path for path in _of_cell(cell, asked.runs)}
            if not found:
                if not asked.partial:
                    raise SystemExit(f"No run of {cell.name}; --partial leaves it out.")
                print(f"no run of {cell.name}")
                continue
            _require_alike(list(found.values()))
            folders = [_lay_out(cell, seed, found[seed], laid_out) for seed in sorted(found)]
            finished.append(Finished(cell, tuple(folders), tuple(map(read_run, folders))))
        experiment.show(finished, laid_out)
        if asked.out:
            (asked.out / "runs").mkdir(parents=True, exist_ok=True)
            shutil.copy(laid_out / "results.json", asked.out)
            for folder in laid_out.glob("*-seed*/run.json"):
                shutil.copy(folder, asked.out / "runs" / f"{folder.parent.name}.json")
        if asked.figures:
            asked.figures.mkdir(parents=True, exist_ok=True)
            for picture in laid_out.glob("*.png"):
                name = picture.stem.replace("figure", asked.name)
                shutil.copy(picture, asked.figures / f"{name}.png")
        print((laid_out / "table.txt").read_text())


def _result_files(places: list[Path]) -> Iterator[Path]:
    for place in places:
        yield from sorted(place.glob("*.json"))
        yield from sorted(place.glob("*/run.json"))


def _of_cell(cell: Cell, places: list[Path]) -> Iterator[Path]:
    """Its results: by the file's name, or by the settings beside a run's result."""
    wanted = _identity(json.loads(json.dumps(essential(cell.settings).to_dict())))
    for path in _result_files(places):
        if path.name != "run.json":
            if re.fullmatch(rf"{re.escape(cell.name)}-seed\d+", path.stem):
                yield path
        elif _identity(json.loads(path.with_name("settings.json").read_bytes())) == wanted:
            yield path


def _identity(stored: dict[str, Any]) -> dict[str, Any]:
    same = {name: value for name, value in stored.items() if name not in IGNORED}
    return {**same, "clean": stored.get("clean") is not None}


def _require_alike(files: list[Path]) -> None:
    """A setting that only one of them has is younger than the other."""
    first, *others = (json.loads(path.read_bytes()) for path in files)
    own = {**first["config"], "weights": first["weights_sha256"], "seed": None}
    for path, stored in zip(files[1:], others, strict=True):
        other = {**stored["config"], "weights": stored["weights_sha256"], "seed": None}
        if differing := [k for k in own.keys() & other.keys() if own[k] != other[k]]:
            raise SystemExit(f"{path} differs from {files[0]} in {differing}.")


def _lay_out(cell: Cell, seed: int, result: Path, out: Path) -> Path:
    folder = out / f"{cell.name}-seed{seed}"
    folder.mkdir()
    shutil.copy(result, folder / "run.json")
    batches = result.with_name("batches.jsonl")
    if result.name == "run.json" and batches.is_file():
        shutil.copy(batches, folder)
    return folder


if __name__ == "__main__":
    main()
