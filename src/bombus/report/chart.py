"""Small charts as inline SVG. Colours are left to the page's style sheet, so that they can follow
its light or dark scheme; a reader's program is told by title and description what is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bombus.report.figures import Visit
from bombus.report.markup import Html, join, number, tag

Values = NDArray[np.float64]

WIDTH = 880  # units of a chart; the page scales it to the room there is
LEFT, RIGHT = 58, 72  # margins; the last domain's name leans out to the right
NAMES = 84  # room for slanted names of domains above a chart
BELOW = 44  # room for an axis with its label below
COLOURS, DASHES = 10, 3  # as many as the style sheet has
POINTS = 1500  # of a line; more lie closer than a pixel
NAMED = 30  # of more visits no names could be read


@dataclass(frozen=True)
class Scale:
    """From values to places, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.log:
            step = tick_step(self.high - self.low)
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            return [i * step for i in range(first, last + 1)]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            values = [d * 10.0**p for p in powers for d in digits]
            inside = [v for v in values if self.low <= v <= self.high]
            if len(inside) <= 8:
                break
        return inside


def tick_step(span: float, about: int = 5) -> float:
    """1, 2 or 5 times a power of ten: the largest that still gives about so many ticks."""
    power = 10.0 ** math.floor(math.log10(span / about))
    return max(d * power for d in (1, 2, 5, 10) if span / (d * power) >= about - 1)


def rounded_out(low: float, high: float) -> tuple[float, float]:
    """Bounds that end on ticks; down to 0 where that is not far."""
    low = 0.0 if 0 <= low < 0.4 * high else low
    if low == high:
        low, high = (low - 1, high + 1) if low else (0.0, 1.0)
    step = tick_step(high - low)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def look(place: int) -> str:
    """Class of the series at `place`: a colour and a dash, no pair of which comes twice in 30.

    The dash changes twice as often as the colours begin anew: blues differ in it, too.
    """
    return f"c{place % COLOURS} d{place // (COLOURS // 2) % DASHES}"


def svg(
    id: str, height: float, title: str, description: str, *inside: Html, width: float = WIDTH
) -> Html:
    return tag(
        "svg",
        tag("title", title, id=f"{id}-title"),
        tag("desc", description, id=f"{id}-desc"),
        *inside,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_labelledby=f"{id}-title {id}-desc",
    )


def axes(x: Scale, y: Scale, *, x_label: str = "", y_label: str = "") -> Html:
    """Grid lines with their numbers; the numbers of x only where it has a label."""
    parts = []
    for value in y.ticks():
        place = y(value)
        parts.append(tag("line", x1=x.start, x2=x.end, y1=place, y2=place, class_="grid"))
        parts.append(_text(x.start - 6, place + 4, f"{value:g}", "end"))
    middle = (y.start + y.end) / 2
    turned = f"translate(14 {number(middle)}) rotate(-90)"
    parts.append(tag("text", y_label, transform=turned, text_anchor="middle"))
    parts.append(tag("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis"))
    if x_label:
        for value in x.ticks():
            place = x(value)
            parts.append(tag("line", x1=place, x2=place, y1=y.start, y2=y.start + 4, class_="axis"))
            parts.append(_text(place, y.start + 17, f"{value:,.10g}", "middle"))
        parts.append(_text((x.start + x.end) / 2, y.start + 36, x_label, "middle"))
    return join(parts)


def bands(x: Scale, y: Scale, visits: Sequence[Visit], *, names: bool = True) -> Html:
    """A light band behind every other domain, and the domains' names above."""
    parts = []
    for place, visit in enumerate(visits):
        left, right = x(visit.start), x(visit.end)
        if place % 2 == 0:
            size = {"width": right - left, "height": y.start - y.end}
            parts.append(tag("rect", x=left, y=y.end, class_="band", **size))
        if names and len(visits) <= NAMED:
            at = f"translate({number((left + right) / 2 - 2)} {number(y.end - 5)}) rotate(-40)"
            parts.append(tag("text", visit.domain.replace("_", " "), transform=at, class_="domain"))
    return join(parts)


def line(
    x: Scale, y: Scale, pieces: Sequence[tuple[Values, Values]], series: int, style: str, title: str
) -> Html:
    """One series, with a gap between its pieces and wherever a value is missing."""
    whole = [part for xs, ys in pieces for part in _unbroken(xs, ys)]
    each = max(4, POINTS // max(1, len(whole)))
    moves, lone = [], []
    for xs, ys in whole:
        if len(xs) == 1:  # a point, which no line would show
            lone.append(tag("circle", cx=x(xs[0]), cy=y(ys[0]), r=2.2))
            continue
        places = [
            f"{number(x(a))} {number(y(b))}" for a, b in zip(*thin(xs, ys, each), strict=True)
        ]
        moves.append(f"M{'L'.join(places)}")
    drawn = [tag("path", d="".join(moves))] if moves else []
    return tag(
        "g", tag("title", title), *drawn, *lone, class_=f"series {style}", data_series=series
    )


def thin(xs: Values, ys: Values, most: int) -> tuple[Values, Values]:
    """At most about so many points: the lowest and the highest of each stretch, so that no spike
    is lost."""
    if len(xs) <= most:
        return xs, ys
    keep = {0, len(xs) - 1}
    for stretch in np.array_split(np.arange(len(xs)), most // 2):
        keep |= {int(stretch[ys[stretch].argmin()]), int(stretch[ys[stretch].argmax()])}
    places = sorted(keep)
    return xs[places], ys[places]


def _unbroken(xs: Values, ys: Values) -> list[tuple[Values, Values]]:
    known = np.isfinite(ys)
    borders = np.flatnonzero(np.diff(known.astype(int))) + 1
    pairs = zip(np.split(xs, borders), np.split(ys, borders), strict=True)
    return [(a, b) for a, b in pairs if len(b) and np.isfinite(b[0])]


def _text(x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, x=x, y=y, text_anchor=anchor)


def legend(series: Sequence[tuple[int, str, str]]) -> Html:
    """Number, style and label of each series; a click hides it (where scripts run)."""
    items = []
    for place, style, label in series:
        swatch = tag(
            "svg",
            tag("path", d="M1 6H25", class_=f"series {style}"),
            viewBox="0 0 26 12",
            aria_hidden="true",
        )
        key = tag("button", swatch, label, type="button", data_series=place, aria_pressed="true")
        items.append(tag("li", key))
    return tag("ul", *items, class_="legend")
