"""DPLOT: entropy trains the blocks that answer to the domain, a mirrored teacher trains all.

Yu et al., Domain-Specific Block Selection and Paired-View Pseudo-Labeling for Online Test-Time
Adaptation, CVPR 2024, https://arxiv.org/abs/2404.10966; reference code MIT.

Every batch is seen as it is and mirrored, by student and teacher, with statistics over both. The
student's entropy moves the selected blocks; then its symmetric cross-entropy to the teacher's mean
over the pair moves everything; the teacher follows. The prediction is of the same forwards, before
the updates.
Differs from the reference in:
- Both gradients are taken before either step. The reference steps the blocks and then goes back
  through the graph that step has changed in place, which torch has refused since 2.1 or so.
- The student goes into the stream with the weights of the warm-up, as was plainly meant. The
  reference's loop silently puts it back to the source weights and leaves the teacher warmed:
  `student_keeps_warmup=False`.
- The blocks are given, not searched for here: `bombus blocks` does the reference's search. Left
  out, they are the first level of a CNN, which is what that search finds for WRN-28-10,
  ResNeXt-29 and ResNet-50, and the first half of a transformer, which is BEE's extension.
- The mean of the four predictions, not their sum: the same class, and a confidence to go by.
- One image alone is answered with the source statistics and, on a model with BatchNorm, not trained
  on; a step whose gradient is not finite is dropped.
Published for CIFAR only: no settings are known for ImageNet-C or for transformers.

Shapes: N images, C classes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from bombus.backbones.blocks import block_parameters, find_blocks
from bombus.data.augment import flip
from bombus.errors import ConfigError
from bombus.fields import CountOrZero, NonNegative, Share
from bombus.losses.divergence import symmetric_cross_entropy
from bombus.losses.entropy import softmax_entropy
from bombus.methods import register
from bombus.methods._norm import source_statistics, use_batch_statistics
from bombus.methods._optim import OptimizerName, apply_gradients, make_optimizer, train_all
from bombus.methods._teacher import Teacher, warm_up
from bombus.methods._warmup import shallow_blocks
from bombus.methods.base import Adapter, BaseConfig, Source


@dataclass(frozen=True, kw_only=True)
class DplotConfig(BaseConfig):
    blocks: tuple[str, ...] = ()
    """What entropy trains, e.g. from `bombus blocks`; empty: a CNN's first level."""
    optimizer: OptimizerName = "adam"
    entropy_lr: NonNegative = 1e-3
    """Of the selected blocks, down the entropy."""
    pseudo_label_lr: NonNegative = 1e-4
    """Of all parameters, towards the teacher."""
    momentum: Share = 0.999
    warmup_images: CountOrZero = 50_000
    """Source images before the stream; 0: none."""
    warmup_lr: NonNegative = 1e-3
    """Where the warm-up's rising learning rate ends."""
    student_keeps_warmup: bool = True
    """True: student and teacher both start warmed. False: the teacher alone, as the code ran."""


@register("dplot")
class Dplot(Adapter):
    Config = DplotConfig
    needs = "samples"
    cheap = False
    stateful = ("model", "teacher", "entropy_optimizer", "pseudo_label_optimizer")

    def setup(self) -> None:
        config: DplotConfig = self.config
        use_batch_statistics(self.model)
        blocks = config.blocks or shallow_blocks(find_blocks(self.model))
        self.selected = list(block_parameters(self.model, blocks).values())
        if not self.selected:
            raise ConfigError(f"The blocks {', '.join(blocks)} have no parameters; choose others.")
        self.parameters = train_all(self.model)
        self.teacher = Teacher(self.model)
        self.entropy_optimizer = make_optimizer(self.selected, config.optimizer, config.entropy_lr)
        self.pseudo_label_optimizer = make_optimizer(
            self.parameters, config.optimizer, config.pseudo_label_lr
        )

    def prepare(self, source: Source | None) -> None:
        assert source is not None  # the base class has seen to it
        config: DplotConfig = self.config
        before = [p.detach().clone() for p in self.parameters]
        # Its own optimiser, as in the reference: no moments of the warm-up reach the stream.
        warm_up(
            self.model,
            self.teacher,
            source,
            make_optimizer(self.parameters, config.optimizer, config.warmup_lr),
            images=config.warmup_images,
            momentum=config.momentum,
        )
        if not config.student_keeps_warmup:
            with torch.no_grad():
                for p, value in zip(self.parameters, before, strict=True):
                    p.copy_(value)

    def step(self, x: Tensor) -> Tensor:
        pair = torch.cat([x, flip(x)])  # (2N, 3, H, W)
        student: Tensor = self.model(pair)  # (2N, C)
        teacher = self.teacher(pair)
        entropy = softmax_entropy(student).mean()
        disagreement = paired_view_loss(student, teacher)
        self.signal(entropy=entropy.item(), disagreement=disagreement.item())
        # Both before the first step: it changes in place what the second would go back through.
        sharpen = torch.autograd.grad(entropy, self.selected, retain_graph=True, allow_unused=True)
        agree = torch.autograd.grad(disagreement, self.parameters, allow_unused=True)
        moved = (
            self._descend("entropy", sharpen, self.selected, self.entropy_optimizer),
            self._descend("pseudo-label", agree, self.parameters, self.pseudo_label_optimizer),
        )
        if any(moved):
            self.teacher.follow(self.model, self.config.momentum)
        return pair_mean(student + teacher) / 2

    def forward(self, x: Tensor) -> Tensor:
        pair = torch.cat([x, flip(x)])
        with ExitStack() as statistics:
            if len(x) == 1:  # an image and its mirror image are no batch either
                statistics.enter_context(source_statistics(self.model))
                statistics.enter_context(source_statistics(self.teacher.model))
            return pair_mean(self.model(pair) + self.teacher(pair)) / 2

    def _descend(
        self,
        stage: str,
        gradients: tuple[Tensor, ...],
        parameters: list[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
    ) -> bool:
        if apply_gradients(gradients, parameters, optimizer):
            return True
        self.step_dropped(stage=stage)
        return False


def pair_mean(logits: Tensor) -> Tensor:
    """One prediction an image, (N, C), from those of the images and of their mirror images."""
    image, mirror_image = logits.chunk(2)
    return (image + mirror_image) / 2


def paired_view_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Both of the student's views to the teacher's mean over the two; (2N, C) each, a sum of means.

    Averaged before the softmax, as in the reference, so one sure view can outvote an unsure one.
    """
    target = pair_mean(teacher)
    image, mirror_image = student.chunk(2)
    return (
        symmetric_cross_entropy(image, target).mean()
        + symmetric_cross_entropy(mirror_image, target).mean()
    )
