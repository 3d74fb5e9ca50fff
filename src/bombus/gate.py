"""The input gate: nothing wrong with a picture may reach statistics, queue, loss or weights.

A batch that is wrong as a whole (shape, dtype, device, scale) is refused with an InputError before
any computation. Single bad samples in a good batch (NaN, Inf, far out of range) are set aside one
by one: the rest of the batch is answered exactly as if they had never been there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bombus.backbones.input import Input
from bombus.errors import ConfigError, InputError

LARGEST_SIDE = 4096  # a 10,000 x 10,000 image is a mistake or an attack, not a batch to adapt to
TOLERANCE = 0.25  # of the value range: resampling may overshoot, a 0-255 image is far beyond


@dataclass(frozen=True)
class Gated:
    """Which samples of a batch may pass, and why the others may not."""

    samples: int
    rejected: dict[int, str] = field(default_factory=dict)

    @property
    def kept(self) -> list[int]:
        return [i for i in range(self.samples) if i not in self.rejected]


def input_of(model: nn.Module) -> Input:
    """What the model says of its input, or what its first convolution gives away."""
    declared = getattr(model, "input", None)
    if isinstance(declared, Input):
        return declared
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = None if first is None else first.in_channels
    # More are no picture's: the first one defined need not be the first one called.
    return Input(channels=channels if channels in (1, 3, 4) else None)


def require_fit(model: nn.Module, given: Input | None) -> None:
    """Refuse an input that this model could not be given."""
    if not isinstance(given, Input | None):
        raise ConfigError(f"Got input={given!r}, expected bombus.Input(low=..., high=...).")
    own = input_of(model)
    if given is not None and (given.mean, given.std) not in ((None, None), (own.mean, own.std)):
        raise ConfigError(
            "Got an input with mean and std, which only networks of bombus apply by themselves; "
            "normalise the images before or inside your network, and say with Input(low=..., "
            "high=...) what range they then have."
        )


def check(x: Tensor, expected: Input, *, like: Tensor) -> Gated:
    """Refuse a hopeless batch, and name the bad samples of a usable one.

    `like` is a parameter of the model: the batch must share its dtype and device.
    """
    if not isinstance(x, Tensor):
        raise InputError(
            f"Got a {type(x).__name__}, expected a torch tensor of images (N, C, H, W); "
            "convert it with torch.as_tensor first."
        )
    if x.layout != torch.strided or x.is_nested:
        raise InputError(
            "Got a sparse, nested or otherwise packed tensor, expected a dense one (N, C, H, W); "
            "convert it with x.to_dense() or torch.stack."
        )
    _check_layout(x, expected)
    if not x.is_floating_point():
        raise InputError(
            f"Got {_name(x.dtype)} images, expected {_name(like.dtype)} in "
            f"[{expected.low:g}, {expected.high:g}]; use x.float() / 255 for 8-bit images."
        )
    if x.dtype != like.dtype:
        raise InputError(
            f"Got {_name(x.dtype)} images for a {_name(like.dtype)} model; "
            f"convert them with x.to(torch.{_name(like.dtype)})."
        )
    if x.device != like.device:
        raise InputError(
            f"The batch is on {x.device} and the model on {like.device}; "
            f"move the batch with x.to({str(like.device)!r})."
        )
    if len(x) == 0:
        return Gated(0)
    return Gated(len(x), _bad_samples(x, expected))


def clean(x: Tensor, gated: Gated) -> Tensor:
    """The samples that may pass, fit to enter a graph: made under inference_mode they are not."""
    x = x.clone() if x.is_inference() else x.detach()
    return x[gated.kept] if gated.rejected else x


def scatter(logits: Tensor | None, gated: Gated, classes: int, x: Tensor) -> Tensor:
    """The answers back in their places; a rejected sample's row is NaN: no answer."""
    dtype = x.dtype if logits is None else logits.dtype
    full = torch.full((len(x), classes), float("nan"), dtype=dtype, device=x.device)
    if logits is not None:
        full[gated.kept] = logits
    return full


def _check_layout(x: Tensor, expected: Input) -> None:
    shape = tuple(x.shape)
    if x.dim() != 4:
        remedy = "add a batch axis with x[None]" if x.dim() == 3 else "stack the images first"
        raise InputError(f"Got a batch of shape {shape}, expected (N, C, H, W); {remedy}.")
    channels = expected.channels
    if channels is not None and shape[1] != channels:
        if shape[3] == channels:
            remedy = "the channels come last here: use x.permute(0, 3, 1, 2)"
        elif shape[1] == 1:
            remedy = f"repeat a grey image with x.expand(-1, {channels}, -1, -1)"
        else:
            remedy = f"give images of {channels} channels"
        raise InputError(
            f"Got a batch of shape {shape}, expected {channels} channels in axis 1; {remedy}."
        )
    if shape[1] == 0:
        raise InputError(
            f"Got a batch of shape {shape}, whose images have no channels; give images of at least "
            "one, (N, C, H, W)."
        )
    if len(x) and not all(1 <= side <= LARGEST_SIDE for side in shape[2:]):
        raise InputError(
            f"Got images of {shape[2]} x {shape[3]} pixels, expected sides between 1 and "
            f"{LARGEST_SIDE}; crop or resize them first."
        )
    if expected.size is not None and len(x) and shape[2:] != (expected.size, expected.size):
        raise InputError(
            f"Got images of {shape[2]} x {shape[3]} pixels, this model expects "
            f"{expected.size} x {expected.size}; resize them first."
        )


def _bad_samples(x: Tensor, expected: Input) -> dict[int, str]:
    # amin and amax pass NaN and Inf on, so two reductions and one copy to the host see everything.
    flat = x.detach().flatten(1)
    # Python's floats hold them exactly; as float64 tensors Apple's GPUs have them not at all.
    lows, highs = torch.stack([flat.amin(1), flat.amax(1)]).tolist()
    slack = TOLERANCE * (expected.high - expected.low)
    rejected: dict[int, str] = {}
    out_of_range = 0
    for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if not (abs(low) != float("inf") and abs(high) != float("inf") and low == low):
            rejected[i] = "it has NaN or infinite pixels"
        elif low < expected.low - slack or high > expected.high + slack:
            out_of_range += 1
            rejected[i] = (
                f"its pixels span [{low:g}, {high:g}], outside "
                f"[{expected.low:g}, {expected.high:g}]"
            )
    finite = len(lows) - (len(rejected) - out_of_range)
    if out_of_range and out_of_range * 2 >= finite:  # most of a batch: a wrong scale, not accidents
        low = min(v for v in lows if v == v)
        high = max(v for v in highs if v == v)
        remedy = "divide 8-bit values by 255, or declare another range with"
        if low < expected.low - slack:  # no camera's values
            remedy = "if you normalise images yourself, declare their range with"
        raise InputError(
            f"Got pixels in [{low:g}, {high:g}], this model expects "
            f"[{expected.low:g}, {expected.high:g}]; {remedy} "
            "input=bombus.Input(low=..., high=...)."
        )
    return rejected


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
