"""The orders streams are made of, as pure functions of numbers and seeds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

# What a draw is for, so that no two of them are alike; 0 is the order of samples in a leg.
DOMAINS, CLASSES, MIX = 1, 2, 3


def random_of(*numbers: int) -> np.random.Generator:
    """Draws decided by these numbers alone. Trailing zeros do not tell two lists of them apart."""
    return np.random.Generator(np.random.PCG64(numbers))


@lru_cache(maxsize=64)
def permutation(seed: int, leg: int, size: int) -> Numbers:
    return random_of(seed, leg).permutation(size).astype(np.int64)


def up_and_down(highest: int) -> tuple[int, ...]:
    """1, 2, ... up to the highest and back to 1."""
    return (*range(1, highest), *range(highest, 0, -1))


def neighbour_shares(count: int) -> NDArray[np.float32]:
    """How much each of `count` images holds of the domain before or after: 1/2 at both ends of
    the leg, nothing in its middle, in steps of 1/256."""
    from_middle = np.abs((np.arange(count) + 0.5) / count - 0.5)
    return (np.round(256 * from_middle) / 256).astype(np.float32)


def by_class(order: Numbers, labels: Numbers, delta: float, random: np.random.Generator) -> Numbers:
    """The images of `order` (numbers into `labels`) with their labels in bursts.

    The construction of NOTE (NeurIPS 2022, arXiv:2208.05117), which ROID uses too: time is cut
    into as many slots as there are classes. Each class in turn deals its images out to the slots,
    in shares drawn from a Dirichlet distribution of concentration `delta`; a slot that holds its
    part of all images gets no more. In a slot, class comes after class, in random order.

    So a small delta puts a class into few slots and makes long bursts. A large one puts some of
    each class into each slot, but there, too, class after class. NOTE draws again until every slot
    holds ten images; since slots only put images in order, an empty one is kept here, and small
    data sets work.
    """
    classes, class_of = np.unique(labels[order], return_inverse=True)
    slots = len(classes)
    slot_of = np.empty(len(order), np.int64)
    held = np.zeros(slots)
    for number in range(slots):
        own = np.flatnonzero(class_of == number)
        has_room = held < len(order) / slots
        shares = random.dirichlet(np.full(slots, delta)) * has_room
        if not shares.sum() > 0:  # tiny deltas: all of the weight lies on slots that are full
            shares = has_room.astype(np.float64)
        ends = np.cumsum(shares / shares.sum())
        slot_of[own] = np.searchsorted(ends, (np.arange(len(own)) + 0.5) / len(own), side="right")
        held += np.bincount(slot_of[own], minlength=slots)
    rank = random.random((slots, slots))[slot_of, class_of]  # of a class within a slot
    return order[np.lexsort((np.arange(len(order)), rank, slot_of))]
