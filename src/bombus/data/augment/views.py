"""Whole chains of augmentations, and the table of those a config can name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from bombus.data.augment._draw import coin, count, uniform, working
from bombus.data.augment.colour import colour_jitter, random_greyscale
from bombus.data.augment.filters import blur_inside, gaussian_blur, gaussian_noise
from bombus.data.augment.geometry import affine, random_affine, random_crop, random_flip

View = Callable[[Tensor, torch.Generator], Tensor]


def plain_view(x: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """The images themselves; nothing is drawn."""
    return x


def mild_view(x: Tensor, generator: torch.Generator) -> Tensor:
    """Our view for a student: a shift of up to 2 pixels in 32 and a change of light; no hue."""
    out = random_affine(
        working(x), generator, degrees=0, translate=1 / 16, scale=(1, 1), padding="reflect"
    )
    return _light(out, generator).to(x.dtype)


def turned_view(x: Tensor, generator: torch.Generator) -> Tensor:
    """The mild view with rotation by up to 15° and scale .9 to 1.1."""
    out = random_affine(
        working(x), generator, degrees=15, translate=1 / 16, scale=(0.9, 1.1), padding="reflect"
    )
    return _light(out, generator).to(x.dtype)


def strong_view(x: Tensor, generator: torch.Generator) -> Tensor:
    """The turned view with noise of sigma up to .04."""
    out = turned_view(working(x), generator)
    return gaussian_noise(out, generator, sigma=(0, 0.04)).to(x.dtype)


def _light(x: Tensor, generator: torch.Generator) -> Tensor:
    return colour_jitter(
        x,
        generator,
        brightness=(0.7, 1.3),
        contrast=(0.7, 1.3),
        saturation=(0.6, 1.4),
        hue=None,
        gamma=(0.75, 1.3),
    )


def cotta_view(x: Tensor, generator: torch.Generator, *, per_sample: bool = True) -> Tensor:
    """CoTTA's augmentation; RMT, OBAO, ViDA and Continual-MAE use the same one.

    Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022. Clip; colour jitter; pad by half
    the side with the edge; rotate by up to 15°, move by up to 1/16 and scale by .9 to 1.1; blur
    with a 5 x 5 window, sigma .001 to .5; crop the centre; mirror or not; noise of .005; clip.

    The reference draws one set of parameters for the whole batch: `per_sample=False`. Ours draws
    one a sample. In both, the order of the colour operations is one for the batch and the noise
    is new for every value.

    As in the reference, 1/16 is of the padded side, so up to 1/8 of the image's, in whole pixels.
    The padding is not built: a padded pixel is the border pixel. Nor can the zeros beyond it be
    seen: with the blur's two pixels, the furthest point read of a square image of side S lies
    ((S + 3)/2 + shift)(cos 15° + sin 15°)/.9 pixels from the centre, and the padding ends later for
    every S of 22 and more. (A smaller image gets its edge where the reference has zeros.)
    """
    kernel = 5
    out = working(x).clamp(0, 1)
    out = colour_jitter(out, generator, per_sample=per_sample)
    n = count(x, per_sample)
    height, width = x.shape[2:]
    far_right, far_down = (width + 2 * (width // 2)) / 16, (height + 2 * (height // 2)) / 16
    degrees = uniform((-15, 15), n, generator, out)
    right = uniform((-far_right, far_right), n, generator, out).round_()
    down = uniform((-far_down, far_down), n, generator, out).round_()
    scale = uniform((0.9, 1.1), n, generator, out)
    out = affine(out, degrees, right, down, scale, padding="edge", margin=kernel // 2)
    out = blur_inside(out, uniform((0.001, 0.5), n, generator, out), kernel)
    out = random_flip(out, generator, per_sample=per_sample)
    return gaussian_noise(out, generator, sigma=0.005).to(x.dtype)


def adacontrast_weak(x: Tensor, generator: torch.Generator) -> Tensor:
    """AdaContrast's weak view: random crop at full size, mirror or not.

    Chen et al., Contrastive Test-Time Adaptation, CVPR 2022. The crop of 224 out of 256 pixels is
    a shift by up to a fourteenth of the side; ours is that shift with reflected borders.
    """
    pixels = max(1, min(x.shape[2:]) // 14)
    return random_flip(random_crop(x, generator, pixels), generator)


def adacontrast_strong(x: Tensor, generator: torch.Generator) -> Tensor:
    """AdaContrast's strong view, "moco-v2-light": jitter, greyscale, blur, mirror; no crop.

    The blur is in pixels whatever the picture's size, as the reference's filter is; a window of
    13 reaches three standard deviations of the widest.
    """
    out = working(x)
    jittered = colour_jitter(
        out,
        generator,
        brightness=(0.6, 1.4),
        contrast=(0.6, 1.4),
        saturation=(0.6, 1.4),
        hue=(-0.1, 0.1),
        gamma=None,
    )
    out = torch.where(coin(0.8, len(x), generator, out), jittered, out)
    out = random_greyscale(out, generator, p=0.2)
    kernel = min(13, 2 * min(x.shape[2:]) - 1)
    blurred = gaussian_blur(out, generator, kernel=kernel, sigma=(0.1, 2))
    out = torch.where(coin(0.5, len(x), generator, out), blurred, out)
    return random_flip(out, generator).to(x.dtype)


ViewName = Literal["none", "mild", "turned", "strong", "cotta"]
VIEWS: dict[ViewName, View] = {
    "none": plain_view,
    "mild": mild_view,
    "turned": turned_view,
    "strong": strong_view,
    "cotta": cotta_view,
}
