"""OBAO: a mean teacher that learns again from the test images it was sure of.

Zhu, Hong, Ma, Zhuang, Ma, Dai, Wang, Reshaping the Online Data Buffering and Organizing Mechanism
for Continual Test-Time Adaptation, ECCV 2024, https://arxiv.org/abs/2407.09367; reference code at
https://github.com/z1358/OBAO, without a licence.

RMT's self-training, on all parameters but the classifier's. Test images of low entropy enter a
bounded buffer with the label that student and teacher gave them together. A batch drawn from it,
before the current one enters, is learnt with those labels, and the cosines between its class means
keep the pattern of those between the source prototypes. No warm-up, no source replay; but labelled
source images are needed once, for the prototypes. The answer is the mean of student and teacher,
before the update.

Kept for fidelity:
- In a full buffer new images take the places of the highest entropies, even of lower ones than
  their own: the buffer stays fresh. The first images of a batch fill what is free; its others then
  may take the places of these.
- The two patterns of cosines are compared without subtracting their means, so the loss is no
  correlation, whatever its name and comment in the code.
- One draw of the augmentation serves the whole batch.
Differs from the reference in:
- Each term goes back through its own graph once, one graph at a time, and the gradients are added.
  The reference goes through the buffer's twice and keeps all three: the same sum, more memory.
- The classifier is the layer that gives the logits, not the last two parameters by name; a
  projector that no loss reads is not built; the buffer holds no logits, which nobody reads, and
  bytes where that is exact (150 instead of 602 MB for ImageNet).
- Every other parameter is trained, a ViT's class token and positions too.
- Source classes without an image take no part in the pattern (the reference's would be NaN).
- The mean of the two predictions, not their sum: the same class, a confidence that means something.
- One image on a BatchNorm model is answered with the source statistics and changes nothing; nor
  does a step whose gradient is not finite; nor is a buffer of one image learnt there.

Shapes: N images, C classes, D features.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bombus.backbones.blocks import forward_with_features, look
from bombus.backbones.prototypes import class_prototypes, require_prototypes
from bombus.data.augment import cotta_view
from bombus.data.labelled import SureImages
from bombus.errors import ConfigError, DataError
from bombus.fields import Count, NonNegative, Several, Share
from bombus.losses.entropy import softmax_entropy
from bombus.losses.precision import at_least_single
from bombus.losses.reliable import entropy_margin, is_reliable
from bombus.losses.self_training import self_training
from bombus.methods import register
from bombus.methods._mean_teacher import (
    Gradients,
    require_colour_images,
    sum_gradients,
    usable_batches,
)
from bombus.methods._norm import batch_logits, use_batch_statistics
from bombus.methods._optim import OptimizerName, apply_gradients, make_optimizer
from bombus.methods._progress import with_progress
from bombus.methods._teacher import Teacher
from bombus.methods.base import Adapter, BaseConfig, Source


@dataclass(frozen=True, kw_only=True)
class ObaoConfig(BaseConfig):
    optimizer: OptimizerName = "adam"
    lr: NonNegative = 1e-3
    momentum: Share = 0.999
    """Of the teacher: how much of it stays at each step."""
    margin: NonNegative = 0.1
    """Test images of less entropy, as a fraction of ln C, enter the buffer."""
    buffer_size: Several = 1000
    replay_batch: Several = 200
    """How many images are drawn from the buffer for a step."""
    replay_weight: NonNegative = 1.0
    relation_weight: NonNegative = 1.0
    prototype_images: Count = 100_000
    """Source images read for the class prototypes, at most."""
    published: ClassVar = {
        "cifar100-c": {"buffer_size": 200, "relation_weight": 200.0},
        "imagenet-c": {
            "optimizer": "sgd",
            "lr": 1e-2,
            "margin": 0.2,
            "replay_batch": 64,
            "replay_weight": 0.5,
        },
    }


@register("obao")
class Obao(Adapter):
    Config = ObaoConfig
    needs = "labels"
    cheap = False
    stateful = ("model", "teacher", "optimizer", "buffer")
    prepared = ("relations", "classifier")

    def setup(self) -> None:
        config: ObaoConfig = self.config
        require_colour_images(self.input, self.name)
        use_batch_statistics(self.model)
        self.teacher = Teacher(self.model)
        self.buffer = SureImages(config.buffer_size, self._parameter().device)
        self.relations = torch.empty(0)  # (C, C), the source prototypes' cosines
        self.classifier = ""  # its name; with it comes what is trained
        self.parameters: list[nn.Parameter] = []

    def prepare(self, source: Source | None) -> None:
        assert source is not None  # the base class has seen to it
        batches = usable_batches(source, self.model, self.config.prototype_images)
        first = next(batches, None)
        if first is None:
            raise DataError("There are no source batches to make class prototypes of.")
        self.classifier = find_classifier(self.model, first[0])
        reading = with_progress(itertools.chain([first], batches), None, "class prototypes")
        means, sizes = class_prototypes(self.model, reading)
        require_prototypes(sizes)
        relations = class_relations(means, sizes > 0)
        self.relations = relations.to(at_least_single(self._parameter()))
        self._train_all_but_classifier()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not self.parameters:  # resuming skips `prepare`
            self._train_all_but_classifier()
        super().load_state_dict(state)

    def step(self, x: Tensor) -> Tensor:
        view = cotta_view(x, self.generator, per_sample=False)
        taught = self.teacher(x)  # (N, C)
        logits, gradients, plain = self._learn_view(x, taught)
        _, more, augmented = self._learn_view(view, taught)
        gradients = sum_gradients(gradients, more)
        gradients = sum_gradients(gradients, self._replay())
        answer = (logits + taught) / 2
        entropies = softmax_entropy(logits)
        margin = entropy_margin(logits.shape[1], self.config.margin)
        sure = is_reliable(entropies, margin)  # (N,)
        self.signal(
            self_training=(plain + augmented) / 2,
            sure=sure.float().mean().item(),
            buffer=float(len(self.buffer)),
        )
        if apply_gradients(gradients, self.parameters, self.optimizer):
            self.buffer.keep(x[sure], answer[sure].argmax(1), entropies[sure])
            self.teacher.follow(self.model, self.config.momentum)
        else:
            self.step_dropped()
        return answer

    def forward(self, x: Tensor) -> Tensor:
        return (batch_logits(self.model, x) + self.teacher(x)) / 2

    def _learn_view(self, view: Tensor, taught: Tensor) -> tuple[Tensor, Gradients, float]:
        """The logits, and the gradients of one view's half of the self-training term."""
        logits: Tensor = self.model(view)
        loss = self_training([logits], taught)
        gradients = torch.autograd.grad(loss / 2, self.parameters, allow_unused=True)
        return logits.detach(), gradients, loss.item()

    def _replay(self) -> Gradients:
        """The gradients of both terms on images of the buffer; none where there are too few."""
        config: ObaoConfig = self.config
        if len(self.buffer) <= int(self.alone_is_too_few):
            return ()
        if config.replay_weight == 0 and config.relation_weight == 0:
            return ()
        device = self.parameters[0].device
        x, y = self.buffer.images.draw(config.replay_batch, self.generator, device)
        logits, features = forward_with_features(self.model, x)
        replay = F.cross_entropy(at_least_single(logits), y)
        means, sizes = class_means(features, y, logits.shape[1])
        relation = relation_loss(class_relations(means, sizes > 0), self.relations)
        self.signal(replay=replay.item(), relation=relation.item())
        loss = config.replay_weight * replay + config.relation_weight * relation
        return torch.autograd.grad(loss, self.parameters, allow_unused=True)

    def _train_all_but_classifier(self) -> None:
        frozen = {id(p) for p in self.model.get_submodule(self.classifier).parameters()}
        self.parameters = [p for p in self.model.parameters() if id(p) not in frozen]
        for p in self.parameters:
            p.requires_grad_(True)
        self.optimizer = make_optimizer(self.parameters, self.config.optimizer, self.config.lr)


@torch.no_grad()
def find_classifier(model: nn.Module, x: Tensor) -> str:
    """The name of the linear layer that makes the logits out of the penultimate features."""
    classifier = look(model, x).classifier
    names: list[str] = [name for name, module in model.named_modules() if module is classifier]
    if classifier is None or not names:
        raise ConfigError(
            f"No nn.Linear of {type(model).__name__} gives its logits, and obao leaves the "
            "classifier alone; end the network with one."
        )
    return names[0]


def class_means(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean of the (N, D) features of each class (C, D), and how many there were (C,)."""
    # A product with ones and zeros adds in the same order every time, on a GPU too.
    member = F.one_hot(y, classes).to(torch.promote_types(features.dtype, torch.float32))
    sizes = member.sum(0)
    with torch.autocast(features.device.type, enabled=False):
        sums = member.T @ at_least_single(features)
    return sums / sizes.clamp_min(1)[:, None], sizes


def class_relations(means: Tensor, present: Tensor) -> Tensor:
    """Cosines between the means (C, D) of the classes that are present (C,), (C, C).

    The diagonal is 1 and constant; rows and columns of absent classes are 0.
    """
    with torch.autocast(means.device.type, enabled=False):
        unit = F.normalize(means, dim=1)
        cosines = unit @ unit.T
    itself = torch.eye(len(means), dtype=torch.bool, device=means.device)
    return cosines.masked_fill(itself, 1) * (present[:, None] & present)


def relation_loss(now: Tensor, source: Tensor) -> Tensor:
    """-1 where the two matrices (C, C) are alike but for a factor, over the classes of both.

    Minus the cosine between them as vectors: no mean is subtracted.
    """
    shared = (now.diagonal() > 0) & (source.diagonal() > 0)
    pairs = shared[:, None] & shared
    now, source = now * pairs, source * pairs
    squares = now.square().sum() * source.square().sum()
    # Where no class is shared both are zero, and so is the loss; its gradient, too: the root's
    # would be infinite there.
    size = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
    return -(now * source).sum() / size
