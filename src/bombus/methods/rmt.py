"""RMT: a mean teacher with a symmetric loss, held to the source by prototypes and by replay.

Döbler, Marsden, Yang, Robust Mean Teacher for Continual and Gradual Test-Time Adaptation, CVPR
2023, https://arxiv.org/abs/2211.13081; reference code MIT.

All parameters learn from three terms: the student's predictions of the images and of an augmented
view agree with the teacher's of the images; the features of both and the nearest source prototype,
projected, find each other among those of the batch; and a batch of labelled source images keeps its
labels. The answer is the mean of student and teacher, before the update.

`rmt` is the whole: source replay, and a warm-up of student and teacher on 50,000 source images.
`rmt-free` leaves out both, an option the reference's run script names; its benchmark's numbers look
like this one's. It is not free of the source: the prototypes are made of labelled source images
before the stream. What the authors call source-free (issue 7 of their repository) is a third thing,
no replay but warmed up: `rmt` with `source_weight=0`.

Differs from the reference in:
- The replay draws from a bounded store, `source_images` of the first images the source gives (all
  of CIFAR, 5,000 of ImageNet), so that resuming needs no source; every batch is drawn anew, where
  the reference shuffles epochs, and is as large as the test batch, the last short one too.
- A source shorter than `warmup_images` is gone over once, not begun anew.
- Every parameter is trained. The reference knows them by the names "weight" and "bias" and leaves a
  ViT's class token and positions as they are. For CNNs it is the same.
- Source classes without an image have no prototype (the reference's would be NaN).
- The mean of the two predictions, not their sum: the same class, a confidence that means something.
- The source's gradient is taken by itself, after the target's graph is gone: the same sum.
- One image on a BatchNorm model is answered with the source statistics and changes nothing; nor
  does a step whose gradient is not finite. No gradient enters the teacher.
Kept: samples whose nearest prototype is the same push each other away, and so do the two copies of
that prototype; one draw of the augmentation serves the whole batch.

Shapes: N images, C classes, D features, P projected features, V views of each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bombus.backbones.blocks import forward_with_features
from bombus.backbones.prototypes import class_prototypes, require_prototypes
from bombus.data.augment import cotta_view
from bombus.data.labelled import LabelledImages
from bombus.errors import ConfigError
from bombus.fields import Count, CountOrZero, NonNegative, Positive, Several, Share
from bombus.losses.precision import at_least_single
from bombus.losses.self_training import self_training
from bombus.methods import register
from bombus.methods._mean_teacher import (
    Gradients,
    require_colour_images,
    sum_gradients,
    usable_batches,
)
from bombus.methods._norm import batch_logits, use_batch_statistics
from bombus.methods._optim import OptimizerName, apply_gradients, make_optimizer, train_all
from bombus.methods._progress import with_progress
from bombus.methods._source import GatedSource
from bombus.methods._teacher import Teacher, warm_up
from bombus.methods.base import Adapter, BaseConfig, Source


@dataclass(frozen=True, kw_only=True)
class RmtFreeConfig(BaseConfig):
    optimizer: OptimizerName = "adam"
    lr: NonNegative = 1e-3
    momentum: Share = 0.999
    """Of the teacher: how much of it stays at each step."""
    self_training_weight: NonNegative = 1.0
    contrast_weight: NonNegative = 1.0
    temperature: Positive = 0.1
    """Of the contrastive term."""
    projection: Count = 128
    """P, of the projector's both layers."""
    prototype_images: Count = 100_000
    """Source images read for the class prototypes, at most."""
    published: ClassVar = {"imagenet-c": {"optimizer": "sgd", "lr": 1e-2}}


@dataclass(frozen=True, kw_only=True)
class RmtConfig(RmtFreeConfig):
    source_weight: NonNegative = 1.0
    """Of the replay; 0: no source images are kept."""
    source_images: Several = 50_000
    """How many labelled source images are kept for the replay, at least 2."""
    source_mb: Positive = 1_000.0
    """Megabytes that they may take: 50,000 of 32 pixels take 154, of 224 pixels 6,600 fit in 1,000.
    They lie in the computer's memory and in every saved adapter."""
    warmup_images: CountOrZero = 50_000
    """Source images before the stream; 0: none."""
    published: ClassVar = {
        "imagenet-c": {**RmtFreeConfig.published["imagenet-c"], "source_images": 5_000}
    }


class RobustMeanTeacher(Adapter):
    """What both variants share: all but the replay and the warm-up."""

    Config = RmtFreeConfig
    needs = "labels"
    cheap = False
    stateful = ("model", "teacher", "projector", "optimizer")
    prepared: ClassVar[tuple[str, ...]] = ("prototypes",)

    def setup(self) -> None:
        config: RmtFreeConfig = self.config
        require_colour_images(self.input, self.name)
        use_batch_statistics(self.model)
        self.teacher = Teacher(self.model)
        self.parameters = train_all(self.model)
        self.optimizer = make_optimizer(self.parameters, config.optimizer, config.lr)
        self.prototypes: Tensor | None = None  # (C', D), of the C' <= C classes that occur
        self.projector: nn.Module | None = None  # when D is known

    def prepare(self, source: Source | None) -> None:
        assert source is not None  # the base class has seen to it
        reading = with_progress(self._source_batches(source), None, "class prototypes")
        means, sizes = class_prototypes(self.model, reading)
        require_prototypes(sizes)
        self.prototypes = means[sizes > 0].to(at_least_single(self._parameter()))
        self._add_projector(self.prototypes)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.projector is None and self.prototypes is not None:  # resuming skips `prepare`
            self._add_projector(self.prototypes)
        super().load_state_dict(state)

    def step(self, x: Tensor) -> Tensor:
        assert self.prototypes is not None
        config: RmtFreeConfig = self.config
        view = cotta_view(x, self.generator, per_sample=False)
        taught = self.teacher(x)  # (N, C)
        logits, features = forward_with_features(self.model, x)  # (N, C), (N, D)
        view_logits, view_features = forward_with_features(self.model, view)
        agreement = self_training([logits, view_logits], taught)
        anchors = nearest_prototypes(features, self.prototypes)  # (N, D)
        contrast = contrastive_loss(
            self._project([anchors, features, view_features]), config.temperature
        )
        self.signal(self_training=agreement.item(), contrast=contrast.item())
        loss = config.self_training_weight * agreement + config.contrast_weight * contrast
        parameters = self._trained()
        gradients: Gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients = sum_gradients(gradients, self._source_gradients(len(x)))
        if apply_gradients(gradients, parameters, self.optimizer):
            self.teacher.follow(self.model, config.momentum)
        else:
            self.step_dropped()
        return (logits + taught) / 2

    def forward(self, x: Tensor) -> Tensor:
        return (batch_logits(self.model, x) + self.teacher(x)) / 2

    def _source_batches(self, source: Source) -> Iterator[tuple[Tensor, Tensor]]:
        return usable_batches(source, self.model, self.config.prototype_images)

    def _source_gradients(self, count: int) -> Gradients:  # noqa: ARG002
        """Of what else is learnt beside `count` test images."""
        return ()

    def _trained(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _add_projector(self, like: Tensor) -> None:
        self.projector = make_projector(like, self.config.projection, self.generator)
        group = {"params": list(self.projector.parameters()), "lr": self.config.lr}
        self.optimizer.add_param_group(group)

    def _project(self, views: Sequence[Tensor]) -> Tensor:
        """(V, N, P), in single precision whatever the network runs in."""
        assert self.projector is not None
        stacked = torch.stack([at_least_single(view) for view in views])
        with torch.autocast(stacked.device.type, enabled=False):
            projected: Tensor = self.projector(stacked)
        return projected


@register("rmt")
class Rmt(RobustMeanTeacher):
    Config = RmtConfig
    prepared = ("prototypes", "source")
    config: RmtConfig

    def setup(self) -> None:
        super().setup()
        # In the computer's memory, not the GPU's: a batch a step comes over.
        self.source = LabelledImages(
            self.config.source_images, torch.device("cpu"), megabytes=self.config.source_mb
        )

    def prepare(self, source: Source | None) -> None:
        given = source.source if isinstance(source, GatedSource) else source
        if isinstance(given, Iterator):
            raise ConfigError(
                "rmt goes over the source twice, but an iterator was given, which runs dry after "
                "the first; give a list or a data loader."
            )
        super().prepare(source)
        if why := self.source.cut_short:
            self.event("replay cut short", reason=f"{why} (source_mb)")
        assert source is not None
        warm_up(
            self.model,
            self.teacher,
            source,
            self.optimizer,
            images=self.config.warmup_images,
            momentum=self.config.momentum,
        )

    def _source_batches(self, source: Source) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in super()._source_batches(source):
            if self.config.source_weight > 0:
                self.source.append(x, y)
            yield x, y

    def _source_gradients(self, count: int) -> Gradients:
        if not self.config.source_weight > 0:
            return ()
        x, y = self.source.draw(count, self.generator, self._parameter().device)
        loss = F.cross_entropy(at_least_single(self.model(x)), y)
        self.signal(source=loss.item())
        loss = self.config.source_weight * loss
        return torch.autograd.grad(loss, self._trained(), allow_unused=True)


@register("rmt-free")
class RmtFree(RobustMeanTeacher):
    """RMT without source replay and without warm-up; labelled source images make the prototypes."""


def make_projector(like: Tensor, width: int, generator: torch.Generator) -> nn.Sequential:
    """D -> P -> P with a ReLU between, weights as torch would draw them, from this generator."""
    layers = [
        # By way of "meta", where torch draws nothing from the generator of everybody.
        nn.Linear(inputs, width, dtype=like.dtype, device="meta").to_empty(device=like.device)
        for inputs in (like.shape[1], width)
    ]
    with torch.no_grad():
        for layer in layers:
            bound = layer.in_features**-0.5
            for p in layer.parameters():
                p.copy_(torch.rand(p.shape, generator=generator, device="cpu") * 2 * bound - bound)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def nearest_prototypes(features: Tensor, prototypes: Tensor) -> Tensor:
    """For each of (N, D) features the one of (C, D) prototypes of the largest cosine, (N, D)."""
    with torch.autocast(features.device.type, enabled=False):
        directions = F.normalize(at_least_single(features.detach()), dim=1)
        cosines = directions @ F.normalize(prototypes, dim=1).T  # (N, C)
    return prototypes[cosines.argmax(1)]


def contrastive_loss(projected: Tensor, temperature: float) -> Tensor:
    """The supervised contrastive loss where only the other views of a sample are of its class.

    Every one of the V N vectors of (V, N, P) is to be found by each other view of its sample among
    all vectors but itself: the mean of -log softmax(cosine / temperature) over those pairs.
    """
    views, samples, _ = projected.shape
    with torch.autocast(projected.device.type, enabled=False):
        unit = F.normalize(at_least_single(projected), dim=2).flatten(0, 1)  # (V N, P)
        scores = unit @ unit.T / temperature
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    log_p = scores.masked_fill(itself, -torch.inf).log_softmax(1)
    same = log_p.view(views, samples, views, samples).diagonal(dim1=1, dim2=3)  # (V, V, N)
    others = ~torch.eye(views, dtype=torch.bool, device=unit.device)
    return -same[others].mean()
