"""What an adapter tells of its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """What happened in the last call of an adapter; before the first one, while it was built."""

    samples: int = 0
    rejected: dict[int, str] = field(default_factory=dict)  # position in the batch -> why
    events: tuple[dict[str, Any], ...] = ()  # rare things worth a line in the log
    signals: dict[str, float] = field(default_factory=dict)  # one number a batch: losses and such
    phases: dict[str, float] = field(default_factory=dict)  # milliseconds by part of the step
