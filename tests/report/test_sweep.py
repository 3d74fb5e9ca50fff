"""Tables of sweeps: what `lab/sweep.py` wrote, a row a setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bombus.cli import main
from bombus.errors import DataError, UnknownNameError
from bombus.report.sweep import read_sweep, sweep_table


def line(name: str, errors: list[float], *domains: str, samples: int | None = 2000) -> str:
    settings = {"method": "bee", "benchmark": "cifar10-c", "samples": samples}
    return json.dumps(
        {"name": name, "settings": {**settings, "domains": domains}, "errors": errors}
    )


def write(file: Path, *lines: str) -> Path:
    file.write_text("".join(f"{one}\n" for one in lines))
    return file


def test_a_column_a_visit_and_the_mean_of_all(tmp_path: Path) -> None:
    twice = ("fog", "snow", "fog", "snow")
    slow, fast = line("slow", [10, 20, 12, 22], *twice), line("fast", [12, 22, 8, 10], *twice)
    once = line("still", [30, 10], "fog", "snow")
    table = sweep_table(read_sweep(write(tmp_path / "s.jsonl", slow, fast, once)))
    assert table.heading == "cifar10-c, 2 domains, 2,000 images a visit"
    assert [column.head for column in table.columns] == ["visit 1", "visit 2", "Mean"]
    values = [[cell.value for cell in row.cells] for row in table.rows]
    assert values == [[15.0, 17.0, 16.0], [17.0, 9.0, 13.0], [20.0, None, 20.0]]
    assert [row.cells[-1].mark for row in table.rows] == ["second", "best", ""]


def test_rows_by_name_in_the_order_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "s.jsonl", *(line(name, [9.0], "fog") for name in ("a", "b", "c")))
    main(["compare", str(file), "--rows", "c", "a", "--format", "markdown"])
    rows = [text for text in capsys.readouterr().out.splitlines() if text.startswith("| ")]
    assert rows == ["| Method | Mean |", "| c | **9.00** |", "| a | **9.00** |"]
    with pytest.raises(UnknownNameError, match="no row named 'bb'; did you mean 'b'"):
        sweep_table(read_sweep(file), rows=("bb",))
    for asked in (["--means"], ["--cost"], ["--by", "visit"]):
        with pytest.raises(SystemExit):
            main(["compare", str(file), *asked])
        assert "is one table" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "empty"), "--rows", "a"])
    assert "--rows chooses rows of a results.json or a sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("", "is empty"),
        ("{", "Line 1"),
        ('{"name": "a"}', "'settings'"),
        (line("a", [1.0], "fog", "snow"), "1 errors of 2 domains"),
        (line("a", [], "fog"), "0 errors of 1 domains"),
    ],
)
def test_a_file_that_is_no_sweep_is_one_sentence(damage: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(damage)
    with pytest.raises(DataError, match=told):
        read_sweep(file)


def test_lines_of_several_streams_are_not_laid_out_as_one(tmp_path: Path) -> None:
    kept: list[Any] = [line("a", [1.0], "fog"), line("b", [2.0], "fog", samples=None)]
    tried = read_sweep(write(tmp_path / "s.jsonl", *kept))
    with pytest.raises(DataError, match=r"of several streams.*all images a visit"):
        sweep_table(tried)
    assert sweep_table(tried, rows=("b",)).heading == "cifar10-c, 1 domain, all images a visit"
