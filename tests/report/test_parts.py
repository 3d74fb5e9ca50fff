"""Errors by visit and by severity, and what was forgotten of the source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bombus.cli import main
from bombus.errors import DataError
from bombus.report.layout import make_tables
from bombus.report.page import make_page
from bombus.report.parts import parts_tables
from bombus.report.records import read_run
from bombus.report.table import to_text

RECURRING = {"stream": {"kind": "recurring", "visits": 3}}
GRADUAL = {"stream": {"kind": "gradual"}}


@pytest.fixture
def runs(write_run: Any) -> list[Any]:
    folders = [
        write_run("s", "source", **RECURRING, visits=[50.0, 50.0, 51.0]),
        write_run("t1", "tent", **RECURRING, visits=[20.0, 21.0, 22.0]),
        write_run("t2", "tent", **RECURRING, visits=[22.0, 23.0, 24.0], seed=2),
        write_run("b", "bee", **RECURRING, visits=[30.0, 20.0, 10.0], source_access="samples"),
        write_run("g", "tent", **GRADUAL, severities=[1.0, 2.0, 3.0, 4.0, 5.0]),
        write_run("c", "tent"),
    ]
    return [read_run(folder) for folder in folders]


def test_a_column_a_visit(runs: list[Any]) -> None:
    (table,) = parts_tables(runs, "visit")
    assert table.heading == (
        "cifar10-c, wrn-28-10, severity 5, recurring, visits 3, 3 domains, error by visit"
    )
    assert [column.head for column in table.columns] == ["visit 1", "visit 2", "visit 3", "Mean"]
    assert [row.section for row in table.rows] == ["source-free"] * 2 + ["source-assisted"]
    values = [[cell.value for cell in row.cells[:-1]] for row in table.rows]
    assert [row.cells[-1].value for row in table.rows] == [30.0, 30.0, 30.0]  # as the runs say
    assert values == [[50.0, 50.0, 51.0], [21.0, 22.0, 23.0], [30.0, 20.0, 10.0]]
    assert table.rows[1].cells[0].spread == pytest.approx(2**0.5)
    marks = [[cell.mark for cell in row.cells[:-1]] for row in table.rows]
    assert marks == [["", "", ""], ["best", "second", "second"], ["second", "best", "best"]]


def test_a_column_a_severity_of_the_streams_that_climb(runs: list[Any]) -> None:
    (table,) = parts_tables(runs, "severity")
    assert table.heading.startswith("cifar10-c, wrn-28-10, severity 1 to 5, gradual")
    assert [cell.value for cell in table.rows[0].cells[:-1]] == [1.0, 2.0, 3.0, 4.0, 5.0]
    with pytest.raises(DataError, match=r"None of these 1 runs has errors by severity.*gradual"):
        parts_tables(runs[-1:], "severity")


def test_from_the_command_line(
    write_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("runs/t", "tent", **RECURRING, visits=[20.0, 21.0, 22.0])
    main(["compare", str(tmp_path / "runs"), "--by", "visit"])
    assert "visit 1" in capsys.readouterr().out
    for more in (["--cost"], ["--quality"], ["--means"]):
        with pytest.raises(SystemExit):
            main(["compare", str(tmp_path / "runs"), "--by", "visit", *more])
        assert "has room for errors alone" in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_the_page_has_them_too(runs: list[Any]) -> None:
    page = make_page(runs).decode()
    assert page.count("<h3>Error by visit</h3>") == 1
    assert page.count("<h3>Error by severity</h3>") == 1
    assert "at severity 1 to 5" in page
    assert "Error in per cent by visit" in page


def test_what_was_forgotten_is_a_column_where_it_was_looked_at(write_run: Any) -> None:
    clean = {"before": 5.0, "after": [{"domain": "fog", "error": 9.0}]}
    clean["after"].append({"domain": "snow", "error": 7.25})  # type: ignore[attr-defined]
    known = {"calibration_error": 3.0, "log_loss": 0.5}
    looked = read_run(write_run("looked", "bee", **known, clean=clean))
    other = read_run(write_run("other", "tent", **known))
    assert looked.forgotten == pytest.approx(2.25)
    (table,) = make_tables([looked, other], quality=True)
    place = [column.name for column in table.columns].index("forgotten")
    assert [row.cells[place].value for row in table.rows] == [2.25, None]
    assert any("forgotten: points by which" in note for note in table.notes)
    assert "2.25" in to_text([table])
    (without,) = make_tables([other], quality=True)
    assert "forgotten" not in [column.name for column in without.columns]
