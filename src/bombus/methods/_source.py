"""Source data as methods read it: behind the input gate, batch by batch, on their device.

Every method's source is a GatedSource: a batch that is wrong as a whole is refused, single bad
images are set aside with their labels, as in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bombus import gate
from bombus.backbones.input import Input
from bombus.errors import DataError, InputError
from bombus.transfer import send

if TYPE_CHECKING:
    from bombus.methods.base import Source


class GatedSource:
    """Batches of images, or of (images, labels), all of them usable.

    What the longest pass took is known: the bytes read, at one a value, and the images set aside.
    """

    def __init__(
        self,
        source: Source,
        expected: Input,
        like: Tensor,
        labelled: bool,
        try_out: Callable[[Tensor], None],
    ) -> None:
        self.source = source
        self.expected = expected
        self.dtype = like.dtype
        self.labelled = labelled
        self.try_out = try_out
        self.bytes = 0
        self.rejected: list[str] = []  # why, one an image

    def __iter__(self) -> Iterator[Any]:
        read = kept = 0
        rejected: list[str] = []
        for number, batch in enumerate(self.source, start=1):
            images = _images(batch, number)
            passed = self._check(images, number)
            labels = _labels(batch, len(images)) if self.labelled else None
            read += images.numel()
            rejected += passed.rejected.values()
            kept += len(passed.kept)
            self.bytes = max(self.bytes, read)
            self.rejected = max(self.rejected, rejected, key=len)
            if passed.kept:
                clean = gate.clean(images, passed)
                with _of_batch(number):
                    self.try_out(clean)
                yield clean if labels is None else (clean, gate.clean(labels, passed))
        if rejected and not kept:
            raise DataError(
                f"None of the {len(rejected)} source images can be used (the first: "
                f"{rejected[0]}); give a source of clean images."
            )

    def _check(self, images: Tensor, number: int) -> gate.Gated:
        # Where the images lie: those in the computer's memory make no GPU wait.
        like = torch.empty(0, dtype=self.dtype, device=images.device)
        with _of_batch(number):
            return gate.check(images, self.expected, like=like)


class SizedGatedSource(GatedSource):
    def __len__(self) -> int:
        assert isinstance(self.source, Sized)
        return len(self.source)


@contextmanager
def _of_batch(number: int) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"In batch {number} of the source: {error}") from None


def gated_source(
    source: Source,
    expected: Input,
    *,
    like: Tensor,
    labelled: bool,
    try_out: Callable[[Tensor], None],
) -> GatedSource:
    """With a length where the source has one: such a source can be read again."""
    if isinstance(source, Tensor) or not (
        hasattr(source, "__iter__") or hasattr(source, "__getitem__")
    ):
        raise DataError(
            f"Got a {type(source).__name__} as source, expected batches one after the other; pass "
            "a data loader, or a list such as [x]."
        )
    kind = SizedGatedSource if _has_length(source) else GatedSource
    return kind(source, expected, like, labelled, try_out)


def image_batches(source: Source, device: torch.device) -> Iterator[Tensor]:
    """The images alone, whether labels came with them or not."""
    for batch in source:
        images: Tensor = batch[0] if isinstance(batch, tuple | list) else batch
        if len(images):
            yield send(images, device)


def labelled_batches(source: Source, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for images, labels in source:
        if len(images):
            yield send(images, device), send(labels, device)


def _has_length(source: Source) -> bool:
    if not isinstance(source, Sized):
        return False
    try:
        return len(source) >= 0
    except TypeError:  # a loader of a data set that cannot tell
        return False


def _images(batch: Any, number: int) -> Tensor:
    images = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(images, Tensor):
        inside = "" if images is batch else f" that begins with a {type(images).__name__}"
        raise DataError(
            f"Batch {number} of the source is a {type(batch).__name__}{inside}, expected a tensor "
            "of images, or (images, labels); convert it first."
        )
    return images


def _labels(batch: Any, images: int) -> Tensor:
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise DataError(
            "This method needs labelled source data; pass source=loader, batches of "
            f"(images, labels), not of {type(batch).__name__}s."
        )
    wanted = "expected a whole number an image, that of its class, from 0"
    try:
        labels = torch.as_tensor(batch[1])
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"A source batch of {images} images came with a {type(batch[1]).__name__} of no "
            f"numbers as labels; {wanted}."
        ) from None
    fractional = labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool
    if labels.shape != (images,) or (images and fractional):
        raise DataError(
            f"A source batch of {images} images came with labels of shape {tuple(labels.shape)} "
            f"and type {str(labels.dtype).removeprefix('torch.')}; {wanted}."
        )
    return labels.long()
