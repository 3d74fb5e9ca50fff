"""VDP: a frozen network, and two small patches of pixels that are learnt and added to the image.

Gan et al., Decorate the Newcomers: Visual Domain Prompt for Continual Test Time Adaptation, AAAI
2023, https://arxiv.org/abs/2212.04145. No code was published: this is our reconstruction.

The method, as it is described: x' = x + DSP + DAP, the domain-specific and the domain-agnostic
prompt; a teacher whose prompts are moving averages of the student's. The student learns, on an
augmented image, what the teacher says of the plain one (cross-entropy). A homeostatic penalty
sum Λ (φ - φ*)² holds DAP, φ, near φ*, where it was when the last domain ended, the harder the more
a pixel mattered there. A domain ends where the batch's mean confidence changes by more than a
threshold.

Ours, because the authors' choices are not known to us:
- Both prompts are patches of an eighth of the image's sides, DSP in the top left corner, DAP in the
  bottom right one. They begin as zeros: the first batch is answered by the source model exactly.
- Adam, one for both; all rates and weights in the config. The teacher's .999 is that of the
  authors' later SVDP.
- The student's view is one draw of CoTTA's augmentation a batch; the prompts come on top of it.
- Λ as in synaptic intelligence (Zenke et al., ICML 2017, https://arxiv.org/abs/1703.04200). Over
  the batches of a domain a pixel's gain is ω = sum -g Δφ: its gradient of the cross-entropy times
  its step, which is how much it has lowered the loss. At the domain's end Λ grows by
  max(ω, 0) / ((φ - φ*)² + damping). A pixel that made things worse is no less free for it, so Λ is
  never negative; it is cut off at 1e6. Until the first change Λ = 0 and nothing holds DAP.
- The confidence is the teacher's and is compared with its moving average over the domain
  (`confidence_momentum=0`: with the batch before). Small batches are noisy and want a higher
  threshold.
- x' is not clipped to [0, 1]: a clipped pixel has no gradient and would not come back, and an image
  that overshoots the range would not be answered like the source does. Adam moves a pixel by about
  its rate a batch, so that it does not go far.
- BatchNorm normalises with the batch, as in the methods VDP is compared with: only the statistics
  differ from the source, no parameter does, and the first batch is answered like BN-1.
  `statistics="source"` leaves them alone too.
- One image alone is learnt from, but not where BatchNorm would take its statistics from it: that is
  answered with the source's. A step whose gradient is not finite is dropped.
- The prompts take their shape from the first batch; images of another size are refused after it.

Shapes: N images of H x W pixels, C classes, k x l pixels of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bombus.data.augment import cotta_view
from bombus.errors import InputError
from bombus.fields import NonNegative, Positive, Share, ShareAboveZero, ShareBelowOne
from bombus.losses.precision import at_least_single
from bombus.methods import register
from bombus.methods._mean_teacher import require_colour_images
from bombus.methods._norm import batch_logits, use_batch_statistics
from bombus.methods._optim import apply_gradients, make_optimizer
from bombus.methods.base import Adapter, BaseConfig

LARGEST = 1e6  # of Λ: far stiffer than a loss, so a pixel is held for good, by finite numbers


@dataclass(frozen=True, kw_only=True)
class VdpConfig(BaseConfig):
    """Our reconstruction: none of these numbers is the paper's."""

    lr: NonNegative = 1e-3
    """Of Adam, in parts of the pixels' range."""
    momentum: Share = 0.999
    """Of the teacher's prompts: how much of them stays at each step."""
    patch: ShareAboveZero = 1 / 8
    """Height and width of a prompt, as a part of the image's."""
    threshold: NonNegative = 0.05
    """S: a larger change of the mean confidence is a change of domain."""
    confidence_momentum: ShareBelowOne = 0.9
    """Of the confidence that a batch's is compared with; 0: that of the batch before."""
    penalty: NonNegative = 1.0
    """Weight of the homeostatic penalty."""
    damping: Positive = 1e-3
    """A squared shift of a pixel so small that it says nothing of how much the pixel mattered."""
    statistics: Literal["batch", "source"] = "batch"
    """Of BatchNorm; other networks have no choice."""
    published: ClassVar = {
        # A tenth of the rate, so a hundredth of the squared shifts; and batches of 64, not of 200,
        # whose mean confidence is about twice as noisy.
        "imagenet-c": {"lr": 1e-4, "damping": 1e-5, "threshold": 0.1},
    }


@register("vdp")
class Vdp(Adapter):
    Config = VdpConfig
    cheap = False
    stateful = (
        "prompts",
        "averages",
        "size",
        "anchor",
        "importance",
        "gain",
        "confidence",
        "optimizer",
    )

    def setup(self) -> None:
        config: VdpConfig = self.config
        require_colour_images(self.input, self.name)
        if config.statistics == "batch":
            use_batch_statistics(self.model)
        zero = torch.zeros_like(at_least_single(self._parameter().detach().flatten()[0]))
        self.prompts = Prompts(zero)  # DSP and DAP of the student, (3, k, l) each
        self.averages: list[Tensor] = []  # those of the teacher
        self.size: list[int] = []  # [H, W], as soon as an image has been seen
        # Of DAP: a zero without a shape stands for zeros until there is a shape.
        self.anchor = zero  # φ*
        self.importance = zero  # Λ
        self.gain = zero  # ω of the current domain
        self.confidence: float | None = None  # usual in the current domain
        self.optimizer = make_optimizer(self.prompts.parameters, "adam", config.lr)

    def step(self, x: Tensor) -> Tensor:
        if not self.size:
            self._begin(x)
        target = at_least_single(self.answer(x))
        self._watch(target)

        view = cotta_view(x, self.generator, per_sample=False)
        logits: Tensor = self.model(decorate(view, *self.prompts.parameters))
        loss = F.cross_entropy(at_least_single(logits), target.softmax(1))
        specific, agnostic = torch.autograd.grad(loss, self.prompts.parameters)
        before = self.prompts.agnostic.clone()
        stiffness = self.config.penalty * self.importance
        away = before - self.anchor
        self.signal(loss=loss.item(), penalty=(stiffness * away.square()).sum().item())
        gradients = [specific, agnostic + 2 * stiffness * away]
        if not apply_gradients(gradients, self.prompts.parameters, self.optimizer):
            self.step_dropped()
            return target
        # Of the cross-entropy alone: what the penalty pulls at says nothing of the domain.
        self.gain = self.gain - agnostic * (self.prompts.agnostic - before)
        self.averages = [
            slow.lerp(p.detach(), 1 - self.config.momentum)
            for slow, p in zip(self.averages, self.prompts.parameters, strict=True)
        ]
        return target

    def forward(self, x: Tensor) -> Tensor:
        if not self.size:
            return batch_logits(self.model, x)
        if list(x.shape[2:]) != self.size:
            raise InputError(
                f"Got images of {x.shape[2]} x {x.shape[3]} pixels, and the prompts are made for "
                f"{self.size[0]} x {self.size[1]}; resize the images, or begin anew with reset()."
            )
        return batch_logits(self.model, decorate(x, *self.averages))

    def _begin(self, x: Tensor) -> None:
        self.size = list(x.shape[2:])
        shape = [max(1, round(self.config.patch * side)) for side in self.size]
        zeros = self.anchor.new_zeros(x.shape[1], *shape)
        self.prompts.fill([zeros.clone(), zeros.clone()])
        self.averages = [zeros.clone(), zeros.clone()]

    def _watch(self, target: Tensor) -> None:
        """Has the domain changed? Then what the last one taught is fixed before the next step."""
        config: VdpConfig = self.config
        now = target.softmax(1).amax(1).mean().item()
        self.signal(confidence=now)
        if not math.isfinite(now):
            return
        usual = now if self.confidence is None else self.confidence
        if abs(now - usual) <= config.threshold:
            momentum = config.confidence_momentum
            self.confidence = momentum * usual + (1 - momentum) * now
            return
        self.event("domain change", confidence=now, usual=usual)
        moved = self.prompts.agnostic - self.anchor
        grown = self.importance + importance(self.gain, moved, config.damping)
        self.importance = grown.clamp_max(LARGEST)
        self.anchor = self.prompts.agnostic.clone()
        self.gain = torch.zeros_like(self.gain)
        self.confidence = now


# Maths


def decorate(x: Tensor, specific: Tensor, agnostic: Tensor) -> Tensor:
    """x (N, 3, H, W) with one prompt (3, k, l) in its first corner and one in its last."""
    right, down = x.shape[3] - specific.shape[2], x.shape[2] - specific.shape[1]
    both = F.pad(specific, (0, right, 0, down)) + F.pad(agnostic, (right, 0, down, 0))
    return x + both.to(x.dtype)


def importance(gain: Tensor, moved: Tensor, damping: float) -> Tensor:
    """What Λ grows by: max(ω, 0) / (moved² + damping), of any shape, from 0 to `LARGEST`.

    Of the order of the loss's curvature along each pixel: on the way down a parabola ½ c φ² by a
    distance d to its bottom, ω = ½ c d².
    """
    return (gain.nan_to_num() / (moved.square() + damping)).clamp(0, LARGEST)


# State


class Prompts:
    """The student's two prompts. The optimiser holds them before their shape is known."""

    def __init__(self, like: Tensor) -> None:
        self.parameters = [nn.Parameter(like.new_zeros(0)) for _ in range(2)]

    @property
    def agnostic(self) -> Tensor:
        return self.parameters[1].detach()

    def fill(self, values: Sequence[Tensor]) -> None:
        for p, value in zip(self.parameters, values, strict=True):
            p.data = value

    def state_dict(self) -> dict[str, Tensor]:
        specific, agnostic = self.parameters
        return {"specific": specific.detach(), "agnostic": agnostic.detach()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.fill([state["specific"], state["agnostic"]])
