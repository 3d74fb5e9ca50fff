"""The frozen model: what a user has without adaptation, and the yardstick of every method."""

from __future__ import annotations

from torch import Tensor

from bombus.methods import register
from bombus.methods.base import Adapter


@register("source")
class SourceOnly(Adapter):
    stateful = ()

    def step(self, x: Tensor) -> Tensor:
        return self.answer(x)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits
