"""How well a method's alarms fit the borders between domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bombus.report.records import main_domain

NEAR = 10  # batches after a border in which an alarm counts as having found it, if domains are long


@dataclass(frozen=True)
class Judged:
    borders: int
    found: int  # borders with an alarm soon after
    alarms: int
    false_alarms: int  # alarms that come soon after no border
    near: int = NEAR  # what "soon" was taken to be

    def __add__(self, other: Judged) -> Judged:
        return Judged(
            self.borders + other.borders,
            self.found + other.found,
            self.alarms + other.alarms,
            self.false_alarms + other.false_alarms,
            max(self.near, other.near),
        )

    def __str__(self) -> str:
        if not self.borders:
            noticed = f"{self.alarms} shift{'s' if self.alarms != 1 else ''} noticed"
            return f"{noticed} in a stream without borders between domains"
        return (
            f"{self.found} of {self.borders} borders found within {self.near} batches, "
            f"{self.false_alarms} of {self.alarms} alarms false"
        )


def marks(records: Sequence[dict[str, Any]]) -> tuple[list[int], str]:
    """The batches that a picture circles, counted in records, and what one is called.

    With replay they are the replays, at whatever rhythm; without, the shifts that were noticed.
    """
    if replays := batches_with(records, "replay"):
        return replays, "replay"
    return batches_with(records, "shift"), "shift noticed"


def batches_with(records: Sequence[dict[str, Any]], event: str) -> list[int]:
    """Where this event happened, counted in records."""
    return [i for i, r in enumerate(records) if any(e["event"] == event for e in r["events"])]


def alarms_in(records: Sequence[dict[str, Any]]) -> list[int]:
    """Where a shift was noticed. Earlier versions told of the replay alone, with its z."""
    return [
        i
        for i, r in enumerate(records)
        if any(e["event"] == "shift" or (e["event"] == "replay" and "z" in e) for e in r["events"])
    ]


def judge_alarms(records: Sequence[dict[str, Any]]) -> Judged:
    """Batches whose domain is another than the one before are borders."""
    names = [main_domain(record) for record in records]
    borders = [i for i, (a, b) in enumerate(pairwise(names), start=1) if a != b]
    return judge(borders, alarms_in(records))


def judge(borders: Sequence[int], alarms: Sequence[int]) -> Judged:
    """An alarm speaks of the last border before it, and of no other.

    Half of the shortest domain at most is soon: in shorter ones no alarm would be false.
    """
    near = max(1, min([NEAR, *((b - a) // 2 for a, b in pairwise(borders))]))
    last = {alarm: max((b for b in borders if b <= alarm), default=None) for alarm in alarms}
    right = {alarm: b for alarm, b in last.items() if b is not None and alarm - b < near}
    found, wrong = len(set(right.values())), len(alarms) - len(right)
    return Judged(len(borders), found, len(alarms), wrong, near)
