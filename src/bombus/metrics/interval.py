"""How sure a mean over seeds is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Student's t, two-sided 95 %, by degrees of freedom from 1.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


def half_width(values: Sequence[float]) -> float | None:
    """Half of the mean's 95 % interval over a few independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    return _t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def _t(degrees: int) -> float:
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = 1.959964  # the normal's, and the first terms of what t is more (Fisher and Cornish, 1960)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
