"""bombus run: one method on one stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from bombus.names import BenchmarkName, Precision


def run(
    method: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="METHOD")],
    /,
    *,
    out: Path,
    benchmark: BenchmarkName = "demo",
    backbone: str | None = None,
    weights: tuple[Path, ...] = (),
    data: Path | None = None,
    source: Path | None = None,
    stream: Literal[
        "continual",
        "gradual",
        "recurring",
        "mixed",
        "correlated",
        "random",
        "changing",
        "single",
    ] = "continual",
    visits: int | None = None,
    delta: float | None = None,
    domains: tuple[str, ...] = (),
    severity: int = 5,
    samples: int | None = None,
    batch_size: int | None = None,
    clean: Path | None = None,
    seed: int = 1,
    device: str = "auto",
    precision: Precision = "fp32",
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = (),
    legacy_vida: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
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
        weights: the trained network's file, or its shards: safetensors or .pt; or the name of
            published weights (see `bombus list weights`), from which the backbone follows.
        data: folder of the benchmark's images; by default where `bombus data` puts them.
        source: for methods that prepare on source data: a folder of clean training images (CIFAR
            as published, else class/image), or a file made by `bombus warmup`. Others never see it.
            The demo has its own: 1,000 training images, and of bee what it learnt from 50,000;
            with "embedded" bee and bee-paper, too, get the 1,000.
        stream: in which order the images come (see `bombus list streams`): continual is domain
            after domain, gradual lets the severity climb and fall in each (needs images of all
            severities), recurring comes back to the domains --visits times, mixed shuffles them
            together, correlated brings the labels in bursts, random draws the order of domains by
            the seed, changing blends each domain into the next, single answers one image at a
            time from a sliding window of --batch-size images (a forward pass of all for each).
        visits: of recurring: how often each domain comes; by default 20, as PeTTA does.
        delta: of correlated, and of recurring if given: how mixed the labels are. 0.1 (by default)
            makes long bursts of a class, 10 short ones.
        domains: which corruptions, in this order; by default the 15 standard ones.
        severity: of the corruptions, 1 to 5; in a gradual stream the highest.
        samples: images a domain, drawn by the seed; by default all.
        batch_size: by default the published one (200 on CIFAR, 64 on ImageNet), 16 for single.
        clean: folder of clean test images (in the demo: embedded), to measure after each domain
            what is forgotten of the source.
        seed: of the sample order and of the method's own random choices.
        device: cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.
        precision: fp32, tf32 (fp32 with fast matrix units), or bf16 autocast.
        set: the method's own settings, e.g. --set lr=1e-4 optimizer=sgd.
        legacy_vida: feed a vision transformer without mean and std, as the published ViT tables
            did by mistake; only for setting a run beside those. It is labelled in every table.
        resume: go on after an interruption; the result is that of an uninterrupted run.
        keep_adapter: leave the adapted state in OUT/checkpoint, for bombus.load.
        checkpoint_every: batches between checkpoints.
    """
    from bombus.cli.view import RunView, say
    from bombus.errors import ConfigError
    from bombus.fields import Count, check
    from bombus.report.page_summary import count
    from bombus.runs import Run
    from bombus.settings import RunSettings

    check("--checkpoint-every", checkpoint_every, Count)
    settings = RunSettings(
        method=method,
        benchmark=benchmark,
        backbone=backbone,
        weights=weights,
        data=data,
        source=source,
        stream=stream,
        visits=visits,
        delta=delta,
        domains=domains,
        severity=severity,
        samples=samples,
        batch_size=batch_size,
        clean=clean,
        seed=seed,
        device=device,
        precision=precision,
        set=pairs(set),
        legacy_vida=legacy_vida,
    )
    if again := [name for i, name in enumerate(domains) if name in domains[:i]]:
        raise ConfigError(
            f"Got --domains with {again[0]} twice; for domains that come back take --stream "
            "recurring --visits N."
        )
    prepared = Run(settings)
    with RunView(method) as view:
        result = prepared.execute(
            out,
            resume=resume,
            watch=view.update,
            tell=view.tell,
            checkpoint_every=checkpoint_every,
            keep_adapter=keep_adapter,
        )
    over = count(len(result["domains"]), "domain")
    say(
        f"{method}: mean error {result['mean_error']:.2f} % over {over}, "
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
