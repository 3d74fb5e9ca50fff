"""bombus run: one method on one stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro


def run(
    method: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="METHOD")],
    /,
    *,
    out: Path,
    benchmark: Literal["demo", "cifar10-c", "cifar100-c", "imagenet-c", "folder"] = "demo",
    backbone: str | None = None,
    weights: tuple[Path, ...] = (),
    data: Path | None = None,
    source: Path | None = None,
    domains: tuple[str, ...] = (),
    severity: int = 5,
    samples: int | None = None,
    batch_size: int | None = None,
    seed: int = 1,
    device: str = "auto",
    precision: Literal["fp32", "tf32", "bf16"] = "fp32",
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = (),
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    keep_adapter: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    checkpoint_every: int = 20,
) -> None:
    """Stream a changing world through a method and record every batch.

    Example: bombus run tent --benchmark cifar10-c --weights wrn.safetensors --out runs/tent

    Args:
        method: which method adapts (see `bombus list methods`).
        out: folder for settings.json, batches.jsonl and run.json; must be new, or --resume.
        benchmark: the images and the protocol (see `bombus list benchmarks`).
        backbone: the network, if not the benchmark's own (see `bombus list backbones`).
        weights: the trained network's file, or its shards: safetensors or .pt.
        data: folder of the benchmark's images; by default where `bombus data` puts them.
        source: for methods that prepare on source data: a folder of clean training images, or a
            file made by `bombus warmup`. Others never see it.
        domains: which corruptions, in this order; by default the 15 standard ones.
        severity: of the corruptions, 1 to 5.
        samples: images a domain, drawn by the seed; by default all.
        batch_size: by default the published one (200 on CIFAR, 64 on ImageNet).
        seed: of the sample order and of the method's own random choices.
        device: cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.
        precision: fp32, tf32 (fp32 with fast matrix units), or bf16 autocast.
        set: the method's own settings, e.g. --set lr=1e-4 optimizer=sgd.
        resume: go on after an interruption; the result is that of an uninterrupted run.
        keep_adapter: leave the adapted state in OUT/checkpoint, for bombus.load.
        checkpoint_every: batches between checkpoints.
    """
    from bombus.cli.view import RunView, say
    from bombus.runs import Run
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
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        device=device,
        precision=precision,
        set=pairs(set),
    )
    prepared = Run(settings)
    with RunView(method) as view:
        result = prepared.execute(
            out,
            resume=resume,
            watch=view.update,
            checkpoint_every=checkpoint_every,
            keep_adapter=keep_adapter,
        )
    say(
        f"{method}: mean error {result['mean_error']:.2f} % over {len(result['domains'])} domains, "
        f"{result['cost']['ms_per_batch']:.1f} ms a batch; written to {out}"
    )


def pairs(texts: tuple[str, ...]) -> dict[str, str]:
    from bombus.errors import ConfigError

    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"Got --set {text}, expected NAME=VALUE, e.g. --set lr=1e-4.")
        pairs[name] = value
    return pairs
