"""Class prototypes: the mean penultimate feature of each class over labelled source images.

Shapes: N images, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from bombus.backbones.blocks import forward_with_features
from bombus.errors import DataError


@torch.no_grad()
def class_prototypes(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    count: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Tensor]:
    """Means (C, D) and sizes (C,) in float64 on the CPU; a class that does not occur has mean 0.

    Images whose features are not finite are left out, of means and sizes. The model is called as
    it stands: put its BatchNorm into the mode the method wants first.
    `count` is called after each batch.
    """
    sums = sizes = torch.empty(0, dtype=torch.float64)
    for x, y in batches:
        logits, features = forward_with_features(model, x)
        if not len(sizes):
            classes = logits.shape[1]
            sums = torch.zeros(classes, features.shape[1], dtype=torch.float64)
            sizes = torch.zeros(classes, dtype=torch.float64)
        require_labels(y, len(x), len(sizes))
        # On the CPU, in float64: the same sum every time, whatever device and precision.
        features, y = features.cpu().double(), y.cpu()
        finite = features.isfinite().all(1)  # one image that is not would spoil its class's mean
        sums.index_add_(0, y[finite], features[finite])
        sizes += y[finite].bincount(minlength=len(sizes))
        count()
    if not len(sizes):
        raise DataError("There are no source batches to make class prototypes of.")
    return sums / sizes.clamp_min(1)[:, None], sizes


def require_prototypes(sizes: Tensor) -> None:
    """At least one image, of any class, with finite features."""
    if not sizes.any():
        raise DataError(
            "The network gives none of the source images finite features, of which class "
            "prototypes are made; check its weights and how the images are normalised."
        )


def require_labels(y: Tensor, images: int, classes: int) -> None:
    """One label an image, of the classes that the network knows."""
    if len(y) != images or y.min() < 0 or y.max() >= classes:
        raise DataError(
            f"A source batch of {images} images came with {len(y)} labels from {int(y.min())} to "
            f"{int(y.max())}; expected one label an image, 0 to {classes - 1}."
        )
