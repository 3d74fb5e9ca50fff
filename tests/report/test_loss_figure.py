from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.axes
import numpy as np
import pytest
import tyro

from bombus.cli.plot import plot
from bombus.errors import BombusError, ConfigError, DataError
from bombus.report.figures import find_stretches
from bombus.report.loss_figure import levels_of, limits_of, loss_figure, signal_of

DOMAINS = ("gaussian_noise", "fog", "snow")


def add_signals(folder: Path, signals: Any, replays: tuple[int, ...] = ()) -> Path:
    """Give the run's records signals(batch) and replays at some batches."""
    log = folder / "batches.jsonl"
    lines = []
    for record in map(json.loads, log.read_text().splitlines()):
        events = [{"event": "replay", "z": 2.0}] if record["batch"] in replays else []
        lines.append({**record, "signals": signals(record["batch"]), "events": events})
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def spiky(batch: int) -> dict[str, float]:
    levels = {f"mcr_{i}": i + 1.0 * (batch % 5 == 0) for i in (1, 2, 10)}
    return {"mcr": sum(levels.values()), **levels, "z": 40.0 if batch == 5 else 0.1, "entropy": 1.0}


@pytest.fixture
def run(write_run):
    folder = write_run(
        "bee", "bee", domains=DOMAINS, samples=500, batch=100, log=True, config={"threshold": 1.5}
    )
    return add_signals(folder, spiky, replays=(5, 10))


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Everything drawn with Axes.plot, as drawn."""
    calls: list[dict[str, Any]] = []
    real = matplotlib.axes.Axes.plot

    def keep(self: Any, x: Any, y: Any, **look: Any) -> Any:
        calls.append({"x": np.asarray(x), "y": np.asarray(y), **look})
        return real(self, x, y, **look)

    monkeypatch.setattr(matplotlib.axes.Axes, "plot", keep)
    return calls


def test_pictures_are_drawn_the_same_bytes_every_time(run, tmp_path):
    svg, png = loss_figure(run, tmp_path / "one" / "loss.v1")
    assert (svg.name, png.name) == ("loss.v1.svg", "loss.v1.png")
    again = loss_figure(run / "run.json", tmp_path / "two")
    assert [p.read_bytes() for p in again] == [svg.read_bytes(), png.read_bytes()]
    assert ElementTree.fromstring(svg.read_bytes()).tag.endswith("svg")
    assert int.from_bytes(png.read_bytes()[16:20], "big") == 1500


def test_curves_and_circles(run, tmp_path, plotted):
    loss_figure(run, tmp_path / "loss")
    by_label = {call["label"]: call for call in plotted if "label" in call}
    assert list(by_label) == ["consistency loss", "level 1", "level 2", "level 10", "replay (2)"]
    total, circles = by_label["consistency loss"], by_label["replay (2)"]
    np.testing.assert_allclose(total["x"], 50 + 100 * np.arange(15))
    np.testing.assert_allclose(total["y"], [16 if b % 5 == 0 else 13 for b in range(15)])
    np.testing.assert_allclose(circles["x"], [550, 1050])
    np.testing.assert_allclose(circles["y"], [16, 16])
    (arrow,) = [call for call in plotted if call.get("marker") == "^"]
    np.testing.assert_allclose(arrow["x"], [550])  # z = 40 leaves a panel of 5 thresholds


def test_one_level_that_is_the_loss_is_drawn_once(write_run, tmp_path, plotted):
    folder = write_run("bee", "bee", samples=200, batch=100, log=True)
    add_signals(folder, lambda b: {"mcr": b / 2, "mcr_3": b / 2})
    loss_figure(folder, tmp_path / "loss")
    assert [call.get("label") for call in plotted] == ["consistency loss (level 3)"]


def test_holes_in_the_record(write_run, tmp_path):
    """A rejected batch has no loss, a diverged one has NaN; a run may be under way."""
    folder = write_run("bee", "bee", samples=300, batch=100, log=True)
    add_signals(folder, lambda b: [{}, {"mcr": float("nan"), "z": 1.0}, {"mcr": 2.0}][b % 3], (0,))
    (folder / "run.json").unlink()
    records = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    np.testing.assert_array_equal(signal_of(records, "mcr")[:3], [np.nan, np.nan, 2.0])
    assert levels_of(records) == []
    assert limits_of(folder) == ()
    assert len(loss_figure(folder, tmp_path / "loss")) == 2
    visits = [stretch.visit for stretch in find_stretches(records)]
    assert [(v.start, v.end) for v in visits] == [(0, 300), (300, 600), (600, 900)]


def test_a_trigger_of_both_directions_has_two_thresholds(write_run, tmp_path, plotted):
    config = {"trigger": "level", "threshold": 2.0}
    folder = write_run("bee", "bee", samples=500, batch=100, log=True, config=config)
    scores = [0.5, -1.0, -30.0, 40.0, 0.0]
    add_signals(folder, lambda b: {"mcr": 1.0, "z": scores[b % 5]}, (3,))
    assert limits_of(folder) == (2.0, -2.0)
    loss_figure(folder, tmp_path / "loss")
    up, down = (next(call for call in plotted if call.get("marker") == m) for m in "^v")
    assert set(up["y"]) == {10.0}
    assert set(down["y"]) == {-10.0}


def test_a_single_batch(write_run, tmp_path):
    folder = write_run("bee", "bee", (20,), domains=("fog",), samples=100, batch=100, log=True)
    add_signals(folder, lambda _: {"mcr": 1.0, "mcr_1": 0.5, "mcr_2": 0.5, "z": 0.0})
    assert len(loss_figure(folder, tmp_path / "loss")) == 2


def test_faults(run, write_run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    other = write_run("tent", "tent", samples=200, batch=100, log=True)
    with pytest.raises(DataError, match=r"no consistency loss .*; its signals: none\.$"):
        loss_figure(other, out)
    add_signals(other, lambda _: {"entropy": 1.0, "confidence": 0.5})
    with pytest.raises(DataError, match=r"its signals: confidence, entropy\.$"):
        loss_figure(other, out)
    add_signals(other, lambda _: {"mcr": None})
    with pytest.raises(DataError, match="never a finite number"):
        loss_figure(other, out)
    with pytest.raises(DataError, match="There is no run at"):
        loss_figure(tmp_path / "nowhere", out)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with pytest.raises(BombusError, match=r"pip install 'bombus\[figures\]'"):
        loss_figure(run, out)
    assert not list(tmp_path.glob("out*"))


# --- the command -----------------------------------------------------------------------------


def test_plot_through_the_command_line(run, write_run, tmp_path, capsys):
    tyro.cli(plot, args=["loss", str(run), "--out", str(tmp_path / "loss.png")])
    said = capsys.readouterr().out
    assert (tmp_path / "loss.svg").exists()
    assert (tmp_path / "loss.png").exists()
    assert "loss.svg and " in said
    runs = write_run("runs/tent", "tent", domains=DOMAINS, samples=500, batch=100, log=True)
    tyro.cli(plot, args=["stream", str(run), str(runs.parent), "--out", str(tmp_path / "s.v1")])
    assert (tmp_path / "s.v1.png").exists()


def test_plot_faults(run, tmp_path):
    with pytest.raises(ConfigError, match="one run at a time, but 2"):
        plot("loss", (run, run), out=tmp_path / "x")
    with pytest.raises(ConfigError, match="Name the runs to draw"):
        plot("stream", (), out=tmp_path / "x")
    with pytest.raises(SystemExit) as stop:
        tyro.cli(plot, args=["lost", str(run), "--out", "x"])
    assert stop.value.code == 2
