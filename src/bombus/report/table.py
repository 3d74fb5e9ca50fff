"""Tables as text, Markdown, LaTeX and CSV. What they say is decided in layout.py."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence

from bombus.report.columns import Column, format_value
from bombus.report.layout import SHORT, Cell, Mark, Row, Table, make_tables

__all__ = [
    "Cell",
    "Column",
    "Row",
    "Table",
    "make_tables",
    "to_csv",
    "to_latex",
    "to_markdown",
    "to_text",
]


def _format(cell: Cell, column: Column, plus_minus: str = " ± ") -> str:
    text = format_value(cell.value, column)
    if cell.spread is None:
        return text
    # One digit more than the mean: a spread of 0.04 must not read 0.0.
    return f"{text}{plus_minus}{cell.spread:.{(column.digits or 0) + 1}f}"


def to_text(tables: Sequence[Table], *, width: int = 120, styled: bool = False) -> str:
    """For a terminal or a log: aligned, best with *, second best with '; columns that do not fit
    into `width` go below. `styled` adds bold, underline and dim as terminals know them."""
    return "\n\n".join(_text_table(table, width, styled) for table in tables) + "\n"


KINDS = ("domain", "mean", "published", "cost")  # in the order of the columns
_SUFFIX: dict[Mark, str] = {"best": "*", "second": "'", "": " "}
_STYLE: dict[Mark, str] = {"best": "\x1b[1m", "second": "\x1b[4m"}


def _text_table(table: Table, width: int, styled: bool) -> str:
    marked = any(cell.mark for row in table.rows for cell in row.cells)
    texts = [
        [
            _format(cell, column, "±")
            + (_SUFFIX[cell.mark] if marked and column.kind in ("domain", "mean") else "")
            for cell, column in zip(row.cells, table.columns, strict=True)
        ]
        for row in table.rows
    ]
    widths = [
        max(len(column.head), *(len(row[i]) for row in texts))
        for i, column in enumerate(table.columns)
    ]
    lines = [table.heading, ""]
    for block in _blocks(table.columns, widths, width - 16):
        used = sum(widths[i] + 1 for i in block)
        labels = [f"  {row.label}" if row.published else row.label for row in table.rows]
        if used + max(map(len, labels)) > width:
            briefs = [row.brief and f"  {row.brief}" for row in table.rows]
            labels = [brief or label for brief, label in zip(briefs, labels, strict=True)]
        left = max(16, min(width - used, max(map(len, labels))))
        heads = "".join(f" {table.columns[i].head:>{widths[i]}}" for i in block)
        lines += [" " * left + heads, "-" * (left + used)]
        section = ""
        for row, label, cells in zip(table.rows, labels, texts, strict=True):
            if not any(cells[i].strip() for i in block):
                continue  # a published row has nothing to say about cost
            if row.section != section:
                section = row.section
                lines.append(f"[{section}]")
            start, *more = textwrap.wrap(label, left, subsequent_indent="    ")
            line = start.ljust(left)
            for i in block:
                style = _STYLE.get(row.cells[i].mark) if styled else None
                gap = " " * (1 + widths[i] - len(cells[i]))
                line += f"{gap}{style}{cells[i]}\x1b[0m" if style else gap + cells[i]
            dim = styled and row.published
            lines += [f"\x1b[2m{line}\x1b[0m" if dim else line.rstrip(), *more]
        lines.append("")
    notes = ("* best, ' second best.", *table.notes) if marked else table.notes
    for note in notes:
        lines += textwrap.wrap(note, width, subsequent_indent="  ")
    return "\n".join(lines).rstrip("\n")


def _blocks(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns side by side as far as there is room; the cost apart rather than torn, and printed
    numbers never without the mean that they belong to."""
    if sum(widths) + len(widths) <= room:
        return [list(range(len(columns)))]
    blocks: list[list[int]] = []
    summary = any(column.kind == "published" for column in columns)
    apart = (("domain",), ("mean", "published", "cost"))
    for kinds in apart if summary else (("domain", "mean"), ("cost",)):
        block: list[int] = []
        for i in (i for i, column in enumerate(columns) if column.kind in kinds):
            if block and sum(widths[j] + 1 for j in [*block, i]) > room:
                blocks.append(block)
                block = []
            block.append(i)
        blocks += [block] if block else []
    return blocks


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub's tables: best bold, second best in italics."""
    around: dict[Mark, str] = {"best": "**", "second": "*", "": ""}
    parts = []
    for table in tables:
        lines = [f"### {_plain(table.heading)}", ""]
        lines.append("| Method | " + " | ".join(_plain(c.head) for c in table.columns) + " |")
        lines.append("|:--|" + "--:|" * len(table.columns))
        section = ""
        for row in table.rows:
            if row.section != section:
                section = row.section
                lines.append(f"| *{section}* |" + " |" * len(table.columns))
            label = f"↳ {row.label}" if row.published else row.label
            cells = [_plain(label)]
            for cell, column in zip(row.cells, table.columns, strict=True):
                cells.append(f"{around[cell.mark]}{_format(cell, column)}{around[cell.mark]}")
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", *(f"- {note}" for note in table.notes)]
        parts.append("\n".join(lines).rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else: a folder of somebody's may be called `a|<b>`."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def to_latex(tables: Sequence[Table]) -> str:
    """As in the papers, for booktabs and graphicx: best bold, second best underlined."""
    parts = ["% needs \\usepackage{booktabs, graphicx}"]
    around: dict[Mark, str] = {"best": "\\textbf{%s}", "second": "\\underline{%s}", "": "%s"}
    for table in tables:
        kinds = [c.kind for c in table.columns]
        layout = "|".join("c" * kinds.count(k) for k in KINDS if k in kinds)
        heads = [f"\\rotatebox{{80}}{{{_escape(_long_head(c))}}}" for c in table.columns]
        lines = [
            "\\begin{table*}[t]",
            "  \\caption{Classification error rate (\\%, lower is better): "
            f"{_escape(table.heading)}. The best result is bold, the second best underlined.}}",
            "  \\centering",
            "  \\resizebox{\\textwidth}{!}{%",
            f"  \\begin{{tabular}}{{l|{layout}}}",
            "    \\toprule",
            f"    Method & {' & '.join(heads)} \\\\",
            "    \\midrule",
        ]
        section = ""
        for row in table.rows:
            if row.section != section:
                lines += ["    \\midrule"] if section else []
                section = row.section
                width = len(table.columns) + 1
                lines.append(f"    \\multicolumn{{{width}}}{{l}}{{\\textit{{{section}}}}} \\\\")
            quiet = "\\textit{%s}" if row.published else "%s"
            cells = [("\\quad " if row.published else "") + quiet % _escape(row.label)]
            for cell, column in zip(row.cells, table.columns, strict=True):
                text = _escape(_format(cell, column))
                cells.append(around[cell.mark] % (quiet % text) if text else "--")
            lines.append(f"    {' & '.join(cells)} \\\\")
        lines += ["    \\bottomrule", "  \\end{tabular}}"]
        lines += [f"  \\par{{\\footnotesize {_escape(note)}}}" for note in table.notes]
        parts.append("\n".join([*lines, "\\end{table*}"]))
    return "\n\n".join(parts) + "\n"


def _long_head(column: Column) -> str:
    if column.name not in SHORT:
        return column.head
    word = column.name.partition("_")[0]
    return "JPEG" if word == "jpeg" else word.capitalize()


_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {"ξ": "$\\xi$", "±": "$\\pm$", "†": "$\\dagger$", "<": "$<$", ">": "$>$"}
)


def _escape(text: str) -> str:
    return text.translate(_LATEX)


def to_csv(tables: Sequence[Table]) -> str:
    """For programs: all tables in one, full names, each spread in a column of its own.

    "std" is the mean's standard deviation over seeds; half of the 95 % interval of NAME, where the
    table gives that, is "NAME ±95 %".
    """
    names = list(dict.fromkeys(c.name for table in tables for c in table.columns))
    file = io.StringIO()
    halves = dict.fromkeys(
        _half(column)
        for table in tables
        for row in table.rows
        for cell, column in zip(row.cells, table.columns, strict=True)
        if table.intervals and cell.spread is not None
    )
    fields = ["table", "method", "label", "kind", "section", "seeds", *names, "std", *halves]
    writer = csv.DictWriter(file, fields, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            line: dict[str, str | int] = {"table": table.heading, "method": row.method}
            line |= {"label": row.label, "kind": "published" if row.published else "run"}
            line |= {"section": row.section, "seeds": row.seeds or ""}
            for cell, column in zip(row.cells, table.columns, strict=True):
                line[column.name] = format_value(cell.value, column)
                if cell.spread is not None and (table.intervals or column.kind == "mean"):
                    name = _half(column) if table.intervals else "std"
                    line[name] = f"{cell.spread:.{(column.digits or 0) + 1}f}"
            writer.writerow(line)
    return file.getvalue()


def _half(column: Column) -> str:
    return f"{column.name} ±95 %"
