"""Augmentations that methods share: batched, seeded, one draw of the parameters a sample.

    colour    brightness, contrast, saturation, hue, gamma, greyscale
    geometry  mirror, rotation, translation, scale, crop
    filters   blur and noise
    views     whole chains: CoTTA's, AdaContrast's, and our mild and strong views

Every augmentation is a pure function f(x, generator, ...) on (N, 3, H, W) floats in [0, 1] that
returns the same shape and dtype, again in [0, 1]. All random numbers come from the generator, which
lives on the CPU, in float32: a run on a GPU sees the same ones, and restoring the generator's state
repeats the view. How many are drawn depends on the shape of x alone. A sample's view does not
depend on the pixels of the others.

Half precision is computed in float32 and rounded once, at the end; float64 stays float64.
"""

from __future__ import annotations

from bombus.data.augment.colour import colour_jitter, random_greyscale
from bombus.data.augment.filters import gaussian_blur, gaussian_noise
from bombus.data.augment.geometry import flip, random_affine, random_crop, random_flip
from bombus.data.augment.views import (
    VIEWS,
    View,
    ViewName,
    adacontrast_strong,
    adacontrast_weak,
    cotta_view,
    mild_view,
    strong_view,
    turned_view,
)

__all__ = [
    "VIEWS",
    "View",
    "ViewName",
    "adacontrast_strong",
    "adacontrast_weak",
    "colour_jitter",
    "cotta_view",
    "flip",
    "gaussian_blur",
    "gaussian_noise",
    "mild_view",
    "random_affine",
    "random_crop",
    "random_flip",
    "random_greyscale",
    "strong_view",
    "turned_view",
]
