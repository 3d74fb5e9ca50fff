"""How soon a method has found its way in a new domain."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 5  # batches: single ones are too noisy to compare with a margin of a point
MARGIN = 1.0  # points


def batches_to_adapt(wrong: Sequence[int], samples: Sequence[int]) -> int | None:
    """Batches until the error of a visit to a domain is within a point of where it ends.

    The error over `WINDOW` batches is compared with the error over the visit's last quarter (at
    least a window); 0 where the first window is already there. None where the visit is too short
    for two windows that share nothing.
    """
    count = len(wrong)
    if count < 2 * WINDOW:
        return None
    last = max(WINDOW, count // 4)
    final = _error(wrong, samples, count - last, count)
    for start in range(count - WINDOW + 1):
        if _error(wrong, samples, start, start + WINDOW) <= final + MARGIN:
            return start
    return count  # its best window lies above its end only by the end's own spread


def _error(wrong: Sequence[int], samples: Sequence[int], start: int, end: int) -> float:
    return 100 * sum(wrong[start:end]) / sum(samples[start:end])
