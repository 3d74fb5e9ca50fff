"""The demo: what it leaves behind, and how it goes on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bombus.cli import main
from bombus.methods import find_method
from bombus.runs import Run


@pytest.fixture
def two_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two quick ones; all of them take minutes."""
    some = {name: find_method(name) for name in ("source", "bn")}
    monkeypatch.setattr("bombus.methods.known_methods", lambda: some)


def demo(out: Path, seed: int = 1) -> None:
    main(["demo", "--samples", "4", "--seed", str(seed), "--out", str(out)])


def seeds(out: Path) -> dict[str, int]:
    return {p.parent.name: json.loads(p.read_text())["seed"] for p in out.glob("runs/*/run.json")}


def identity(out: Path, method: str) -> tuple[int, int]:
    """Another file of the same name and content is another one."""
    seen = (out / "runs" / method / "run.json").stat()
    return seen.st_ino, seen.st_mtime_ns


@pytest.mark.usefixtures("two_methods")
def test_leaves_a_page_a_table_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo(tmp_path / "out")
    said = capsys.readouterr().out
    assert "source" in said
    assert "Written to" in said
    for name in ("report.html", "table.md", "stream.svg", "stream.png"):
        assert (tmp_path / "out" / name).stat().st_size > 100, name
    assert seeds(tmp_path / "out") == {"source": 1, "bn": 1}


@pytest.mark.usefixtures("two_methods")
def test_goes_on_after_an_interruption_and_begins_anew_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Run.execute

    def stopped_at_bn(self: Run, *args: Any, **options: Any) -> Any:
        if self.settings.method == "bn":
            raise KeyboardInterrupt
        return whole(self, *args, **options)

    monkeypatch.setattr(Run, "execute", stopped_at_bn)
    with pytest.raises(SystemExit) as stop:
        demo(tmp_path)
    assert stop.value.code == 130
    assert "the same command goes on where this stopped" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    first = identity(tmp_path, "source")

    monkeypatch.setattr(Run, "execute", whole)
    demo(tmp_path)
    assert (tmp_path / "report.html").exists()
    assert identity(tmp_path, "source") == first
    assert seeds(tmp_path) == {"source": 1, "bn": 1}

    demo(tmp_path)  # it had ended: this is another demo
    assert identity(tmp_path, "source") != first

    monkeypatch.setattr(Run, "execute", stopped_at_bn)
    with pytest.raises(SystemExit):
        demo(tmp_path)
    monkeypatch.setattr(Run, "execute", whole)
    demo(tmp_path, seed=2)  # what was interrupted had been asked for otherwise
    assert seeds(tmp_path) == {"source": 2, "bn": 2}


@pytest.mark.usefixtures("two_methods")
def test_never_writes_into_a_folder_of_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(SystemExit):
        demo(tmp_path)
    assert "holds no demo report" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
