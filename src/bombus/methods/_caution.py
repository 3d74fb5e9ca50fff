"""Cautions for whoever calls a method from Python: warnings of the log "bombus", each said once.

The command line prints events itself, and keeps this log quiet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from bombus.methods._optim import LONG_STRIDE, USUAL_STRIDE, stride

LOG = logging.getLogger("bombus")


class Cautions:
    def __init__(self, method: str) -> None:
        self.method = method
        self.said: set[str] = set()

    def of_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        """What a method found, where it gives a reason; the first of a kind."""
        for event in events:
            if "reason" in event:
                self._say(event["event"], f"{event['event']}: {event['reason']}")

    def of_rejected(self, rejected: Mapping[int, str], images: int) -> None:
        if rejected:
            why = next(iter(rejected.values()))
            self._say(
                "rejected",
                f"{len(rejected)} of {images} images were set aside ({why}), their answers are "
                "NaN; adapter.last.rejected says which, after every call",
            )

    def of_one_alone(self) -> None:
        self._say(
            "alone",
            "one image alone has no batch statistics, so it is answered and nothing is learnt from "
            "it; give batches",
        )

    def of_one_class(self) -> None:
        self._say(
            "one class",
            "the network answers each image with one number, of which nothing can be learnt; give "
            "a logit a class: wrap it to return torch.cat([-z, z], 1) / 2 of its answer z",
        )

    def _say(self, kind: str, text: str) -> None:
        if kind not in self.said:
            self.said.add(kind)
            LOG.warning("%s: %s (said once)", self.method, text)


def short_warmup(made: int, planned: int) -> dict[str, Any] | None:
    """The rate rises over all planned steps: from a source that soon runs dry little is learnt."""
    if 2 * made >= planned:
        return None
    return {
        "steps": made,
        "planned": planned,
        "reason": f"the source ran dry after {made:,} of {planned:,} steps, when the learning rate "
        f"had risen to {made / planned:.1%} of what it should; give a list or a data loader with "
        "a length, or set warmup_images to how many there are",
    }


def long_steps(model: nn.Module, optimizer: Any) -> dict[str, Any] | None:
    """A rate made for other weights can ruin these in a few batches, and nothing shows it."""
    length = stride(model, optimizer)
    if length <= LONG_STRIDE:
        return None
    lr = optimizer.defaults["lr"]
    return {
        "stride": round(length, 1),
        "reason": f"at lr={lr:g} one step of Adam can move a layer's output by so many times "
        "its spread, where published settings are made for 1 to 4; try "
        f"lr={lr * USUAL_STRIDE / length:.0e}",
    }
