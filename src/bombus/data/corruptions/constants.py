"""The published constants of CIFAR-C (32 px) and ImageNet-C (224 px), for severity 1 to 5.

Lengths are in pixels of the set they belong to and are not rescaled: a picture of another size gets
the blur, the flakes and the displacements of the set it was asked for.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ConstantSet = Literal["cifar", "imagenet"]
Level = tuple[float, ...]
Levels = tuple[Level, Level, Level, Level, Level]


class Table(NamedTuple):
    cifar: Levels
    imagenet: Levels


def _single(a: float, b: float, c: float, d: float, e: float) -> Levels:
    return ((a,), (b,), (c,), (d,), (e,))


def _scaled(unit: float, levels: Levels) -> Levels:
    a, b, c, d, e = (tuple(unit * value for value in level) for level in levels)
    return (a, b, c, d, e)


def _extended(levels: Levels, *tail: float) -> Levels:
    a, b, c, d, e = ((*level, *tail) for level in levels)
    return (a, b, c, d, e)


TABLES: dict[str, Table] = {
    # standard deviation, of pixel values in [0, 1]
    "gaussian_noise": Table(
        cifar=_single(0.04, 0.06, 0.08, 0.09, 0.10),
        imagenet=_single(0.08, 0.12, 0.18, 0.26, 0.38),
    ),
    # photons counted for a value of 1: fewer are noisier
    "shot_noise": Table(
        cifar=_single(500, 250, 100, 75, 50),
        imagenet=_single(60, 25, 12, 5, 3),
    ),
    # share of values that turn black or white
    "impulse_noise": Table(
        cifar=_single(0.01, 0.02, 0.03, 0.05, 0.07),
        imagenet=_single(0.03, 0.06, 0.09, 0.17, 0.27),
    ),
    # radius of the disk, sigma of the blur that softens its rim
    "defocus_blur": Table(
        cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    # sigma of the blur, reach of the shuffle, rounds of shuffling
    "glass_blur": Table(
        cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # radius (the kernel has 2 radius + 1 taps), sigma
    "motion_blur": Table(
        cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    # the zoom factors run from 1 to below the first number, in steps of the second
    "zoom_blur": Table(
        cifar=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        imagenet=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    # flakes: mean, standard deviation, zoom, threshold, motion radius, motion sigma; picture kept
    "snow": Table(
        cifar=(
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        imagenet=(
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    # weight of the picture, weight of the ice, scale of the ice photographs
    "frost": Table(
        cifar=_extended(((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)), 0.2),
        imagenet=_extended(((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)), 1),
    ),
    # strength, decay of the roughness from one scale to the next, side of the fog map
    "fog": Table(
        cifar=_extended(((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)), 32),
        imagenet=_extended(((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)), 256),
    ),
    # added to the value of HSV
    "brightness": Table(
        cifar=_single(0.05, 0.1, 0.15, 0.2, 0.3),
        imagenet=_single(0.1, 0.2, 0.3, 0.4, 0.5),
    ),
    # share of the distance from the channel's mean that is kept
    "contrast": Table(
        cifar=_single(0.75, 0.5, 0.4, 0.3, 0.15),
        imagenet=_single(0.4, 0.3, 0.2, 0.1, 0.05),
    ),
    # displacement, sigma of its smoothing, jitter of the affine map; ImageNet-C's unit is 244 px
    "elastic_transform": Table(
        cifar=_scaled(
            32,
            (
                (0, 0, 0.08),
                (0.05, 0.2, 0.07),
                (0.08, 0.06, 0.06),
                (0.1, 0.04, 0.05),
                (0.1, 0.03, 0.03),
            ),
        ),
        imagenet=_scaled(
            244,
            (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            ),
        ),
    ),
    # side of the small picture, as a share of the full one
    "pixelate": Table(
        cifar=_single(0.95, 0.9, 0.85, 0.75, 0.65),
        imagenet=_single(0.6, 0.5, 0.4, 0.3, 0.25),
    ),
    # quality
    "jpeg_compression": Table(
        cifar=_single(80, 65, 58, 50, 40),
        imagenet=_single(25, 18, 15, 10, 7),
    ),
    # standard deviation, as a share of the pixel value
    "speckle_noise": Table(
        cifar=_single(0.06, 0.1, 0.12, 0.16, 0.2),
        imagenet=_single(0.15, 0.2, 0.35, 0.45, 0.6),
    ),
    # sigma
    "gaussian_blur": Table(
        cifar=_single(0.4, 0.6, 0.7, 0.8, 1),
        imagenet=_single(1, 2, 3, 4, 6),
    ),
    # liquid: mean, standard deviation, sigma, threshold; strength (water) or sigma (mud); mud?
    "spatter": Table(
        cifar=(
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        imagenet=(
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    ),
    # factor and shift of the saturation of HSV
    "saturate": Table(
        cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
}
