"""Names beside the points of a figure."""

from __future__ import annotations

import itertools
from pathlib import Path

from matplotlib.text import Text

from bombus.report.figures import drawing, name_points, save_pictures


def test_names_lie_upon_no_other_name_or_point(tmp_path: Path) -> None:
    points = [(1.0, 2.0, f"method-{i}") for i in range(4)]
    points += [(1.1, 2.05, "near"), (5.0, 9.0, "far")]
    with drawing((6.0, 4.0)) as figure:
        axes = figure.add_subplot()
        for x, y, _ in points:
            axes.plot([x], [y], "o")
        axes.margins(0.1)
        name_points(axes, points)
        figure.draw_without_rendering()
        texts = {text.get_text(): text for text in axes.texts}
        assert list(texts) == [name for _, _, name in points]
        boxes = [Text.get_window_extent(text) for text in texts.values()]  # without their lines
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other)
        dots = [axes.transData.transform(point[:2]) for point in points]
        assert not any(box.contains(*dot) for box in boxes for dot in dots)
        inside = axes.get_window_extent()
        assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)
        # A name that had to go far is tied to its point; one with room is not.
        tied = {name for name, text in texts.items() if getattr(text, "arrow_patch", None)}
        assert tied
        assert "far" not in tied
        save_pictures(figure, tmp_path / "named")
