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
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from bombus import checkpoint, run_folder
from bombus.data.benchmarks import find_benchmark
from bombus.data.images import ImageSet
from bombus.data.stream import Piece
from bombus.data.streams import find_stream, take_options
from bombus.fields import Count, check
from bombus.finding import Finding
from bombus.forgetting import clean_batches, clean_error
from bombus.methods import find_method
from bombus.methods._warmup_file import settings_in
from bombus.methods.base import Adapter
from bombus.metrics.cost import peak_memory_mb, reset_peak_memory, typical_ms
from bombus.metrics.error import ErrorMeter, errors_by_part
from bombus.metrics.quality import summarise_quality
from bombus.models import choose_backbone, find_source, open_model, why_unusual
from bombus.online import adapt_online, autocast
from bombus.preflight import IMAGES, examine
from bombus.provenance import command_line, device_name, file_digests, versions
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
        self.config = make_config(method, settings)
        self.images = images or benchmark.open(settings.data)
        self.classes = benchmark.classes or self.images.classes
        self.model, self.weights = open_model(settings, benchmark, self.classes, self.device)
        kind = find_stream(settings.stream)
        own_size = kind.own_batch_size or benchmark.batch_size
        self.stream = kind(
            domains=settings.domains or benchmark.domains or self.images.domains,
            severity=settings.severity,
            batch_size=own_size if settings.batch_size is None else settings.batch_size,
            samples=settings.samples,
            seed=settings.seed,
            **take_options(kind, visits=settings.visits, delta=settings.delta),
        )
        plan = self.stream.plan_for(self.images)
        self.plan_domains = [_domain(pieces) for pieces in plan]
        self.plan_parts = {
            "visits": [pieces[0].visit for pieces in plan],
            "severities": [pieces[0].severity for pieces in plan],
        }
        self.method = method
        size = self.stream.batch_size
        self.clean: Iterable[tuple[Tensor, Tensor]] | None = None
        if settings.clean is not None:
            self.clean = clean_batches(
                benchmark, settings.clean, size, self.classes, self._class_names
            )

    def execute(
        self,
        out: Path,
        *,
        resume: bool = False,
        watch: Watcher | None = None,
        tell: Callable[[Finding], None] | None = None,
        checkpoint_every: int = 20,
        keep_adapter: bool = False,
    ) -> dict[str, Any]:
        """Stream everything, or what is left of it, and return the result."""
        check("checkpoint_every", checkpoint_every, Count)
        finished = run_folder.find_finished(out, self._asked, resume)
        if finished is not None:
            return finished
        log, saved = out / "batches.jsonl", out / "checkpoint"
        with run_folder.made(out):  # before a long preparation, not after it
            if tell is not None:
                for finding in self.findings:
                    tell(finding)
            adapter, records = self._restore(log, saved)
            warmup = self._warmup()  # now, not after hours in which the file may go
            before = self._clean_error(adapter, "clean_before") if not records else {}
        if not records:
            # Only now: a run that could not begin leaves nothing in the way of the next try.
            who = run_folder.begin(out, self._asked, device_name(self.device))
            log.write_bytes(b"")
        else:
            who, changed = run_folder.go_on(out, len(records), device_name(self.device))
            if changed is not None and tell is not None:
                tell(changed)
        meter = _meter(records)
        total = len(self.plan_domains)
        batches = self.stream.batches(self.images, start=len(records))
        reset_peak_memory(self.device)
        saved_at, saving_s = time.perf_counter(), 0.0
        with log.open("ab") as file:
            for record in adapt_online(
                adapter, batches, device=self.device, precision=self.settings.precision
            ):
                record |= before
                before = {}
                if self._ends_domain(len(records) + 1):
                    record |= self._clean_error(adapter, "clean_error")
                record = checkpoint.finite(record)
                file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
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
        result: dict[str, Any] = checkpoint.finite(
            self._result(adapter, meter, records, who, warmup)
        )
        checkpoint.write_json(out / "run.json", result)
        if not keep_adapter:
            run_folder.remove(saved)
        return result

    @property
    def _class_names(self) -> Sequence[str] | None:
        """Of images that come with names: clean and training images are numbered alike."""
        names: Sequence[str] | None = getattr(self.images, "class_names", None)
        return names

    @cached_property
    def _asked(self) -> dict[str, Any]:
        """What a run must share with the one it goes on with."""
        files = file_digests(self.settings.weights, self.settings.source)
        # What was not asked for too: another version may choose otherwise.
        asked = self.settings.to_dict() | {run_folder.CONFIG: asdict(self.config)}
        # As JSON has it, to be compared with what was read.
        return dict(checkpoint.finite(asked | ({run_folder.FILES: files} if files else {})))

    @cached_property
    def findings(self) -> list[Finding]:
        """What preflight says of this model, method and stream; the same however often resumed."""
        parts: list[torch.Tensor] = []
        batches = self.stream.batches(self.images)
        while sum(map(len, parts)) < IMAGES and (batch := next(batches, None)) is not None:
            parts.append(batch.x[:IMAGES])
        with autocast(self.device, self.settings.precision):
            of_the_model = examine(
                self.model,
                self.method,
                self.config,
                batch_size=self.stream.batch_size,
                x=torch.cat(parts)[:IMAGES].to(self.device),
                on_purpose=why_unusual(self.settings, self.weights),
            )
        return [*self.stream.findings(self.images), *of_the_model]

    def _restore(self, log: Path, saved: Path) -> tuple[Adapter, list[dict[str, Any]]]:
        if not (saved / checkpoint.MANIFEST).exists():
            return self._adapter(), []
        return self.method.load(saved, self.model), run_folder.cut_back(log, saved)

    def _adapter(self) -> Adapter:
        source = find_source(self.settings, self.stream.batch_size, self._class_names)
        with autocast(self.device, self.settings.precision):
            return self.method(self.model, self.config, source=source)

    def _warmup(self) -> dict[str, Any] | None:
        """What the warm-up file was made with, where one was read: not this run's settings."""
        given = self.settings.source
        if given is not None and not given.is_file():
            return None
        file = find_source(self.settings, self.stream.batch_size)
        made = settings_in(file) if isinstance(file, Path) else None
        # A list of all the names of a network's parameters says nothing here.
        return made and {name: value for name, value in made.items() if name != "trained"}

    def _progress(self, record: dict[str, Any], meter: ErrorMeter, done: int) -> Progress:
        domain, total = self.plan_domains[done - 1], len(self.plan_domains)
        return Progress(record, meter, done, total, domain, self._ends_domain(done))

    def _ends_domain(self, done: int) -> bool:
        names = self.plan_domains
        return done == len(names) or names[done] != names[done - 1]

    def _clean_error(self, adapter: Adapter, name: str) -> dict[str, float]:
        if self.clean is None:
            return {}
        return {name: clean_error(adapter, self.clean, self.device, self.settings.precision)}

    def _parts(self, records: list[dict[str, Any]]) -> dict[str, list[float]]:
        """Mean errors by visit or by severity, where the stream has several."""
        counts = [_counts(record) for record in records]
        return {
            name: errors_by_part(parts, counts)
            for name, parts in self.plan_parts.items()
            if len(set(parts)) > 1
        }

    def _save(self, adapter: Adapter, log: BinaryIO, folder: Path) -> None:
        # The log first: a checkpoint must never speak of lines that are not on the disk yet.
        log.flush()
        os.fsync(log.fileno())
        adapter.save(folder, log_bytes=log.tell())

    def _result(
        self,
        adapter: Adapter,
        meter: ErrorMeter,
        records: list[dict[str, Any]],
        who: Sequence[str],
        warmup: dict[str, Any] | None,
    ) -> dict[str, Any]:
        mixed = f"run by code {', then '.join(who)}: resumed after a change"
        events = [{"batch": r["batch"], **event} for r in records for event in r["events"]]
        period = self.stream.answers_a_step
        return {
            "method": self.settings.method,
            "benchmark": self.settings.benchmark,
            "backbone": self.backbone,
            "seed": self.settings.seed,
            "mean_error": round(meter.mean(), 4),
            "domains": meter.rows(self.stream.domains),
            **self._parts(records),
            **summarise_quality(records, self.classes, settles=self.stream.settles),
            "cost": {
                "ms_per_batch": round(typical_ms([r["ms"] for r in records], period), 3),
                "forwards_per_batch": _mean([r["forwards"] for r in records]),
                "backwards_per_batch": _mean([r["backwards"] for r in records]),
                "peak_memory_mb": round(peak_memory_mb(self.device), 1),
                "source_bytes": adapter.source_bytes or 0,
            },
            "events": events,
            "config": asdict(adapter.config),  # with what the method found for itself
            "warmup": warmup,
            "stream": self.stream.to_dict(),
            "data": self.images.describe(),
            "weights_sha256": self.weights.sha256,
            "weights": [p.name for p in self.settings.weights],
            "notes": [*self.weights.notes, *([mixed] if len(who) > 1 else [])],
            "preflight": [finding.text for finding in self.findings],
            "input": adapter.input.to_dict(),
            "source_access": "none" if adapter.source_bytes is None else adapter.needs,
            "predicts": adapter.predicts,
            "precision": self.settings.precision,
            "device": device_name(self.device),
            "versions": versions(),
            "command": command_line(sys.argv[1:]),
        }


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 3) if values else 0.0


def _domain(pieces: Sequence[Piece]) -> str:
    """What a batch is called while the run goes on."""
    names = {piece.domain for piece in pieces}
    return pieces[0].domain if len(names) == 1 else "mixed"


def _counts(record: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {d: (c["wrong"], c["samples"]) for d, c in record["domains"].items()}


def _meter(records: list[dict[str, Any]]) -> ErrorMeter:
    meter = ErrorMeter()
    for record in records:
        meter.add(_counts(record))
    return meter
