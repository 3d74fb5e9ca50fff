"""One table over many tasks."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from bombus.cli import main
from bombus.report.means import means_table
from bombus.report.records import read_run
from bombus.report.table import to_csv, to_markdown, to_text

MIXED = {"stream": {"kind": "mixed"}}


@pytest.fixture
def runs(write_run: Any) -> list[Any]:
    """Two streams; bee has seen source data, and rdumb one stream alone."""
    helped = {"source_access": "samples"}
    asked = [
        ("source", (50.0, 60.0, 70.0), {}),
        ("tent", (10.0, 20.0, 30.0), {"seed": 1}),
        ("tent", (13.0, 20.0, 33.0), {"seed": 2}),
        ("rdumb", (10.0, 10.0, 13.0), {}),
        ("bee", (9.0, 9.0, 9.0), helped),
        ("source", (40.0, 40.0, 40.0), MIXED),
        ("tent", (44.0, 44.0, 44.0), MIXED),
        ("bee", (30.0, 30.0, 30.0), MIXED | helped),
    ]
    folders = [write_run(str(i), m, errors, **more) for i, (m, errors, more) in enumerate(asked)]
    return [read_run(folder) for folder in folders]


def test_a_column_a_task_and_a_row_a_method(runs: list[Any]) -> None:
    table = means_table(runs)
    assert table.heading == "cifar10-c, wrn-28-10, severity 5, 3 domains"
    assert [column.head for column in table.columns] == ["continual", "mixed"]
    # Two seeds of tent on one stream and one on the other: the label names neither number.
    assert [row.label for row in table.rows] == ["source", "tent", "rdumb", "bee"]
    assert [row.section for row in table.rows] == ["source-free"] * 3 + ["source-assisted"]
    values = [[cell.value for cell in row.cells] for row in table.rows]
    assert values == [[60.0, 40.0], [21.0, 44.0], [11.0, None], [9.0, 30.0]]
    # Means 20 and 22: deviations of 1 either way, over n - 1 = 1.
    assert table.rows[1].cells[0].spread == pytest.approx(2**0.5)
    assert table.rows[1].cells[1].spread is None
    marks = [[cell.mark for cell in row.cells] for row in table.rows]
    assert marks == [["", "second"], ["", ""], ["second", ""], ["best", "best"]]


def test_in_every_format(runs: list[Any]) -> None:
    table = means_table(runs, digits=2)
    assert "\nrdumb 11.00'\n" in re.sub(" +", " ", to_text([table]))
    assert "| rdumb | *11.00* |  |" in to_markdown([table])
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert [row["mixed"] for row in rows] == ["40.00", "44.00", "", "30.00"]


def test_a_method_that_collapsed_is_marked_here_too(write_run: Any) -> None:
    folders = [write_run("a"), write_run("b", **MIXED, collapsed=True), write_run("c", "bn")]
    table = means_table([read_run(folder) for folder in folders])
    assert [row.label for row in table.rows] == ["tent †", "bn"]
    assert any(note.startswith("† collapsed") for note in table.notes)


def test_benchmarks_and_networks_are_told_apart(write_run: Any) -> None:
    folders = [
        write_run("a", backbone="wrn-28-10"),
        write_run("b", benchmark="cifar100-c", backbone="resnext29-4x32"),
    ]
    table = means_table([read_run(folder) for folder in folders])
    assert table.heading == "severity 5, continual, 3 domains"
    heads = ["cifar10-c, wrn-28-10", "cifar100-c, resnext29-4x32"]
    assert [column.head for column in table.columns] == heads


def test_from_the_command_line(write_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder: Path = write_run("one/run").parent
    write_run("one/mixed", **MIXED)
    main(["compare", str(folder), "--means"])
    said = capsys.readouterr().out
    assert "continual" in said
    assert "mixed" in said
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(folder), "--means", "--cost"])
    assert stop.value.code == 2
    assert "leave out --cost" in capsys.readouterr().err
