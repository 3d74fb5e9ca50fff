"""A bounded store of labelled images to learn from again: source images, or sure test images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bombus.data.queue import from_bytes, to_bytes
from bombus.errors import InputError


class LabelledImages:
    """Up to `capacity` images in numbered places, a label beside each, drawn at random.

    As in SampleQueue a byte a pixel holds them where that loses nothing, and memory is taken once,
    for all places. Images of another shape or dtype than those stored cannot share a batch with
    them: see `fits`. The store has a device of its own; what is drawn goes wherever it is wanted.

    Args:
        megabytes: where so many images of the first one's size would take more, fewer are kept.
    """

    def __init__(self, capacity: int, device: torch.device, *, megabytes: float = math.inf) -> None:
        if capacity < 1:
            raise ValueError(f"Got a store of {capacity} images, expected at least 1.")
        self.asked = capacity
        self.device = device
        self.megabytes = megabytes
        self.clear()

    def __len__(self) -> int:
        return self._count

    @property
    def cut_short(self) -> str | None:
        """Why it is full with fewer images than were asked for, if it is."""
        if self._images is None or not self._count == self.capacity < self.asked:
            return None
        return (
            f"{self._count:,} source images are kept where {self.asked:,} were asked for: "
            f"more would take over {self.megabytes:g} MB"
        )

    def clear(self) -> None:
        self.capacity = self.asked
        self._images: Tensor | None = None  # (capacity, 3, H, W): bytes, or as put
        self._labels = torch.empty(0, dtype=torch.long)  # (capacity,)
        self._like = torch.empty(0)  # no images, with the dtype and shape of one
        self._count = 0

    def fits(self, x: Tensor) -> bool:
        """Whether x may be put beside what is there."""
        return self._images is None or (
            x.shape[1:] == self._like.shape[1:] and x.dtype == self._like.dtype
        )

    def append(self, x: Tensor, y: Tensor) -> int:
        """Put as many of the images as there is room for into free places; returns how many."""
        if self._images is None and len(x):
            self._begin(x)
        room = min(len(x), self.capacity - self._count)
        next_ones = self._count + torch.arange(room, device="cpu")
        return self.put(next_ones, x[:room], y[:room])

    def put(self, places: Tensor, x: Tensor, y: Tensor) -> int:
        """Write images (n, 3, H, W) and labels (n,) into n different places, taken or next.

        All find room, but where they are the first that bytes cannot hold: then the store turns to
        floats, of which memory may have room for fewer. Returns how many found it.
        """
        if not len(x):
            return 0
        if not self.fits(x):
            raise InputError(
                f"Got {x.dtype} images of shape {tuple(x.shape[1:])} to keep beside "
                f"{self._like.dtype} images of shape {tuple(self._like.shape[1:])}; give all "
                "source images one size and dtype."
            )
        packed = to_bytes(x)
        images = self._begin(x) if self._images is None else self._images
        if packed is None and images.dtype != x.dtype:
            images = self._widen(images)
            there = (places < self.capacity).cpu()
            places, x, y = places[there], x[there], y[there]
            if not len(x):
                return 0
        values = x.detach() if packed is None or images.dtype == x.dtype else packed
        there = places.to(self.device)
        images[there] = values.to(self.device)
        self._labels[there] = y.to(self.device)
        self._count = max(self._count, int(places.max()) + 1)
        return len(x)

    def draw(
        self, count: int, generator: torch.Generator, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """`count` different images and their labels, or all where there are fewer."""
        if self._images is None:
            raise ValueError("The store is empty; put images into it before drawing some.")
        chosen = torch.randperm(self._count, generator=generator, device=generator.device)
        chosen = chosen[:count].to(self.device)
        # Moved as they are stored: bytes are a quarter of the way.
        images, labels = self._images[chosen].to(device), self._labels[chosen].to(device)
        if images.dtype != self._like.dtype:
            images = from_bytes(images, self._like.to(device))
        return images, labels

    def state_dict(self) -> dict[str, Any]:
        if self._images is None:
            return {}
        taken = slice(0, self._count)
        return {
            "images": self._images[taken],
            "labels": self._labels[taken],
            "like": self._like,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """All that was stored; the first of it in a store of fewer places or megabytes."""
        if not state:
            self.clear()
            return
        images, labels, like = (state[name] for name in ("images", "labels", "like"))
        if len(images) != len(labels):  # and nothing has changed yet
            raise ValueError(
                f"Got a store of {len(images)} images and {len(labels)} labels, expected a label "
                "an image; make it again."
            )
        self.clear()
        self._limit(images[0].nbytes)
        images, labels = (t[: self.capacity].to(self.device) for t in (images, labels))
        self._like = like.to(self.device)
        self._count = len(images)
        self._images = images.new_zeros(self.capacity, *images.shape[1:])
        self._images[: self._count] = images
        self._labels = labels.new_zeros(self.capacity)
        self._labels[: self._count] = labels

    def _begin(self, x: Tensor) -> Tensor:
        packed = to_bytes(x)
        like = x if packed is None else packed
        self._limit(like[0].nbytes)
        self._images = torch.zeros(
            (self.capacity, *x.shape[1:]), dtype=like.dtype, device=self.device
        )
        self._labels = torch.zeros(self.capacity, dtype=torch.long, device=self.device)
        self._like = x[:0].detach().to(self.device)
        return self._images

    def _widen(self, images: Tensor) -> Tensor:
        """From bytes to the images' own numbers; the first of them, where room is for fewer."""
        self._limit(math.prod(images.shape[1:]) * self._like.element_size())
        self._images = from_bytes(images[: self.capacity], self._like)
        self._labels = self._labels[: self.capacity].clone()
        self._count = min(self._count, self.capacity)
        return self._images

    def _limit(self, an_image: int) -> None:
        """As many places as there is memory for, two at least: a batch of one teaches little."""
        room = self.megabytes * 1e6 / max(1, an_image)
        self.capacity = int(min(self.asked, max(2, room)))


class SureImages:
    """OBAO's buffer: images with the labels they were given, and the entropies of those."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.images = LabelledImages(capacity, device)
        self.entropies = torch.empty(0, device=device)  # as many as images

    def __len__(self) -> int:
        return len(self.images)

    def keep(self, x: Tensor, y: Tensor, entropies: Tensor) -> None:
        """Into free places first, then into those of the highest entropies, whatever their own."""
        if not self.images.fits(x):  # another size of image: the old ones cannot share a batch
            self.images.clear()
            self.entropies = self.entropies[:0]
        fitting = self.images.append(x, y)
        self.entropies = torch.cat([self.entropies, entropies[:fitting].to(self.entropies)])
        x, y, entropies = (t[fitting : fitting + len(self)] for t in (x, y, entropies))
        places = self.entropies.argsort(descending=True, stable=True)[: len(x)]
        self.images.put(places, x, y)
        self.entropies[places] = entropies.to(self.entropies)

    def state_dict(self) -> dict[str, Any]:
        return {"images": self.images.state_dict(), "entropies": self.entropies}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.images.load_state_dict(state["images"])
        self.entropies = state["entropies"].to(self.entropies.device)
