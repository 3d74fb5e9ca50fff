"""Table 1: every method on ImageNet-C, with a ResNet-50 or a ViT-B/16."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bombus.backbones.published import named_weights
from bombus.paper import Cell, Finished, Place, cifar_cnn, cifar_vit
from bombus.paper.cifar_cnn import show_methods, table_cells

TITLE = "ImageNet-C"
CLAIM = "BEE has 57.9 with a ResNet-50 and 38.7 with a ViT-base: the lowest of all."


def cells(place: Place) -> list[Cell]:
    """The network decides the methods: --backbone vit-b16-224 (or --weights timm:...) the ViT's."""
    place = place.small(samples=100, batch_size=50)
    published = named_weights(place.weights)
    backbone = published.backbone if published else place.backbone or ""
    is_vit = backbone.startswith("vit")
    return table_cells(place, cifar_vit.METHODS if is_vit else cifar_cnn.METHODS, "imagenet-c")


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    return show_methods(TITLE, CLAIM, finished, out)
