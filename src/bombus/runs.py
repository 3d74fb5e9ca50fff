"""One run on disk: what was asked, one line a batch, a checkpoint to resume from, the result.

    DIR/settings.json   what was asked, written first; --resume goes on only with the same
    DIR/batches.jsonl   one record a batch, appended as it happens
    DIR/checkpoint/     the adapter and the length of batches.jsonl, together, every few batches
    DIR/run.json        the result, written last

After a kill the log is cut back to the checkpoint's length and the stream continues from there, so
that the files end up as those of an uninterrupted run (measured times and memory aside).
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bombus
from bombus import checkpoint
from bombus.backbones import create
from bombus.backbones.weights import LoadedWeights, load_weights
from bombus.data.benchmarks import Benchmark, find_benchmark
from bombus.data.images import ImageSet
from bombus.data.stream import Stream
from bombus.errors import CheckpointError, ConfigError, UnknownNameError, WeightsError
from bombus.methods import find_method
from bombus.methods.base import Adapter, BaseConfig
from bombus.metrics.cost import peak_memory_mb, typical_ms
from bombus.metrics.error import ErrorMeter
from bombus.online import Precision, adapt_online


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides a run's result. None means the benchmark's own choice."""

    method: str
    benchmark: str = "demo"
    backbone: str | None = None
    weights: tuple[Path, ...] = ()
    data: Path | None = None
    domains: tuple[str, ...] = ()
    severity: int = 5
    samples: int | None = None
    batch_size: int | None = None
    seed: int = 1
    device: str = "auto"
    precision: Precision = "fp32"
    set: dict[str, str] = field(default_factory=dict)  # the method's own settings, as text

    def to_dict(self) -> dict[str, Any]:
        as_text = {"weights": [p.name for p in self.weights], "domains": list(self.domains)}
        # Files may be moved between a kill and a resume: their names count, not their folders.
        return {**asdict(self), **as_text, "data": self.data.name if self.data else None}


@dataclass(frozen=True)
class Progress:
    """What a watcher sees after each batch."""

    record: dict[str, Any]
    meter: ErrorMeter
    done: int
    total: int
    domain: str
    last_of_domain: bool


Watcher = Callable[[Progress], None]


class Run:
    """A prepared run: model loaded, images open, nothing written yet."""

    def __init__(self, settings: RunSettings, *, images: ImageSet | None = None) -> None:
        method = find_method(settings.method)
        benchmark = find_benchmark(settings.benchmark)
        self.settings = settings
        self.device = pick_device(settings.device)
        self.backbone = settings.backbone or benchmark.backbone
        model = create(self.backbone, num_classes=benchmark.classes)
        self.config = make_config(method, benchmark.name, settings)
        self.weights = _load(model, settings, benchmark)
        self.images = images or benchmark.open(settings.data)
        self.stream = Stream(
            domains=settings.domains or _standard(self.images),
            severity=settings.severity,
            batch_size=settings.batch_size or benchmark.batch_size,
            samples=settings.samples,
            seed=settings.seed,
        )
        sizes = {d: self.images.size(d) for d in self.stream.domains}
        self.plan_domains = [pieces[0].domain for pieces in self.stream.plan(sizes)]
        self.model = model.to(self.device)
        self.method = method

    def execute(
        self,
        out: Path,
        *,
        resume: bool = False,
        watch: Watcher | None = None,
        checkpoint_every: int = 20,
        keep_adapter: bool = False,
    ) -> dict[str, Any]:
        """Stream everything, or what is left of it, and return the result."""
        finished = self._claim(out, resume)
        if finished is not None:
            return finished
        log, saved = out / "batches.jsonl", out / "checkpoint"
        adapter, records = self._restore(log, saved)
        meter = _meter(records)
        total = len(self.plan_domains)
        batches = self.stream.batches(self.images, start=len(records))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with log.open("ab") as file:
            for record in adapt_online(
                adapter, batches, device=self.device, precision=self.settings.precision
            ):
                file.write(json.dumps(record).encode() + b"\n")
                records.append(record)
                meter.add(_counts(record))
                if watch is not None:
                    watch(self._progress(record, meter, len(records)))
                if len(records) % checkpoint_every == 0 and len(records) < total:
                    self._save(adapter, file, saved)
            if keep_adapter:
                self._save(adapter, file, saved)
            file.flush()
            os.fsync(file.fileno())
        result = self._result(adapter, meter, records)
        checkpoint.write_json(out / "run.json", result)
        if not keep_adapter:
            _remove(saved)
        return result

    def _claim(self, out: Path, resume: bool) -> dict[str, Any] | None:
        """Make the folder ours, or find the finished result in it; never write over anything."""
        asked = self.settings.to_dict()
        settings_file = out / "settings.json"
        if settings_file.exists():
            if not resume:
                raise ConfigError(
                    f"{out} already holds a run; add --resume to go on with it, or choose "
                    "another --out."
                )
            before = json.loads(settings_file.read_text())
            differing = sorted(k for k in {*asked, *before} if asked.get(k) != before.get(k))
            if differing:
                raise ConfigError(
                    f"{out} holds a run with another {', '.join(differing)} "
                    f"({before.get(differing[0])!r}, now {asked.get(differing[0])!r}); resume it "
                    "with the same settings, or choose another --out."
                )
            if (out / "run.json").exists():
                done: dict[str, Any] = json.loads((out / "run.json").read_text())
                return done
        elif out.exists() and any(out.iterdir()):
            raise ConfigError(f"{out} is not empty and holds no run; choose another --out.")
        out.mkdir(parents=True, exist_ok=True)
        checkpoint.write_json(settings_file, asked)
        return None

    def _restore(self, log: Path, saved: Path) -> tuple[Adapter, list[dict[str, Any]]]:
        if not (saved / checkpoint.MANIFEST).exists():
            log.write_bytes(b"")
            return self.method(self.model, self.config), []
        length = checkpoint.load_meta(saved)["log_bytes"]
        with log.open("rb+") as file:
            file.truncate(length)
        records = [json.loads(line) for line in log.read_bytes().splitlines()]
        if log.stat().st_size != length:
            raise CheckpointError(
                f"{log} is shorter than its checkpoint says ({log.stat().st_size} of {length} "
                "bytes); start the run anew in another folder."
            )
        return self.method.load(saved, self.model), records

    def _progress(self, record: dict[str, Any], meter: ErrorMeter, done: int) -> Progress:
        domain, total = self.plan_domains[done - 1], len(self.plan_domains)
        last = done == total or self.plan_domains[done] != domain
        return Progress(record, meter, done, total, domain, last)

    def _save(self, adapter: Adapter, log: typing.BinaryIO, folder: Path) -> None:
        # The log first: a checkpoint must never speak of lines that are not on the disk yet.
        log.flush()
        os.fsync(log.fileno())
        adapter.save(folder, log_bytes=log.tell())

    def _result(
        self, adapter: Adapter, meter: ErrorMeter, records: list[dict[str, Any]]
    ) -> dict[str, Any]:
        events = [{"batch": r["batch"], **event} for r in records for event in r["events"]]
        return {
            "method": self.settings.method,
            "benchmark": self.settings.benchmark,
            "backbone": self.backbone,
            "seed": self.settings.seed,
            "mean_error": round(meter.mean(), 4),
            "domains": meter.rows(),
            "cost": {
                "ms_per_batch": round(typical_ms([r["ms"] for r in records]), 3),
                "forwards_per_batch": adapter.forwards,
                "backwards_per_batch": adapter.backwards,
                "peak_memory_mb": round(peak_memory_mb(self.device), 1),
            },
            "events": events,
            "config": asdict(self.config),
            "stream": self.stream.to_dict(),
            "data": self.images.describe(),
            "weights_sha256": self.weights.sha256,
            "weights": [p.name for p in self.settings.weights],
            "notes": list(self.weights.notes),
            "input": adapter.input.to_dict(),
            "source_access": adapter.needs,
            "predicts": adapter.predicts,
            "precision": self.settings.precision,
            "device": _device_name(self.device),
            "versions": versions(),
            "command": shlex.join(["bombus", *sys.argv[1:]]),
        }


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"The device {name!r} cannot be used here ({reason}); try --device cpu."
        ) from None
    return device


def make_config(method: type[Adapter], benchmark: str, settings: RunSettings) -> BaseConfig:
    """The published settings of a method for a benchmark, with the user's own on top."""
    config_class = method.Config
    known = {f.name: f for f in dataclasses.fields(config_class)}
    types_of = typing.get_type_hints(config_class)
    values: dict[str, Any] = {"seed": settings.seed}
    for name, text in settings.set.items():
        if name not in known:
            raise UnknownNameError(f"{method.name} setting", name, known)
        values[name] = parse_setting(text, types_of[name], f"{method.name} setting {name}")
    family = "vit" if (settings.backbone or "").startswith("vit") else "cnn"
    return config_class.for_benchmark(benchmark, family, **values)


def parse_setting(text: str, kind: Any, what: str) -> Any:
    """A setting's value from the command line, by the type its field declares."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    try:
        if origin is typing.Literal:
            if text not in arguments:
                raise UnknownNameError(f"value of {what}", text, map(str, arguments))
            return text
        if origin in (typing.Union, types.UnionType):
            if text.lower() == "none" and type(None) in arguments:
                return None
            kind = next(a for a in arguments if a is not type(None))
            return parse_setting(text, kind, what)
        if origin is tuple:
            return tuple(parse_setting(part, arguments[0], what) for part in text.split(","))
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        return kind(text)
    except (KeyError, ValueError):
        expected = getattr(kind, "__name__", str(kind))
        raise ConfigError(f"Got {text!r} for {what}, expected a {expected}.") from None


def versions() -> dict[str, str]:
    return {
        "bombus": bombus.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _load(model: torch.nn.Module, settings: RunSettings, benchmark: Benchmark) -> LoadedWeights:
    given = settings.weights
    if not given and settings.backbone in (None, benchmark.backbone):
        given = benchmark.weights
    if not given:
        raise WeightsError(
            f"{benchmark.name} needs the weights of a trained "
            f"{settings.backbone or benchmark.backbone}; pass --weights FILE "
            "(safetensors, or .pt; several files for shards)."
        )
    return load_weights(model, given)


def _standard(images: ImageSet) -> tuple[str, ...]:
    from bombus.data.corruptions import EXTRA

    return tuple(d for d in images.domains if d not in EXTRA)


def _counts(record: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {d: (c["wrong"], c["samples"]) for d, c in record["domains"].items()}


def _meter(records: list[dict[str, Any]]) -> ErrorMeter:
    meter = ErrorMeter()
    for record in records:
        meter.add(_counts(record))
    return meter


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def _remove(folder: Path) -> None:
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
