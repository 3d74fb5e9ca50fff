"""Random numbers that depend on (key, sample index, position) and on nothing else.

A sequential generator would give image 7 other noise alone than in a batch, so every number is a
hash of its place: SplitMix64 started at a hash of the key and the sample's index, read at the
position. The numbers are the same on every device: integers wrap alike everywhere, and results of
library functions (log, cos) are snapped to a grid far coarser than their last bits.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's increment, as a signed number
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_LOW = 2**32 - 1
_SNAP = 2.0**24


def _hash(state: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of int64 in which every bit depends on every bit."""
    for shift, factor in ((30, _MIX[0]), (27, _MIX[1])):
        state = (state ^ ((state >> shift) & (2 ** (64 - shift) - 1))).mul_(factor)
    return state.bitwise_xor_((state >> 31) & (2**33 - 1))


class Draws:
    """The random numbers of one corruption for N samples; each call reads the next positions.

    Legend: N samples, every draw returns (N, *shape).
    """

    def __init__(self, seed: int, purpose: str, index: Tensor) -> None:
        digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little", signed=True)
        # Two hashes apart, so that neighbouring indices do not start neighbouring sequences.
        self._start = _hash(_hash(index.long() * _GOLDEN + key) ^ key)[:, None]  # (N, 1)
        self._position = 0

    def _bits(self, count: int) -> Tensor:
        position = torch.arange(
            self._position + 1, self._position + 1 + count, device=self._start.device
        )
        self._position += count
        return _hash(self._start + position * _GOLDEN)  # (N, count)

    def zeros(self, *shape: int) -> Tensor:
        """float64 zeros of the size of a draw, for algorithms that fill them step by step."""
        count, device = len(self._start), self._start.device
        return torch.zeros(count, *shape, dtype=torch.float64, device=device)

    def uniform(self, *shape: int) -> Tensor:
        """float64 in the open interval (0, 1), on a grid of 2^-32."""
        count = math.prod(shape)
        bits = self._bits((count + 1) // 2)
        halves = torch.cat([(bits >> 32) & _LOW, bits & _LOW], dim=1)[:, :count]
        return halves.double().add_(0.5).mul_(2.0**-32).reshape(-1, *shape)

    def integer(self, low: int, high: int, *shape: int) -> Tensor:
        """int64, each of low .. high - 1 alike (to one part in 2^32 / (high - low))."""
        return (self.uniform(*shape) * (high - low)).long() + low

    def normal(self, *shape: int) -> Tensor:
        """float64 standard normals by Box and Muller, on a grid of 2^-24, |z| < 6.8."""
        count = math.prod(shape)
        bits = self._bits((count + 1) // 2)
        radius = ((bits >> 32) & _LOW).double().add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        angle = (bits & _LOW).double().mul_(2 * math.pi * 2.0**-32)
        pair = torch.cat([radius * torch.cos(angle), radius.mul_(torch.sin(angle))], dim=1)
        snapped = pair[:, :count].mul_(_SNAP).round_().mul_(1 / _SNAP)
        return snapped.reshape(-1, *shape)
