"""When the domain changes, told from the loss: BEE's z-score, and a rule of ours."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from bombus.errors import ConfigError

if TYPE_CHECKING:
    from bombus.methods._bee_config import BeeConfig

Kind = Literal["smoothed", "raw"]


class ShiftDetector:
    """Tells a spike of the loss from its noise: z = (loss - μ) / σ over a window of past losses.

    The paper leaves open where its moving average enters. Here the loss in question is smoothed
    and the window holds raw losses: on stationary noise that raises next to no false alarm, where
    smoothing both (whose σ is 4 times smaller) raises some 15 in 1,000 batches. `numerator` and
    `stored` select the other readings.

    Args:
        window: how many losses before the current one are compared with.
        threshold: a shift is where z exceeds this, η.
        smoothing: momentum of the moving average.
        minimum: fewer losses than this say nothing; also the shortest time between two shifts.
        numerator: which loss is tested.
        stored: which losses the window holds.
    """

    def __init__(
        self,
        *,
        window: int = 100,
        threshold: float = 1.5,
        smoothing: float = 0.9,
        minimum: int = 20,
        numerator: Kind = "smoothed",
        stored: Kind = "raw",
    ) -> None:
        if not 1 <= minimum <= window or not 0 <= smoothing < 1:
            raise ConfigError(
                f"Got window={window}, minimum={minimum}, smoothing={smoothing}; expected "
                "1 <= minimum <= window and 0 <= smoothing < 1."
            )
        self.threshold = threshold
        self.smoothing = smoothing
        self.minimum = minimum
        self.numerator = numerator
        self.stored = stored
        self.z = 0.0
        self._average: float | None = None
        self._window: deque[float] = deque(maxlen=window)

    def observe(self, loss: float) -> bool:
        """Take in the loss of one batch; True where a shift is found."""
        if not math.isfinite(loss):
            return False  # one NaN in the average or the window would silence it for good
        self._average = (
            loss
            if self._average is None
            else self.smoothing * self._average + (1 - self.smoothing) * loss
        )
        # The window does not hold the current loss yet: a spike must not raise its own yardstick.
        self.z = 0.0
        if len(self._window) >= self.minimum:
            tested = self._average if self.numerator == "smoothed" else loss
            centre, spread = self._statistics()
            self.z = (tested - centre) / (spread + 1e-8)
        if self.z > self.threshold:
            self._window.clear()  # what was normal in the old domain says nothing about the new
            return True
        self._window.append(loss if self.stored == "raw" else self._average)
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"window": list(self._window), "average": self._average, "z": self.z}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._window = deque(state["window"], maxlen=self._window.maxlen)
        self._average = state["average"]
        self.z = state["z"]

    def _statistics(self) -> tuple[float, float]:
        values = self._window
        mean = math.fsum(values) / len(values)
        return mean, math.sqrt(math.fsum((v - mean) * (v - mean) for v in values) / len(values))


class LevelDetector:
    """Ours: has the loss moved to another level, up or down?

    The paper's rule has three weaknesses on a real stream of 50-batch domains, where it finds next
    to nothing. Its window of 100 spans several domains, whose levels differ, so that σ measures
    those differences and not the noise. The first losses of a new domain enter the window before
    the moving average has risen. And half of all shifts lead to an easier domain: the loss falls.

    So: the mean of the latest `recent` losses against the median of those before them, in units of
    the noise between neighbours, which a change of level hardly touches; in both directions.

    Args:
        window: how many losses before the recent ones are compared with.
        threshold: a shift is where |z| exceeds this.
        minimum: fewer losses than this before the recent ones say nothing.
        recent: how many losses are averaged: fewer find sooner, more find smaller shifts.
    """

    def __init__(
        self, *, window: int = 30, threshold: float = 6.0, minimum: int = 15, recent: int = 3
    ) -> None:
        if not 2 <= minimum <= window or recent < 1:
            raise ConfigError(
                f"Got window={window}, minimum={minimum}, recent={recent}; expected "
                "2 <= minimum <= window and recent >= 1."
            )
        self.threshold = threshold
        self.minimum = minimum
        self.recent = recent
        self.z = 0.0
        self._losses: deque[float] = deque(maxlen=window + recent)

    def observe(self, loss: float) -> bool:
        """Take in the loss of one batch; True where a shift is found."""
        if not math.isfinite(loss):
            return False
        self._losses.append(loss)
        losses = list(self._losses)
        before, now = losses[: -self.recent], losses[-self.recent :]
        self.z = 0.0
        if len(before) < self.minimum:
            return False
        steps = [abs(b - a) for a, b in pairwise(before)]
        # The median of |x| is σ / 1.4826 where x is Gaussian; a difference of two has √2 σ.
        noise = 1.4826 * median(steps) / math.sqrt(2 * self.recent)
        self.z = (math.fsum(now) / len(now) - median(before)) / (noise + 1e-8)
        if abs(self.z) > self.threshold:
            self._losses.clear()
            return True
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self._losses), "z": self.z}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._losses = deque(state["losses"], maxlen=self._losses.maxlen)
        self.z = state["z"]


def shift_detector(config: BeeConfig) -> ShiftDetector | LevelDetector:
    window, minimum, threshold = config.window, config.window_minimum, config.threshold
    if config.trigger == "level":
        return LevelDetector(window=window, minimum=minimum, threshold=threshold)
    return ShiftDetector(
        window=window, minimum=minimum, threshold=threshold, smoothing=config.smoothing
    )
