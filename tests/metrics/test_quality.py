"""What a run's records say beyond its error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bombus.data.streams import find_stream
from bombus.metrics.calibration import confidence_bins, log_loss
from bombus.metrics.error import count_errors
from bombus.metrics.quality import has_collapsed, summarise_quality


def record(domain: str, wrong: int, *, answer: float = 0.12, **more: Any) -> dict[str, Any]:
    """A batch of 100 images, answered with a confidence of .8."""
    bins = [[0, 0, 0.0] for _ in range(15)]
    bins[11] = [100, 100 - wrong, 80.0]
    return {
        "domains": {domain: {"wrong": wrong, "samples": 100}},
        "confidence": bins,
        "log_loss": 50.0,
        "largest": {"answer": answer, "label": 0.12},
        **more,
    }


def test_sums_over_batches() -> None:
    records = [record("fog", 60) for _ in range(5)] + [record("fog", 10) for _ in range(15)]
    quality = summarise_quality(records, 10)
    # 22.5 % wrong at a confidence of 80 %.
    assert quality["calibration_error"] == pytest.approx(abs(77.5 - 80))
    assert quality["log_loss"] == pytest.approx(0.5)
    assert quality["batches_to_adapt"] == 5
    assert quality["collapsed"] is False
    assert "clean" not in quality


def test_speed_is_the_mean_over_visits_and_unknown_for_mixed_domains() -> None:
    slow = [record("fog", 60) for _ in range(5)] + [record("fog", 10) for _ in range(15)]
    quick = [record("snow", 10) for _ in range(20)]
    assert summarise_quality([*slow, *quick], 10)["batches_to_adapt"] == 2.5
    mixed = record("fog", 10)
    mixed["domains"]["snow"] = {"wrong": 1, "samples": 100}
    assert summarise_quality([*slow, mixed], 10)["batches_to_adapt"] is None


def test_what_is_forgotten() -> None:
    records = [record("fog", 10, clean_before=5.0), record("fog", 10, clean_error=6.0)]
    records.append(record("snow", 10, clean_error=7.0))
    assert summarise_quality(records, 10)["clean"] == {
        "before": 5.0,
        "after": [{"domain": "fog", "error": 6.0}, {"domain": "snow", "error": 7.0}],
    }


def test_a_collapse_is_one_class_for_all_or_guessing_at_the_end() -> None:
    healthy = [record("fog", 30)] * 30
    assert not has_collapsed(healthy, 10)
    assert has_collapsed([*healthy, *[record("fog", 60, answer=0.6)] * 10], 10)
    assert has_collapsed([*healthy, *[record("fog", 85)] * 10], 10)
    assert not has_collapsed([*healthy, *[record("fog", 79)] * 10], 10)
    assert not has_collapsed([*[record("fog", 85)] * 10, *healthy], 10)  # it came back


def test_bursts_of_a_class_are_no_collapse() -> None:
    burst = record("fog", 10, answer=0.9)
    burst["largest"]["label"] = 0.85
    assert not has_collapsed([burst] * 8, 10)


def test_no_answers_at_all() -> None:
    empty = record("fog", 100)
    empty["confidence"] = [[0, 0, 0.0] for _ in range(15)]
    empty["log_loss"] = 0.0
    quality = summarise_quality([empty], 10)
    assert quality["calibration_error"] is None
    assert quality["log_loss"] is None
    assert quality["collapsed"]


def answered(logits: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """The records of a stream of batches of 20."""
    batches = zip(logits.split(20), y.split(20), strict=True)
    return [
        {
            **record("fog", 0),
            "domains": {
                name: {"wrong": wrong, "samples": n}
                for name, (wrong, n) in count_errors(a, b, ["fog"] * len(b)).items()
            },
            "confidence": confidence_bins(a, b),
            "log_loss": log_loss(a, b)[0],
        }
        for a, b in batches
    ]


def by_hand(logits: Tensor, y: Tensor) -> tuple[float, float]:
    """Calibration error in per cent and log loss, sample by sample."""
    gaps, loss = [0.0] * 15, 0.0
    for row, label in zip(logits.double().tolist(), y.tolist(), strict=True):
        exponents = [math.exp(value) for value in row]
        p = [e / sum(exponents) for e in exponents]
        place = max(math.ceil(max(p) * 15), 1) - 1
        gaps[place] += (p.index(max(p)) == label) - max(p)
        loss -= math.log(p[label])
    return 100 * sum(map(abs, gaps)) / len(y), loss / len(y)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_run_that_diverged_is_not_flattered(poison: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(100, 4, generator=generator)
    y = torch.randint(4, (100,), generator=generator)
    sound = summarise_quality(answered(logits, y), 4)
    calibration, loss = by_hand(logits, y)
    assert sound["calibration_error"] == pytest.approx(calibration, abs=1e-4)
    assert sound["log_loss"] == pytest.approx(loss, abs=1e-5)
    assert sound["not_finite"] == 0
    # The worst answers fail: over the others alone both figures would be better.
    worst = logits.log_softmax(1).gather(1, y[:, None])[:, 0].argsort()[:30]
    rest = torch.ones(100, dtype=torch.bool).scatter(0, worst, False)
    assert by_hand(logits[rest], y[rest]) < (calibration, loss)
    logits[worst, 2] = poison
    diverged = summarise_quality(answered(logits, y), 4)
    assert diverged["calibration_error"] is None
    assert diverged["log_loss"] is None
    assert diverged["not_finite"] == 30


def test_no_speed_where_a_visit_is_not_alike_throughout() -> None:
    climbing = [record("fog", wrong) for wrong in (10, 20, 30, 40, 50, 40, 30, 20, 10) * 3]
    assert summarise_quality(climbing, 10)["batches_to_adapt"] is not None
    assert summarise_quality(climbing, 10, settles=False)["batches_to_adapt"] is None


def test_streams_that_settle() -> None:
    def settles(kind: str, **options: float) -> bool:
        return find_stream(kind)(domains=("fog", "snow"), **options).settles

    assert all(map(settles, ("continual", "random", "recurring")))
    assert not any(map(settles, ("gradual", "changing", "single", "correlated")))
    assert not settles("recurring", delta=0.1)


def test_clean_errors_of_mixed_batches_are_of_no_one_domain() -> None:
    mixed = record("fog", 10, clean_before=5.0, clean_error=6.0)
    mixed["domains"]["snow"] = {"wrong": 1, "samples": 100}
    assert summarise_quality([mixed], 10)["clean"]["after"] == [{"domain": "mixed", "error": 6.0}]
