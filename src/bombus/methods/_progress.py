"""A progress bar where there is a terminal to draw it on, and rich to draw it with."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def with_progress(items: Iterable[T], total: int | None, doing: str = "warming up") -> Iterable[T]:
    """The items, with a bar; without a total it only shows that something goes on."""
    if not sys.stderr.isatty():
        return items
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return items
    return track(items, doing, total=total, console=Console(stderr=True))
