"""Colour: each operation with given factors of shape (n, 1, 1, 1), n = N or 1, and the random ones.

The definitions are torchvision's: brightness, contrast and saturation blend the image with black,
with the mean of its own greyscale, and with its own greyscale, and clip; hue turns it in HSV.
Greyscale weighs by .299, .587, .114, which sum to one (torchvision has .2989 for the first).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bombus.data.augment._draw import Range, coin, count, uniform, working

RED, GREEN, BLUE = 0.299, 0.587, 0.114  # ITU-R 601-2 luma


def greyscale(x: Tensor) -> Tensor:
    """Luma as a single channel."""
    red, green, blue = x.chunk(3, dim=1)
    return (RED * red).add_(green, alpha=GREEN).add_(blue, alpha=BLUE).clamp_(0, 1)  # (N, 1, H, W)


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    red, green, blue = x.mean((2, 3), keepdim=True).chunk(3, dim=1)
    grey = RED * red + GREEN * green + BLUE * blue  # (N, 1, 1, 1), the mean of the greyscale image
    return (x * factor).add_((1 - factor) * grey).clamp_(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).add_((1 - factor) * greyscale(x)).clamp_(0, 1)


def adjust_gamma(x: Tensor, factor: Tensor) -> Tensor:
    # The floor is CoTTA's: it keeps the slope at black finite.
    return x.clamp_min(1e-8).pow(factor)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` of a full circle; value and saturation stay.

    With V the largest channel, C = V - the smallest and h the hue in sixths of the circle, channel
    n is V - C clip(min(k, 4 - k), 0, 1), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue: the
    HSV cone written without its six cases. It cannot leave [V - C, V], so nothing is clipped.
    """
    red, green, blue = x.chunk(3, dim=1)
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    hue = torch.where(
        value == red,
        green - blue,
        torch.where(value == green, blue - red, red - green),
    )
    # Grey has no hue; whatever stands there is multiplied by its chroma of 0.
    hue /= chroma.clamp_min(torch.finfo(x.dtype).tiny)
    sixth = torch.where(value == green, 2.0, 4.0).to(x.dtype).masked_fill_(value == red, 0.0)
    hue += sixth
    hue += 6 * shift
    channels = []
    for n in (5, 3, 1):
        k = (hue + n).remainder_(6)
        channels.append(value - torch.minimum(k, 4 - k).clamp_(0, 1).mul_(chroma))
    return torch.cat(channels, dim=1)


def colour_jitter(
    x: Tensor,
    generator: torch.Generator,
    *,
    brightness: Range | None = (0.6, 1.4),
    contrast: Range | None = (0.7, 1.3),
    saturation: Range | None = (0.5, 1.5),
    hue: Range | None = (-0.06, 0.06),
    gamma: Range | None = (0.7, 1.3),
    per_sample: bool = True,
) -> Tensor:
    """The five operations in a random order, each with its own factor a sample.

    The order is one for the whole batch, as in CoTTA; the defaults are CoTTA's ranges. A range of
    None leaves the operation out. With `per_sample` false the factors are one for the batch too.
    """
    out = working(x)
    n = count(x, per_sample)
    wanted: list[tuple[Callable[[Tensor, Tensor], Tensor], Range | None]] = [
        (adjust_brightness, brightness),
        (adjust_contrast, contrast),
        (adjust_saturation, saturation),
        (adjust_hue, hue),
        (adjust_gamma, gamma),
    ]
    # All factors are drawn before the order, so that none depends on it.
    drawn = [(f, uniform(bounds, n, generator, out)) for f, bounds in wanted if bounds is not None]
    order = torch.randperm(len(drawn), generator=generator, device=generator.device)
    for index in order.tolist():
        adjust, factor = drawn[index]
        out = adjust(out, factor)
    return out.to(x.dtype)


def random_greyscale(
    x: Tensor, generator: torch.Generator, p: float = 0.2, *, per_sample: bool = True
) -> Tensor:
    """Each sample is replaced by its greyscale with probability p."""
    out = working(x)
    return torch.where(coin(p, count(x, per_sample), generator, out), greyscale(out), out).to(
        x.dtype
    )
