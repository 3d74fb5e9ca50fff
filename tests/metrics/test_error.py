"""Errors from counts, checked against plain Python."""

from __future__ import annotations

import pytest
import torch

from bombus.errors import DataError
from bombus.metrics.error import ErrorMeter, count_errors


def test_counts_agree_with_plain_python() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 7, generator=generator)
    y = torch.randint(7, (50,), generator=generator)
    domains = [("a", "b", "c")[i % 3] for i in range(50)]
    counts = count_errors(logits, y, domains)
    for domain in "abc":
        mine = [i for i in range(50) if domains[i] == domain]
        wrong = sum(max(range(7), key=lambda c: float(logits[i, c])) != int(y[i]) for i in mine)
        assert counts[domain] == (wrong, len(mine))


def test_no_answer_is_a_wrong_answer() -> None:
    logits = torch.eye(3)
    logits[1] = float("nan")
    assert count_errors(logits, torch.arange(3), ["a"] * 3) == {"a": (1, 3)}


def test_mean_is_over_domains_not_samples() -> None:
    meter = ErrorMeter()
    meter.add({"a": (1, 1), "b": (0, 50)})
    meter.add({"b": (25, 50)})
    assert meter.mean() == pytest.approx((100 + 25) / 2)
    assert meter.rows() == [
        {"name": "a", "samples": 1, "error": 100.0},
        {"name": "b", "samples": 100, "error": 25.0},
    ]


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.tensor([0, 3]), "0 to 3 for a model of 3"),
        (torch.tensor([-1, 1]), "-1 to 1"),
        (torch.tensor([0.0, 1.0]), "float32"),
        (torch.tensor([0, 1, 2]), "shape"),
    ],
)
def test_impossible_labels_are_refused(y: torch.Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        count_errors(torch.zeros(2, 3), y, ["a", "a"])
