"""Continual-MAE: hide the patches the network wavers on; tell image and patches from the rest.

Liu et al., Continual-MAE: Adaptive Distribution Masked Autoencoders for Continual Test-Time
Adaptation, CVPR 2024, https://arxiv.org/abs/2312.12480; reference code MIT.

Ten augmented views of the batch tell how much each final patch token varies; the half that varies
most is replaced by a learnt mask token where patches enter the transformer. From what is left the
network learns its own prediction of the whole image (cross-entropy), and one linear layer learns
the histograms of oriented gradients of the hidden patches (mean squared error). Then a few weights,
drawn at random, return to the source. The answer is the prediction of the whole image, from before
the update.

The authors publish settings for CIFAR10-C alone, in batches of 20 images. The learning rates for
CIFAR100-C (the same) and ImageNet-C (a tenth) are ours, and not tuned.

Differs from the reference in:
- One network. The reference keeps a copy for views, targets and answers but refreshes it after
  every step, so that it never differs from the network before its update.
- A patch of any even side has 2 x 2 cells, 108 numbers; 16 pixels are the reference's cells of 8.
- At least one patch is hidden, however few there are.
- No gradient that is not finite changes anything.
Kept: only what is called weight or bias is trained, not the class token and the positions; one draw
of the augmentation serves the whole batch; the views are turned, moved and mirrored, so that a
token's ten values are of ten places. And a token is summed up by the mean over its channels, which
before the final norm's own scale and shift is zero by construction: of a network that has never
been trained it is rounding errors.

Shapes: N images, C classes, T patches, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bombus.data.augment import cotta_view
from bombus.errors import ConfigError
from bombus.fields import NonNegative, Several, ShareAboveZero, ShareBelowOne
from bombus.losses.hog import BINS, CELLS, patch_histograms
from bombus.losses.precision import at_least_single
from bombus.methods import register
from bombus.methods._mean_teacher import require_colour_images
from bombus.methods._optim import OptimizerName, descend, make_optimizer
from bombus.methods.base import Adapter, BaseConfig
from bombus.methods.cotta import restore_some


@dataclass(frozen=True, kw_only=True)
class ContinualMaeConfig(BaseConfig):
    optimizer: OptimizerName = "adam"
    lr: NonNegative = 1e-5
    augmentations: Several = 10
    """Views of a batch by which the patches' uncertainty is told."""
    mask_ratio: ShareAboveZero = 0.5
    """The share of patches that are hidden, the least certain ones."""
    hog_weight: NonNegative = 0.5
    restore: ShareBelowOne = 0.01
    """The chance of each weight to return to the source after a step."""
    # Ours: nothing but CIFAR10-C's settings is published.
    published: ClassVar = {"imagenet-c": {"lr": 1e-6}}


class Decoder(nn.Module):
    """What is added to a transformer: the token that hides a patch, and a layer that describes it.

    The layer's weights are drawn from N(0, .02²), the token and the layer's bias start at zero.
    """

    def __init__(self, width: int, like: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        self.token = nn.Parameter(like.new_zeros(width))
        # By way of "meta", where torch draws nothing from the generator of everybody.
        numbers = 3 * BINS * CELLS**2
        layer = nn.Linear(width, numbers, dtype=like.dtype, device="meta")
        self.hog = layer.to_empty(device=like.device)
        with torch.no_grad():
            self.hog.weight.copy_(
                0.02 * torch.randn(numbers, width, generator=generator, device="cpu")
            )
            self.hog.bias.zero_()


@register("continual-mae")
class ContinualMae(Adapter):
    Config = ContinualMaeConfig
    cheap = False
    transformers_only = True
    stateful = ("model", "decoder", "optimizer")

    def setup(self) -> None:
        config: ContinualMaeConfig = self.config
        require_colour_images(self.input, self.name)
        positions = self.model.pos_embed
        if not isinstance(positions, Tensor):
            raise ConfigError(
                f"The positions (pos_embed) of {type(self.model).__name__} are no tensor; "
                f"{self.name} needs a vision transformer that learns them."
            )
        like = at_least_single(self._parameter().detach())
        self.decoder = Decoder(positions.shape[-1], like, self.generator)
        self.weights = [
            p
            for name, p in self.model.named_parameters()
            if name.rpartition(".")[2] in ("weight", "bias")
        ]
        for p in self.weights:
            p.requires_grad_(True)
        self.source_weights = [p.detach().clone() for p in self.weights]
        trained = [*self.weights, *self.decoder.parameters()]
        self.optimizer = make_optimizer(trained, config.optimizer, config.lr)

    def step(self, x: Tensor) -> Tensor:
        config: ContinualMaeConfig = self.config
        with torch.no_grad():
            answer, tokens = forward_with_patches(self.model, x)  # (N, C), (N, T, D)
        looks = patch_histograms(x, patch_side(x, tokens.shape[1]))  # (N, T, 108)
        uncertainty = self._uncertainty(x)
        hidden = least_certain(uncertainty, config.mask_ratio)  # (N, T)
        logits, tokens = forward_with_patches(self.model, x, hidden, self.decoder.token)
        consistency = F.cross_entropy(at_least_single(logits), at_least_single(answer).softmax(1))
        guesses = at_least_single(self.decoder.hog(at_least_single(tokens[hidden])))
        hog = F.mse_loss(guesses, looks[hidden])
        self.signal(
            consistency=consistency.item(),
            hog=hog.item(),
            uncertainty=uncertainty.mean().item(),
        )
        if descend(consistency + config.hog_weight * hog, self.optimizer):
            restore_some(self.weights, self.source_weights, config.restore, self.generator)
        else:
            self.step_dropped()
        return answer

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    @torch.no_grad()
    def _uncertainty(self, x: Tensor) -> Tensor:
        """How much each patch's mean channel varies over views of the images, (N, T)."""
        means = []
        for _ in range(self.config.augmentations):
            view = cotta_view(x, self.generator, per_sample=False)
            _, tokens = forward_with_patches(self.model, view)
            means.append(at_least_single(tokens).mean(2))
        return torch.stack(means).var(0)


def least_certain(uncertainty: Tensor, share: float) -> Tensor:
    """True for this share of each row of (N, T), the largest; of equals the first, and one anyway.

    Rounded down, as in the reference.
    """
    count = max(1, int(uncertainty.shape[1] * share))
    # Sorted stably, so that every machine agrees on equals.
    places = uncertainty.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(uncertainty, dtype=torch.bool).scatter_(1, places, True)


def forward_with_patches(
    model: nn.Module, x: Tensor, hidden: Tensor | None = None, token: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The logits (N, C) and what the final norm made of the patches (N, T, D).

    Where `hidden` (N, T) says so, the token (D,) takes the place of an embedded patch before the
    positions are added. The network is looked into by hooks, which are gone afterwards.
    """
    seen: dict[str, Any] = {}

    def enter(_module: nn.Module, _inputs: Any, embedded: Any) -> Tensor | None:
        seen["embedded"] = embedded
        if hidden is None or token is None:
            return None
        return torch.where(hidden[:, :, None], token.to(embedded.dtype), embedded)

    def leave(_module: nn.Module, _inputs: Any, tokens: Any) -> None:
        seen["final"] = tokens

    handles = (
        model.get_submodule("patch_embed").register_forward_hook(enter),
        model.get_submodule("norm").register_forward_hook(leave),
    )
    try:
        logits: Tensor = model(x)
    finally:
        for handle in handles:
            handle.remove()
    embedded, final = seen.get("embedded"), seen.get("final")
    if not _are_tokens(embedded) or not _are_tokens(final) or final.shape[1] < embedded.shape[1]:
        raise ConfigError(
            f"The patch_embed and norm of {type(model).__name__} do not give tokens (images, "
            "tokens, width), a patch each and any others before them; continual-mae needs that."
        )
    # The class token, and any register tokens, stand before the patches.
    return logits, final[:, -embedded.shape[1] :]


def _are_tokens(output: Any) -> TypeGuard[Tensor]:
    return isinstance(output, Tensor) and output.ndim == 3


def patch_side(x: Tensor, patches: int) -> int:
    """How many pixels a side the patches of images (N, 3, H, W) have."""
    height, width = x.shape[2:]
    side = math.isqrt(height * width // patches)
    if side * side * patches != height * width or height % side or width % side or side % CELLS:
        raise ConfigError(
            f"An image of {height} x {width} px makes {patches} patches of this network, expected "
            "square ones with an even number of pixels a side; choose another network or method."
        )
    return side
