"""Table 5: when to replay, and what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bombus.paper import Cell, Finished, Place
from bombus.paper.ladder import draw_ladder
from bombus.paper.layout import PRINTED, write_variants
from bombus.report.records import RESULT

TITLE = "Ablation of anchor replay"
CLAIM = (
    "Replay at fixed intervals is no better than none unless the interval is long; a trigger on "
    "the loss is better than any of them, and weighted merging better than averaging or the source."
)
INTERVALS = ((40, 59.4), (80, 58.4), (160, 58.2), (320, 58.0), (640, 58.1))


def cells(place: Place) -> list[Cell]:
    place = place.small(samples=200, batch_size=50)

    # Intervals and the anchors' period are counted in the paper's 1,170 batches; the demo's stream
    # has 60.
    scale = 1 if place.full else 20
    base = {"replay": "weighted"} | ({} if place.full else {"anchor_period": 2})

    def cell(name: str, trigger: str, merging: str, printed: float, **chosen: object) -> Cell:
        facts = {"trigger": trigger, "merging": merging}
        settings = place.settings("bee", "cifar10-c", **{**base, **chosen})
        return Cell(name, settings, facts, printed)

    return [
        cell("none", "", "", 58.3, replay="off"),
        *(
            cell(f"every-{n}", f"every {n // scale}", "weighted", e, replay_every=n // scale)
            for n, e in INTERVALS
        ),
        cell("trigger", "loss", "weighted", 57.9),
        cell("trigger-source", "loss", "source", 58.2, replay="source"),
        cell("trigger-average", "loss", "average", 58.2, replay="average"),
    ]


def show(finished: Sequence[Finished], out: Path) -> list[Path]:
    replays = (f"{f.cell.name} {_replays(f.folders[0])}" for f in finished)
    note = "replays a run: " + ", ".join(replays) + "."
    notes = [note, PRINTED]
    return [*write_variants(TITLE, CLAIM, finished, out, notes), *draw_ladder(finished, out)]


def _replays(folder: Path) -> int:
    events = json.loads((folder / RESULT).read_bytes())["events"]
    return sum(event["event"] == "replay" for event in events)
