from __future__ import annotations

import subprocess
import sys

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


def test_does_not_wait_for_torch(runs):
    code = (
        "import sys; from pathlib import Path; from bombus.cli.compare import compare\n"
        "compare((Path(sys.argv[1]),))\n"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(runs)], check=True, capture_output=True)
