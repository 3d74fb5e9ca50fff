"""Everything bombus raises on purpose, in one sentence: what was given, expected, to be done.

BombusError             anything below; the CLI prints its message and exits with exit_code
├── InputError          a batch that cannot be adapted to (shape, dtype, value range)
├── DataError           a data set, folder or image file that is missing or laid out wrongly
├── WeightsError        weights that are missing, unreadable or of another network
├── CheckpointError     a saved run or adapter that is broken, or belongs to something else
├── ConfigError         a setting that has no such field, or an impossible value
└── UnknownNameError    a method, benchmark, backbone or corruption nobody registered
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BombusError(Exception):
    exit_code = 2


class InputError(BombusError, ValueError):
    pass


class DataError(BombusError):
    pass


class WeightsError(BombusError):
    pass


class CheckpointError(BombusError):
    pass


class ConfigError(BombusError, ValueError):
    pass


class UnknownNameError(BombusError, LookupError):
    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        given = given if isinstance(given, str) else type(given).__name__  # not a whole network
        near = nearest(given, names)
        hint = f"did you mean {near!r}?" if near else f"choose one of: {', '.join(names)}."
        super().__init__(f"There is no {kind} named {given!r}; {hint}")


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The name that was meant, if one is spelt much like what was given."""
    spelt = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), spelt, n=1)
    return spelt[near[0]] if near else None
