"""Long work says how far it is, also where no terminal can show a bar."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bombus.cli import main
from bombus.methods import _progress
from bombus.methods._progress import with_progress
from tiny import write_cifar10


def test_a_line_at_every_tenth(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(_progress.time, "perf_counter", lambda: float(next(clock)))
    with caplog.at_level(logging.INFO, "bombus.progress"):
        assert list(with_progress(range(20), 20, "counting")) == list(range(20))
    # Two seconds an item: from the tenth second on, every second item.
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "counting: 5 of 20, 10 s, about 30 s left"
    assert said[1] == "counting: 6 of 20, 12 s, about 28 s left"
    assert said[-1] == "counting: 20 of 20, 40 s, about 0 s left"
    assert len(said) == 9


def test_what_is_soon_done_or_of_unknown_length_is_not_spoken_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "bombus.progress"):
        assert list(with_progress(range(20), 20)) == list(with_progress(range(20), None))
    assert not caplog.records


def test_the_command_line_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    data = write_cifar10(tmp_path / "clean", 20)
    little = ["--batch-size", "4", "--set", "warmup_images=20", "warmup_rounds=1"]
    command = ["warmup", "bee", "--benchmark", "demo", "--data", str(data), *little]
    main([*command, "--out", str(tmp_path / "one.safetensors")])
    assert "warming up: 5 of 5" in capsys.readouterr().err
    assert not logging.getLogger("bombus.progress").handlers
