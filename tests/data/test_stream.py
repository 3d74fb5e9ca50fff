"""A stream is a value: equal values give equal batches, from any position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from bombus.data.stream import Stream
from bombus.errors import ConfigError


class Numbered:
    """Images whose one pixel says which image of which domain it is."""

    name, classes, domains = "numbered", 10, ("a", "b", "c")
    sizes = {"a": 10, "b": 7, "c": 4}  # noqa: RUF012

    def size(self, domain: str) -> int:
        return self.sizes[domain]

    def load(self, domain: str, severity: int, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(index).float().view(-1, 1, 1, 1).expand(-1, 3, 1, 1) / 100
        return x, torch.from_numpy(index % 10)

    def describe(self) -> dict[str, Any]:
        return {}


STREAM = Stream(domains=("a", "b", "c", "a"), batch_size=4, seed=5)


def test_every_image_comes_once_a_visit_and_the_short_batch_is_kept() -> None:
    batches = list(STREAM.batches(Numbered()))
    assert [len(b.x) for b in batches] == [4, 4, 2, 4, 3, 4, 4, 4, 2]
    assert [b.position for b in batches] == list(range(9))
    assert sorted(np.concatenate([b.index for b in batches[:3]])) == list(range(10))
    assert batches[3].domains == ("b",) * 4
    for batch in batches:
        assert torch.equal((batch.x[:, 0, 0, 0] * 100).round().long() % 10, batch.y)


def test_starts_from_any_position() -> None:
    whole = list(STREAM.batches(Numbered()))
    for start in range(10):
        rest = list(STREAM.batches(Numbered(), start=start))
        assert len(rest) == max(0, 9 - start)
        for one, two in zip(rest, whole[start:], strict=True):
            assert one.position == two.position
            assert np.array_equal(one.index, two.index)


def test_seed_and_visit_decide_the_order() -> None:
    sizes = Numbered.sizes
    first, again = STREAM.plan(sizes), STREAM.plan(sizes)
    other = Stream(domains=STREAM.domains, batch_size=4, seed=6).plan(sizes)
    assert all(np.array_equal(a[0].index, b[0].index) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0][0].index, other[0][0].index)
    visit = np.concatenate([p[0].index for p in first[:3]])
    second_visit = np.concatenate([p[0].index for p in first[6:]])
    assert not np.array_equal(visit, second_visit)


def test_samples_and_no_shuffle() -> None:
    plan = Stream(domains=("a",), batch_size=4, samples=6, shuffle=False).plan(Numbered.sizes)
    assert [p[0].index.tolist() for p in plan] == [[0, 1, 2, 3], [4, 5]]


def test_is_hashable_serialisable_and_has_a_stable_fingerprint() -> None:
    assert hash(STREAM) == hash(Stream(domains=("a", "b", "c", "a"), batch_size=4, seed=5))
    assert Stream.from_dict(STREAM.to_dict()) == STREAM
    expected = "af88"  # of version 0.1.0: a stored run must keep meaning the same pictures
    assert STREAM.fingerprint()[:4] == expected


def test_the_order_of_a_published_seed_is_pinned() -> None:
    plan = Stream(domains=("a",), seed=1).plan({"a": 10})
    assert plan[0][0].index.tolist() == [8, 4, 7, 0, 1, 2, 5, 9, 6, 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"domains": ()}, "at least one domain"),
        ({"severity": 6}, "severity 6"),
        ({"batch_size": 0}, "batch size 0"),
        ({"samples": 0}, "0 samples"),
    ],
)
def test_impossible_streams_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Stream(**{"domains": ("a",), **settings})
