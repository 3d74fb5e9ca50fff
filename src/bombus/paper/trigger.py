"""Figure: the consistency loss over the stream, and where BEE noticed a shift."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bombus.paper import Cell, Finished, Place
from bombus.paper.layout import write_variants
from bombus.report.loss_figure import loss_figure
from bombus.report.records import read_batches
from bombus.report.triggers import judge_alarms

TITLE = "The trigger over the stream"
CLAIM = "The loss spikes where the domain changes, and the trigger finds those spikes."


def cells(place: Place) -> list[Cell]:
    # Losses of smaller batches are too noisy to tell anything, and of such there are 8 a domain:
    # either rule's memory is shortened with them, ours to one domain and the paper's to two.
    place = place.small(samples=800, batch_size=100)
    window, minimum = (100, 20) if place.full else (16, 5)
    rule = {"trigger": "z-score", "threshold": 1.5, "window": window, "window_minimum": minimum}
    own = {} if place.full else {"window": 8, "window_minimum": minimum}
    ours = place.settings("bee", "cifar10-c", replay="weighted", **own)
    papers = place.settings("bee", "cifar10-c", replay="weighted", **rule)
    return [
        Cell("level", ours, {"trigger": "change of level (ours)"}),
        Cell("z-score", papers, {"trigger": "z-score (the paper's)"}),
    ]


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    rows, pictures, near = [], [], 0
    for f in finished:
        judged = [judge_alarms(read_batches(folder)) for folder in f.folders]
        total = sum(judged[1:], judged[0])
        near = max(near, total.near)
        found = {
            "borders found": f"{total.found} of {total.borders}",
            "false alarms": f"{total.false_alarms} of {total.alarms}",
        }
        rows.append(f.with_facts(found))
        pictures += loss_figure(f.folders[0], out / f"loss-{f.cell.name}")
    note = f"A border is found by an alarm within {near} batches of it; over all seeds."
    return [*write_variants(TITLE, CLAIM, rows, out, [note]), *pictures]
