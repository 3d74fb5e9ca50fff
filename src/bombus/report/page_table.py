"""The page's tables: errors by domain, quality and cost, and the heat map. What they say is decided
in layout.py."""

from __future__ import annotations

from collections.abc import Sequence

from bombus.report.columns import COST, QUALITY, Column, format_value
from bombus.report.layout import Cell, Row, Table
from bombus.report.markup import Html, tag

SHADES = 8  # of the heat map, as many as the style sheet has

WORDS = {
    "mean": "mean error over the domains, in per cent",
    "calibration_error": "expected calibration error, in per cent",
    "log_loss": "negative log-likelihood of the right class, in nats",
    "batches_to_adapt": "batches until within a point of a domain's final error",
    "forgotten": "points by which the error on clean images rose over the stream",
    "ms_per_batch": "milliseconds a batch",
    "forwards": "forward passes a batch",
    "backwards": "backward passes a batch",
    "peak_memory_mb": "peak memory, in MiB",
    "source_access": "what a method sees of the source data beforehand",
    "source_mb": "source images read beforehand, in MB",
}
TEXT_COLUMNS = ("source_access",)


def error_table(table: Table, part: str = "domain") -> Html:
    """As in the papers: a row a method, a column a domain, best and second best marked."""
    places = [i for i, c in enumerate(table.columns) if c.kind != "cost"]
    caption = f"Error in per cent by {part}; lower is better."
    if any(cell.mark for row in table.rows for cell in row.cells):
        caption += " The best of our runs is bold on colour, the second best underlined."
    if any(row.published for row in table.rows):
        caption += " Rows in italics are published elsewhere."
    if any(column.kind == "published" for column in table.columns):
        caption += " After the mean stands what is published elsewhere."
    return _sortable(table, places, caption, table.rows)


def cost_table(table: Table) -> Html:
    wanted = {"mean", *(c.name for c in (*QUALITY, *COST))}
    places = [i for i, c in enumerate(table.columns) if c.name in wanted]
    ours = [row for row in table.rows if not row.published]
    return _sortable(
        table, places, "How good the answers are beyond the error, and their cost.", ours
    )


def _sortable(table: Table, places: Sequence[int], caption: str, rows: Sequence[Row]) -> Html:
    columns = [table.columns[i] for i in places]
    heads = [_head("Method", "method", "text")]
    for column in columns:
        kind = "text" if column.name in TEXT_COLUMNS else "number"
        heads.append(_head(column.head, WORDS.get(column.name, _words(column.name)), kind))
    bodies = []
    for section in dict.fromkeys(row.section for row in rows):
        lines = []
        if section:
            name = tag("th", tag("span", section), colspan=len(heads), scope="rowgroup")
            lines.append(tag("tr", name, class_="section"))
        lines += [
            _row(row, [(row.cells[i], table.columns[i]) for i in places])
            for row in rows
            if row.section == section
        ]
        bodies.append(tag("tbody", *lines))
    head = tag("thead", tag("tr", *heads))
    return scrolling(tag("table", _caption(caption), head, *bodies, class_="sortable"), caption)


def _head(text: str, words: str, kind: str) -> Html:
    button = tag("button", text, type="button", title=words)
    return tag("th", button, scope="col", data_kind=kind)


def _row(row: Row, cells: Sequence[tuple[Cell, Column]]) -> Html:
    # Sorted, a published row may stand far from its method's: it carries the name itself.
    label = f"{row.method}, {row.label}" if row.published else row.label
    parts = [tag("th", label, scope="row", data_value=label)]
    for cell, column in cells:
        text = format_value(cell.value, column)
        inside: list[str] = [text]
        if cell.mark:
            inside = [tag("strong" if cell.mark == "best" else "u", text)]
        if cell.spread is not None:
            # One digit more than the mean: a spread of 0.04 must not read 0.0.
            spread = f" ± {cell.spread:.{(column.digits or 0) + 1}f}"
            inside.append(tag("span", spread, class_="spread"))
        # As shown, so that what looks equal stays in order.
        name = column.kind if not cell.mark else f"{column.kind} {cell.mark}"
        parts.append(tag("td", *inside, class_=name, data_value=text or None))
    return tag("tr", *parts, class_="published" if row.published else None)


def heat_map(table: Table) -> Html:
    """Methods by domains, the darker the worse; the number stands in each cell."""
    ours = [row for row in table.rows if not row.published]
    places = [i for i, c in enumerate(table.columns) if c.kind == "domain"]
    errors = [[v for i in places if isinstance(v := row.cells[i].value, float)] for row in ours]
    low, high = min(map(min, errors)), max(map(max, errors))
    heads = [tag("th", "Method", scope="col")]
    for i in places:
        name = _words(table.columns[i].name)
        heads.append(tag("th", tag("span", table.columns[i].head), scope="col", title=name))
    lines = []
    for row, values in zip(ours, errors, strict=True):
        cells = []
        for i, error in zip(places, values, strict=True):
            share = (error - low) / (high - low) if high > low else 0.0
            shade = min(int(share * SHADES), SHADES - 1)
            name = f"{row.label}, {_words(table.columns[i].name)}: {error:.1f} %"
            cells.append(tag("td", f"{error:.0f}", class_=f"h{shade}", title=name))
        lines.append(tag("tr", tag("th", row.label, scope="row"), *cells))
    caption = f"Error in per cent, from {low:.1f} (palest) to {high:.1f} (strongest colour)."
    head, body = tag("thead", tag("tr", *heads)), tag("tbody", *lines)
    return scrolling(tag("table", _caption(caption), head, body, class_="heat"), caption)


def _caption(text: str) -> Html:
    return tag("caption", tag("span", text))  # which stays in sight while the table scrolls


def scrolling(inside: Html, label: str) -> Html:
    """What is too wide for a small screen scrolls by itself, by keyboard too."""
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=label)


def _words(name: str) -> str:
    return name.replace("_", " ")
