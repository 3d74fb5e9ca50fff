"""SAR: entropy of reliable samples, minimised where it is flat, with a way back from collapse.

Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023,
https://arxiv.org/abs/2302.12400; reference code BSD-3-Clause.

The affine of normalisation layers, the top of the network excepted: a ResNet's `layer4`, a ViT's
last three blocks and final norm (blocks 9 to 11 of the reference's 12). Each batch climbs to the
sharpest point nearby, takes the gradient there, and descends with it from where it stood, by SGD
with plain momentum. The prediction is the first forward's. Differs from the reference in:
- Without a reliable sample, in the first pass or again in the second, there is no step. The
  reference averages over nothing: its loss is NaN, its gradient zero, and the momentum goes on.
- A recovery forgets the moving average, as in Döbler et al.'s code. The authors' own code puts the
  low value back and so recovers from every batch until the average has risen.
- Parameters that are not trained are frozen; BatchNorm alone is in training mode; one image on a
  BatchNorm model is answered with the source statistics; a gradient that is not finite is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bombus.errors import ConfigError
from bombus.fields import NonNegative
from bombus.losses.entropy import softmax_entropy
from bombus.losses.reliable import entropy_margin, is_reliable
from bombus.methods import register
from bombus.methods._norm import batch_logits, train_affine, use_batch_statistics
from bombus.methods._optim import apply_gradients, trainable
from bombus.methods.base import Adapter, BaseConfig

_BLOCK = re.compile(r"(?P<stem>(?:.*\.)?)blocks\.\d+")
_TOP_BLOCKS = 3


@dataclass(frozen=True, kw_only=True)
class SarConfig(BaseConfig):
    lr: NonNegative = 1e-3
    radius: NonNegative = 0.05
    """rho: how far the parameters, as one vector, climb before the second pass."""
    margin: NonNegative = 0.4
    """E0, as a fraction of ln(classes): predictions of less entropy are reliable."""
    floor: NonNegative = 0.2
    """e_m, in nats: recover when the moving average of the entropy falls below; 0 never does."""
    published: ClassVar = {
        "imagenet-c": {"lr": 2.5e-4},
        "imagenet-c/vit": {"lr": 1e-3},
    }


@register("sar")
class Sar(Adapter):
    Config = SarConfig
    stateful = ("model", "optimizer", "average")

    def setup(self) -> None:
        use_batch_statistics(self.model)
        affine = train_affine(self.model, self.name)
        top = top_layers(self.model)
        for path in top:
            self.model.get_submodule(path).requires_grad_(False)
        self.parameters = [p for p in affine if p.requires_grad]
        if not self.parameters:
            raise ConfigError(
                f"{self.name} leaves the top of a network alone ({', '.join(top)}), and this model "
                "has no normalisation layers elsewhere; choose another method, such as tent."
            )
        self.optimizer = torch.optim.SGD(
            trainable(self.parameters), lr=self.config.lr, momentum=0.9
        )
        self.average: float | None = None  # e, of the entropy at the second pass

    def step(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        entropy = softmax_entropy(logits)  # (N,)
        margin = entropy_margin(logits.shape[1], self.config.margin)
        reliable = is_reliable(entropy, margin)
        self.signal(reliable=reliable.float().mean().item())
        if reliable.any():
            self._learn(x, entropy[reliable].mean(), reliable, margin)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return batch_logits(self.model, x)

    def _learn(self, x: Tensor, loss: Tensor, reliable: Tensor, margin: float) -> None:
        uphill = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        norm = torch.nn.utils.get_total_norm([g for g in uphill if g is not None])
        if not norm.isfinite():
            self.step_dropped()
            return
        with climbed(self.parameters, uphill, self.config.radius / (norm + 1e-12)):
            entropy = softmax_entropy(self.model(x))[reliable]
            still = is_reliable(entropy, margin)
            if not still.any():
                return
            loss = entropy[still].mean()
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        if not apply_gradients(gradients, self.parameters, self.optimizer):
            self.step_dropped()
            return
        self._watch(loss.item())

    def _watch(self, loss: float) -> None:
        """Certainty this low means collapse to few classes: return to the source and start anew."""
        average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        self.average = average
        self.signal(entropy=loss, average=average)
        if average < self.config.floor:
            self.event("recovered", average=average)
            self.reset()


def top_layers(model: nn.Module) -> tuple[str, ...]:
    """The paths SAR does not train: layers near the output, whose features must not be bent.

    Known by name. A transformer is known by one row of `blocks`; networks of several stages with
    `blocks` each are something else.
    """
    paths = [path for path, _ in model.named_modules()]
    top = [path for path in paths if path.rpartition(".")[2] == "layer4"]
    blocks = [match for path in paths if (match := _BLOCK.fullmatch(path))]
    stems = {block["stem"] for block in blocks}
    if len(stems) == 1:
        top += [block[0] for block in blocks[-_TOP_BLOCKS:]]
        top += [path for path in (f"{stem}norm" for stem in stems) if path in paths]
    return tuple(top)


@contextmanager
def climbed(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], scale: Tensor
) -> Iterator[None]:
    """Within, the parameters stand higher by the scaled gradients; after, where they stood."""
    stood = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                p.add_(gradient * scale)
    try:
        yield
    finally:
        # Copied back, not subtracted: rounding must leave no trace.
        with torch.no_grad():
            for p, before in zip(parameters, stood, strict=True):
                p.copy_(before)
