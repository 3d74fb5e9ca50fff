"""The shift trigger on losses made up for it: jumps it must find, noise it must not mistake."""

from __future__ import annotations

import json
import math
import random
from statistics import median, pstdev
from typing import Any

import pytest

from bombus.errors import ConfigError
from bombus.methods._shift import LevelDetector, ShiftDetector

Detector = ShiftDetector | LevelDetector
DETECTORS = [ShiftDetector, LevelDetector]


def noise(count: int, seed: int, level: float = 5.0, sigma: float = 0.2) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(level, sigma) for _ in range(count)]


def alarms(detector: Detector, losses: list[float]) -> list[int]:
    return [i for i, loss in enumerate(losses) if detector.observe(loss)]


@pytest.mark.parametrize("numerator", ["smoothed", "raw"])
@pytest.mark.parametrize("stored", ["smoothed", "raw"])
def test_z_by_plain_loops(numerator: Any, stored: Any) -> None:
    losses = [*noise(40, 1), *noise(40, 2, level=20.0)]
    detector = ShiftDetector(
        window=25, minimum=5, numerator=numerator, stored=stored, threshold=3.0
    )
    window: list[float] = []
    average = losses[0]
    found = []
    for i, loss in enumerate(losses):
        if i:
            average = 0.9 * average + 0.1 * loss
        z = 0.0
        if len(window) >= 5:
            centre, spread = sum(window) / len(window), pstdev(window)
            z = ((average if numerator == "smoothed" else loss) - centre) / (spread + 1e-8)
        window = [] if z > 3.0 else [*window, loss if stored == "raw" else average][-25:]
        found += [i] if z > 3.0 else []
        assert detector.observe(loss) == (z > 3.0)
        assert detector.z == pytest.approx(z, rel=1e-6, abs=1e-9)
    assert found  # a comparison without a single alarm would show little


def test_level_by_plain_loops() -> None:
    losses = [*noise(40, 1), *noise(40, 2, level=9.0), *noise(40, 3, level=4.0)]
    detector = LevelDetector(window=10, minimum=4, recent=2, threshold=8.0)
    start, found = 0, []
    for i, loss in enumerate(losses):
        now = losses[max(start, i - 1) : i + 1]
        before = losses[max(start, i - 11) : max(start, i - 1)]
        z = 0.0
        if len(before) >= 4:
            apart = sorted(abs(before[j + 1] - before[j]) for j in range(len(before) - 1))
            half = len(apart) // 2
            middle = apart[half] if len(apart) % 2 else (apart[half - 1] + apart[half]) / 2
            sigma = 1.4826 * middle / 2**0.5  # of one loss
            z = (sum(now) / 2 - median(before)) / (sigma / 2**0.5 + 1e-8)
        if abs(z) > 8.0:
            found.append(i)
            start = i + 1
        assert detector.observe(loss) == (abs(z) > 8.0)
        assert detector.z == pytest.approx(z, rel=1e-6, abs=1e-9)
    assert any(40 <= i < 44 for i in found)
    assert any(80 <= i < 84 for i in found)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sigmas", [10, 15, 30, 100])
@pytest.mark.parametrize("kind", DETECTORS)
def test_a_jump_is_found_within_eight_batches(kind: Any, seed: int, sigmas: int) -> None:
    before = noise(150, seed)
    after = noise(60, seed + 100, level=5.0 + sigmas * 0.2)
    found = alarms(kind(), before + after)
    assert len(found) == 1
    assert 0 <= found[0] - 150 < 8


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", DETECTORS)
def test_noise_raises_no_alarm(seed: int, kind: Any) -> None:
    assert len(alarms(kind(), noise(1000, seed))) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_smoothing_both_sides_raises_many(seed: int) -> None:
    """Why the default window holds raw losses."""
    assert len(alarms(ShiftDetector(stored="smoothed"), noise(1000, seed))) > 5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sigmas", [6, 8])
def test_ours_needs_no_long_window(seed: int, sigmas: int) -> None:
    """The first losses of a new domain enter the window, and a deviation of 50 follows them."""
    losses = noise(50, seed) + noise(40, seed + 100, level=5.0 + sigmas * 0.2)
    assert alarms(ShiftDetector(), losses) == []
    found = alarms(LevelDetector(), losses)
    assert len(found) == 1
    assert 0 <= found[0] - 50 < 8


@pytest.mark.parametrize("seed", range(5))
def test_ours_finds_domains_of_many_levels(seed: int) -> None:
    """Levels up and down as a real stream has them; the paper's window spans several of them."""
    levels = [5.0, 6.5, 5.5, 4.0, 5.2, 7.0, 5.0]
    losses = [v for i, level in enumerate(levels) for v in noise(50, 10 * seed + i, level)]
    borders = range(50, 350, 50)
    found = alarms(LevelDetector(), losses)
    assert [any(b <= i < b + 10 for i in found) for b in borders].count(True) >= 5
    assert sum(not any(b <= i < b + 10 for b in borders) for i in found) <= 1
    assert len(alarms(ShiftDetector(), losses)) <= 2


def test_a_falling_loss_is_no_shift() -> None:
    assert alarms(ShiftDetector(), noise(120, 1) + noise(60, 2, level=1.0)) == []


def test_silent_until_the_minimum_and_again_after_a_shift() -> None:
    detector = ShiftDetector(minimum=20)
    for i in range(20):
        assert not detector.observe(1.0 + 100.0 * (i == 19))
        assert detector.z == 0.0
    detector = ShiftDetector(minimum=20)
    assert alarms(detector, [1.0] * 30 + [50.0]) == [30]
    assert detector.z > 1.5
    assert detector.state_dict()["window"] == []
    # 0.9 + 0.1 * 50: the moving average goes on where the window starts anew
    assert detector.state_dict()["average"] == pytest.approx(5.9)
    assert not any(detector.observe(1e6 * 2.0**i) for i in range(20))


@pytest.mark.parametrize("kind", DETECTORS)
def test_a_constant_loss_is_no_shift(kind: Any) -> None:
    assert alarms(kind(), [3.0] * 200) == []


@pytest.mark.parametrize("kind", DETECTORS)
def test_values_that_are_not_finite_are_ignored(kind: Any) -> None:
    losses = noise(150, 1) + noise(20, 2, level=9.0)
    plain, disturbed = kind(), kind()
    for i, loss in enumerate(losses):
        if i % 7 == 3:
            before = disturbed.state_dict()
            for bad in (math.nan, math.inf, -math.inf):
                assert disturbed.observe(bad) is False
            assert disturbed.state_dict() == before
        assert disturbed.observe(loss) == plain.observe(loss)
        assert disturbed.z == plain.z


@pytest.mark.parametrize("kind", DETECTORS)
def test_a_huge_loss_does_not_break_it(kind: Any) -> None:
    detector = kind(window=30)
    alarms(detector, [*noise(25, 1), 1e300, *noise(200, 2)])
    assert math.isfinite(detector.z)


@pytest.mark.parametrize("cut", [0, 1, 19, 20, 130, 152, 160])
@pytest.mark.parametrize("kind", DETECTORS)
def test_resumes_mid_stream(kind: Any, cut: int) -> None:
    losses = noise(150, 1) + noise(80, 2, level=9.0)
    whole = kind()
    expected = [(whole.observe(loss), whole.z) for loss in losses]
    assert any(found for found, _ in expected)
    first, second = kind(), kind()
    alarms(second, noise(10, 9))  # what it knew before must be gone
    got = [(first.observe(loss), first.z) for loss in losses[:cut]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.z == first.z
    got += [(second.observe(loss), second.z) for loss in losses[cut:]]
    assert got == expected


@pytest.mark.parametrize(("kind", "held"), [(ShiftDetector, "window"), (LevelDetector, "losses")])
def test_a_saved_state_does_not_change_later(kind: Any, held: str) -> None:
    detector = kind()
    alarms(detector, noise(5, 1))
    state = detector.state_dict()
    alarms(detector, noise(5, 2))
    assert len(state[held]) == 5


@pytest.mark.parametrize("wrong", [{"window": 10}, {"minimum": 0}, {"smoothing": 1.0}])
def test_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected 1 <= minimum <= window"):
        ShiftDetector(**wrong)


@pytest.mark.parametrize("wrong", [{"window": 10}, {"minimum": 1}, {"recent": 0}])
def test_ours_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected 2 <= minimum <= window"):
        LevelDetector(**wrong)
