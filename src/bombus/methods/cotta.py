"""CoTTA: learn from a teacher that averages weights and, where in doubt, views; forget slowly.

Wang et al., Continual Test-Time Domain Adaptation, CVPR 2022, https://arxiv.org/abs/2203.13591;
reference code MIT.

The student, all of its parameters, learns the teacher's prediction. If the source model's mean
confidence on the batch is below a threshold, that prediction is the mean of the teacher's logits
over 32 augmented views, one draw of the augmentation a batch. The teacher follows the student, then
a few of the student's weights, drawn at random, return to the source. The answer is the teacher's
prediction, from before the update. Differs from the reference in:
- A forward nobody reads is not made: the views' of a confident batch (the authors' CIFAR code makes
  them and throws them away: `always_augment`), the plain teacher's of a batch with views.
- All parameters; the reference knows them by the names "weight" and "bias" and so leaves a ViT's
  class token and positions behind. For CNNs it is the same.
- The weights to restore are found by drawing the gaps between them, which is the same distribution
  for a hundredth of the random numbers. No gradient enters the teacher.
- BatchNorm alone is in training mode; one image on a BatchNorm model is answered by the teacher
  with the source statistics and changes nothing; nor does a gradient that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bombus.data.augment import cotta_view
from bombus.fields import Count, NonNegative, Share, ShareBelowOne
from bombus.losses.divergence import symmetric_cross_entropy
from bombus.losses.precision import at_least_single
from bombus.methods import register
from bombus.methods._mean_teacher import require_colour_images
from bombus.methods._norm import use_batch_statistics
from bombus.methods._optim import OptimizerName, descend, make_optimizer, train_all
from bombus.methods._teacher import Teacher
from bombus.methods.base import Adapter, BaseConfig
from bombus.transfer import send


@dataclass(frozen=True, kw_only=True)
class CottaConfig(BaseConfig):
    optimizer: OptimizerName = "adam"
    lr: NonNegative = 1e-3
    loss: Literal["cross-entropy", "symmetric"] = "cross-entropy"
    momentum: Share = 0.999
    """Of the teacher: how much of it stays at each step."""
    threshold: NonNegative = 0.92
    """p_th: a batch on which the source model is less confident is seen in augmented views. The
    authors' rule for another network: the 5 % quantile of its confidence on source images, less .05
    (github.com/qinenergy/cotta, issue 16)."""
    augmentations: Count = 32
    always_augment: bool = False
    """Make the views' forwards for confident batches too, unread, as the authors' CIFAR code."""
    restore: ShareBelowOne = 0.01
    """The chance of each weight to return to the source after a step."""
    published: ClassVar = {
        "cifar100-c": {"threshold": 0.72},
        "cifar100-c/vit": {"threshold": 0.92, "lr": 3e-4},
        "imagenet-c": {
            "optimizer": "sgd",
            "lr": 1e-2,
            "loss": "symmetric",
            "threshold": 0.1,
            "restore": 0.001,
        },
        "imagenet-c/vit": {"lr": 1e-4},
    }


@register("cotta")
class Cotta(Adapter):
    Config = CottaConfig
    cheap = False
    stateful = ("model", "teacher", "optimizer")

    def setup(self) -> None:
        config: CottaConfig = self.config
        require_colour_images(self.input, self.name)
        use_batch_statistics(self.model)
        self.source_model = deepcopy(self.model)  # frozen, and so never state
        self.teacher = Teacher(self.model)
        self.parameters = train_all(self.model)
        self.optimizer = make_optimizer(self.parameters, config.optimizer, config.lr)

    def step(self, x: Tensor) -> Tensor:
        target = self._target(x)  # before the student's pass, whose graph takes the memory
        logits: Tensor = self.model(x)
        if self.config.loss == "symmetric":
            loss = symmetric_cross_entropy(logits, target).mean()
        else:
            loss = F.cross_entropy(at_least_single(logits), target.softmax(1))
        self.signal(loss=loss.item())
        if not descend(loss, self.optimizer):
            self.step_dropped()
            return target
        # In this order: what is about to be restored still reaches the teacher.
        self.teacher.follow(self.model, self.config.momentum)
        sources = self.source_model.parameters()
        restore_some(self.parameters, sources, self.config.restore, self.generator)
        return target

    def forward(self, x: Tensor) -> Tensor:
        return self.teacher(x)

    def _target(self, x: Tensor) -> Tensor:
        """The teacher's logits (N, C), from x itself or averaged over views of it."""
        with torch.no_grad():
            source: Tensor = self.source_model(x)
        confidence = at_least_single(source).softmax(1).amax(1).mean().item()
        self.signal(confidence=confidence)
        doubtful = confidence < self.config.threshold
        if doubtful or self.config.always_augment:
            averaged = self._over_views(x)
            if doubtful:
                return averaged
        return at_least_single(self.teacher(x))

    def _over_views(self, x: Tensor) -> Tensor:
        # One view at a time: BatchNorm must see the statistics of each alone.
        views = (
            cotta_view(x, self.generator, per_sample=False)
            for _ in range(self.config.augmentations)
        )
        return torch.stack([at_least_single(self.teacher(view)) for view in views]).mean(0)


def restore_some(
    parameters: Sequence[Tensor],
    sources: Iterable[Tensor],
    chance: float,
    generator: torch.Generator,
) -> None:
    """Each number of the parameters returns, by itself with this chance, to the source's."""
    sizes = [p.numel() for p in parameters]
    chosen = chosen_positions(sum(sizes), chance, generator)
    mask = torch.zeros(sum(sizes), dtype=torch.bool, device=parameters[0].device)
    mask[send(chosen, mask.device)] = True
    with torch.no_grad():
        for p, source, here in zip(parameters, sources, torch.split(mask, sizes), strict=True):
            p.copy_(torch.where(here.view(p.shape), source, p))


def chosen_positions(count: int, chance: float, generator: torch.Generator) -> Tensor:
    """Those of 0 ... count - 1 that come up when each does so by itself with this chance; sorted.

    Between two of them lie k others with probability (1 - chance)^k chance, so that gaps are
    drawn instead of one number a position: for 36 million weights and a chance of .01, 0.4 million.
    """
    found = [torch.empty(0, dtype=torch.long, device="cpu")]
    start = 0  # all before it is decided
    while chance > 0 and start < count:
        expected = int((count - start) * chance) + 1
        # In [0, 1).
        uniform = torch.rand(expected, generator=generator, dtype=torch.float64, device="cpu")
        skipped = (torch.log1p(-uniform) / math.log1p(-chance)).clamp_(max=count).long()
        found.append(start - 1 + (skipped + 1).cumsum(0))
        start = int(found[-1][-1]) + 1
    positions = torch.cat(found)
    return positions[positions < count]
