"""What RMT, OBAO and CoTTA share beside the teacher itself.

Shapes: N images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from bombus.backbones.input import Input
from bombus.errors import ConfigError
from bombus.methods._norm import batch_norms
from bombus.methods._source import labelled_batches

if TYPE_CHECKING:
    from bombus.methods.base import Source

Gradients = Sequence[Tensor | None]


def require_colour_images(expected: Input, method: str) -> None:
    if expected.channels not in (3, None) or (expected.low, expected.high) != (0, 1):
        raise ConfigError(
            f"{method} augments colours: it takes images of 3 channels in [0, 1], not of "
            f"{expected.channels} in [{expected.low:g}, {expected.high:g}]; convert them, or "
            "choose another method (bombus list methods)."
        )


def require_colour(expected: Input, method: str, remedy: str) -> None:
    """For methods whose views fit images of any range (`Adapter.view`)."""
    if expected.channels not in (3, None):
        raise ConfigError(
            f"{method} augments colours: it takes images of 3 channels, not of "
            f"{expected.channels}; {remedy}."
        )


def usable_batches(
    source: Source, model: nn.Module, images: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Labelled batches until `images` have come, on the model's device.

    With BatchNorm those of a single image are left out: it makes no batch statistics.
    """
    fewest = 2 if batch_norms(model) else 1
    seen = 0
    for x, y in labelled_batches(source, next(model.parameters()).device):
        if len(x) >= fewest:
            yield x, y
            seen += len(x)
        if seen >= images:
            return


def sum_gradients(first: Gradients, second: Gradients) -> Gradients:
    """Gradients of the same parameters added up; None, or no gradients at all, count as zero."""
    if not first or not second:
        return first or second
    return [
        b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)
    ]
