"""Calibration and log-likelihood against torchmetrics and torch, intervals against scipy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import multiclass_calibration_error

from bombus.metrics.calibration import (
    BINS,
    add_bins,
    calibration_error,
    confidence_bins,
    log_loss,
)
from bombus.metrics.interval import half_width
from bombus.metrics.speed import batches_to_adapt


def answers(count: int = 500, classes: int = 10, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    y = torch.randint(classes, (count,), generator=generator)
    y = torch.where(torch.rand(count, generator=generator) < 0.5, logits.argmax(1), y)
    return logits, y


@pytest.mark.parametrize("seed", range(5))
def test_calibration_error_is_that_of_torchmetrics(seed: int) -> None:
    logits, y = answers(seed=seed)
    ours = calibration_error(confidence_bins(logits, y))
    theirs = multiclass_calibration_error(
        logits.double().softmax(1), y, num_classes=10, n_bins=BINS, norm="l1"
    )
    assert ours == pytest.approx(100 * float(theirs), abs=1e-4)  # theirs adds in float32


def test_batches_add_up_to_the_whole() -> None:
    logits, y = answers()
    parts = [confidence_bins(a, b) for a, b in zip(logits.split(64), y.split(64), strict=True)]
    whole = confidence_bins(logits, y)
    for added, row in zip(add_bins(parts), whole, strict=True):
        assert added == pytest.approx(row)


def test_perfect_and_hopeless_confidence() -> None:
    sure = 100.0 * torch.eye(4)
    assert calibration_error(confidence_bins(sure, torch.arange(4))) == pytest.approx(0)
    assert calibration_error(confidence_bins(sure, (torch.arange(4) + 1) % 4)) == pytest.approx(100)


def test_log_loss_is_the_cross_entropy() -> None:
    logits, y = answers()
    total, count = log_loss(logits, y)
    assert count == 500
    assert total / count == pytest.approx(float(cross_entropy(logits.double(), y)))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_an_answer_that_is_not_finite_is_left_out_and_missed(poison: float) -> None:
    logits, y = answers(20)
    logits[3, 1] = poison
    kept = torch.arange(20) != 3
    assert confidence_bins(logits, y) == confidence_bins(logits[kept], y[kept])
    assert log_loss(logits, y) == log_loss(logits[kept], y[kept])
    assert sum(samples for samples, _, _ in confidence_bins(logits, y)) == 19


@pytest.mark.parametrize("count", [2, 3, 5, 12, 21, 22, 30, 100, 1000])
def test_intervals_are_student_t(count: int) -> None:
    values = [math.sin(7 * i) for i in range(count)]
    low, high = stats.t.interval(0.95, count - 1, loc=sum(values) / count, scale=stats.sem(values))
    assert half_width(values) == pytest.approx((high - low) / 2, rel=1e-3)
    assert half_width(values[:1]) is None


def test_speed_counts_batches_before_the_first_good_window() -> None:
    samples = [100] * 20
    falling = [60, 50, 40, 30, 20, *([10] * 15)]
    assert batches_to_adapt(falling, samples) == 5
    assert batches_to_adapt([10] * 20, samples) == 0
    assert batches_to_adapt([11] * 10 + [10] * 10, samples) == 0  # within a point
    assert batches_to_adapt([12] * 10 + [10] * 10, samples) == 8  # a window of 3 x 10 and 2 x 12
    assert batches_to_adapt([10] * 9, [100] * 9) is None
