"""An experiment of `bombus paper` whose seeds were run at different times, as one results.json.

    python lab/gather.py ablation results/paper/ablation

reads OUT/runs/CELL-seedN.json, checks that a cell's runs share their settings, and writes
OUT/results.json, from which `bombus compare OUT/results.json` makes the table.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from bombus.paper import Finished, Place, find_experiment
from bombus.paper.layout import write_results
from bombus.report.records import read_run


def settings_of(path: Path) -> dict[str, Any]:
    stored = json.loads(path.read_bytes())
    config = {k: v for k, v in stored["config"].items() if k != "seed"}
    return {"weights": stored["weights_sha256"], "precision": stored["precision"], **config}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="the experiment, as `bombus paper` calls it")
    parser.add_argument("out", type=Path)
    parser.add_argument("--note", action="append", default=[], help="a sentence for the table")
    asked = parser.parse_args()
    experiment = find_experiment(asked.name)
    anyone = json.loads(next((asked.out / "runs").glob("*.json")).read_bytes())
    place = Place(
        full=True,
        weights=tuple(map(Path, anyone["weights"])),
        data=Path("cifar10-c"),
        source=Path("cifar10"),
        precision=anyone["precision"],
    )
    finished = []
    for cell in experiment.cells(place):
        files = [
            p
            for p in sorted((asked.out / "runs").glob("*.json"))
            if re.fullmatch(rf"{re.escape(cell.name)}-seed\d+", p.stem)
        ]
        if not files:
            raise SystemExit(f"No run of {cell.name} in {asked.out / 'runs'}.")
        first = settings_of(files[0])
        for path in files[1:]:
            other = settings_of(path)
            # A setting that only one of them has is younger than the other.
            if differing := [k for k in first.keys() & other.keys() if first[k] != other[k]]:
                raise SystemExit(f"{path.name} differs from {files[0].name} in {differing}.")
        folders = tuple(p.with_suffix("") for p in files)
        finished.append(Finished(cell, folders, tuple(map(read_run, files))))
    print(write_results(experiment.TITLE, experiment.CLAIM, finished, asked.out, asked.note))


if __name__ == "__main__":
    main()
