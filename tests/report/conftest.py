"""Small runs on disk, in the form that bombus.runs writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bombus.report.layout import SHORT

STANDARD = tuple(SHORT)
WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    def write(
        name: str,
        method: str = "tent",
        errors: Sequence[float] = (20.0, 30.0, 40.0),
        *,
        domains: Sequence[str] = STANDARD[:3],
        benchmark: str = "cifar10-c",
        backbone: str = "wrn-28-10",
        seed: int = 1,
        config: dict[str, Any] | None = None,
        stream: dict[str, Any] | None = None,
        samples: int = 10_000,
        batch: int = 200,
        log: bool = False,
        **changes: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        result = {
            "method": method,
            "benchmark": benchmark,
            "backbone": backbone,
            "seed": seed,
            "mean_error": round(sum(errors) / len(errors), 4),
            "domains": [
                {"name": d, "samples": samples, "error": e}
                for d, e in zip(domains, errors, strict=True)
            ],
            "cost": {
                "ms_per_batch": 12.345,
                "forwards_per_batch": 1,
                "backwards_per_batch": 0.5,
                "peak_memory_mb": 1234.5,
            },
            "events": [],
            "config": {"lr": 0.001, "seed": seed, **(config or {})},
            "stream": {
                "kind": "continual",
                "domains": list(domains),
                "severity": 5,
                "batch_size": batch,
                "samples": None,
                "seed": seed,
                "shuffle": True,
                **(stream or {}),
            },
            "data": {"name": benchmark, "folder": name},
            "weights_sha256": "0123456789abcdef" * 4,
            "weights": ["w.safetensors"],
            "notes": [],
            "input": {"size": 32, "mean": [0.5] * 3},
            "source_access": "none",
            "predicts": "before update",
            "precision": "fp32",
            "device": "cpu, 1 threads",
            "versions": {"bombus": "0.1.0"},
            "command": "bombus run",
            **changes,
        }
        (folder / "settings.json").write_text("{}")
        (folder / "run.json").write_text(json.dumps(result, indent=1))
        if log:
            lines = []
            for domain, error in zip(domains, errors, strict=True):
                for start in range(0, samples, batch):
                    n = min(batch, samples - start)
                    counts = {domain: {"wrong": round(n * error / 100), "samples": n}}
                    lines.append({"batch": len(lines), "domains": counts, "ms": 1.0})
            (folder / "batches.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
        return folder

    return write
