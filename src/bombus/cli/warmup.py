"""bombus warmup: prepare a method on source images once, and keep the result as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from bombus.names import Precision


def warmup(
    method: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="METHOD")] = "bee",
    /,
    *,
    data: Path,
    out: Path,
    benchmark: Literal[
        "demo", "demo-vit", "cifar10-c", "cifar100-c", "imagenet-c", "imagenet-c-resized"
    ] = "cifar10-c",
    backbone: str | None = None,
    weights: tuple[Path, ...] = (),
    batch_size: int | None = None,
    seed: int = 1,
    device: str = "auto",
    precision: Precision = "fp32",
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = (),
) -> None:
    """Warm BEE up on clean training images: codebooks and blocks.

    The file is then given to `bombus run bee --source FILE`, which needs no source images any more
    (of bee-rehearsal it holds those that are kept).

    Example: bombus warmup --data cifar10 --weights wrn-28-10.safetensors --out warmup.safetensors

    Args:
        method: bee, bee-paper or bee-rehearsal.
        data: folder of the clean training images: as `bombus data get cifar10` leaves it, or class
            folders for ImageNet.
        out: the file to write.
        benchmark: whose network and classes.
        backbone: the network, if not the benchmark's own.
        weights: the trained network's file, or its shards, or a name of `bombus list weights`.
        batch_size: by default the benchmark's.
        seed: of the order of the images and of the first codes.
        device: cpu, cuda, ...; auto takes a GPU where there is one.
        precision: fp32, tf32 or bf16.
        set: the method's settings, e.g. --set levels=2,3 codes=512.
    """
    import time

    from bombus.cli.run import pairs
    from bombus.cli.view import say
    from bombus.errors import ConfigError
    from bombus.settings import RunSettings
    from bombus.warmup import make_warmup

    if out.exists():
        raise ConfigError(f"{out} is already there; remove it or choose another --out.")
    start = time.perf_counter()
    settings = RunSettings(
        method=method,
        benchmark=benchmark,
        backbone=backbone,
        weights=weights,
        source=data,
        batch_size=batch_size,
        seed=seed,
        device=device,
        precision=precision,
        set=pairs(set),
    )
    make_warmup(settings, out)
    say(f"Warmed {method} up in {time.perf_counter() - start:.1f} s; written to {out}")
