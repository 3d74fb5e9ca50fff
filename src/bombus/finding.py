"""One thing worth knowing about a machine or a run, said in one sentence with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """ok: as it should be. note: good to know. warn: a result will mislead. bad: it cannot work."""

    state: Literal["ok", "note", "warn", "bad"]
    text: str
