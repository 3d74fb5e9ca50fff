"""A second network that follows the first, and the warm-up that RMT and DPLOT give the two.

Shapes: N images, C classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sized
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bombus.errors import DataError
from bombus.losses.divergence import symmetric_cross_entropy
from bombus.methods._caution import LOG, short_warmup
from bombus.methods._norm import batch_logits, batch_norms
from bombus.methods._optim import apply_gradients, ramp
from bombus.methods._progress import with_progress
from bombus.methods._source import image_batches

if TYPE_CHECKING:
    from bombus.methods.base import Source


class Teacher:
    """A copy of a network whose parameters move towards the network's; it is never trained.

    Buffers stay as copied: with batch statistics nobody reads them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = deepcopy(model).requires_grad_(False)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits without a graph; a single image is answered with the source statistics."""
        with torch.no_grad():
            return batch_logits(self.model, x)

    def follow(self, student: nn.Module, momentum: float) -> None:
        """θ_t <- momentum θ_t + (1 - momentum) θ_s."""
        move_towards(self.model.parameters(), student.parameters(), momentum)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(state[name])


def move_towards(slow: Iterable[Tensor], fast: Iterable[Tensor], momentum: float) -> None:
    """slow <- momentum slow + (1 - momentum) fast, in place, one by one."""
    with torch.no_grad():
        torch._foreach_lerp_(list(slow), list(fast), 1 - momentum)


def warm_up(
    student: nn.Module,
    teacher: Teacher,
    source: Source,
    optimizer: torch.optim.Optimizer,
    *,
    images: int,
    momentum: float,
) -> None:
    """RMT's warm-up: student to teacher on the same source images, no labels, lr rising from 0.

    The optimiser's own learning rate is reached at the last step and stays; its moments live on
    into test time, as in the reference. A source of fewer than `images` is gone over once (the
    reference begins it anew). One image alone makes no batch statistics: such a batch is left out.
    """
    if images <= 0:
        return
    device = next(student.parameters()).device
    batches = image_batches(source, device)
    first = next(batches, None)
    if first is None:
        raise DataError("The source has no images; give at least one batch of them.")
    total = max(1, images // len(first))
    if isinstance(source, Sized):
        total = min(total, len(source))
    climb = ramp(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    alone_is_too_few = bool(batch_norms(student))
    step, learnt = 0, False
    stream = itertools.islice(itertools.chain([first], batches), total)
    for step, x in enumerate(with_progress(stream, total), start=1):
        climb(step, total)
        if len(x) == 1 and alone_is_too_few:
            continue
        loss = symmetric_cross_entropy(student(x), teacher(x)).mean()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        learnt |= apply_gradients(gradients, parameters, optimizer)
        teacher.follow(student, momentum)
    if not learnt:
        raise DataError(
            "Nothing could be learnt from the source images: every batch is of one image, which "
            "has no batch statistics, or is answered with numbers that are not finite; give "
            "batches of two or more, normalised as in training."
        )
    climb(1, 1)
    if found := short_warmup(step, total):
        LOG.warning("warm-up cut short: %s", found["reason"])
