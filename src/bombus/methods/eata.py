"""EATA: entropy of the reliable, new predictions alone, held near the source by a Fisher penalty.

Niu et al., Efficient Test-Time Model Adaptation without Forgetting, ICML 2022,
https://arxiv.org/abs/2204.02610; reference code https://github.com/mr-eggplant/EATA (MIT), and
https://github.com/mariodoebler/test-time-adaptation ("TTA-repo") for the values on CIFAR.

Trains the normalisation layers' affine, one step a batch; the prediction is that of the same
forward, before the update. Where text, code and code disagree:
- The whole batch runs through one backward, as in the code: with batch statistics a sample cannot
  be left out of a pass. The paper counts samples kept.
- The running mean is over predictions that were learnt from, as in the code; Eq. 4 can be read as
  over whole batches.
- The Fisher is the mean over batches of the squared gradient of a batch's mean loss, as in the
  code, where Eq. 9 sums over images. It shrinks as batches grow, and the published weights of the
  penalty go with that: give source batches of the size of the test batches. A last, shorter batch
  counts in full.
- The Fisher's images are the source's, as in TTA-repo; the reference takes them from the clean
  counterpart of the test set. Labels are the model's own, statistics the batch's, in both.
- SGD has Nesterov momentum and CIFAR has Adam (TTA-repo); the reference has plain SGD throughout.
- Nothing is learnt from clean images between domains, as the reference's "continual" run does.

Mended: dropout and stochastic depth stay off; LayerNorm and GroupNorm adapt, too (TTA-repo); a
batch of one image is answered with the source statistics and, on a model with BatchNorm, not
trained on; a step whose gradient is not finite is dropped and leaves the running mean alone;
`reset` forgets the running mean (the reference keeps it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from bombus.errors import DataError
from bombus.fields import Count, NonNegative, Share
from bombus.losses.entropy import softmax_entropy
from bombus.losses.precision import at_least_single
from bombus.losses.reliable import (
    entropy_margin,
    is_new,
    is_reliable,
    mean_prediction,
    weighted_entropy,
)
from bombus.methods import register
from bombus.methods._norm import batch_logits, batch_norms, train_affine, use_batch_statistics
from bombus.methods._optim import OptimizerName, descend, make_optimizer
from bombus.methods._progress import with_progress
from bombus.methods._source import image_batches
from bombus.methods.base import Adapter, BaseConfig, Source


@dataclass(frozen=True, kw_only=True)
class EtaConfig(BaseConfig):
    optimizer: OptimizerName = "adam"
    lr: NonNegative = 1e-3
    margin: NonNegative = 0.4
    """A prediction is reliable if its entropy is below this fraction of ln(classes)."""
    redundancy: NonNegative = 0.4
    """A prediction is new if its cosine to the mean of the learnt ones is below this."""
    momentum: Share = 0.9
    """Of the running mean of learnt predictions."""
    published: ClassVar = {
        "cifar100-c": {"redundancy": 0.1},
        "imagenet-c": {"optimizer": "sgd", "lr": 2.5e-4, "redundancy": 0.05},
        # EATA's authors on a ViT, in https://github.com/mr-eggplant/SAR, for batches of 64.
        "imagenet-c/vit": {"lr": 1e-3},
    }


class Eta(Adapter):
    """EATA without its penalty: what EATA and RDumb share."""

    Config = EtaConfig
    stateful = ("model", "optimizer", "mean", "batches")

    def setup(self) -> None:
        use_batch_statistics(self.model)
        self.parameters = train_affine(self.model, self.name)
        self.optimizer = make_optimizer(self.parameters, self.config.optimizer, self.config.lr)
        self.mean: Tensor | None = None  # of the predictions learnt from, (C,)
        self.batches = 0  # seen

    def step(self, x: Tensor) -> Tensor:
        self.batches += 1
        logits: Tensor = self.model(x)
        entropy = softmax_entropy(logits)  # (N,)
        probabilities = at_least_single(logits.detach()).softmax(1)  # (N, C)
        margin = entropy_margin(logits.shape[1], self.config.margin)
        reliable = is_reliable(entropy, margin)
        kept = reliable & is_new(probabilities, self.mean, self.config.redundancy)
        learnt = probabilities[kept]
        self.signal(reliable=reliable.float().mean().item(), kept=len(learnt) / len(x))
        if not len(learnt):
            return logits
        loss = weighted_entropy(entropy, kept, margin)
        self.signal(entropy=loss.item())
        if descend(loss + self.penalty(), self.optimizer):
            self.mean = mean_prediction(self.mean, learnt, self.config.momentum)
        else:
            self.step_dropped()
        return logits

    def penalty(self) -> Tensor | float:
        """What is added to the entropy of a batch."""
        return 0.0

    def forward(self, x: Tensor) -> Tensor:
        return batch_logits(self.model, x)


@dataclass(frozen=True, kw_only=True)
class EataConfig(EtaConfig):
    fisher_weight: NonNegative = 1.0
    """Of the penalty; 0 leaves it out and makes this ETA."""
    fisher_images: Count = 2000
    """Source images that the Fisher is taken from, at most."""
    published: ClassVar = {
        **EtaConfig.published,
        "imagenet-c": {**EtaConfig.published["imagenet-c"], "fisher_weight": 2000.0},
    }


@register("eata")
class Eata(Eta):
    Config = EataConfig
    needs = "samples"
    prepared = ("fisher",)

    def setup(self) -> None:
        super().setup()
        self.start = parameters_to_vector(self.parameters).detach()  # the source's, (P,)
        self.fisher: Tensor | None = None  # (P,)

    def prepare(self, source: Source | None) -> None:
        if source is not None and self.config.fisher_weight:
            images = self.config.fisher_images
            read = image_batches(source, self.start.device)
            batches = with_progress(read, None, "weighing parameters")
            self.fisher = fisher_diagonal(self.model, self.parameters, batches, images)

    def penalty(self) -> Tensor | float:
        if self.fisher is None:
            return 0.0
        drift = parameters_to_vector(self.parameters) - self.start
        penalty: Tensor = self.config.fisher_weight * (self.fisher * drift.square()).sum()
        self.signal(fisher=penalty.item())
        return penalty


def fisher_diagonal(
    model: nn.Module, parameters: Sequence[nn.Parameter], batches: Iterable[Tensor], images: int
) -> Tensor:
    """How much the model's answers to its first `images` images hang on each parameter, (P,).

    The mean over batches of the squared gradient of the cross-entropy with the model's own labels.
    """
    fisher = torch.zeros_like(at_least_single(parameters_to_vector(parameters).detach()))
    too_few = 1 if batch_norms(model) else 0  # one image makes no batch statistics
    seen = used = 0
    for batch in batches:
        x = batch[: images - seen]
        seen += len(x)
        if len(x) > too_few:
            logits = at_least_single(model(x))
            loss = F.cross_entropy(logits, logits.argmax(1))
            gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
            fisher += at_least_single(parameters_to_vector(gradients)).square()
            used += 1
        if seen >= images:
            break
    if not used:
        raise DataError(
            f"EATA's Fisher needs source images, in batches of more than {too_few}; this source "
            f"gave {seen} with fisher_images={images}."
        )
    fisher /= used
    if not bool(fisher.isfinite().all()):
        raise DataError(
            "EATA's Fisher is not finite on these source images; look for NaN among them, or for "
            "values outside the range that the model expects."
        )
    return fisher
