"""ViDA: two adapters beside every linear layer of the attention, one narrow and one wide.

Liu et al., ViDA: Homeostatic Visual Domain Adapter for Continual Test Time Adaptation, ICLR 2024,
https://arxiv.org/abs/2306.04344; reference code https://github.com/Yangsenqiao/vida (MIT).

A layer W becomes y = W x + λ_l U_l D_l x + λ_h U_h D_h x: the narrow adapter (rank 1) is to hold
what all domains share, the wide one (rank 128) what is particular to one. Labelled source images
train the adapters alone before the stream. For every batch the variance of a mean teacher's logits
over 10 augmented views, its doubt, gives more weight to the wide adapters if it is large and to the
narrow ones if it is small; then the student learns the teacher's prediction of the images as they
are. The answer is that prediction, from before the update.

Where paper and code disagree, or are silent:
- The paper adapts the adapters alone; the code, and so the published numbers, the whole network at
  a rate of its own: `adapt="all"`, the default. `adapt="adapters"` is the paper's.
- In the code λ_l alone ever changes: what sets λ_h is never reached, and it stays 1. Here both
  follow the doubt, as in the paper; `published_scales` is the code's.
- CIFAR's code returns a tenth of the weights to the start at each step, ImageNet's none. The start
  is the network with its adapters as the source left them.
- How the source trained the adapters is not published, but that all else was frozen (issue 7 of
  the repository): one pass of Adam here, `source_images` and `source_lr` ours.
With CIFAR's plain cross-entropy a student that still is its teacher has nothing to learn from the
same images; as published, Adam makes its first steps of rounding errors.

Differs from the reference in:
- Without source data the adapters start at zero and only the stream trains them; an event says so.
- Ranks are at most the layer's width: more numbers could say nothing more.
- Dropout stays off (the reference's networks have none). A doubt that is not finite leaves λ as
  they are, and a gradient that is not finite changes nothing.
Kept: the views are seen with the last batch's λ, as is what `predict` is asked; a doubt of more
than 1 makes one of the λ negative.

Shapes: N images, C classes, V views, R rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bombus.backbones.prototypes import require_labels
from bombus.data.augment import VIEWS, ViewName, cotta_view
from bombus.errors import ConfigError, DataError
from bombus.fields import Count, CountOrZero, NonNegative, Several, Share, ShareBelowOne
from bombus.losses.divergence import symmetric_cross_entropy
from bombus.losses.precision import at_least_single
from bombus.methods import register
from bombus.methods._mean_teacher import require_colour_images, usable_batches
from bombus.methods._optim import OptimizerName, descend, make_optimizer
from bombus.methods._progress import with_progress
from bombus.methods._teacher import Teacher, move_towards
from bombus.methods.base import Adapter, BaseConfig, Source
from bombus.methods.cotta import restore_some

DOUBT = 0.1  # of the variance; the reference's


@dataclass(frozen=True, kw_only=True)
class VidaConfig(BaseConfig):
    optimizer: OptimizerName = "adam"
    lr: NonNegative = 1e-4
    """Of the network around the adapters."""
    adapter_lr: NonNegative = 1e-5
    adapt: Literal["all", "adapters"] = "all"
    """What the stream trains: everything, as the authors' code, or the adapters, as the paper."""
    loss: Literal["cross-entropy", "symmetric"] = "cross-entropy"
    low_rank: Count = 1
    high_rank: Count = 128
    """Of the two adapters; at most the layer's width."""
    momentum: Share = 0.999
    """Of the teacher: how much of it stays at each step."""
    adapter_momentum: Share = 0.999
    """Of the teacher's adapters."""
    augmentations: Several = 10
    """V, the views that the doubt is measured on."""
    threshold: NonNegative = 0.05
    """A batch of this doubt or more gives weight to the wide adapters."""
    published_scales: bool = False
    """The wide adapters always count once, as in the authors' code."""
    restore: ShareBelowOne = 0.1
    """The chance of each weight to return to the start after a step."""
    source_images: CountOrZero = 50_000
    """Labelled source images that train the adapters, at most; 0: none. Not published."""
    source_lr: NonNegative = 1e-3
    """Adam's, for that training. Not published."""
    source_view: ViewName = "strong"
    """Ours: how these images are changed. The authors have published only that the network stays
    frozen; what the adapters have seen then decides most of what they are worth. ViT-S/4, four
    extras, frozen 39.0: none 38.8, CoTTA's views 39.9, strong 34.6 at 1e-4 and 33.5 at 1e-3."""
    published: ClassVar = {
        "cifar100-c": {"lr": 3e-4, "adapter_lr": 1e-6},
        "imagenet-c": {
            "optimizer": "sgd",
            "lr": 5e-7,
            "adapter_lr": 2e-7,
            "loss": "symmetric",
            "adapter_momentum": 0.8,
            "threshold": 0.2,
            "restore": 0.0,
        },
    }


@register("vida")
class Vida(Adapter):
    Config = VidaConfig
    needs = "labels"
    source_optional = True
    cheap = False
    transformers_only = True
    stateful = ("model", "teacher", "optimizer", "scales", "source_free")

    def setup(self) -> None:
        config: VidaConfig = self.config
        require_colour_images(self.input, self.name)
        add_adapters(self.model, config.low_rank, config.high_rank, self.generator)
        backbone, adapters = by_part(self.model)
        self.optimizer = make_optimizer(adapters, config.optimizer, config.adapter_lr)
        if config.adapt == "all":
            self.model.requires_grad_(True)
            self.optimizer.add_param_group({"params": backbone, "lr": config.lr})
        self.teacher = Teacher(self.model)
        self.scales = {"low": 1.0, "high": 1.0}
        self.source_free = False  # if so, the first batch says it

    def prepare(self, source: Source | None) -> None:
        if source is None or not self.config.source_images:
            self.source_free = True
            return
        train_adapters(self.model, source, self.config, self.generator)
        self.teacher = Teacher(self.model)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._scale(**self.scales)

    def step(self, x: Tensor) -> Tensor:
        if self.source_free:
            self.event("source-free", reason="no source data: the adapters start at zero")
            self.source_free = False
        self._weigh_adapters(x)
        taught = at_least_single(self.teacher(x))  # (N, C)
        logits: Tensor = self.model(x)
        if self.config.loss == "symmetric":
            loss = symmetric_cross_entropy(logits, taught).mean()
        else:
            loss = F.cross_entropy(at_least_single(logits), taught.softmax(1))
        self.signal(loss=loss.item())
        if descend(loss, self.optimizer):
            self._follow()
            self._restore()
        else:
            self.step_dropped()
        return taught

    def forward(self, x: Tensor) -> Tensor:
        return self.teacher(x)

    def _weigh_adapters(self, x: Tensor) -> None:
        config: VidaConfig = self.config
        draws = range(config.augmentations)
        views = (cotta_view(x, self.generator, per_sample=False) for _ in draws)
        doubt = uncertainty(torch.stack([self.teacher(view) for view in views]))
        if not math.isfinite(doubt):
            self.event("scales kept", reason="the logits of the views are not finite")
            return
        low, high = adapter_scales(doubt, config.threshold)
        self._scale(low=low, high=1.0 if config.published_scales else high)
        self.signal(uncertainty=doubt)

    def _scale(self, *, low: float, high: float) -> None:
        self.scales = {"low": low, "high": high}
        for network in (self.model, self.teacher.model):
            for module in network.modules():
                if isinstance(module, AdaptedLinear):
                    module.low_scale, module.high_scale = low, high

    def _follow(self) -> None:
        momenta = (self.config.momentum, self.config.adapter_momentum)
        parts = zip(by_part(self.teacher.model), by_part(self.model), momenta, strict=True)
        for teachers, students, momentum in parts:
            move_towards(teachers, students, momentum)

    def _restore(self) -> None:
        if self.config.restore:
            trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
            # What `reset` returns to: the network as it was when the source had trained it.
            starts = [self._fresh["model"][name] for name in trained]
            restore_some(list(trained.values()), starts, self.config.restore, self.generator)


class Bottleneck(nn.Module):
    """U D x: down to R numbers and up again; nothing until it has learnt, as U starts at zero."""

    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rank = min(rank, linear.in_features, linear.out_features)
        down = torch.randn(rank, linear.in_features, generator=generator, device="cpu") / rank**2
        self.down = nn.Parameter(down.to(linear.weight))  # (R, inputs)
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.down), self.up)


class AdaptedLinear(nn.Module):
    """A linear layer, and beside it a narrow and a wide adapter, each with its weight λ."""

    def __init__(self, linear: nn.Linear, low: Bottleneck, high: Bottleneck) -> None:
        super().__init__()
        self.linear, self.low, self.high = linear, low, high
        self.low_scale = self.high_scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        narrow, wide = self.low_scale * self.low(x), self.high_scale * self.high(x)
        out: Tensor = self.linear(x) + narrow + wide
        return out


def add_adapters(
    model: nn.Module, low_rank: int, high_rank: int, generator: torch.Generator
) -> None:
    """Give adapters to every linear layer inside a module named "attn": qkv and proj."""
    # Not torch's own attention's, which is a subclass: its weight is read, it is not called.
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and "attn" in name.split(".")[:-1]
    }
    if not found:
        raise ConfigError(
            f"vida puts adapters beside the nn.Linear layers inside modules named 'attn', and "
            f"{type(model).__name__} has none; choose another method (bombus list methods)."
        )
    for name, linear in found.items():
        parent, _, child = name.rpartition(".")
        low, high = (Bottleneck(linear, rank, generator) for rank in (low_rank, high_rank))
        setattr(model.get_submodule(parent), child, AdaptedLinear(linear, low, high))


def by_part(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters of the network itself, and those of its adapters."""
    bottlenecks = [module for module in model.modules() if isinstance(module, Bottleneck)]
    adapters = [p for bottleneck in bottlenecks for p in bottleneck.parameters()]
    theirs = {id(p) for p in adapters}
    return [p for p in model.parameters() if id(p) not in theirs], adapters


def uncertainty(logits: Tensor) -> float:
    """The teacher's doubt: a tenth of the (V, N, C) logits' mean (unbiased) variance over views."""
    return DOUBT * at_least_single(logits).var(0).mean().item()


def adapter_scales(doubt: float, threshold: float) -> tuple[float, float]:
    """λ_l and λ_h: in doubt the wide adapters count more than once, else the narrow ones."""
    if doubt >= threshold:
        return 1 - doubt, 1 + doubt
    return 1 + doubt, 1 - doubt


def train_adapters(
    model: nn.Module, source: Source, config: VidaConfig, generator: torch.Generator
) -> None:
    """One pass of Adam over labelled source images, at a constant rate; all else stays frozen."""
    images = config.source_images
    batches = usable_batches(source, model, images)
    first = next(batches, None)
    if first is None:
        raise DataError("The source has no images; give at least one batch of (images, labels).")
    total = math.ceil(images / len(first[0]))
    if isinstance(source, Sized):
        total = min(total, len(source))
    optimizer = make_optimizer(by_part(model)[1], "adam", config.source_lr)
    stream = itertools.chain([first], batches)
    for x, y in with_progress(stream, total, "training the adapters"):
        logits = at_least_single(model(VIEWS[config.source_view](x, generator)))
        require_labels(y, len(x), logits.shape[1])
        if not descend(F.cross_entropy(logits, y), optimizer):
            raise DataError(
                "The gradient of the adapters is not finite on these source images; look for NaN "
                "among them, or for values outside the range that the model expects."
            )
