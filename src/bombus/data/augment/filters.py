"""Blur and noise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bombus.data.augment._draw import Range, count, uniform, working
from bombus.errors import InputError
from bombus.transfer import send


def blur_inside(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur of the pixels whose window lies in the image: (kernel - 1) / 2 fewer a side.

    sigma has shape (n, 1, 1, 1), n = N or 1. Two passes of shifted sums: a convolution with a
    group a sample would be rounded to half precision inside autocast.
    """
    reach = kernel // 2
    taps = torch.arange(reach + 1, device=x.device, dtype=x.dtype) / sigma.clamp_min(1e-6)
    weights = (-0.5 * taps.square()).exp()  # (n, 1, 1, reach + 1), from the centre outwards
    weights = weights / (2 * weights.sum(-1, keepdim=True) - weights[..., :1])
    for dim in (2, 3):
        size = x.shape[dim] - 2 * reach
        out = x.narrow(dim, reach, size) * weights[..., :1]
        for k in range(1, reach + 1):
            pair = x.narrow(dim, reach - k, size) + x.narrow(dim, reach + k, size)
            out.addcmul_(pair, weights[..., k : k + 1])
        x = out
    return x.clamp_(0, 1)  # the weights sum to one up to rounding


def gaussian_blur(
    x: Tensor,
    generator: torch.Generator,
    *,
    kernel: int = 5,
    sigma: Range = (0.001, 0.5),
    per_sample: bool = True,
) -> Tensor:
    """Gaussian blur with a window of kernel x kernel pixels, reflected at the border."""
    reach = kernel // 2
    if kernel < 1 or kernel % 2 == 0 or reach >= min(x.shape[2:]):
        raise InputError(
            f"kernel={kernel} must be odd and less than twice the side of the images, "
            f"which are {x.shape[2]} by {x.shape[3]}"
        )
    out = working(x)
    width = uniform(sigma, count(x, per_sample), generator, out)
    padded = F.pad(out, (reach, reach, reach, reach), mode="reflect")
    return blur_inside(padded, width, kernel).to(x.dtype)


def gaussian_noise(x: Tensor, generator: torch.Generator, sigma: float | Range = 0.005) -> Tensor:
    """Add independent normal noise to every value and clip; a range draws sigma a sample."""
    out = working(x)
    width = uniform(sigma, len(x), generator, out) if isinstance(sigma, tuple) else sigma
    drawn = torch.randn(x.shape, generator=generator, dtype=torch.float32, device=generator.device)
    noise = send(drawn, out.device).to(out.dtype)
    return noise.mul_(width).add_(out).clamp_(0, 1).to(x.dtype)
