"""When the domain changes: a z-score on the loss, BEE's appendix."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, Literal

from bombus.errors import ConfigError

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
        scale: mean and standard deviation, or the median and 1.4826 times the median distance
            from it. The first losses of a new domain enter the window before the moving average
            has risen; they blow up the deviation (in a window of 50, a jump of 8 deviations is
            missed) but not the median.
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
        scale: Literal["std", "mad"] = "std",
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
        self.scale = scale
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
        if self.scale == "mad":
            centre = median(values)
            # 1.4826 makes it the standard deviation where the losses are Gaussian.
            return centre, 1.4826 * median(abs(v - centre) for v in values)
        mean = math.fsum(values) / len(values)
        return mean, math.sqrt(math.fsum((v - mean) * (v - mean) for v in values) / len(values))
