"""Labels in bursts: told by how often two images of a batch are answered alike.

A batch of few classes has statistics of few classes, and whoever normalises with them is misled.
Under the statistics of source images a network is worse at a new domain, but does not care who else
is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bombus.methods._norm import batch_norms, source_moments, source_statistics

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
    counts = answers.bincount(minlength=classes).cpu().double()
    alike = float((counts * (counts - 1)).sum()) / 2
    expected = len(answers) * (len(answers) - 1) / 2 / classes
    return max(0.0, alike - 4 * expected**0.5) / expected if expected else 0.0


@torch.no_grad()
def take_statistics(model: nn.Module, passes: Iterable[None]) -> bool:
    """Give every BatchNorm the statistics of what goes through it while `passes` are drawn.

    False, and nothing changed, where nothing went through, or something that is not finite.
    """
    norms = [norm for norm in batch_norms(model) if norm.running_mean is not None]
    before = [
        (norm.momentum, norm.track_running_stats, deepcopy(dict(norm.named_buffers())))
        for norm in norms
    ]
    for norm in norms:
        norm.momentum, norm.track_running_stats = None, True  # the mean over all batches
        norm.reset_running_stats()
    taken = False
    try:
        seen = sum(1 for _ in passes)
        taken = seen > 0 and all(t.isfinite().all() for t in source_moments(model).values())
    finally:
        for norm, (momentum, track, buffers) in zip(norms, before, strict=True):
            norm.momentum, norm.track_running_stats = momentum, track
            for name, buffer in norm.named_buffers():
                # The count is that of training all the same, as of a network read from a file.
                if not taken or name == "num_batches_tracked":
                    buffer.copy_(buffers[name])
    return taken or not norms
