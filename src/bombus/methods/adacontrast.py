"""AdaContrast, online: pseudo-labels voted by neighbours, and contrast between strong views.

Chen et al., Contrastive Test-Time Adaptation, CVPR 2022, https://arxiv.org/abs/2204.10377. The
paper trains offline for epochs; this is the one-pass variant of the published CTTA benchmarks
(github.com/mariodoebler/test-time-adaptation, MIT).

A batch: weak view -> pseudo-labels; loss on a strong view against those labels, against a momentum
network's keys of another strong view, and for varied predictions; one step; the momentum network's
weak views enter the bank of neighbours; the images are predicted, after the update.

Kept from the reference:
- The student's BatchNorm normalises with the batch while it learns; its running statistics follow
  (first the weak view's, then the strong one's, with each layer's own momentum, .1 as a rule), and
  the prediction uses them. `predict_with="batch"` predicts with the batch's own.
- The momentum network normalises with the batch always. There its running statistics drift and
  nobody reads them; here they stay still. The moving average takes parameters only, before the
  keys are made.
- The queue begins with random unit vectors under random labels.
- The weak view is the mirror alone: the crop is as large as the image on CIFAR-C and ImageNet-C.
  `weak_view="shift"` is the paper's.
Differs from the reference in:
- A queue entry's feature and label are read together. There, keys enter the queue between the two,
  so the entries just replaced count with the old feature and the new label.
- The bank is a ring of exactly `bank_size`. There it ends up to a batch longer, and once full
  replaces the newest batch before the oldest.
- log p̄ is computed as such, not as log(p̄ + 1e-8). The weak view's forward, which no loss reads,
  has no graph. Dropout and stochastic depth stay off.
- A single image on a model with BatchNorm is answered with the running statistics and not learnt
  from. A step whose gradient is not finite is dropped, with all the batch left behind.

Shapes: N samples, D features, C classes, K entries of a store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bombus.backbones.blocks import forward_with_features
from bombus.data.augment import View, adacontrast_strong, adacontrast_weak, random_flip
from bombus.fields import Count, CountOrZero, NonNegative, Positive, Share
from bombus.losses.precision import at_least_single
from bombus.methods import register
from bombus.methods._mean_teacher import require_colour
from bombus.methods._norm import batch_norms, batch_statistics, use_batch_statistics
from bombus.methods._optim import OptimizerName, descend, make_optimizer, train_all
from bombus.methods._teacher import Teacher
from bombus.methods.base import Adapter, BaseConfig

WEAK_VIEWS: dict[str, View] = {"shift": adacontrast_weak, "mirror": random_flip}


@dataclass(frozen=True, kw_only=True)
class AdaContrastConfig(BaseConfig):
    """Published with the same settings for all three benchmarks."""

    optimizer: OptimizerName = "sgd"
    lr: NonNegative = 2e-4
    weight_decay: NonNegative = 1e-4
    momentum: Share = 0.999
    """Of the momentum network's moving average."""
    temperature: Positive = 0.07
    queue_size: Count = 16_384
    """Keys to contrast with."""
    bank_size: Count = 16_384
    """Weak views among which neighbours are found."""
    neighbours: Count = 10
    vote_after: CountOrZero = 1024
    """Samples seen before neighbours vote (0: at once); until then the model's own prediction is
    the label."""
    classification_weight: NonNegative = 1.0
    contrast_weight: NonNegative = 1.0
    diversity_weight: NonNegative = 1.0
    weak_view: Literal["shift", "mirror"] = "mirror"
    """Shift by whole pixels and mirror, as the paper; or mirror only, as the online reference."""
    predict_with: Literal["running", "batch"] = "running"
    """BatchNorm statistics of the prediction."""


@register("adacontrast")
class AdaContrast(Adapter):
    Config = AdaContrastConfig
    predicts = "after update"
    cheap = False
    stateful = ("model", "optimizer", "teacher", "queue", "bank", "seen")

    def setup(self) -> None:
        config: AdaContrastConfig = self.config
        require_colour(self.input, self.name, "choose another method")
        self.teacher = Teacher(self.model)
        use_batch_statistics(self.teacher.model)
        self.optimizer = make_optimizer(
            train_all(self.model), config.optimizer, config.lr, config.weight_decay
        )
        self.queue = Ring(config.queue_size)  # keys with their pseudo-labels
        self.bank = Ring(config.bank_size)  # weak views with their probabilities
        self.seen = 0
        self.alone_is_too_few = bool(batch_norms(self.model))  # it learns with batch statistics

    def step(self, x: Tensor) -> Tensor:
        config: AdaContrastConfig = self.config
        weak = self.view(WEAK_VIEWS[config.weak_view], x)
        strong_query = self.view(adacontrast_strong, x)
        strong_key = self.view(adacontrast_strong, x)
        statistics = [b for norm in batch_norms(self.model) for b in norm.buffers()]
        before = [b.clone() for b in statistics]

        with batch_statistics(self.model, track=True):
            labels = self._pseudo_labels(weak)
            logits, features = forward_with_features(self.model, strong_query)
        self.teacher.follow(self.model, config.momentum)
        keys, _ = self._slow(strong_key)
        if not len(self.queue):
            self._start_queue(keys, logits.shape[1])
        loss = self._loss(logits, unit(features), keys, labels)
        if descend(loss, self.optimizer):
            self.queue.push(keys, labels)
            self.bank.push(*self._slow(weak))
            self.seen += len(x)
        else:
            # A NaN in the stores or the statistics would spoil every batch to come.
            with torch.no_grad():
                for now, then in zip(statistics, before, strict=True):
                    now.copy_(then)
            self.step_dropped()
        return self.answer(x)

    def forward(self, x: Tensor) -> Tensor:
        by_batch = self.config.predict_with == "batch" and len(x) > 1
        with batch_statistics(self.model, track=False) if by_batch else nullcontext():
            logits: Tensor = self.model(x)
        return logits

    def _loss(self, logits: Tensor, query: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
        config: AdaContrastConfig = self.config
        logits = at_least_single(logits)
        others, other_labels = self.queue.features, self.queue.answers
        parts = {
            "classification": F.cross_entropy(logits, labels),
            "contrast": contrast(query, keys, labels, others, other_labels, config.temperature),
            "diversity": -entropy_of_mean(logits),
        }
        self.signal(**{name: part.item() for name, part in parts.items()})
        return (
            config.classification_weight * parts["classification"]
            + config.contrast_weight * parts["contrast"]
            + config.diversity_weight * parts["diversity"]
        )

    @torch.no_grad()
    def _pseudo_labels(self, weak: Tensor) -> Tensor:
        """(N,): what the neighbours say, once there are enough, else what the student says."""
        logits, features = forward_with_features(self.model, weak)
        own = logits.argmax(1)
        if self.seen < self.config.vote_after or not len(self.bank):
            return own
        voted = vote(
            unit(features), self.bank.features, self.bank.answers, self.config.neighbours
        ).argmax(1)
        self.signal(relabelled=(voted != own).sum().item() / len(own))
        return voted

    @torch.no_grad()
    def _slow(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """The momentum network's unit features (N, D) and probabilities (N, C)."""
        logits, features = forward_with_features(self.teacher.model, view)
        return unit(features), at_least_single(logits).softmax(1)

    def _start_queue(self, like: Tensor, classes: int) -> None:
        """Only now is the width of a feature known."""
        size = self.config.queue_size
        random = torch.randn(size, like.shape[1], generator=self.generator, device="cpu")
        labels = torch.randint(classes, (size,), generator=self.generator, device="cpu")
        self.queue.push(unit(random.to(like)), labels.to(like.device))


# Maths


def unit(features: Tensor) -> Tensor:
    return F.normalize(at_least_single(features), dim=1)


def vote(features: Tensor, bank: Tensor, probabilities: Tensor, neighbours: int) -> Tensor:
    """The mean probabilities (N, C) of each sample's nearest entries by cosine.

    Args:
        features: (N, D), rows of unit length, as those of the bank.
        bank, probabilities: (K, D) and (K, C).
    """
    # Autocast would multiply in 16 bits, and close neighbours would change places.
    with torch.autocast(features.device.type, enabled=False):
        cosines = features @ bank.T  # (N, K)
    nearest = cosines.topk(min(neighbours, len(bank)), dim=1).indices
    return probabilities[nearest].mean(1)


def contrast(
    query: Tensor,
    key: Tensor,
    labels: Tensor,
    others: Tensor,
    other_labels: Tensor,
    temperature: float,
) -> Tensor:
    """InfoNCE of each query to its own key, against others of another label; the mean.

    Args:
        query, key: (N, D), rows of unit length, as those of the others.
        labels: (N,)
        others, other_labels: (K, D) and (K,).
    """
    with torch.autocast(query.device.type, enabled=False):
        own = (query * key).sum(1, keepdim=True)  # (N, 1)
        cosines = query @ others.T  # (N, K)
    same = labels[:, None] == other_labels  # likely the same class: nothing to push away from
    logits = torch.cat([own, cosines.masked_fill(same, -math.inf)], 1) / temperature
    return (logits.logsumexp(1) - logits[:, 0]).mean()


def entropy_of_mean(logits: Tensor) -> Tensor:
    """The entropy of the batch's mean prediction, from 0 (one class for all) to ln C."""
    log_mean = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))  # (C,)
    return -(log_mean.exp() * log_mean).sum()


# State


class Ring:
    """The last `capacity` features, each with what was predicted for it: a label or probabilities.

    Memory is taken once, at the first push.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._features = self._answers = torch.empty(0)
        self._next = 0  # where the next entry goes
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def features(self) -> Tensor:
        return self._features[: self._count]  # (K, D)

    @property
    def answers(self) -> Tensor:
        return self._answers[: self._count]  # (K,) or (K, C)

    def push(self, features: Tensor, answers: Tensor) -> None:
        """Add entries; the oldest go where there is no room."""
        features, answers = features[-self.capacity :], answers[-self.capacity :]
        if not self._count:
            self._features = features.new_zeros(self.capacity, *features.shape[1:])
            self._answers = answers.new_zeros(self.capacity, *answers.shape[1:])
        new = torch.arange(len(features), device=features.device)
        places = (new + self._next) % self.capacity
        self._features[places] = features
        self._answers[places] = answers
        self._next = (self._next + len(features)) % self.capacity
        self._count = min(self._count + len(features), self.capacity)

    def state_dict(self) -> dict[str, Any]:
        if not self._count:
            return {}
        return {"features": self.features, "answers": self.answers, "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = self._count = 0
        if state:
            self.push(state["features"], state["answers"])
            self._next = state["next"]
