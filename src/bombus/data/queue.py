"""The most recent test images, in a quarter of the memory where that loses nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class SampleQueue:
    """A ring of the last `capacity` images, from which batches are drawn at random.

    Test images come from 8-bit files as k / 255, so a byte a pixel holds them exactly. Whether it
    does is checked bit for bit on every push; the first batch that is not of this kind turns the
    queue to the images' own dtype, for good. What is drawn always equals what was pushed. Images
    of another shape, dtype or device than those in the queue cannot share a batch with them: they
    start it anew. Memory is taken once, at the first push, for all `capacity` images; where they
    would take more than `megabytes`, for fewer.
    """

    def __init__(self, capacity: int, *, megabytes: float = 1000) -> None:
        if capacity < 1:
            raise ValueError(f"Got a queue of {capacity} images, expected at least 1.")
        self.asked = self.capacity = capacity
        self.megabytes = megabytes
        self._ring: Tensor | None = None  # (capacity, C, H, W): bytes, or as pushed
        self._like = torch.empty(0)  # no images, with the dtype, shape and device of one
        self._next = 0  # where the next image goes
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def cut_short(self) -> str | None:
        """Why it holds fewer images than were asked for, if it does."""
        if self.capacity == self.asked:
            return None
        return (
            f"{self.capacity:,} recent images are kept where {self.asked:,} were asked for: more "
            f"would take over {self.megabytes:g} MB"
        )

    def push(self, x: Tensor) -> None:
        """Add a batch; the oldest images go where there is no room."""
        if not len(x):
            return
        x = x.detach()
        ring = self._ring
        if ring is None or not _alike(self._like, x):
            ring = self._start(x)
        if ring.dtype != x.dtype:
            packed = to_bytes(x)
            if packed is None:
                ring = self._restore(from_bytes(self._by_age(ring), self._like))
            else:
                x = packed
        x = x[-self.capacity :]
        places = (self._next + torch.arange(len(x), device="cpu")) % self.capacity
        ring[places.to(ring.device)] = x
        self._next = (self._next + len(x)) % self.capacity
        self._count = min(self._count + len(x), self.capacity)

    def forget(self, count: int) -> None:
        """The newest `count` images leave again; those whose places they took are gone."""
        count = min(count, self._count)
        self._next = (self._next - count) % self.capacity
        self._count -= count

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` different images, or all where there are fewer.

        The generator is the CPU's, so that the same images are drawn on every device.
        """
        if self._ring is None:
            raise ValueError("The queue is empty; push a batch before drawing one.")
        # By age, oldest 0: the draw depends on what was pushed, not on where the ring stands.
        order = torch.randperm(self._count, generator=generator, device=generator.device)
        images = self._at(self._ring, order[:count])
        return images if images.dtype == self._like.dtype else from_bytes(images, self._like)

    def state_dict(self) -> dict[str, Any]:
        """The images from the oldest to the newest as they are stored, and what they look like."""
        if self._ring is None:
            return {}
        return {"images": self._by_age(self._ring), "like": self._like}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ring, self._next, self._count = None, 0, 0
        self.capacity = self.asked
        if state:
            self._like = state["like"]
            self._restore(state["images"])

    def _start(self, x: Tensor) -> Tensor:
        like = x[:0].clone()
        ring = self._restore(like.to(x.dtype if to_bytes(x) is None else torch.uint8))
        self._like = like  # now that there is memory for it: else the ring would be of another
        return ring

    def _restore(self, images: Tensor) -> Tensor:
        """A ring of these images, from the oldest to the newest, with room for more."""
        # Two at least, for of one image little is learnt.
        room = self.megabytes * 1e6 / max(1, math.prod(images.shape[1:]) * images.element_size())
        self.capacity = int(min(self.asked, max(2, room)))
        images = images[-self.capacity :]
        self._ring = images.new_zeros(self.capacity, *images.shape[1:])
        self._ring[: len(images)] = images
        self._count = len(images)
        self._next = self._count % self.capacity
        return self._ring

    def _by_age(self, ring: Tensor) -> Tensor:
        """All images as they are stored, from the oldest to the newest."""
        return self._at(ring, torch.arange(self._count, device="cpu"))

    def _at(self, ring: Tensor, ages: Tensor) -> Tensor:
        """New tensor of the images of these ages, 0 the oldest."""
        places = (self._next - self._count + ages) % self.capacity
        return ring[places.to(ring.device)]


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape[1:] == b.shape[1:] and a.dtype == b.dtype and a.device == b.device


def to_bytes(x: Tensor) -> Tensor | None:
    """x as bytes, or None where not every pixel would come back exactly."""
    if not x.is_floating_point():
        return None
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    packed = (wide * 255).round().nan_to_num(0).clamp(0, 255).to(torch.uint8)
    return packed if torch.equal(from_bytes(packed, x), x) else None


def from_bytes(packed: Tensor, like: Tensor) -> Tensor:
    # Divided in float32 and rounded once to 16 bits, as x.float().div(255).to(dtype) does on a CPU.
    # By a tensor: CUDA multiplies by 1 / 255 where the divisor is a plain number, a bit off.
    wide = torch.promote_types(like.dtype, torch.float32)
    return packed.to(wide).div_(torch.full((1,), 255, dtype=wide, device=packed.device)).to(like)
