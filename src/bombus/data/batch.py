"""The one record that flows from a stream to an adapter and its score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """N images, of which the last M are new and count: all of them, or one in a sliding window."""

    position: int  # which batch of the stream this is, from 0
    x: Tensor  # (N, 3, H, W) in [0, 1]
    y: Tensor  # (M,) labels, for scoring only: no adapter ever sees them
    index: NDArray[np.int64]  # (M,) the samples' places in their data set
    domains: tuple[str, ...]  # (M,) the domain of each sample
    adapts: bool = True  # False: the adapter only answers and stays as it is
