"""A method prepared on source images ahead of its runs, and kept as a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bombus.data.benchmarks import find_benchmark
from bombus.errors import ConfigError
from bombus.methods import find_method
from bombus.methods._warmup_file import save_warmup
from bombus.methods.bee import Bee
from bombus.models import find_source, open_model
from bombus.online import autocast
from bombus.settings import RunSettings, make_config, pick_device


def make_warmup(settings: RunSettings, out: Path) -> None:
    """Warm the method up as a run of these settings would, and write what it has then."""
    method, benchmark = find_method(settings.method), find_benchmark(settings.benchmark)
    if not issubclass(method, Bee):
        raise ConfigError(
            f"{settings.method} has no warm-up; bee, bee-paper and bee-rehearsal have."
        )
    device = pick_device(settings.device)
    config = make_config(method, settings)
    model, _ = open_model(settings, benchmark, benchmark.classes or 0, device)
    source = find_source(settings, settings.batch_size or benchmark.batch_size)
    _require_writable(out)  # before a long preparation, not after it
    with autocast(device, settings.precision):
        save_warmup(method(model, config, source=source), out)


def _require_writable(out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written ({error.strerror}); choose another --out."
        ) from None
