"""bombus doctor: what is missing on this machine, or wrong with a model, and how to mend it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bombus.finding import Finding
from bombus.names import BenchmarkName

if TYPE_CHECKING:
    from bombus.settings import RunSettings


def doctor(
    *,
    model: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    method: str = "tent",
    benchmark: BenchmarkName = "demo",
    backbone: str | None = None,
    weights: tuple[Path, ...] = (),
    data: Path | None = None,
    source: Path | None = None,
    domains: tuple[str, ...] = (),
    severity: int = 5,
    batch_size: int | None = None,
    device: str = "auto",
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = (),
    legacy_vida: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Check Python, PyTorch, GPU, optional packages and data, and say how to mend what is wrong.

    With --model, check instead whether a method will do a network justice, without running it: is
    the input normalised as the weights expect (asked of the first 32 images, if they are there),
    has it the layers that the method adapts, are the batches large enough, do the settings suit
    the number of classes, is the learning rate too long for these weights? The other options
    belong to it, and name things as `bombus run` does.
    `bombus run` makes the same check when it starts.

    Each line begins with ok, note (good to know), warn (the result would mislead) or bad (it
    cannot work); the exit code is 1 if something is bad.

    Example: bombus doctor --model --method sar --benchmark imagenet-c --weights r50.pt
        --batch-size 1 --set margin=2.76

    Args:
        model: check a method on a network, not the machine.
        method: which method is to adapt it (see `bombus list methods`).
        benchmark: the images and the protocol (see `bombus list benchmarks`).
        backbone: the network, if not the benchmark's own (see `bombus list backbones`).
        weights: the trained network's file, its shards, or the name of published weights.
        data: folder of the benchmark's images; by default where `bombus data` puts them.
        source: what the run will get as --source, for methods that prepare on source data.
        domains: whose images are looked at; clean or bright ones tell most.
        severity: of the corruptions, 1 to 5.
        batch_size: by default the published one.
        device: cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.
        set: the method's own settings, e.g. --set margin=0.4.
        legacy_vida: as in `bombus run`.
    """
    if model:
        from bombus.cli.run import pairs
        from bombus.settings import RunSettings

        settings = RunSettings(
            method=method,
            benchmark=benchmark,
            backbone=backbone,
            weights=weights,
            data=data,
            source=source,
            domains=domains,
            severity=severity,
            batch_size=batch_size,
            device=device,
            set=pairs(set),
            legacy_vida=legacy_vida,
        )
        findings = list(examine_model(settings))
    elif (method, benchmark, severity, device) != ("tent", "demo", 5, "auto") or any(
        (backbone, weights, data, source, domains, batch_size is not None, set, legacy_vida)
    ):
        from bombus.errors import ConfigError

        raise ConfigError("To check a network, add --model; without it the machine is checked.")
    else:
        findings = list(examine())
    for finding in findings:
        print(f"{finding.state:<5} {finding.text}")
    if any(finding.state == "bad" for finding in findings):
        raise SystemExit(1)


def examine() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()}")
    yield from _torch()
    yield from _torchvision()
    yield from _extra("matplotlib", "figures", "pictures")
    yield from _extra("timm", "zoo", "timm's networks")
    yield from _data()
    yield from _weights()


def examine_model(settings: RunSettings) -> Iterator[Finding]:
    """What preflight finds, and whether the method refuses the model; "ok" if neither."""
    from bombus.data.benchmarks import find_benchmark
    from bombus.errors import BombusError, DataError
    from bombus.methods import find_method
    from bombus.models import find_source, open_model, why_unusual
    from bombus.preflight import examine
    from bombus.runs import Run
    from bombus.settings import make_config, pick_device

    method, benchmark = find_method(settings.method), find_benchmark(settings.benchmark)
    config = make_config(method, settings)
    try:
        run = Run(settings)
    except DataError as error:
        if settings.data is not None or benchmark.classes is None:
            raise
        device, size = pick_device(settings.device), settings.batch_size or benchmark.batch_size
        model, weights = open_model(settings, benchmark, benchmark.classes, device)
        reason = why_unusual(settings, weights)
        findings = [
            Finding("note", f"Nothing was asked of images, which are not here: {error}"),
            *examine(model, method, config, batch_size=size, on_purpose=reason),
        ]
    else:
        model, size, findings = run.model, run.stream.batch_size, run.findings
    # Where there is source data its preparation can take long; the run will tell.
    if find_source(settings, size) is None:
        try:
            begun = method(model, config).last.events
            findings += [Finding("warn", e["reason"]) for e in begun if "reason" in e]
        except BombusError as error:
            findings.append(Finding("bad", str(error)))
    yield from findings
    if all(finding.state == "note" for finding in findings):
        yield Finding("ok", f"{method.name} suits this network, in batches of {size}")


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken build can fail in any way at import
        yield Finding("bad", f"PyTorch does not import ({error}); pip install 'torch>=2.11'")
        return
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 11):
        yield Finding("bad", f"PyTorch {torch.__version__} is too old; pip install 'torch>=2.11'")
    else:
        yield Finding("ok", f"PyTorch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    if torch.cuda.is_available():
        name, memory = (
            torch.cuda.get_device_name(),
            torch.cuda.get_device_properties(0).total_memory,
        )
        yield Finding("ok", f"GPU {name}, {memory / 2**30:.0f} GiB")
    elif torch.version.cuda is None:
        yield Finding("note", "No GPU: this PyTorch is a CPU build; small networks will do")
    else:
        yield Finding("note", "No GPU found, though this PyTorch could use one; check the driver")


def _torchvision() -> Iterator[Finding]:
    """A CUDA torchvision beside a CPU torch fails to import, and takes timm with it."""
    if importlib.util.find_spec("torchvision") is None:
        return
    version = importlib.metadata.version("torchvision")
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        yield Finding(
            "note",
            f"torchvision {version} does not import ({str(error).splitlines()[0]}): it was built "
            "for another PyTorch. bombus does not need it; timm does: install the build that "
            "matches your PyTorch, or uninstall it",
        )
    else:
        yield Finding("ok", f"torchvision {version}")


def _extra(package: str, extra: str, purpose: str) -> Iterator[Finding]:
    if importlib.util.find_spec(package) is None:
        yield Finding(
            "note", f"{package} is missing, so no {purpose}; pip install 'bombus[{extra}]'"
        )
    else:
        yield Finding("ok", f"{package} {importlib.metadata.version(package)}")


def _data() -> Iterator[Finding]:
    from bombus.data.fetch import cache_folder

    cache = cache_folder()
    how = {
        "cifar10-c": "bombus data make cifar10-c",
        "cifar100-c": "put the published .npy files there, or bombus run --data FOLDER",
        "imagenet-c": "put the published folders there, or bombus run --data FOLDER",
    }
    for name, remedy in how.items():
        folder = cache / name
        if folder.is_dir():
            yield Finding("ok", f"{name} in {folder}")
        else:
            yield Finding("note", f"{name} is not in {folder}; {remedy}")


def _weights() -> Iterator[Finding]:
    from bombus.backbones.published import PUBLISHED

    for name, entry in PUBLISHED.items():
        found = entry.find()
        if found is not None:
            yield Finding("ok", f"weights {name} in {found}")
        else:
            yield Finding("note", f"weights {name} are not here; {entry.how_to_get()}")
