from __future__ import annotations

import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from bombus.errors import BombusError, ConfigError, DataError
from bombus.report.figures import error_curve, stream_figure

SIZE = {"samples": 300, "batch": 100, "log": True}


@pytest.fixture
def folders(write_run):
    return [
        write_run("source", "source", (50, 60, 70), **SIZE),
        write_run("tent-1", "tent", (20, 30, 40), **SIZE),
        write_run("tent-2", "tent", (22, 33, 44), seed=2, **SIZE),
    ]


def test_pictures_are_drawn_the_same_bytes_every_time(folders, tmp_path):
    import matplotlib

    with matplotlib.rc_context({"font.size": 30.0}):  # the user's taste must not matter
        svg, png = stream_figure(folders, tmp_path / "one" / "stream.v1")
        assert matplotlib.rcParams["font.size"] == 30.0
    assert (svg.name, png.name) == ("stream.v1.svg", "stream.v1.png")
    again = stream_figure(folders, tmp_path / "two")
    assert [p.read_bytes() for p in again] == [svg.read_bytes(), png.read_bytes()]
    assert ElementTree.fromstring(svg.read_bytes()).tag.endswith("svg")
    assert "date" not in svg.read_text().lower()
    assert png.read_bytes().startswith(b"\x89PNG")
    width = int.from_bytes(png.read_bytes()[16:20], "big")
    assert width == 1500
    assert min(len(svg.read_bytes()), len(png.read_bytes())) > 10_000


def test_the_running_mean_stays_within_its_domain():
    def batch(domain: str, wrong: int, samples: int = 10) -> dict:
        return {"domains": {domain: {"wrong": wrong, "samples": samples}}}

    records = [batch("fog", 0), batch("fog", 6), batch("fog", 3, 5), batch("snow", 10)]
    curve = error_curve(records, 3)
    assert [(v.domain, v.start, v.end) for v in curve.visits] == [("fog", 0, 25), ("snow", 25, 35)]
    np.testing.assert_allclose(curve.x[0], [5, 15, 22.5])
    # 6 of 20, 9 of 25, 9 of 15; samples count, not batches.
    np.testing.assert_allclose(curve.error[0], [30, 36, 60])
    np.testing.assert_allclose(curve.error[1], [100])
    assert all(len(error) == 1 for error in error_curve(records[::3], None).error)


def test_many_lines_can_still_be_drawn(write_run, tmp_path):
    runs = [write_run(f"m{i}", f"m{i}", (i, i, i), **SIZE) for i in range(13)]
    assert len(stream_figure(runs, tmp_path / "many")) == 2


def test_faults(folders, write_run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(DataError, match="at least one run"):
        stream_figure([], out)
    with pytest.raises(ConfigError, match="window of 0"):
        stream_figure(folders, out, window=0)
    other = write_run("other", "bn", (1, 2, 3), benchmark="demo", **SIZE)
    with pytest.raises(DataError, match="figure of its own"):
        stream_figure([*folders, other], out)
    longer = write_run("longer", "bn", (1, 2, 3), **{**SIZE, "samples": 400})
    with pytest.raises(DataError, match="another stream"):
        stream_figure([*folders, longer], out)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with pytest.raises(BombusError, match=r"pip install 'bombus\[figures\]'"):
        stream_figure(folders, out)
    assert not list(tmp_path.glob("out*"))
