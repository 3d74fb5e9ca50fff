"""A stream is a value: which images come when. Same value, same pictures in the same order.

It knows nothing of pixels: an ImageSet (data/images.py) turns its plan into batches, from any
position, so a run can be resumed in the middle without replaying what went before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from bombus.errors import ConfigError

if TYPE_CHECKING:
    from bombus.data.batch import Batch
    from bombus.data.images import ImageSet


@dataclass(frozen=True)
class Piece:
    """Part of a batch that comes from one domain at one severity."""

    domain: str
    severity: int
    index: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The continual protocol: the domains one after the other, never announced, never reset.

    Args:
        domains: in the order in which they come; a name may come again.
        severity: of the corruption, 1 to 5.
        batch_size: the last batch of a domain is short where it does not divide; it is kept.
        samples: how many images of each domain, drawn by the seed; all of them if None.
        seed: decides the order of samples within each domain.
        shuffle: False keeps the data set's own order.
    """

    domains: tuple[str, ...]
    severity: int = 5
    batch_size: int = 200
    samples: int | None = None
    seed: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not self.domains:
            raise ConfigError("A stream needs at least one domain, got none.")
        if not 1 <= self.severity <= 5:
            raise ConfigError(f"Got severity {self.severity}, expected 1 to 5.")
        if self.batch_size < 1:
            raise ConfigError(f"Got batch size {self.batch_size}, expected at least 1.")
        if self.samples is not None and self.samples < 1:
            raise ConfigError(f"Got {self.samples} samples a domain, expected at least 1.")

    def plan(self, sizes: Mapping[str, int]) -> list[tuple[Piece, ...]]:
        """Which images make up each batch, given how many each domain has."""
        batches: list[tuple[Piece, ...]] = []
        for visit, domain in enumerate(self.domains):
            order = self._order(visit, sizes[domain])
            batches += [
                (Piece(domain, self.severity, order[start : start + self.batch_size]),)
                for start in range(0, len(order), self.batch_size)
            ]
        return batches

    def batches(self, images: ImageSet, start: int = 0) -> Iterator[Batch]:
        """The batches from position `start` on."""
        import torch

        from bombus.data.batch import Batch

        plan = self.plan({domain: images.size(domain) for domain in self.domains})
        for position in range(start, len(plan)):
            pieces = plan[position]
            loaded = [images.load(p.domain, p.severity, p.index) for p in pieces]
            yield Batch(
                position=position,
                x=torch.cat([x for x, _ in loaded]),
                y=torch.cat([y for _, y in loaded]),
                index=np.concatenate([p.index for p in pieces]),
                domains=tuple(p.domain for p in pieces for _ in p.index),
            )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "continual", **asdict(self), "domains": list(self.domains)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        fields = {k: v for k, v in stored.items() if k != "kind"}
        return cls(**{**fields, "domains": tuple(fields["domains"])})

    def fingerprint(self) -> str:
        """The same in every process and version, unlike hash()."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def _order(self, visit: int, size: int) -> NDArray[np.int64]:
        order = _permutation(self.seed, visit, size) if self.shuffle else np.arange(size)
        return order[: self.samples]


@lru_cache(maxsize=64)
def _permutation(seed: int, visit: int, size: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64([seed, visit])).permutation(size).astype(np.int64)
