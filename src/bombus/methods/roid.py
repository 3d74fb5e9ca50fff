"""ROID: a confidence loss on certain and diverse samples, and weights averaged with the source's.

Marsden, Döbler, Yang, Universal Test-time Adaptation through Weight Ensembling, Diversity
Weighting, and Prior Correction, WACV 2024, https://arxiv.org/abs/2306.00650; reference code MIT.

A batch's samples are weighed by how certain they are and by how little they look like the running
mean prediction; those that look more like it than the average are left out. The rest train the
scale and shift of the normalisation layers by the soft likelihood ratio and by agreeing with a
second view of themselves. Then every trained weight goes a hundredth of the way back to the source.
The prediction is of the first forward, before the update, corrected by the batch's own class
frequencies.
As in the reference, the second view goes through the network alone, so BatchNorm sees the samples
kept and no others; its draw is one for the batch; the gradient of the agreement enters both views.
Differs from the reference in:
- The consistency works without the weighting (the reference crashes there): all samples, weight 1.
- Where all samples are alike (one class, one image) the scaling of the weights divides nothing by
  nothing; here every sample then counts 1.
- Sums are divided by the largest batch so far, the reference's by a size it is told: the same for a
  stream of one size with a shorter batch at its end, whose images so weigh no more than others.
- The correction multiplies logits by C times the prior, the reference's by the prior: the same
  class, and an even prior changes nothing. Multiplied logits are no Bayes' rule (a negative one
  falls where it should rise); `prior_correction="probabilities"` is, and is weaker.
- The second view moves by fractions of a pixel, and its reflection shows the border pixel twice.
- Where a single sample is kept, BatchNorm gets no second view. One image alone is answered with the
  source statistics and, on a model with BatchNorm, not trained on; a step whose gradient is not
  finite is dropped, but the way back to the source is not.

Shapes: N images, K of them kept, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bombus.data.augment import colour_jitter, random_affine, random_flip
from bombus.fields import NonNegative, Positive, Share
from bombus.losses.divergence import mutual_cross_entropy
from bombus.losses.entropy import softmax_entropy
from bombus.losses.likelihood_ratio import soft_likelihood_ratio
from bombus.losses.precision import at_least_single
from bombus.methods import register
from bombus.methods._mean_teacher import require_colour
from bombus.methods._norm import batch_logits, train_affine, use_batch_statistics
from bombus.methods._optim import OptimizerName, descend, make_optimizer
from bombus.methods.base import Adapter, BaseConfig


@dataclass(frozen=True, kw_only=True)
class RoidConfig(BaseConfig):
    optimizer: OptimizerName = "adam"
    lr: NonNegative = 1e-3
    weighting: bool = True
    """By certainty and diversity; without it all samples count 1."""
    temperature: Positive = 1 / 3
    """Of the weights: small prefers the certain and diverse strongly."""
    prediction_momentum: Share = 0.9
    """Of the running mean prediction, which diversity is measured against."""
    consistency: bool = True
    view_per_sample: bool = False
    """Every second view its own draw, not one for the batch."""
    ensembling: bool = True
    source_momentum: Share = 0.99
    """What stays of a weight after each step; the rest comes from the source."""
    prior_correction: Literal["logits", "probabilities", "off"] = "logits"
    """What the batch's class frequencies multiply."""
    published: ClassVar = {
        # Transformers as well: the reference changes nothing for them.
        "imagenet-c": {"optimizer": "sgd", "lr": 2.5e-4},
    }


@register("roid")
class Roid(Adapter):
    Config = RoidConfig
    stateful = ("model", "optimizer", "mean_prediction", "largest_batch")

    def setup(self) -> None:
        if self.config.consistency:
            require_colour(self.input, self.name, "set consistency=False")
        use_batch_statistics(self.model)
        self.parameters = train_affine(self.model, self.name)
        # Constants: `setup` sees the source model, also when a run is resumed.
        self.source_values = [p.detach().clone() for p in self.parameters]
        self.optimizer = make_optimizer(self.parameters, self.config.optimizer, self.config.lr)
        self.mean_prediction: Tensor | None = None  # (C,); even until the first batch
        self.largest_batch = 0

    def step(self, x: Tensor) -> Tensor:
        config: RoidConfig = self.config
        self.largest_batch = max(self.largest_batch, len(x))
        logits: Tensor = self.model(x)
        p = at_least_single(logits.detach()).softmax(1)  # (N, C)
        usual = torch.full_like(p[0], 1 / p.shape[1])
        if self.mean_prediction is not None:
            usual = self.mean_prediction
        weights = torch.ones_like(p[:, 0])  # (N,)
        if config.weighting:
            weights = certainty_diversity_weights(logits.detach(), usual, config.temperature)
        confidence = (weights * soft_likelihood_ratio(logits)).sum() / self.largest_batch
        agreement = self._agreement(x, logits, weights)
        if descend(confidence + agreement, self.optimizer):
            self.mean_prediction = usual.lerp(p.mean(0), 1 - config.prediction_momentum)
        else:
            self.step_dropped()
        if config.ensembling:
            self._ensemble()
        self.signal(
            likelihood_ratio=confidence.item(),
            consistency=agreement.item(),
            kept=(weights > 0).float().mean().item(),
        )
        return self._correct(logits.detach())

    def forward(self, x: Tensor) -> Tensor:
        return self._correct(batch_logits(self.model, x))

    def _agreement(self, x: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
        """The kept samples against a second view of themselves, weighed like the first loss."""
        (kept,) = weights.nonzero(as_tuple=True)  # (K,)
        if not self.config.consistency or (len(kept) == 1 and self.alone_is_too_few):
            return torch.zeros_like(weights[0])
        view = self.view(partial(roid_view, per_sample=self.config.view_per_sample), x[kept])
        apart = mutual_cross_entropy(self.model(view), logits[kept])  # (K,)
        return (weights[kept] * apart).sum() / self.largest_batch

    @torch.no_grad()
    def _ensemble(self) -> None:
        for p, source in zip(self.parameters, self.source_values, strict=True):
            p.lerp_(source, 1 - self.config.source_momentum)

    def _correct(self, logits: Tensor) -> Tensor:
        if self.config.prior_correction == "off":
            return logits
        logits = at_least_single(logits)
        relative = logits.shape[1] * smoothed_prior(logits.softmax(1))  # (C,), 1 where even
        if self.config.prior_correction == "logits":
            return logits * relative
        return logits + relative.log()


def certainty_diversity_weights(logits: Tensor, usual: Tensor, temperature: float) -> Tensor:
    """exp(certainty * diversity / temperature), and 0 below the mean diversity; (N, C) to (N,).

    Args:
        logits: (N, C), without a graph.
        usual: (C,), the running mean prediction; diversity is 1 - its cosine to a prediction.
        temperature: of the product, whose factors are scaled to 0..1 over the batch.
    """
    p = at_least_single(logits).softmax(1)
    diversity = _scaled(1 - cosine_similarity(usual[None], p))
    certainty = _scaled(-softmax_entropy(logits))
    weights = (diversity * certainty / temperature).exp()
    # The most diverse is never below the mean: something is always kept.
    return weights.masked_fill(diversity < diversity.mean(), 0.0)


def _scaled(values: Tensor) -> Tensor:
    """From 0 to 1; all 0 where they are all the same."""
    spread = values.max() - values.min()
    return (values - values.min()) / spread.clamp_min(torch.finfo(values.dtype).tiny)


def smoothed_prior(p: Tensor) -> Tensor:
    """The batch's mean prediction, (N, C) to (C,), drawn towards even; sums to 1.

    Adds as much to every class as one sample is worth (or one class, in a batch of more samples
    than classes), divided by the largest frequency: a batch of many classes says little of any.
    """
    count, classes = p.shape
    prior = p.mean(0)
    addition = max(1 / count, 1 / classes) / prior.max()
    return (prior + addition) / (1 + classes * addition)


def roid_view(x: Tensor, generator: torch.Generator, *, per_sample: bool = False) -> Tensor:
    """CoTTA's augmentation without its blur and noise, and reflected beyond the border.

    Moves by up to an eighth of the side: the reference's sixteenth is of the padded image.
    """
    out = colour_jitter(x.clamp(0, 1), generator, per_sample=per_sample)
    out = random_affine(out, generator, translate=1 / 8, padding="reflect", per_sample=per_sample)
    return random_flip(out, generator, per_sample=per_sample)
