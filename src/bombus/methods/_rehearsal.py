"""Source images that BEE goes on learning beside the stream, so that it cannot drift from them.

RMT does so with labelled images. Here the prepared network labels them itself, before the stream
can change it: on images that it was trained on it is nearly always right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from bombus.data.augment import VIEWS
from bombus.losses.precision import at_least_single

if TYPE_CHECKING:
    from bombus.methods.bee import Bee


def keeping(bee: Bee, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same batches; the first images of them are kept to be rehearsed."""
    for x in batches:
        if bee.config.rehearsal_weight:
            unlabelled = torch.zeros(len(x), dtype=torch.long)
            bee.rehearsal.append(x, unlabelled)
        yield x


def label(bee: Bee, batch: int) -> None:
    with torch.no_grad():
        bee.rehearsal.relabel(lambda x: bee.forward(x).argmax(1), batch, bee.parameters[0].device)


def with_rehearsal(bee: Bee, gradients: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    """The stream's gradients and those of `count` source images, whose graph lives by itself."""
    weight = bee.config.rehearsal_weight
    if not (weight and len(bee.rehearsal)):
        return gradients
    x, y = bee.rehearsal.draw(count, bee.generator, bee.parameters[0].device)
    student = bee.passes(bee.view(VIEWS[bee.config.rehearsal_view], x))
    loss = F.cross_entropy(at_least_single(student.logits), y)
    own = torch.autograd.grad(weight * loss, bee.parameters, materialize_grads=True)
    return tuple(a + b for a, b in zip(gradients, own, strict=True)) if gradients else own
