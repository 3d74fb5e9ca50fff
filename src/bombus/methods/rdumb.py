"""RDumb: ETA (EATA without its Fisher penalty), put back to the source every 1,000 batches.

Press et al., RDumb: A simple approach that questions our progress in continual test-time
adaptation, NeurIPS 2023, https://arxiv.org/abs/2306.05401; reference code
https://github.com/oripress/CCC (MIT).

Everything that learns goes back at once: parameters, optimiser and the running mean of learnt
predictions, so that the first batch afterwards is filtered like the first of all. That is the
authors' code; keeping the mean would hold the fresh model to what a drifted one had said. Every
batch counts, trained on or not, as there, but for an image alone on a BatchNorm model. A reset
comes before the batch that starts the new round, so no batch is answered by a model that has
learnt from more than 1,000.

A CIFAR run of 750 batches is over before the first reset, and RDumb is ETA there; ImageNet-C with
batches of 64 has one in 1,185. The authors' code has values for ImageNet alone, which are EATA's;
so CIFAR and ViT have EATA's, too. (TTA-repo's file for CIFAR100-C has a redundancy margin of .4,
where its EATA has .1.) What differs from the reference in ETA itself is said in eata.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bombus.fields import Count
from bombus.methods import register
from bombus.methods.eata import Eta, EtaConfig


@dataclass(frozen=True, kw_only=True)
class RdumbConfig(EtaConfig):
    reset_every: Count = 1000
    """Batches."""


@register("rdumb")
class Rdumb(Eta):
    Config = RdumbConfig

    def step(self, x: Tensor) -> Tensor:
        if self.batches and self.batches % self.config.reset_every == 0:
            self.load_state_dict({**self._fresh, "batches": self.batches})
            self.event("reset", after=self.batches)
        return super().step(x)
