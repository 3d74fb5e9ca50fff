from __future__ import annotations

import math
import re
from importlib.resources import files

import numpy as np
import pytest

from bombus.report import chart
from bombus.report.chart import Scale
from bombus.report.figures import Visit
from bombus.report.markup import Html, join, number, tag
from bombus.report.page_figures import _front
from bombus.report.page_names import name_points
from html_tree import Reader


def test_only_tags_make_markup():
    assert tag("p", "a < b", tag("b", "&"), title='"x"', data_value=1.25, class_="k", id=None) == (
        '<p title="&quot;x&quot;" data-value="1.2" class="k">a &lt; b<b>&amp;</b></p>'
    )
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert join(["<", Html("<br>")]) == "&lt;<br>"
    assert [number(v) for v in (3.0, -0.04, 2.96)] == ["3", "0", "3"]


def test_scales_and_their_ticks():
    linear = Scale(0, 60, 100, 700)
    assert [linear(v) for v in (0, 30, 60)] == [100, 400, 700]
    assert linear.ticks() == [0, 10, 20, 30, 40, 50, 60]
    log = Scale(1, 1000, 0, 300, log=True)
    assert [log(v) for v in (1, 10, 1000)] == pytest.approx([0, 100, 300])
    assert log.ticks() == pytest.approx([1, 3, 10, 30, 100, 300, 1000])
    assert Scale(13, 60, 0, 1, log=True).ticks() == [20, 50]
    assert Scale(9, 11, 0, 1, log=True).ticks() == [10]


@pytest.mark.parametrize("span", [0.003, 0.07, 1, 9.9, 45, 100, 4321])
def test_ticks_are_round_and_neither_few_nor_many(span):
    step = chart.tick_step(span)
    assert f"{step:.0e}"[0] in "125"
    assert step == pytest.approx(float(f"{step:.0e}"))
    assert 4 <= span / step <= 10


def test_bounds_hold_the_values_and_end_on_ticks():
    assert chart.rounded_out(12.0, 71.0) == (0, 80)
    assert chart.rounded_out(41.0, 49.0) == (40, 50)
    low, high = chart.rounded_out(-3.2, 9.1)
    assert low <= -3.2
    assert high >= 9.1
    for value in (0.0, 7.0, -7.0):  # one value alone
        low, high = chart.rounded_out(value, value)
        assert low <= value <= high
        assert low < high


def test_a_line_has_gaps_where_values_are_missing():
    x, y = Scale(0, 10, 0, 100), Scale(0, 1, 100, 0)
    xs = np.array([0.0, 1, 2, 3, 4, 5])
    ys = np.array([0.0, 1, np.nan, 0.5, np.nan, np.nan])
    drawn = Reader(chart.line(x, y, [(xs, ys), (xs + 5, ys)], 3, "c1 d0", "a title").encode()).root
    (path,) = drawn.all("path")
    assert path.attributes["d"] == "M0 100L10 0M50 100L60 0"
    dots = [(c.attributes["cx"], c.attributes["cy"]) for c in drawn.all("circle")]
    assert dots == [("30", "50"), ("80", "50")]
    assert drawn.all("title")[0].words == "a title"
    assert drawn.all("g")[0].attributes["data-series"] == "3"


def test_thinning_loses_no_spike():
    xs = np.arange(10_000.0)
    ys = np.sin(xs / 500)
    ys[4321], ys[7000] = 9.0, -9.0
    thin_x, thin_y = chart.thin(xs, ys, 400)
    assert len(thin_x) <= 402
    assert (np.diff(thin_x) > 0).all()
    assert {4321.0, 7000.0, 0.0, 9999.0} <= set(thin_x)
    np.testing.assert_array_equal(thin_y, ys[thin_x.astype(int)])
    assert chart.thin(xs[:400], ys[:400], 400)[0] is not None
    assert len(chart.thin(xs[:400], ys[:400], 400)[0]) == 400


def test_bands_and_names_of_domains():
    x, y = Scale(0, 30, 0, 300), Scale(0, 1, 100, 20)
    visits = [Visit("snow_fall", 0, 10), Visit("fog", 10, 30)]
    drawn = Reader(chart.bands(x, y, visits).encode()).root
    (band,) = drawn.all("rect")
    assert [band.attributes[n] for n in ("x", "y", "width", "height")] == ["0", "20", "100", "80"]
    assert [t.words for t in drawn.all("text")] == ["snow fall", "fog"]
    many = [Visit("fog", i, i + 1) for i in range(chart.NAMED + 1)]
    assert "<text" not in chart.bands(x, y, many)


def test_thirty_lines_look_different():
    looks = {chart.look(i) for i in range(30)}
    assert len(looks) == 30
    assert all(re.fullmatch(r"c\d d[012]", name) for name in looks)


def test_the_front_is_what_nothing_beats():
    rng = np.random.default_rng(0)
    points = [(float(t), float(e), i) for i, (t, e) in enumerate(rng.integers(0, 12, (40, 2)))]
    beaten = {
        b
        for _, _, b in points
        for t, e, _ in points
        if (t <= points[b][0] and e < points[b][1]) or (t < points[b][0] and e <= points[b][1])
    }
    alive = {p[:2] for p in points if p[2] not in beaten}
    front = [p[:2] for p in _front(points)]
    assert set(front) == alive
    assert front == sorted(alive)


# As on the WRN-28-10: milliseconds a batch and error, five methods within 40 units of each other.
COSTS = {
    "source": (7.3, 42.8), "bn": (8.8, 20.3), "tent": (19.1, 18.2), "rdumb": (19.7, 17.2),
    "eata": (21.5, 17.3), "roid": (36.4, 16.8), "sar": (43.5, 20.3), "cotta": (50.9, 17.1),
    "rmt-free": (64.2, 14.4), "adacontrast": (66.6, 19.5), "dplot": (77.3, 14.0),
    "rmt": (86.1, 13.6), "obao": (88.7, 15.0), "bee": (474.0, 12.3), "bee-paper": (410.7, 18.1),
    "bee-rehearsal": (638.2, 10.2),
}  # fmt: skip


def numbers(part: Html, element: str, names: str) -> list[tuple[float, ...]]:
    return [
        tuple(float(found.attributes[name]) for name in names.split())
        for found in Reader(part.encode()).root.all(element)
    ]


def test_every_point_has_its_name_and_nothing_lies_on_anything():
    x, y = Scale(5, 957, 58, 566, log=True), Scale(0, 50, 310, 14)
    points = [(x(ms), y(error), name) for name, (ms, error) in COSTS.items()]
    parts = name_points(points, (58, 0, 580, 310))
    assert [Reader(part.encode()).root.words for part in parts] == list(COSTS)
    boxes = []
    for (left, base), name in zip(
        (numbers(p, "text", "x y")[0] for p in parts), COSTS, strict=True
    ):
        boxes.append((left, base - 9, left + 7 * len(name), base + 2))
        assert boxes[-1][0] > 58
        assert boxes[-1][2] < 580
    for i, (a, b, c, d) in enumerate(boxes):
        assert all(c < e or g < a or d < f or h < b for e, f, g, h in boxes[:i])
        assert not any(a - 4 < px < c + 4 and b - 4 < py < d + 4 for px, py, _ in points)
    lines = {
        i: found[0] for i, p in enumerate(parts) if (found := numbers(p, "line", "x1 y1 x2 y2"))
    }
    assert lines  # who stands in the crowd is named from further off
    for i, (x1, y1, x2, y2) in lines.items():
        assert (x1, y1) == pytest.approx(points[i][:2], abs=0.1)
        for share in np.linspace(0, 1, 50):
            here = x1 + share * (x2 - x1), y1 + share * (y2 - y1)
            rest = [p[:2] for n, p in enumerate(points) if n != i]
            assert min(math.dist(here, other) for other in rest) > 5
            own = boxes[:i] + boxes[i + 1 :]
            assert not any(a < here[0] < c and b < here[1] < d for a, b, c, d in own)


def test_points_of_one_name_are_named_only_where_there_is_room_beside_them():
    parts = name_points([(300.0 + 3 * i, 200.0, "bee") for i in range(9)], (58, 0, 580, 310))
    assert 1 <= len([part for part in parts if part]) < 9
    assert not any("<line" in part for part in parts)


def test_where_there_is_no_room_a_name_is_left_out():
    crowd = [(100.0 + 7 * i, 100.0 + 7 * j, f"{i} to {j}") for i in range(9) for j in range(9)]
    parts = name_points(crowd, (90, 90, 170, 170))
    assert len([part for part in parts if part]) < 9


def colours(style: str) -> tuple[dict[str, str], dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    own = dict(re.findall(r"--(\w+): (#\w{6})", light))
    return own, {**own, **dict(re.findall(r"--(\w+): (#\w{6})", dark))}


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    bright = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        bright.append(sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True)))
    return (max(bright) + 0.05) / (min(bright) + 0.05)


def test_colours_can_be_read_in_light_and_dark():
    style = (files("bombus.report") / "page.css").read_text()
    for scheme in colours(style):
        behind = [scheme[f"h{i}"] for i in range(8)] + [
            scheme[n] for n in ("paper", "raised", "best")
        ]
        assert min(contrast(scheme["ink"], paper) for paper in behind) >= 4.5
        for name in ("quiet", "link"):
            assert min(contrast(scheme[name], scheme[p]) for p in ("paper", "raised")) >= 4.5
        for name in (*(f"c{i}" for i in range(10)), "source", "replay"):
            assert min(contrast(scheme[name], scheme[p]) for p in ("paper", "raised")) >= 3, name
