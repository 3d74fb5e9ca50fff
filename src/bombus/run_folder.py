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
CODE = "code"  # in it: who ran which part, not what was asked for
FILES = "files"  # in it: what tells files of the same name apart


def find_finished(out: Path, asked: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """The finished result in the folder, if any; a folder that is not ours is refused."""
    if (out / SETTINGS).exists():
        if not resume:
            raise ConfigError(
                f"{out} already holds a run; add --resume to go on with it, or choose "
                "another --out."
            )
        before = {k: v for k, v in _read_json(out / SETTINGS).items() if k != CODE}
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


def begin(out: Path, asked: dict[str, Any]) -> list[str]:
    """Write what was asked, and return the code that begins with it."""
    codes = [versions()["code"]]
    checkpoint.write_json(out / SETTINGS, {**asked, CODE: codes})
    return codes


def go_on(out: Path, done: int) -> tuple[list[str], Finding | None]:
    """Remember who goes on with a run; a finding if that is other code than before."""
    stored, now = _read_json(out / SETTINGS), versions()["code"]
    codes = [*stored.get(CODE, ["?"])]
    if codes[-1] == now:
        return codes, None
    checkpoint.write_json(out / SETTINGS, {**stored, CODE: [*codes, now]})
    return [*codes, now], Finding(
        "warn",
        f"The first {done} batches were run by other code ({codes[-1]}, now {now}), so that the "
        "result is of neither alone; for a clean one start anew in another --out.",
    )


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
