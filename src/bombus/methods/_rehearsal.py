"""Source images that BEE goes on learning beside the stream, so that it cannot drift from them.

RMT does so with labelled images. Here the source network labels them, as it was given: on images
that it was trained on it is nearly always right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from bombus.data.augment import VIEWS
from bombus.losses.precision import at_least_single
from bombus.methods._mean_teacher import Gradients, sum_gradients
from bombus.methods._norm import source_statistics

if TYPE_CHECKING:
    from bombus.methods.bee import Bee


def keeping(bee: Bee, batches: Iterable[Tensor], trained: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """The same batches; the first images of them are kept, before anything is learnt from them.

    `trained` are the source network's own values of what the preparation is about to change. Images
    of another size than the first are not kept: they could not share a batch with them.
    """
    if not bee.config.rehearsal_weight:
        yield from batches
        return
    given = {name: value.detach().clone() for name, value in trained.items()}
    for x in batches:
        if len(bee.rehearsal) < bee.rehearsal.capacity and bee.rehearsal.fits(x):
            logits = _answers(bee, x, given)
            known = logits.isfinite().all(1)
            bee.rehearsal.append(x[known], logits[known].argmax(1))
        yield x


def with_rehearsal(bee: Bee, gradients: Gradients, count: int) -> Gradients:
    """The stream's gradients and those of `count` source images, whose graph lives by itself."""
    if not len(bee.rehearsal):
        return gradients
    x, y = bee.rehearsal.draw(count, bee.generator, bee.parameters[0].device)
    student = bee.passes(bee.view(VIEWS[bee.config.rehearsal_view], x))
    loss = bee.config.rehearsal_weight * F.cross_entropy(at_least_single(student.logits), y)
    own = torch.autograd.grad(loss, bee.parameters, materialize_grads=True)
    return sum_gradients(gradients, own)


def _answers(bee: Bee, x: Tensor, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad(), source_statistics(bee.model):
        return bee.passes.mean(bee.passes(bee.passes.views(x), given).logits)
