"""bombus results: the ledger, and the tables in the documents that are made from it."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Annotated

import tyro

from bombus.errors import ConfigError, DataError

# A table in a document stands between the command that makes it and an end mark.
_BLOCK = re.compile(
    r"(?P<open><!-- (?P<command>bombus compare [^\n]*?) -->\n)"
    r"(?P<table>.*?)(?P<close><!-- end -->)",
    re.DOTALL,
)


def results(
    folder: tyro.conf.Positional[Path] = Path("results"),
    /,
    *,
    check: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    write: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """List the results ledger, or hold the documents' tables against it.

    A table in README.md or docs/*.md stands below a comment with the `bombus compare` command that
    makes it; run this from the folder that holds README.md.

    Args:
        folder: the ledger: one JSON file a run.
        check: fail if a table in README.md or docs/*.md is not what its command prints.
        write: put what its command prints in the place of each such table.
    """
    if (check or write) and folder != Path("results"):
        raise ConfigError(
            f"Got the folder {folder} with --{'check' if check else 'write'}, but the tables of "
            "documents name their runs themselves; leave the folder out."
        )
    if check or write:
        _documents(write)
        return
    _list(folder)


def _list(ledger: Path) -> None:
    """A folder at a time, for its files are named by what their runs have in common."""
    from bombus.methods import place
    from bombus.report.groups import stream_label
    from bombus.report.page_summary import count
    from bombus.report.records import RESULT, RunResult, find_runs, read_run

    if not ledger.is_dir():
        raise DataError(
            f"There is no ledger {ledger} here; run this from the repository's root, or name the "
            "folder that holds the runs."
        )
    folders: dict[Path, dict[str, list[RunResult]]] = {}
    for run in sorted(map(read_run, find_runs([ledger])), key=lambda run: place(run.method)):
        named = run.path.parent if run.path.name == RESULT else run.path.with_suffix("")
        name = re.sub(r"-seed\d+$", "", named.name)
        folders.setdefault(named.parent, {}).setdefault(name, []).append(run)
    for folder in sorted(folders):
        first = next(iter(folders[folder].values()))[0]
        facts = filter(None, (first.benchmark, first.backbone, stream_label(first)))
        print(f"{folder}: {', '.join(facts)}")
        for name, runs in folders[folder].items():
            mean = sum(run.mean_error for run in runs) / len(runs)
            print(f"  {name:<36} {mean:6.2f}  {count(len(runs), 'seed')}")


def _documents(write: bool) -> None:
    stale, count = [], 0
    for path in [Path("README.md"), *sorted(Path("docs").glob("*.md"))]:
        if not path.exists():
            raise DataError(f"There is no {path} here; run this from the repository's root.")
        text = path.read_text(encoding="utf-8")
        fresh = _BLOCK.sub(_remake, text)
        count += len(_BLOCK.findall(text))
        if fresh != text:
            stale.append(str(path))
            if write:
                path.write_text(fresh, encoding="utf-8")
    if stale and not write:
        raise DataError(
            f"Tables in {', '.join(stale)} differ from the ledger; run `bombus results --write`."
        )
    print(f"{count} tables agree with the ledger" + (f"; wrote {stale}" if stale else ""))


def _make(command: str) -> str:
    from bombus.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(shlex.split(command)[1:])
    return printed.getvalue().rstrip("\n") + "\n"


def _remake(block: re.Match[str]) -> str:
    return block["open"] + _make(block["command"]) + block["close"]
