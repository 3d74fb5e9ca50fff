"""How far long work is: a bar on a terminal, elsewhere lines of the log "bombus.progress"."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
LOG = logging.getLogger("bombus.progress")  # the command line prints it
PATIENCE = 10.0  # seconds; what takes less is not spoken of


def with_progress(items: Iterable[T], total: int | None, doing: str = "warming up") -> Iterable[T]:
    """The items, with a bar; without a total it only shows that something goes on."""
    if not sys.stderr.isatty():
        return _told(items, total, doing) if total else items
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return _told(items, total, doing) if total else items
    return track(items, doing, total=total, console=Console(stderr=True))


def _told(items: Iterable[T], total: int, doing: str) -> Iterator[T]:
    """The items, with a line at every tenth of them."""
    begun, told = time.perf_counter(), 0
    for done, item in enumerate(items, start=1):
        yield item  # and whoever asked for it has dealt with it when this goes on
        spent, tenth = time.perf_counter() - begun, 10 * done // total
        if tenth > told and spent >= PATIENCE:
            told = tenth
            left = spent / done * (total - done)
            LOG.info("%s: %d of %d, %.0f s, about %.0f s left", doing, done, total, spent, left)
