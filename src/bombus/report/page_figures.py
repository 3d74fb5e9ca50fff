"""The page's figures: error over the stream, and error against cost."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bombus.report import chart
from bombus.report.chart import Scale
from bombus.report.columns import quickest
from bombus.report.figures import Curve, average_curves, error_curve
from bombus.report.groups import Group, labels_of
from bombus.report.markup import Html, number, tag
from bombus.report.page_names import name_points
from bombus.report.page_table import scrolling
from bombus.report.records import RESULT, RunResult, read_batches

COST_WIDTH = 580  # narrower than a stream: it has to be read on a phone without scrolling
COST_BOTTOM = 310


@dataclass(frozen=True)
class Series:
    """A group of runs as it is drawn: the same number and look in every figure of its task."""

    place: int
    style: str
    label: str
    group: Group

    @property
    def error(self) -> float:
        return statistics.fmean(run.mean_error for run in self.group.runs)


def make_series(groups: Sequence[Group]) -> list[Series]:
    looks = map(chart.look, itertools.count())
    return [
        Series(place, "source" if group.method == "source" else next(looks), label, group)
        for place, (group, label) in enumerate(zip(groups, labels_of(groups), strict=True))
    ]


def has_log(run: RunResult) -> bool:
    """A copy in a ledger comes without its batches."""
    return run.path.name == RESULT and (run.path.parent / "batches.jsonl").is_file()


def figure(content: Html, caption: str, *keys: Html, **attributes: str) -> Html:
    return tag("figure", content, *keys, tag("figcaption", caption), **attributes)


def stream_figures(id: str, series: Sequence[Series]) -> list[Html]:
    """The error over the stream, a line a method; one figure for each stream among the runs."""
    by_stream: dict[tuple[object, ...], list[tuple[Series, str, Curve]]] = {}
    for one in series:
        for label, curve in _curves(one):
            by_stream.setdefault(curve.visits, []).append((one, label, curve))
    return [
        _stream_figure(f"{id}-stream-{place}", drawn)
        for place, drawn in enumerate(by_stream.values(), start=1)
    ]


def _curves(one: Series) -> list[tuple[str, Curve]]:
    """One curve, the seeds' mean; one a seed where each had a stream of its own."""
    runs = [run for run in one.group.runs if has_log(run)]
    curves = [error_curve(read_batches(run.path), None) for run in runs]
    if not curves:
        return []
    if len({(c.visits, tuple(map(len, c.x))) for c in curves}) == 1:
        return [(one.label, average_curves(curves))]
    return [(one.group.name_of(run), curve) for run, curve in zip(runs, curves, strict=True)]


def _stream_figure(id: str, drawn: Sequence[tuple[Series, str, Curve]]) -> Html:
    visits = drawn[0][2].visits
    top = chart.NAMES if len(visits) <= chart.NAMED else 12
    x = Scale(0, visits[-1].end, chart.LEFT, chart.WIDTH - chart.RIGHT)
    values = [
        float(v) for _, _, curve in drawn for part in curve.error for v in (min(part), max(part))
    ]
    y = Scale(*chart.rounded_out(min(values), max(values)), top + 290, top)
    lines = []
    for place, (one, label, curve) in enumerate(drawn):
        pieces = list(zip(curve.x, curve.error, strict=True))
        title = f"{label}: mean error {one.error:.1f} %"
        lines.append(chart.line(x, y, pieces, place, one.style, title))
    names = ", ".join(label for _, label, _ in drawn)
    picture = chart.svg(
        id,
        top + 290 + chart.BELOW,
        "Error over the stream",
        f"Running mean of the error in per cent, over {visits[-1].end:,} images in {len(visits)} "
        f"visits to domains, a line each for: {names}.",
        chart.bands(x, y, visits),
        chart.axes(x, y, x_label="images seen", y_label="error (%), running mean"),
        *lines,
    )
    keys = [
        (n, one.style, f"{label}: {one.error:.1f} %") for n, (one, label, _) in enumerate(drawn)
    ]
    caption = (
        "Error over the stream: a running mean over an eighth of a domain (at least 5 batches) "
        "that begins anew at each border. In the legend: the mean error over the domains."
    )
    return figure(scrolling(picture, "Error over the stream"), caption, chart.legend(keys))


def cost_figure(id: str, series: Sequence[Series]) -> Html:
    """Milliseconds a batch against mean error; left and low is good."""
    points = [(quickest(one.group.runs), one.error, one) for one in series]
    times, errors = [p[0] for p in points], [p[1] for p in points]
    wide = min(times) > 0 and max(times) > 8 * min(times)
    if wide:
        low, high = min(times) / 1.5, max(times) * 1.5
    else:
        low, high = _with_room(times)
    x = Scale(low, high, chart.LEFT, COST_WIDTH - 14, log=wide)
    y = Scale(*_with_room(errors), COST_BOTTOM, 14)
    front = _front(points)
    steps = [f"{number(x(front[0][0]))} {number(y(front[0][1]))}"]
    for (_, above, _), (time, error, _) in itertools.pairwise(front):
        steps += [f"{number(x(time))} {number(y(level))}" for level in (above, error)]
    room = (chart.LEFT, 0.0, COST_WIDTH, COST_BOTTOM)
    names = name_points([(x(t), y(e), one.group.method) for t, e, one in points], room)
    dots = [
        tag(
            "g",
            tag("title", f"{one.label}: {t:.1f} ms a batch, {e:.1f} % error"),
            tag("circle", cx=x(t), cy=y(e), r=5),
            name,
            class_=f"dot {one.style}",
            data_series=one.place,
        )
        for (t, e, one), name in zip(points, names, strict=True)
    ]
    facts = "; ".join(f"{one.label} {t:.1f} ms and {e:.1f} %" for t, e, one in points)
    picture = chart.svg(
        id,
        COST_BOTTOM + chart.BELOW,
        "Error against cost",
        f"Milliseconds a batch{' on a logarithmic axis' if wide else ''} and mean error: {facts}.",
        chart.axes(x, y, x_label="milliseconds a batch", y_label="mean error (%)"),
        tag("path", d=f"M{'L'.join(steps)}", class_="front"),
        *dots,
        width=COST_WIDTH,
    )
    best = ", ".join(one.label for _, _, one in front)
    caption = (
        f"Error against cost; left and low is good. Nothing is both faster and better than: {best}."
    )
    devices = dict.fromkeys(run.device for one in series for run in one.group.runs)
    if len(devices) > 1:
        caption += f" Times are of different machines ({'; '.join(devices)}): compare with care."
    keys = [(one.place, one.style, one.label) for one in series]
    return figure(
        scrolling(picture, "Error against cost"), caption, chart.legend(keys), class_="cost"
    )


def _with_room(values: Sequence[float]) -> tuple[float, float]:
    """Bounds in which no point lies on the edge."""
    room = 0.06 * (max(values) - min(values))
    return chart.rounded_out(max(min(values) - room, 0.0), max(values) + room)


def _front(points: Sequence[tuple[float, float, Series]]) -> list[tuple[float, float, Series]]:
    """Those that no other beats in time without losing in error, fastest first."""
    front: list[tuple[float, float, Series]] = []
    for point in sorted(points, key=lambda p: p[:2]):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
