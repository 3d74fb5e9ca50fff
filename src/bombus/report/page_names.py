"""Where the names of a chart's points go, so that none covers a point or another name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bombus.report.markup import Html, join, tag

LETTER = 8.0  # about the width of one in a chart on a phone, where they are largest
HALF = 6.0  # of a point, with some room around it
Place = tuple[float, float]
Point = tuple[float, float, str]
Box = tuple[float, float, float, float]  # left, top, right, bottom


def name_points(points: Sequence[Point], room: Box) -> list[Html]:
    """Each point's name beside it; where there is no room, further off, with a line to it.

    Of several points of one name (a method with other settings) only those beside which there is
    room have it: the legend tells them apart.
    """
    numbers = range(len(points))
    # Who chooses first takes room from the rest: of some orders that which names the most.
    orders = (
        numbers,
        sorted(numbers, key=lambda n: _loneliness(n, points)),
        sorted(numbers, key=lambda n: points[n][0]),
        sorted(numbers, key=lambda n: points[n][1]),
    )
    return max(
        (_name_in_order(points, room, order) for order in orders), key=lambda p: sum(map(bool, p))
    )


def _name_in_order(points: Sequence[Point], room: Box, order: Sequence[int]) -> list[Html]:
    names = [name for _, _, name in points]
    dots = [_around((x, y), HALF) for x, y, _ in points]
    taken = list(dots)
    parts = [Html()] * len(points)
    for number in order:
        x, y, name = points[number]
        wide = LETTER * len(name)
        others = [box for box in taken if box is not dots[number]]
        far = _further_off(x, y, wide) if names.count(name) == 1 else ()
        for near, (left, base) in [
            *((True, p) for p in _beside(x, y, wide)),
            *((False, p) for p in far),
        ]:
            box = (left, base - 10, left + wide, base + 3)
            if not _is_free(box, room, taken):
                continue
            text = tag("text", name, x=left, y=base)
            end = _nearest(box, (x, y))
            way = [] if near else [_around(place, 1) for place in _along((x, y), end)]
            if not all(_is_free(step, room, others) for step in way):
                continue
            line = tag("line", x1=x, y1=y, x2=end[0], y2=end[1])
            parts[number] = text if near else join([line, text])
            taken += [box, *way]
            break
    return parts


def _loneliness(number: int, points: Sequence[Point]) -> float:
    """How far its nearest neighbour is."""
    (x, y, _), others = points[number], [*points[:number], *points[number + 1 :]]
    return min((math.dist((x, y), other[:2]) for other in others), default=0.0)


def _beside(x: float, y: float, wide: float) -> list[Place]:
    """Where a name can begin: right, left, above, below."""
    middle = x - wide / 2
    return [(x + 9, y + 4), (x - 9 - wide, y + 4), (middle, y - 10), (middle, y + 19)]


def _further_off(x: float, y: float, wide: float) -> Iterator[Place]:
    for distance in range(18, 110, 7):
        for angle in range(0, 360, 15):
            aside, down = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            # A name is wider than high: to the side its middle is as much further off.
            yield x + (distance + wide / 2) * aside - wide / 2, y + distance * down + 4


def _along(start: Place, end: Place) -> list[Place]:
    """Places three units apart on the way, from the point's edge on."""
    way = end[0] - start[0], end[1] - start[1]
    length = math.hypot(*way)
    shares = [done / length for done in range(round(HALF), int(length), 3)]
    return [(start[0] + s * way[0], start[1] + s * way[1]) for s in shares]


def _nearest(box: Box, place: Place) -> Place:
    return min(max(place[0], box[0]), box[2]), min(max(place[1], box[1]), box[3])


def _around(place: Place, reach: float) -> Box:
    return place[0] - reach, place[1] - reach, place[0] + reach, place[1] + reach


def _is_free(box: Box, room: Box, taken: Sequence[Box]) -> bool:
    inside = room[0] < box[0] and room[1] < box[1] and box[2] < room[2] and box[3] < room[3]
    return inside and not any(_overlap(box, other) for other in taken)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
