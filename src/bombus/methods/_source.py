"""Source data as methods read it: batches of images, or of (images, labels), on their device."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bombus.errors import DataError

if TYPE_CHECKING:
    from bombus.methods.base import Source


class Counted:
    """A source as it is, and how much of it was read: the longest pass, a byte a value."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.bytes = 0

    def __iter__(self) -> Iterator[Any]:
        read = 0
        for batch in self.source:
            images = batch[0] if isinstance(batch, tuple | list) else batch
            read += images.numel()
            self.bytes = max(self.bytes, read)
            yield batch


class SizedCounted(Counted):
    def __len__(self) -> int:
        assert isinstance(self.source, Sized)
        return len(self.source)


def counted(source: Source) -> Counted:
    """With a length where the source has one: such a source can be read again."""
    return SizedCounted(source) if isinstance(source, Sized) else Counted(source)


def image_batches(source: Source, device: torch.device) -> Iterator[Tensor]:
    """The images alone, whether labels came with them or not."""
    for batch in source:
        images: Tensor = batch[0] if isinstance(batch, tuple | list) else batch
        if len(images):
            yield images.to(device)


def labelled_batches(source: Source, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in source:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise DataError(
                "This method needs labelled source data; pass source=loader, batches of "
                f"(images, labels), not of {_kind(batch)}."
            )
        images, labels = batch[0], torch.as_tensor(batch[1])
        if len(images):
            yield images.to(device), labels.to(device)


def _kind(batch: Any) -> str:
    return f"{type(batch).__name__}s"
