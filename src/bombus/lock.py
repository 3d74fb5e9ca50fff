"""One process at a time. The lock goes with its process, however that ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock that this file stands for; the file is made, and stays.

    Yields:
        False where another process holds it and we do not wait. Some network disks have no locks:
        there everybody holds it.
    """
    with path.open("ab") as file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError):
            yield False
            return
        except OSError:
            pass
        yield True
