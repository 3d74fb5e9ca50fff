"""One run on disk: what was asked, one line a batch, a checkpoint to resume from, the result.

    DIR/settings.json   what was asked, written first; --resume goes on only with the same
    DIR/batches.jsonl   one record a batch, appended as it happens
    DIR/checkpoint/     the adapter and the length of batches.jsonl, together, every few batches
    DIR/run.json        the result, written last

After a kill the log is cut back to the checkpoint's length and the stream continues from there, so
that the files end up as those of an uninterrupted run (measured times and memory aside).
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

import bombus
from bombus import checkpoint
from bombus.data.benchmarks import find_benchmark
from bombus.data.images import ImageSet
from bombus.data.stream import Stream
from bombus.errors import CheckpointError, ConfigError
from bombus.methods import find_method
from bombus.methods.base import Adapter
from bombus.metrics.cost import peak_memory_mb, typical_ms
from bombus.metrics.error import ErrorMeter
from bombus.models import choose_backbone, find_source, open_model
from bombus.online import adapt_online, autocast
from bombus.settings import RunSettings, make_config, pick_device


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
        self.backbone = choose_backbone(settings, benchmark)
        self.config = make_config(method, benchmark.name, settings)
        self.images = images or benchmark.open(settings.data)
        classes = benchmark.classes or self.images.classes
        self.model, self.weights = open_model(settings, benchmark, classes, self.device)
        self.stream = Stream(
            domains=settings.domains or benchmark.domains or self.images.domains,
            severity=settings.severity,
            batch_size=settings.batch_size or benchmark.batch_size,
            samples=settings.samples,
            seed=settings.seed,
        )
        sizes = {d: self.images.size(d) for d in self.stream.domains}
        self.plan_domains = [pieces[0].domain for pieces in self.stream.plan(sizes)]
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
        finished = self._find_finished(out, resume)
        if finished is not None:
            return finished
        out.mkdir(parents=True, exist_ok=True)  # before a long preparation, not after it
        log, saved = out / "batches.jsonl", out / "checkpoint"
        adapter, records = self._restore(log, saved)
        if not records:
            # Only now: a run that could not begin leaves nothing in the way of the next try.
            checkpoint.write_json(out / "settings.json", self.settings.to_dict())
            log.write_bytes(b"")
        meter = _meter(records)
        total = len(self.plan_domains)
        batches = self.stream.batches(self.images, start=len(records))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        saved_at, saving_s = time.perf_counter(), 0.0
        with log.open("ab") as file:
            for record in adapt_online(
                adapter, batches, device=self.device, precision=self.settings.precision
            ):
                file.write(json.dumps(record).encode() + b"\n")
                records.append(record)
                meter.add(_counts(record))
                if watch is not None:
                    watch(self._progress(record, meter, len(records)))
                due = len(records) % checkpoint_every == 0 and len(records) < total
                # A large state on a slow disk must not double the time: a twentieth at most.
                if due and time.perf_counter() - saved_at >= 20 * saving_s:
                    start = time.perf_counter()
                    self._save(adapter, file, saved)
                    saved_at = time.perf_counter()
                    saving_s = saved_at - start
            if keep_adapter:
                self._save(adapter, file, saved)
            file.flush()
            os.fsync(file.fileno())
        result = self._result(adapter, meter, records)
        checkpoint.write_json(out / "run.json", result)
        if not keep_adapter:
            _remove(saved)
        return result

    def _find_finished(self, out: Path, resume: bool) -> dict[str, Any] | None:
        """The finished result in the folder, if any; a folder that is not ours is refused."""
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
        return None

    def _restore(self, log: Path, saved: Path) -> tuple[Adapter, list[dict[str, Any]]]:
        if not (saved / checkpoint.MANIFEST).exists():
            return self._adapter(), []
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

    def _adapter(self) -> Adapter:
        source = find_source(self.settings, self.stream.batch_size)
        with autocast(self.device, self.settings.precision):
            return self.method(self.model, self.config, source=source)

    def _progress(self, record: dict[str, Any], meter: ErrorMeter, done: int) -> Progress:
        domain, total = self.plan_domains[done - 1], len(self.plan_domains)
        last = done == total or self.plan_domains[done] != domain
        return Progress(record, meter, done, total, domain, last)

    def _save(self, adapter: Adapter, log: BinaryIO, folder: Path) -> None:
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
                "forwards_per_batch": _mean([r["forwards"] for r in records]),
                "backwards_per_batch": _mean([r["backwards"] for r in records]),
                "peak_memory_mb": round(peak_memory_mb(self.device), 1),
                "source_bytes": adapter.source_bytes or 0,
            },
            "events": events,
            "config": asdict(self.config),
            "stream": self.stream.to_dict(),
            "data": self.images.describe(),
            "weights_sha256": self.weights.sha256,
            "weights": [p.name for p in self.settings.weights],
            "notes": list(self.weights.notes),
            "input": adapter.input.to_dict(),
            "source_access": "none" if adapter.source_bytes is None else adapter.needs,
            "predicts": adapter.predicts,
            "precision": self.settings.precision,
            "device": _device_name(self.device),
            "versions": versions(),
            "command": command_line(sys.argv[1:]),
        }


def versions() -> dict[str, str]:
    return {
        "bombus": bombus.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def command_line(arguments: Sequence[str]) -> str:
    """The command as typed, but for the folders of absolute paths: they are nobody's business."""
    kept = [Path(word).name if Path(word).is_absolute() else word for word in arguments]
    return shlex.join(["bombus", *kept])


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 3) if values else 0.0


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
