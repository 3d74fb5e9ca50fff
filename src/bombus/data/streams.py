"""The kinds of streams by name, one class each.

Each is decided by its own fields alone and can be entered at any batch. All but `mixed` pass
through the domains leg by leg; what differs is which legs there are (Stream.legs), whether labels
come in bursts (Stream.bursts), or how images are put into batches (Stream.plan, Stream.batches).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bombus.data.orders import DOMAINS, MIX, Numbers, neighbour_shares, random_of, up_and_down
from bombus.data.stream import Leg, Piece, Plan, Stream
from bombus.errors import ConfigError, DataError, UnknownNameError
from bombus.finding import Finding

if TYPE_CHECKING:
    from bombus.data.batch import Batch
    from bombus.data.images import ImageSet

MADE_HERE = ("cifar10-c", "cifar100-c")  # what `bombus data make` makes


class Gradual(Stream):
    """Severity climbs from 1 to the highest and back in each domain, all images at each step.

    The gradual protocol of CoTTA (CVPR 2022): 1-2-3-4-5-4-3-2-1. `severity` is the highest.
    """

    kind = "gradual"

    @property
    def settles(self) -> bool:
        return False

    def legs(self) -> list[Leg]:
        return [Leg(domain, s) for domain in self.domains for s in up_and_down(self.severity)]

    def check(self, images: ImageSet) -> None:
        needed = range(1, self.severity + 1)
        for domain in self.domains:
            held = images.severities_of(domain)
            if set(needed) <= set(held):
                continue
            if not held:
                raise DataError(
                    f"A gradual stream needs images of severities 1 to {self.severity}, but "
                    f"{images.name} has no severities; choose another stream."
                )
            make = f"`bombus data make {images.name} --severities {' '.join(map(str, needed))}"
            remedy = (
                f"make them with {make} --out FOLDER`, then pass --data FOLDER"
                if images.name in MADE_HERE
                else "unpack the published archive again"
            )
            raise DataError(
                f"A gradual stream needs severities 1 to {self.severity} of {domain!r}, but "
                f"{images.name} holds only {', '.join(map(str, held))}; {remedy}."
            )


@dataclass(frozen=True, kw_only=True)
class Recurring(Stream):
    """The domains over and over, so that a method meets again what it has met.

    The protocol of PeTTA (NeurIPS 2024), which visits all domains 20 times; there the labels are
    correlated within each domain as well, which is `delta` = 0.1 here. The images come in another
    order each time.

    Args:
        visits: how often each domain comes.
        delta: as in a correlated stream; without it, labels come as they happen to.
    """

    kind: ClassVar[str] = "recurring"
    visits: int = 20
    delta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.visits < 1:
            raise ConfigError(f"Got {self.visits} visits, expected at least 1.")
        if self.delta is not None:
            check_delta(self.delta)

    @property
    def bursts(self) -> float | None:
        return self.delta

    def legs(self) -> list[Leg]:
        return [Leg(d, self.severity, visit) for visit in range(self.visits) for d in self.domains]


class Mixed(Stream):
    """All domains shuffled together: a batch holds images of many of them.

    The mixed-domains protocol of ROID (WACV 2024). Every image of every domain comes once.
    """

    kind = "mixed"

    def plan(self, sizes: Mapping[str, int], labels: Mapping[str, Numbers] | None = None) -> Plan:
        legs, orders = zip(*self.orders(sizes, labels), strict=True)
        index = np.concatenate(orders)
        leg_of = np.repeat(np.arange(len(legs)), [len(order) for order in orders])
        mix = random_of(self.seed, 0, MIX).permutation(len(index))
        plan: Plan = []
        for start in range(0, len(mix), self.batch_size):
            chosen = mix[start : start + self.batch_size]
            pieces = []
            for number in np.unique(leg_of[chosen]):
                places = np.flatnonzero(leg_of[chosen] == number)
                leg = legs[number]
                pieces.append(Piece(leg.domain, leg.severity, index[chosen[places]], places=places))
            plan.append(tuple(pieces))
        return plan


@dataclass(frozen=True, kw_only=True)
class Correlated(Stream):
    """The domains one after the other, the labels within each in bursts: one class, then another.

    As in NOTE (NeurIPS 2022) and ROID (WACV 2024); `orders.by_class` says how.

    Args:
        delta: concentration of the Dirichlet distribution; the smaller, the longer the bursts.
    """

    kind: ClassVar[str] = "correlated"
    delta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.delta)

    @property
    def bursts(self) -> float:
        return self.delta


class Random(Stream):
    """The domains one after the other, in an order drawn by the seed."""

    kind = "random"

    def legs(self) -> list[Leg]:
        drawn = random_of(self.seed, 0, DOMAINS).permutation(len(self.domains))
        return [Leg(self.domains[place], self.severity) for place in drawn]


class Changing(Stream):
    """Each domain turns into the next little by little, the two versions of an image blended.

    Every domain has its leg of all images. Halfway through its leg a domain is pure; from there
    its images hold more and more of the next domain, up to one half at the leg's end, where the
    next leg takes over with the halves exchanged. So an image counts for the domain of which it
    holds more. The first half of the first leg and the second half of the last are pure.

    In the manner of CCC (Press et al., NeurIPS 2023), and not the same: CCC applies two
    corruptions to one image, one after the other, each at a severity in quarter steps, along a
    path on which a fixed network's accuracy stays the same. Here two finished pictures are
    averaged pixel by pixel, (1 - t) a + t b. That needs nothing but the stored images, but halves
    the strength of either corruption midway (noise even averages out), so that the way between
    two domains is easier than its ends, and no level of difficulty can be asked for.
    """

    kind = "changing"

    @property
    def settles(self) -> bool:
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.domains) < 2:
            raise ConfigError("A changing stream needs at least two domains to go between, got 1.")

    def check(self, images: ImageSet) -> None:
        if not images.aligned:
            raise DataError(
                f"A changing stream blends the same picture in two domains, but the domains of "
                f"{images.name} are not known to hold the same pictures; choose another stream."
            )

    def plan(self, sizes: Mapping[str, int], labels: Mapping[str, Numbers] | None = None) -> Plan:
        counts = {domain: sizes[domain] for domain in self.domains}
        if len(set(counts.values())) > 1:
            raise DataError(
                f"A changing stream blends the same picture in two domains, but they hold "
                f"different numbers of them: {counts}."
            )
        around = (None, *self.domains, None)
        plan: Plan = []
        for number, (leg, order) in enumerate(self.orders(sizes, labels)):
            share, middle = neighbour_shares(len(order)), len(order) // 2
            for start in range(0, len(order), self.batch_size):
                end = min(start + self.batch_size, len(order))
                halves = (
                    (slice(start, min(end, middle)), around[number]),  # the domain before
                    (slice(max(start, middle), end), around[number + 2]),  # the one after
                )
                plan.append(
                    tuple(
                        Piece(leg.domain, leg.severity, order[half], other=other, share=share[half])
                        for half, other in halves
                        if half.start < half.stop
                    )
                )
        return plan


class Single(Stream):
    """Images come one at a time; the method sees the last `batch_size` of them, a sliding window.

    The single-sample protocol of ROID's code: every image is answered when it comes, together with
    those before it in the window, and only its own answer counts. The method learns once every
    `batch_size` images, when the whole window is new: a step at each image would learn from each
    image `batch_size` times. The window fills up over the first images and runs on across domains.

    It costs `batch_size` times the forward passes of the continual stream, and as many steps.
    """

    kind = "single"
    own_batch_size = 16

    @property
    def settles(self) -> bool:
        return False  # so many images would have to be one batch to have an error

    @property
    def answers_a_step(self) -> int:
        return self.batch_size

    def plan(self, sizes: Mapping[str, int], labels: Mapping[str, Numbers] | None = None) -> Plan:
        """One entry an image: the newest of the window."""
        return [
            (replace(piece, index=piece.index[place : place + 1]),)
            for (piece,) in super().plan(sizes, labels)
            for place in range(len(piece.index))
        ]

    def findings(self, images: ImageSet) -> Iterator[Finding]:
        yield from super().findings(images)
        count = len(self.plan_for(images))
        if count < self.batch_size:
            yield Finding(
                "warn",
                f"The stream has {count} images and a window of {self.batch_size}, so that the "
                f"method never learns; choose a --batch-size of at most {count}.",
            )

    def batches(self, images: ImageSet, start: int = 0) -> Iterator[Batch]:
        import torch

        from bombus.data.loading import joined, load_batch

        plan = self.plan_for(images)
        size = self.batch_size

        def load(first: int) -> Batch:
            return load_batch(images, joined([p for (p,) in plan[first : first + size]]), first)

        # Images are read in blocks of a window's length; two blocks hold every window that ends in
        # the second.
        first = start - start % size
        older = load(first - size).x if first and start < len(plan) else None
        for block in map(load, range(first, len(plan), size)):
            both = block.x if older is None else torch.cat([older, block.x])
            for place in range(max(0, start - block.position), len(block.y)):
                end = len(both) - len(block.y) + place + 1
                yield replace(
                    block,
                    position=block.position + place,
                    x=both[max(0, end - size) : end],
                    y=block.y[place : place + 1],
                    index=block.index[place : place + 1],
                    domains=block.domains[place : place + 1],
                    adapts=place == size - 1,
                )
            older = block.x


def check_delta(delta: float) -> None:
    if not 0 < delta < float("inf"):
        raise ConfigError(
            f"Got delta {delta:g}, expected a number above 0; 0.1 makes long bursts of a class."
        )


STREAMS: dict[str, type[Stream]] = {
    kind.kind: kind
    for kind in (Stream, Gradual, Recurring, Mixed, Correlated, Random, Changing, Single)
}


def find_stream(name: str) -> type[Stream]:
    if name not in STREAMS:
        raise UnknownNameError("stream", name, STREAMS)
    return STREAMS[name]


def own_options(kind: type[Stream]) -> dict[str, Any]:
    """The options that only this kind (or few) has, with their defaults."""
    common = {f.name for f in fields(Stream)}
    return {f.name: f.default for f in fields(kind) if f.name not in common}


def take_options(kind: type[Stream], **asked: float | None) -> dict[str, Any]:
    """Those that were asked for (not None); one that the kind does not have is refused."""
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in own_options(kind):
            having = [k for k, stream in STREAMS.items() if name in own_options(stream)]
            raise ConfigError(
                f"The stream {kind.kind!r} has no --{name}; leave it out, or choose --stream "
                f"{' or '.join(having)}."
            )
    return given
