"""Are images normalised as a network's training had them? What it is known for, and what it shows.

Two published tables rest on this mistake (github.com/mr-eggplant/SAR/issues/5 and
github.com/Yangsenqiao/vida/issues/14): the network still answers, only worse, and nobody notices.

What shows is weighed in two ways, for the way the images enter and for the usual others: how far
the first BatchNorm's input is from what it met in training, and how much the answers tell the
images apart. Measured on 32 embedded images at a time (clean, and under 19 corruptions of
severities 2 and 5) with two WRNs, each as if trained with each of the usual normalisations:
entering rightly, the divergence is at most 2.2 times that of a wrong way, so four times is clearly
farther. No right way was called wrong, nor were very dark, pale, grey or inverted images, of which
the divergence alone would mistake the dark. Of 504 wrong ways 365 were found; fog, frost and heavy
noise hide the others.
Without BatchNorm only the answers speak. They do so of a network that is sure of clean images; one
that is less sure (the small ViT tried here tells 46 % of what it could) passes in silence, unless
its kind is known.

Shapes: N images, C classes, K channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bombus.backbones.blocks import Backbone, logits_of
from bombus.backbones.input import CIFAR, HALF, IMAGENET, Input
from bombus.backbones.resnet import ResNet
from bombus.backbones.resnext import ResNeXt29
from bombus.backbones.vit import VisionTransformer
from bombus.backbones.wide_resnet import WideResNet
from bombus.losses.entropy import softmax_entropy
from bombus.losses.precision import at_least_single
from bombus.methods._norm import batch_norms

USUAL = (CIFAR, HALF, IMAGENET)
FEWEST = 16  # images; of fewer the answers say too little
AT_ONCE = 8  # images: nobody's memory shall be short because of this
FARTHER = 4.0  # times: the divergence of a wrong way from that of the right one, at least
FAR = 0.1  # nats: a smaller divergence is nothing to worry about; clean images have 0.01 to 0.03
# Parts of ln(min(N, C)), the most that answers can tell of N images.
TELLS_MORE = 0.05
# Without BatchNorm the answers alone must say it: the other way nearly all, this way clearly less.
TELLS_NEARLY_ALL, TELLS_FAR_MORE = 0.75, 0.12

_TRAINED_WITH = {VisionTransformer: HALF, ResNet: IMAGENET, ResNeXt29: HALF, WideResNet: CIFAR}


@dataclass(frozen=True)
class Fit:
    """How a network takes images that enter it in one way."""

    input: Input
    information: float  # nats; NaN where an answer is not finite
    divergence: float | None  # nats, at the first BatchNorm; None without one
    classes: int
    images: int

    @property
    def told(self) -> float:
        """The part of what could be told that the answers do tell."""
        return self.information / math.log(max(2, min(self.images, self.classes)))

    @property
    def could_be_better(self) -> bool:
        if self.divergence is None:
            return self.told <= 1 - TELLS_FAR_MORE
        return self.divergence >= FAR and self.told <= 1 - TELLS_MORE

    def better_than(self, other: Fit) -> bool:
        """Clearly: otherwise neither of two is better than the other."""
        gain = self.told - other.told
        if self.divergence is None or other.divergence is None:
            return self.told >= TELLS_NEARLY_ALL and gain >= TELLS_FAR_MORE
        return other.divergence >= max(FAR, FARTHER * self.divergence) and gain >= TELLS_MORE


def applied_by(model: nn.Module) -> Input:
    """The mean and std that the model itself applies; a user's network is taken as it is."""
    if isinstance(model, Backbone):
        return model.input
    declared = getattr(model, "input", None)
    return replace(declared if isinstance(declared, Input) else Input(), mean=None, std=None)


def usual_for(model: nn.Module) -> Input | None:
    """What networks of this kind are trained with; None where nobody knows."""
    for kind, usual in _TRAINED_WITH.items():
        if isinstance(model, kind):
            return usual
    # timm writes it into its models, trained or not.
    said: Any = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if isinstance(said, dict) and said.get("mean") and said.get("std"):
        return Input(mean=tuple(said["mean"]), std=tuple(said["std"]))
    return None


def same(a: Input, b: Input) -> bool:
    """Whether black and white come out alike."""
    ends = [[i.normalise(torch.full((1, 3, 1, 1), end)) for end in (i.low, i.high)] for i in (a, b)]
    return torch.allclose(torch.cat(ends[0]), torch.cat(ends[1]), atol=0.02)


def in_words(input: Input) -> str:
    if input.mean is None or input.std is None:
        span = "" if (input.low, input.high) == (0, 1) else f" in [{input.low:g}, {input.high:g}]"
        return f"without mean and std{span}"
    mean, std = (
        f"{values[0]:g}" if len({*values}) == 1 else f"({', '.join(f'{v:g}' for v in values)})"
        for values in (input.mean, input.std)
    )
    return f"with mean {mean}, std {std}"


def measure(model: nn.Module, x: Tensor, way: Input) -> Fit:
    """How the model, in evaluation mode, takes images x when they enter as `way` says."""
    moments = _Moments()
    norms = [norm for norm in batch_norms(model) if norm.running_mean is not None]
    hooks = [norm.register_forward_pre_hook(moments.see) for norm in norms]
    answers = []
    try:
        with torch.no_grad():
            for part in torch.split(entering(x, way, applied_by(model)), AT_ONCE):
                moments.begin()
                answers.append(at_least_single(logits_of(model(part), model, len(part))))
    finally:
        for hook in hooks:
            hook.remove()
    logits = torch.cat(answers)
    return Fit(way, information(logits), moments.divergence(), logits.shape[1], len(x))


def entering(x: Tensor, way: Input, own: Input) -> Tensor:
    """Images that, normalised as `own` says, come out as x normalised as `way` says."""
    if same(way, own):
        return x
    seen = way.normalise((x - own.low) / (own.high - own.low))  # usual means are for [0, 1]
    mean, std = _moments(own)
    return seen * std.to(x) + mean.to(x)


def better_way(model: nn.Module, x: Tensor, this: Fit) -> Fit | None:
    """The usual way to enter that these images clearly prefer to `this`; None if there is none."""
    if len(x) < FEWEST or x.shape[1] != 3 or not this.could_be_better:
        return None
    others = [measure(model, x, way) for way in USUAL if not same(way, this.input)]
    better = [other for other in others if other.better_than(this)]
    return max(better, key=lambda fit: fit.information, default=None)


def information(logits: Tensor) -> float:
    """H(mean answer) - mean H(answer), in nats: what (N, C) answers tell of which image it was."""
    overall = torch.special.entr(logits.softmax(1).mean(0)).sum()
    return float(overall - softmax_entropy(logits).mean())


def gaussian_divergence(mean: Tensor, var: Tensor, known_mean: Tensor, known_var: Tensor) -> float:
    """KL of the Gaussian (mean, var) from the known one, averaged over K channels."""
    ratio = var / known_var
    away = (mean - known_mean).square() / known_var
    return float((0.5 * (ratio + away - 1 - ratio.log())).mean())


class _Moments:
    """Mean and variance of what enters the BatchNorm that is called first."""

    def __init__(self) -> None:
        self.norm: Any = None
        self.waiting = False
        self.count = 0
        self.sums = self.squares = torch.zeros(())

    def begin(self) -> None:
        self.waiting = True

    def see(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not self.waiting:
            return
        self.waiting, self.norm = False, norm
        values = at_least_single(inputs[0]).transpose(0, 1).flatten(1)  # (K, N H W)
        count = values.shape[1]
        self.count += count
        # On the host: not every accelerator has float64.
        self.sums = self.sums + values.mean(1).cpu().double() * count
        self.squares = self.squares + values.square().mean(1).cpu().double() * count

    def divergence(self) -> float | None:
        if self.norm is None:
            return None
        mean = self.sums / self.count
        var = (self.squares / self.count - mean.square()).clamp_min(0) + self.norm.eps
        known_mean = self.norm.running_mean.cpu().double()
        known_var = self.norm.running_var.cpu().double() + self.norm.eps
        return gaussian_divergence(mean, var, known_mean, known_var)


def _moments(input: Input) -> tuple[Tensor, Tensor]:
    known = (input.mean, input.std) if input.mean and input.std else ((0.0,), (1.0,))
    mean, std = (torch.tensor(part, dtype=torch.float64).view(1, -1, 1, 1) for part in known)
    return mean, std
