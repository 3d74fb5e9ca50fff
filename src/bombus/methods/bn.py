"""BN-1: normalise with the statistics of the test batch instead of the training set's.

Nado et al., Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift,
2020, https://arxiv.org/abs/2006.10963; Schneider et al., NeurIPS 2020.

Nothing is trained and nothing remembered. A batch of one image falls back to the source
statistics. A model without BatchNorm has no batch statistics: there BN-1 is the source model.
"""

from __future__ import annotations

from torch import Tensor

from bombus.methods import register
from bombus.methods._norm import batch_logits, use_batch_statistics
from bombus.methods.base import Adapter


@register("bn")
class BatchNorm1(Adapter):
    stateful = ()

    def setup(self) -> None:
        use_batch_statistics(self.model)

    def step(self, x: Tensor) -> Tensor:
        return self.answer(x)

    def forward(self, x: Tensor) -> Tensor:
        return batch_logits(self.model, x)
