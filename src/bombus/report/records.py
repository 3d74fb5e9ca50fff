"""Reading runs back: run.json (or its copy in a ledger of results) and batches.jsonl.

Free of torch, because reading results must not wait for it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from bombus.errors import DataError

RESULT = "run.json"
# Whatever a run writes while it goes on: any of these without run.json is an unfinished run.
TRACES = ("settings.json", "batches.jsonl")


QUALITY = ("calibration_error", "log_loss", "batches_to_adapt")


@dataclass(frozen=True)
class Domain:
    name: str
    samples: int
    error: float  # per cent


@dataclass(frozen=True)
class Cost:
    ms_per_batch: float
    forwards_per_batch: float
    backwards_per_batch: float
    peak_memory_mb: float
    source_bytes: float | None = None  # of source images read beforehand; early runs do not say


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run, as its run.json tells it."""

    path: Path  # of the JSON file
    method: str
    benchmark: str
    backbone: str
    seed: int
    mean_error: float  # per cent, each domain counting the same
    domains: tuple[Domain, ...]  # in the order asked for
    cost: Cost
    config: dict[str, Any]
    stream: dict[str, Any]
    data: dict[str, Any]
    input: dict[str, Any]
    weights_sha256: str
    source_access: str
    precision: str
    device: str
    calibration_error: float | None = None  # per cent; early runs do not say
    log_loss: float | None = None  # nats
    batches_to_adapt: float | None = None
    visits: tuple[float, ...] = ()  # per cent, each visit to all domains; recurring streams alone
    severities: tuple[float, ...] = ()  # per cent, from severity 1 up; gradual streams alone
    forgotten: float | None = None  # points by which the error on clean images rose, if looked at
    not_finite: int = 0  # answers; one is enough, and neither of the first two is known
    collapsed: bool = False
    code: str | None = None  # hash of the source files that ran it; early runs do not say


def read_run(path: Path) -> RunResult:
    """The result in a run's folder, or in the JSON file itself."""
    path = result_file(path)
    stored = read_json(path)
    if not isinstance(stored, dict):
        raise DataError(f"{path} holds no run: expected an object with a method and its errors.")
    if "domains" in stored and not stored["domains"]:
        raise DataError(f"{path} is not whole: it lists no domains; restore it or leave it out.")
    try:
        return RunResult(
            path=path,
            method=str(stored["method"]),
            benchmark=str(stored["benchmark"]),
            backbone=str(stored["backbone"]),
            seed=int(stored["seed"]),
            mean_error=_number(stored["mean_error"]),
            domains=tuple(
                Domain(str(d["name"]), int(d["samples"]), _number(d["error"]))
                for d in stored["domains"]
            ),
            cost=_cost(stored["cost"]),
            config=dict(stored["config"]),
            stream=dict(stored["stream"]),
            data=dict(stored["data"]),
            input=dict(stored["input"]),
            weights_sha256=str(stored["weights_sha256"]),
            source_access=str(stored["source_access"]),
            precision=str(stored["precision"]),
            device=str(stored["device"]),
            collapsed=bool(stored.get("collapsed")),
            visits=tuple(map(_number, stored.get("visits") or ())),
            severities=tuple(map(_number, stored.get("severities") or ())),
            forgotten=_forgotten(stored.get("clean")),
            not_finite=int(stored.get("not_finite") or 0),
            code=dict(stored.get("versions") or {}).get("code"),
            **{name: _optional(stored.get(name)) for name in QUALITY},
        )
    except KeyError as error:
        raise DataError(
            f"{path} has no field {error}, which every run writes; is it a run of this version?"
        ) from None
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} is not the result of a run ({error}).") from None


def _cost(stored: dict[str, Any]) -> Cost:
    needed = [f.name for f in fields(Cost) if f.default is MISSING]
    values = {name: _number(stored[name]) for name in needed}
    return Cost(**values, source_bytes=_optional(stored.get("source_bytes")))


def _forgotten(clean: dict[str, Any] | None) -> float | None:
    return _number(clean["after"][-1]["error"]) - _number(clean["before"]) if clean else None


def result_file(path: Path) -> Path:
    """The JSON file of the run at `path`, with a clear word if there is none."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"There is no run at {path}; give the --out folder of a `bombus run`.")
    if (path / RESULT).is_file():
        return path / RESULT
    if _is_unfinished(path):
        raise DataError(
            f"The run in {path} is unfinished (it has no {RESULT} yet); finish it with the same "
            "`bombus run` command and --resume."
        )
    raise DataError(f"{path} holds no {RESULT}; give the --out folder of a finished `bombus run`.")


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Every result at or below `paths`, in the order given, by name within a folder.

    In a folder that is no run itself, run.json files count, and other JSON files that hold a run
    (a ledger of results). Unfinished runs below a folder are passed over: see `find_unfinished`.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir() or (path / RESULT).is_file() or _is_unfinished(path):
            below = [result_file(path)]
        else:
            below = list(_results_below(path))
            if not below:
                waiting = find_unfinished([path])
                hint = (
                    f"only unfinished runs, e.g. {waiting[0]}; finish it with the same "
                    "`bombus run` command and --resume"
                    if waiting
                    else "no finished run; `bombus run METHOD --out FOLDER` makes one"
                )
                raise DataError(f"{path} holds {hint}.")
        found += [p for p in below if p not in found]
    return found


def find_unfinished(paths: Iterable[Path]) -> list[Path]:
    """Folders at or below `paths` in which a run was begun and not finished."""
    folders = {
        trace.parent for path in paths for name in TRACES for trace in sorted(path.rglob(name))
    }
    return sorted(folder for folder in folders if _is_unfinished(folder))


def read_batches(path: Path) -> list[dict[str, Any]]:
    """One record a batch: {"batch": 0, "domains": {"fog": {"wrong": 3, "samples": 64}}, ...}."""
    log = (path if path.is_dir() else path.parent) / "batches.jsonl"
    if not log.is_file():
        raise DataError(f"There is no {log}; the error over the stream is in no other file.")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(log.read_bytes().splitlines(), start=1):
        try:
            record = json.loads(line)
            counts = [(c["wrong"], c["samples"]) for c in record["domains"].values()]
            if not counts or not all(0 <= wrong <= n and n > 0 for wrong, n in counts):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(
                f"Line {number} of {log} is not a batch record; the file is damaged or unfinished."
            ) from None
        records.append(record)
    if not records:
        raise DataError(f"{log} is empty; the run has not seen a batch yet.")
    return records


def main_domain(record: dict[str, Any]) -> str:
    """The batch's domain; batches of several are alike, whichever prevails in each."""
    names = list(record["domains"])
    return names[0] if len(names) == 1 else "mixed"


def write_file(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step (as bombus.checkpoint does, but without torch)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _results_below(folder: Path) -> Iterator[Path]:
    if (folder / RESULT).is_file():
        yield folder / RESULT  # its other files (settings, checkpoint) are no results
        return
    if _is_unfinished(folder):
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _results_below(path)
        elif path.suffix == ".json" and not path.name.startswith(".") and _holds_run(path):
            yield path


def _holds_run(path: Path) -> bool:
    stored = read_json(path)
    return isinstance(stored, dict) and {"method", "benchmark", "mean_error"} <= stored.keys()


def _is_unfinished(folder: Path) -> bool:
    begun = any((folder / name).is_file() for name in TRACES)
    return begun and not (folder / RESULT).is_file()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:  # broken JSON or broken UTF-8
        reason = str(error).partition(":")[0]
        raise DataError(
            f"{path} is not valid JSON ({reason}); restore it or leave it out."
        ) from None


def _optional(value: Any) -> float | None:
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} where a number is due")
    return number
