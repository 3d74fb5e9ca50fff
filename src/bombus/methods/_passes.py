"""A network as BEE sees it: a pass gives logits and a descriptor a level, for one or two views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bombus.backbones.blocks import look
from bombus.data.augment import flip
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

    def __call__(self, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Pass:
        seen = look(self.model, x, self.blocks, parameters)
        outputs = {j: seen.blocks[self.blocks[j - 1]] for j in self.levels}
        descriptors = {j: describe(h, self.tokens) for j, h in outputs.items()}
        last = len(self.blocks)
        if last in self.levels and self.read_classifier and seen.features is not None:
            # What the classifier reads is the last level's finest descriptor.
            descriptors[last] = describe(seen.features)
        return Pass(seen.logits, descriptors)

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
