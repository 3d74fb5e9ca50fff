"""What a run's records say beyond its error."""

from __future__ import annotations

from typing import Any

import pytest

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
