"""Table 3: every method with a vision transformer on CIFAR10-C or CIFAR100-C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bombus.paper import Cell, Finished, Place
from bombus.paper.cifar_cnn import show_methods, table_cells

TITLE = "CIFAR10-C and CIFAR100-C with vision transformers"
CLAIM = "BEE has 11.8 on CIFAR10-C and 25.2 on CIFAR100-C with a ViT-base: the lowest of all."
METHODS = ("source", "tent", "sar", "cotta", "vdp", "vida", "continual-mae", "bee-paper", "bee")


def cells(place: Place) -> list[Cell]:
    """One benchmark a call: CIFAR10-C, or with --benchmark cifar100-c the other."""
    place = replace(place.small(samples=100, batch_size=50), embedded="demo-vit")
    if place.full and place.backbone is None:
        place = replace(place, backbone="vit-s4-32")
    return table_cells(place, METHODS, "cifar10-c")


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    return show_methods(TITLE, CLAIM, finished, out)
