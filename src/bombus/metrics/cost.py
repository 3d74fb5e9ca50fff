"""What a run costs: milliseconds a batch and the most memory it held."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch


class Stopwatch:
    ms: float = 0.0


@contextmanager
def timed(device: torch.device) -> Iterator[Stopwatch]:
    """Wall-clock time of a piece of work, with the accelerator's queue emptied at both ends."""
    watch = Stopwatch()
    _synchronise(device)
    start = time.perf_counter()
    yield watch
    _synchronise(device)
    watch.ms = 1000 * (time.perf_counter() - start)


def typical_ms(times: Sequence[float], period: int = 1) -> float:
    """The median: the first batches (kernel choice, allocation) and pauses do not count.

    Where only every `period`-th call learns, the median of the means over so many, for most calls
    alone would cost nothing.
    """
    rounds = [times[start : start + period] for start in range(0, len(times), period)]
    whole = [statistics.fmean(calls) for calls in rounds if len(calls) == period or len(rounds) < 2]
    return statistics.median(whole) if whole else 0.0


def reset_peak_memory(device: torch.device) -> None:
    """From now on `peak_memory_mb` is of what comes, not of what this process did before.

    On a CPU that can be had on Linux alone.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        gc.collect()
        with suppress(AttributeError):  # not every C library has it
            ctypes.CDLL(None).malloc_trim(0)  # what was freed is still the process's, else
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # proc(5): the highest is what is now


def peak_memory_mb(device: torch.device) -> float:
    """On a GPU what tensors held at most, on a CPU the most the process held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return 0.0
    if sys.platform == "linux":
        with suppress(OSError, ValueError, StopIteration):
            lines = Path("/proc/self/status").read_text().splitlines()
            highest = next(line for line in lines if line.startswith("VmHWM:"))
            return int(highest.split()[1]) / 2**10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
