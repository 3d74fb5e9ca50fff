"""The files of a run: whose they are, whether they are finished, and how to go on with them.

`runs.py` says which files there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bombus import checkpoint
from bombus.errors import CheckpointError, ConfigError
from bombus.finding import Finding
from bombus.provenance import versions

SETTINGS = "settings.json"
CONFIG = "config"
CODE = "code"  # in it: what ran which part, and on what device; not what was asked for
DEVICE = "device"  # one of several GPUs may go on with what another began
FILES = "files"  # in it: what tells files of the same name apart


def find_finished(out: Path, asked: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """The finished result in the folder, if any; a folder that is not ours is refused."""
    if (out / SETTINGS).exists():
        if not resume:
            raise ConfigError(
                f"{out} already holds a run; add --resume to go on with it, or choose "
                "another --out."
            )
        stored = _read_json(out / SETTINGS)
        before, asked = (
            {k: v for k, v in settings.items() if k not in (CODE, DEVICE)}
            for settings in (stored, asked)
        )
        # An earlier version went by names of files and by what was asked for alone.
        asked = {k: v for k, v in asked.items() if k in before or k not in (CONFIG, FILES)}
        if CONFIG in before:
            # All of the method's settings, however many of them were asked for.
            asked, before = (
                {**one, **one[CONFIG], "set": {}, CONFIG: {}} for one in (asked, before)
            )
        differing = sorted(k for k in {*asked, *before} if asked.get(k) != before.get(k))
        if differing:
            raise ConfigError(
                f"{out} holds a run with another {', '.join(differing)} "
                f"({before.get(differing[0])!r}, now {asked.get(differing[0])!r}); resume it "
                "with the same settings, or choose another --out."
            )
        if (out / "run.json").exists():
            return _read_json(out / "run.json")
    elif out.exists() and not all(checkpoint.is_temporary(path) for path in out.iterdir()):
        raise ConfigError(f"{out} is not empty and holds no run; choose another --out.")
    return None


@contextmanager
def made(out: Path) -> Iterator[None]:
    """The folder is there; if what is done within fails and wrote nothing, it goes again."""
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):
                out.rmdir()
        raise


def begin(out: Path, asked: dict[str, Any], device: str) -> list[str]:
    """Write what was asked, and return who begins with it: code and device."""
    who = [_whoever(device)]
    checkpoint.write_json(out / SETTINGS, {**asked, CODE: who})
    return who


def go_on(out: Path, done: int, device: str) -> tuple[list[str], Finding | None]:
    """Remember who goes on with a run; a finding if that is other code or another device."""
    stored, now = _read_json(out / SETTINGS), _whoever(device)
    who = [*stored.get(CODE, ["?"])]
    if who[-1] == now:
        return who, None
    checkpoint.write_json(out / SETTINGS, {**stored, CODE: [*who, now]})
    return [*who, now], Finding(
        "warn",
        f"The first {done} batches were run by other code or on another device ({who[-1]}, now "
        f"{now}), so that the result is of neither alone; for a clean one start anew in another "
        "--out.",
    )


def _whoever(device: str) -> str:
    return f"{versions()['code']} on {device}"


def cut_back(log: Path, saved: Path) -> list[dict[str, Any]]:
    """The records that the checkpoint speaks of; what came after them is cut off."""
    length = checkpoint.load_meta(saved)["log_bytes"]
    found = log.stat().st_size if log.exists() else 0
    if found < length:
        raise CheckpointError(
            f"{log} is shorter than its checkpoint says ({found} of {length} bytes); start the "
            "run anew in another folder."
        )
    os.truncate(log, length)
    try:
        records = [json.loads(line) for line in log.read_bytes().splitlines()]
    except ValueError:
        raise CheckpointError(
            f"{log} holds lines that are no records; start the run anew in another folder."
        ) from None
    return records


def remove(folder: Path) -> None:
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError:
        raise CheckpointError(
            f"{path} is not the file that a run wrote; start the run anew in another folder."
        ) from None
    return value
