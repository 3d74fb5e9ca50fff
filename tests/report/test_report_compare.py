from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bombus.cli.compare import compare
from bombus.errors import BombusError


@pytest.fixture
def runs(write_run, tmp_path):
    write_run("runs/bn", "bn", (30, 40, 50))
    write_run("runs/tent", "tent", (20, 30, 40))
    return tmp_path / "runs"


def test_prints_a_plain_table(runs, capsys):
    compare((runs,))
    out = capsys.readouterr().out
    assert out.startswith("cifar10-c, wrn-28-10, severity 5, 3 domains\n")
    assert "40.0*" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("format", "start"),
    [("markdown", "### cifar10-c"), ("latex", "% needs"), ("csv", "table,method")],
)
def test_writes_every_format_to_a_file(runs, tmp_path, capsys, format, start):
    out = tmp_path / "new" / "table.txt"
    compare((runs,), format=format, out=out)
    assert out.read_text().startswith(start)
    assert capsys.readouterr().out == f"Written to {out}\n"


def test_names_what_it_leaves_out(runs, write_run, capsys):
    (write_run("runs/late") / "run.json").unlink()
    compare((runs,))
    assert "left out" in capsys.readouterr().err


def test_refuses_nonsense(runs):
    with pytest.raises(BombusError, match="Name the runs"):
        compare(())
    with pytest.raises(BombusError, match="--digits 9"):
        compare((runs,), digits=9)


def experiment(folder: Path, **changes: Any) -> Path:
    """A results.json of `bombus paper` beside its runs."""
    cell = {"name": "one", "facts": {"queue": True}, "published": 12.5, "runs": ["bn"], **changes}
    file = folder / "results.json"
    file.write_text(json.dumps({"title": "Queue", "notes": ["A note."], "cells": [cell]}))
    return file


def test_the_table_of_an_experiment_takes_what_it_can_and_refuses_the_rest(runs, capsys):
    file = experiment(runs)
    compare((file,), digits=1, published=False)
    said = capsys.readouterr().out
    assert "40.0" in said
    assert "12.5" not in said
    compare((file,))
    said = capsys.readouterr().out
    assert "40.00" in said
    assert "12.5" in said
    for asked in ({"cost": True}, {"intervals": True}, {"by": "visit"}, {"means": True}):
        with pytest.raises(BombusError, match="is one table"):
            compare((file,), **asked)


@pytest.mark.parametrize(
    ("changes", "told"), [({"runs": []}, "one has no runs"), ({"published": "12,5"}, "12,5")]
)
def test_an_experiment_that_is_not_whole_is_one_sentence(runs, changes, told):
    with pytest.raises(BombusError, match=rf"no whole result of `bombus paper`.*{told}"):
        compare((experiment(runs, **changes),))


def test_does_not_wait_for_torch(runs):
    code = (
        "import sys; from pathlib import Path; from bombus.cli.compare import compare\n"
        "compare((Path(sys.argv[1]),))\n"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(runs)], check=True, capture_output=True)
