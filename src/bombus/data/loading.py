"""From a stream's plan to pictures: the pieces of a batch are read, blended and put in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bombus.data.batch import Batch
from bombus.data.images import ImageSet
from bombus.data.stream import Piece
from bombus.errors import DataError


def load_batch(images: ImageSet, pieces: Sequence[Piece], position: int) -> Batch:
    loaded = [_load(images, piece) for piece in pieces]
    x = torch.cat([x for x, _ in loaded])
    y = torch.cat([y for _, y in loaded])
    index = np.concatenate([p.index for p in pieces])
    domains = tuple(p.domain for p in pieces for _ in p.index)
    places = [p.places for p in pieces if p.places is not None]
    if places:
        back = np.argsort(np.concatenate(places))
        x, y, index = x[back], y[back], index[back]
        domains = tuple(domains[i] for i in back)
    return Batch(position=position, x=x, y=y, index=index, domains=domains)


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one domain as one piece, so that their images are read in one go."""
    return [
        Piece(domain, severity, np.concatenate([p.index for p in same]))
        for (domain, severity), same in groupby(pieces, key=lambda p: (p.domain, p.severity))
    ]


def blend(a: Tensor, b: Tensor, share: NDArray[np.float32]) -> Tensor:
    """(1 - share) a + share b for each image (N, 3, H, W), rounded to 8 bit as a file would be.

    With shares in steps of 1/256 all of it is exact in float32 before the rounding, so that the
    pictures are the same on every machine.
    """
    t = torch.from_numpy(share).view(-1, 1, 1, 1)
    a, b = (a * 255).round(), (b * 255).round()
    return ((1 - t) * a + t * b).round().div_(255)


def _load(images: ImageSet, piece: Piece) -> tuple[Tensor, Tensor]:
    x, y = images.load(piece.domain, piece.severity, piece.index)
    if piece.other is None or piece.share is None:
        return x, y
    other, same = images.load(piece.other, piece.severity, piece.index)
    if not torch.equal(y, same):
        raise DataError(
            f"The images of {piece.domain!r} and {piece.other!r} have different labels, so they "
            "are not the same pictures and cannot be blended; use another stream."
        )
    return blend(x, other, piece.share), y
