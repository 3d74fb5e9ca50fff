"""A network as BEE sees it: a pass gives logits and a descriptor a level, for one or two views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bombus.backbones.blocks import last_module, look
from bombus.data.augment import flip
from bombus.errors import ConfigError
from bombus.losses.multilevel import Tokens, describe


@dataclass(frozen=True)
class Pass:
    """Over V views of N images: logits (V * N, C) and descriptors (V * N, D), by level."""

    logits: Tensor
    descriptors: dict[int, Tensor]


class Passes:
    """Calls the network with its own parameters or with others: a teacher's, an anchor's."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[str],
        levels: Sequence[int],
        *,
        read_classifier: bool,
        mirrored: bool,
        tokens: Tokens,
    ) -> None:
        self.model = model
        self.blocks = tuple(blocks)
        self.levels = tuple(levels)
        self.views_count = 2 if mirrored else 1
        self.read_classifier = read_classifier
        self.tokens = tokens
        self._widths = [_last_widths(last_module(model, name)) for name in blocks]

    def __call__(self, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Pass:
        seen = look(self.model, x, self.blocks, parameters)
        outputs = {j: seen.blocks[self.blocks[j - 1]] for j in self.levels}
        descriptors = {j: self._describe(j, h, len(x)) for j, h in outputs.items()}
        last = len(self.blocks)
        if last in self.levels and self.read_classifier and seen.features is not None:
            # What the classifier reads is the last level's finest descriptor.
            descriptors[last] = describe(seen.features)
        return Pass(seen.logits, descriptors)

    def _describe(self, level: int, h: Tensor, images: int) -> Tensor:
        if len(h) != images:
            raise ConfigError(
                f"The block {self.blocks[level - 1]!r} gave {tuple(h.shape)} for {images} images, "
                "expected the images first; build the network with batch_first=True, or name "
                "other blocks."
            )
        widths = self._widths[level - 1]
        if h.dim() == 4 and h.shape[3] in widths and h.shape[1] not in widths:
            h = h.permute(0, 3, 1, 2)  # as Swin has them, (N, H, W, C)
        return describe(h, self.tokens)

    def views(self, x: Tensor) -> Tensor:
        return torch.cat([x, flip(x)]) if self.views_count == 2 else x

    def mean(self, logits: Tensor) -> Tensor:
        """One prediction an image, from all its views."""
        if self.views_count == 1:
            return logits
        image, mirror_image = logits.chunk(2)
        return (image + mirror_image) / 2

    def swap(self, target: Tensor) -> Tensor:
        """Each view learns from what the teacher saw in the other."""
        return target.roll(len(target) // 2, 0) if self.views_count == 2 else target


def _last_widths(block: nn.Module) -> set[int]:
    """How wide the last dimension is behind the layers that act on that one."""
    linear = {m.out_features for m in block.modules() if isinstance(m, nn.Linear)}
    return linear | {m.normalized_shape[-1] for m in block.modules() if isinstance(m, nn.LayerNorm)}
