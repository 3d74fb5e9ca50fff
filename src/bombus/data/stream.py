"""A stream is a value: which images come when. Same value, same pictures in the same order.

It knows nothing of pixels: data/loading.py turns its plan into batches, from any position, so a
run can be resumed in the middle without replaying what went before. Here are the plan's parts and
the continual stream, on which the other kinds (data/streams.py) build.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bombus.data.orders import CLASSES, Numbers, by_class, permutation, random_of
from bombus.errors import ConfigError
from bombus.finding import Finding

if TYPE_CHECKING:
    from bombus.data.batch import Batch
    from bombus.data.images import ImageSet


@dataclass(frozen=True)
class Leg:
    """A stretch of a stream in which every image of one domain comes once."""

    domain: str
    severity: int
    visit: int = 0  # which time round, in streams that pass through their domains several times


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a batch that comes from one domain at one severity."""

    domain: str
    severity: int
    index: Numbers
    visit: int = 0
    places: Numbers | None = None  # in the batch; None: behind the piece before it
    other: str | None = None  # blended with the same images of this domain,
    share: NDArray[np.float32] | None = None  # (n,) which makes up so much of each


Plan = list[tuple[Piece, ...]]  # one entry a batch


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The domains one after the other, never announced, never reset: the continual protocol.

    Args:
        domains: in the order in which they come; a name may come again.
        severity: of the corruption, 1 to 5.
        batch_size: the last batch of a domain is short where it does not divide; it is kept.
        samples: how many images of each domain, drawn by the seed; all of them if None.
        seed: decides the order of samples within each domain.
        shuffle: False keeps the data set's own order.
    """

    kind: ClassVar[str] = "continual"
    own_batch_size: ClassVar[int | None] = None  # None: the benchmark's published one

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
        if self.seed < 0:
            raise ConfigError(f"Got seed {self.seed}, expected 0 or more.")

    # What a kind of stream may do differently

    @property
    def bursts(self) -> float | None:
        """The concentration of labels in time (see by_class); None where labels do not matter."""
        return None

    @property
    def settles(self) -> bool:
        """Whether a visit to a domain is alike from its first batch to its last.

        Only then can one say how soon a method has found its way there: where images grow harder,
        or labels come in bursts, the error moves without it.
        """
        return self.bursts is None

    @property
    def answers_a_step(self) -> int:
        """How many calls of the adapter there are to one from which it learns."""
        return 1

    def legs(self) -> list[Leg]:
        return [Leg(domain, self.severity) for domain in self.domains]

    def plan(self, sizes: Mapping[str, int], labels: Mapping[str, Numbers] | None = None) -> Plan:
        """Which images make up each batch, given how many each domain has."""
        return [
            (Piece(leg.domain, leg.severity, order[start : start + self.batch_size], leg.visit),)
            for leg, order in self.orders(sizes, labels)
            for start in range(0, len(order), self.batch_size)
        ]

    def check(self, images: ImageSet) -> None:
        """Refuse images that this stream cannot be made of."""

    def findings(self, images: ImageSet) -> Iterator[Finding]:
        """What whoever asked for this stream of these images may not know."""
        sizes = {domain: images.size(domain) for domain in self.domains}
        domain = min(sizes, key=sizes.__getitem__)
        if self.samples is not None and self.samples > sizes[domain]:
            yield Finding(
                "note",
                f"{self.samples:,} images a domain were asked for, and {domain} has "
                f"{sizes[domain]:,}; all of them come, once.",
            )

    def batches(self, images: ImageSet, start: int = 0) -> Iterator[Batch]:
        """The batches from position `start` on."""
        from bombus.data.loading import load_batch

        plan = self.plan_for(images)
        for position in range(start, len(plan)):
            yield load_batch(images, plan[position], position)

    # What all have in common

    def plan_for(self, images: ImageSet) -> Plan:
        """The plan over a data set, which must hold what the stream needs."""
        sizes = {domain: images.size(domain) for domain in self.domains}
        self.check(images)
        # Labels may put a stream in order; no method ever sees them.
        labels = {d: images.labels_of(d) for d in sizes} if self.bursts is not None else None
        return self.plan(sizes, labels)

    def orders(
        self, sizes: Mapping[str, int], labels: Mapping[str, Numbers] | None
    ) -> Iterator[tuple[Leg, Numbers]]:
        """Each leg with its images in order."""
        for number, leg in enumerate(self.legs()):
            size = sizes[leg.domain]
            order = permutation(self.seed, number, size) if self.shuffle else np.arange(size)
            order = order[: self.samples]
            if self.bursts is not None:
                if labels is None:
                    raise ConfigError(
                        f"The order of this {self.kind} stream depends on labels; give them to "
                        "plan(sizes, labels), or use plan_for(images)."
                    )
                draws = random_of(self.seed, number, CLASSES)
                order = by_class(order, labels[leg.domain], self.bursts, draws)
            yield leg, order

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self), "domains": list(self.domains)}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Stream:
        """A stream of whatever kind `to_dict` wrote."""
        from bombus.data.streams import find_stream

        kind = find_stream(stored.get("kind", "continual"))
        fields = {k: v for k, v in stored.items() if k != "kind"}
        return kind(**{**fields, "domains": tuple(fields["domains"])})

    def fingerprint(self) -> str:
        """The same in every process and version, unlike hash()."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()
