"""Labels in bursts: told by how often two images of a batch are answered alike.

A batch of few classes has statistics of few classes, and whoever normalises with them is misled.
Under the statistics of source images a network is worse at a new domain, but does not care who else
is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bombus.methods._norm import batch_norms, source_statistics

if TYPE_CHECKING:
    from bombus.methods.bee import Bee


# Of answers under the batch's own statistics. These are even where the labels are, in a domain that
# leaves few classes to the source's statistics, too. Extras and their pairs, WRN-16-1, batches of
# 200: in bursts .98 and more, else .95 and less.
EVEN = 0.965


@torch.no_grad()
def answer_to_a_burst(bee: Bee, x: Tensor) -> tuple[Tensor | None, float]:
    """What the teacher makes of x under the source's statistics, if that is of too few classes for
    x's own to be any good; and how concentrated it is."""
    views = bee.passes.views(x)
    with source_statistics(bee.model):
        logits = bee.passes.mean(bee.teach(views).logits)
    found = concentration(logits.argmax(1), logits.shape[1])
    if found <= bee.config.bursts:
        return None, found
    own = bee.passes.mean(bee.teach(views).logits)
    even = concentration(own.argmax(1), own.shape[1]) <= EVEN
    return (None if even else logits), found


def concentration(answers: Tensor, classes: int) -> float:
    """How often two images have the same class, as a multiple of what drawn labels would give.

    1 on average for labels drawn evenly, whatever the batch's size and the number of classes; in
    small batches of many classes few pairs are alike, so what chance explains is taken off: four
    deviations of their number, as if they were independent.
    """
    counts = answers.bincount(minlength=classes).double().cpu()
    alike = float((counts * (counts - 1)).sum()) / 2
    expected = len(answers) * (len(answers) - 1) / 2 / classes
    return max(0.0, alike - 4 * expected**0.5) / expected if expected else 0.0


@torch.no_grad()
def take_statistics(model: nn.Module, passes: Iterable[None]) -> None:
    """Give every BatchNorm the statistics of what goes through it while `passes` are drawn."""
    norms = [norm for norm in batch_norms(model) if norm.running_mean is not None]
    before = [(norm.momentum, norm.track_running_stats) for norm in norms]
    counts = [
        None if n.num_batches_tracked is None else n.num_batches_tracked.clone() for n in norms
    ]
    for norm in norms:
        norm.momentum, norm.track_running_stats = None, True  # the mean over all batches
        norm.reset_running_stats()
    try:
        for _ in passes:
            pass
    finally:
        for norm, (momentum, track), count in zip(norms, before, counts, strict=True):
            norm.momentum, norm.track_running_stats = momentum, track
            if norm.num_batches_tracked is not None and count is not None:
                norm.num_batches_tracked.copy_(count)  # as of one that is read from a file
