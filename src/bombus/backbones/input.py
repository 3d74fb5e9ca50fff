"""What a model expects of its input, said openly: channels, size, value range, normalisation.

Images reach every model as floats in [low, high]; mean and std are applied by the model itself,
so that they are recorded with the run and can never be applied twice or forgotten.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bombus.errors import ConfigError
from bombus.fields import Count, Positive, check_fields


@dataclass(frozen=True, kw_only=True)
class Input:
    channels: Count | None = 3
    size: Count | None = None  # None: the network takes images of any size
    low: float = 0.0
    high: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.low < self.high:
            raise ConfigError(f"Got low={self.low} and high={self.high}, expected low < high.")
        sizes = {None if part is None else len(part) for part in (self.mean, self.std)}
        fitting = self.channels is None or sizes in ({None}, {self.channels})
        if len(sizes) > 1 or not fitting:
            raise ConfigError(
                f"Got mean={self.mean} and std={self.std}, expected both or neither, a number for "
                f"each of {self.channels or 'the'} channels."
            )

    def normalise(self, x: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            return x
        mean = torch.tensor(self.mean, dtype=x.dtype, device=x.device).view(1, -1, 1, 1)
        std = torch.tensor(self.std, dtype=x.dtype, device=x.device).view(1, -1, 1, 1)
        return (x - mean) / std

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


CIFAR = Input(size=None)
HALF = Input(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
IMAGENET = Input(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
