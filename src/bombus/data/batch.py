"""The one record that flows from a stream to an adapter and its score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    position: int  # which batch of the stream this is, from 0
    x: Tensor  # (N, 3, H, W) in [0, 1]
    y: Tensor  # (N,) labels, for scoring only: no adapter ever sees them
    index: NDArray[np.int64]  # (N,) the samples' places in their data set
    domains: tuple[str, ...]  # (N,) the domain of each sample
