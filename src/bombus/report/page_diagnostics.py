"""What a method with a consistency loss (bee) saw: its loss, shift score and perplexities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bombus.report import chart
from bombus.report.chart import Scale, Values
from bombus.report.figures import Visit, find_stretches
from bombus.report.groups import Group
from bombus.report.loss_figure import HIGHEST, TOTAL, levels_of, limits_of, signal_of
from bombus.report.markup import Html, tag
from bombus.report.page_figures import figure, has_log
from bombus.report.page_table import scrolling
from bombus.report.records import RunResult, read_batches
from bombus.report.triggers import Judged, judge_alarms, marks

PERPLEXITY = re.compile(r"(teacher|student)_perplexity_(\d+)")
Lines = list[tuple[str, str, Values]]  # style, label, one value a batch


def diagnostics(id: str, groups: Sequence[Group]) -> list[Html]:
    """A folded part for each run that recorded a consistency loss, the first one open."""
    parts: list[Html] = []
    for name, run in [(group.name_of(run), run) for group in groups for run in group.runs]:
        records = read_batches(run.path) if has_log(run) else []
        if not records or np.isnan(signal_of(records, TOTAL)).all():
            continue
        # A record may lack what the alarms are judged by.
        records = [{**record, "events": record.get("events", [])} for record in records]
        inside = _figures(f"{id}-{len(parts) + 1}", run, records)
        parts.append(tag("details", tag("summary", name), *inside, open=None if parts else "open"))
    return parts


@dataclass(frozen=True)
class _Seen:
    """The stream under the signals: a place for every batch, and in which of them it noticed."""

    visits: tuple[Visit, ...]
    x: Values
    alarms: list[int]
    alarm: str  # what one of them is called


def _figures(id: str, run: RunResult, records: list[dict[str, Any]]) -> list[Html]:
    stretches = find_stretches(records)
    seen = _Seen(
        tuple(stretch.visit for stretch in stretches),
        np.concatenate([stretch.x for stretch in stretches]),
        *marks(records),
    )
    lines: Lines = [("ink d0", "consistency loss", signal_of(records, TOTAL))]
    for i, level in enumerate(levels_of(records)):
        lines.append((chart.look(i), f"level {level}", signal_of(records, f"{TOTAL}_{level}")))
    judged = judge_alarms(records)
    caption = _judged_in_words(judged)
    if seen.alarms:
        caption += f"A circle is a {seen.alarm}."
    parts = [_panel(f"{id}-loss", seen, "Consistency loss", "loss", lines, caption, named=True)]
    z = signal_of(records, "z")
    if not np.isnan(z).all():
        limits = limits_of(run.path.parent)
        score: Lines = [("c9 d0", "shift score", z)]
        caption = _limits_in_words(limits)
        parts.append(_panel(f"{id}-z", seen, "Shift score", "z", score, caption, limits))
    perplexities = _perplexities(records)
    if perplexities:
        caption = "Perplexity of the assignments to codes: 1 is a collapse onto a single code."
        parts.append(_panel(f"{id}-codes", seen, "Perplexity", "perplexity", perplexities, caption))
    return parts


def _judged_in_words(judged: Judged) -> str:
    if not judged.borders:
        return f"Consistency loss: {judged}. "
    caption = f"Consistency loss over {judged.borders} borders between domains. "
    return caption + (f"{judged}. ".capitalize() if judged.alarms else "None of them was noticed. ")


def _limits_in_words(limits: tuple[float, ...]) -> str:
    if not limits:
        return "Shift score of the loss."
    where = "Above the dashed line" if len(limits) == 1 else "Beyond the dashed lines, either way"
    return (
        f"Shift score of the loss. {where} ({limits[0]:g}) a shift is noticed; what exceeds "
        f"{HIGHEST} times as much is drawn at the edge."
    )


def _perplexities(records: Sequence[dict[str, Any]]) -> Lines:
    names = {name for record in records for name in record.get("signals", {})}
    matches = [m for m in map(PERPLEXITY.fullmatch, names) if m]
    # The teacher's first, as the alphabet would not have it.
    found = sorted(
        ((int(m[2]), m[1], m[0]) for m in matches), key=lambda f: (f[0], f[1] != "teacher")
    )
    levels = list(dict.fromkeys(level for level, _, _ in found))
    return [
        (
            f"c{levels.index(level) % chart.COLOURS} d{0 if who == 'teacher' else 1}",
            f"{who}, level {level}",
            signal_of(records, name),
        )
        for level, who, name in found
    ]


def _panel(
    id: str,
    seen: _Seen,
    title: str,
    unit: str,
    lines: Lines,
    caption: str,
    limits: tuple[float, ...] = (),
    *,
    named: bool = False,
) -> Html:
    """Lines over the stream, alarms marked; the first panel names the domains too."""
    top = chart.NAMES if named and len(seen.visits) <= chart.NAMED else 12
    bottom = top + (210 if named else 120)
    known = np.concatenate([values[np.isfinite(values)] for _, _, values in lines])
    low, high = float(known.min()), float(known.max())
    lowest, highest = low, high
    if limits:
        # One great spike would press all the rest flat.
        furthest = HIGHEST * max(limits)
        lowest = max(min(low, *limits), -furthest)
        highest = min(max(high, *limits), furthest)
    images = seen.visits[-1].end
    x = Scale(0, images, chart.LEFT, chart.WIDTH - chart.RIGHT)
    y = Scale(*chart.rounded_out(lowest, highest), bottom, top)
    drawn = []
    for number, (style, label, values) in enumerate(lines):
        shown = np.clip(values, y.low, y.high)  # NaN stays NaN
        drawn.append(chart.line(x, y, [(seen.x, shown)], number, style, label))
    for batch in seen.alarms:
        place, value = x(seen.x[batch]), lines[0][2][batch]
        drawn.append(tag("line", x1=place, x2=place, y1=bottom, y2=top, class_="replay"))
        if named and np.isfinite(value):
            mark = tag("title", f"{seen.alarm} at batch {batch}")
            drawn.append(tag("circle", mark, cx=place, cy=y(value), r=6, class_="replay"))
    for limit in limits:
        level = y(limit)
        drawn.append(tag("line", x1=x.start, x2=x.end, y1=level, y2=level, class_="threshold"))
    picture = chart.svg(
        id,
        bottom + chart.BELOW,
        f"{title} over the stream",
        f"{title} batch by batch, from {low:.3g} to {high:.3g}, over {images:,} images in "
        f"{len(seen.visits)} visits to domains; {seen.alarm}: {len(seen.alarms)}.",
        chart.bands(x, y, seen.visits, names=named),
        chart.axes(x, y, x_label="images seen", y_label=unit),
        *drawn,
    )
    keys = [(n, style, label) for n, (style, label, _) in enumerate(lines)]
    legend = [chart.legend(keys)] if len(keys) > 1 else []
    return figure(scrolling(picture, title), caption, *legend)
