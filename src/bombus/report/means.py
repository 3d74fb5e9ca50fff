"""One table over many tasks: a row a method, a column a task, its mean error."""

from __future__ import annotations

from collections.abc import Sequence

from bombus.report.columns import Column
from bombus.report.groups import Group, group_runs, severity_of, split_by_task, stream_label
from bombus.report.layout import (
    COLLAPSED_NOTE,
    FREE,
    Cell,
    Row,
    Table,
    error_cell,
    mark_best,
    marked,
    section_of,
    spread_note,
    without_lone_section,
)
from bombus.report.records import RunResult


def means_table(runs: Sequence[RunResult], *, intervals: bool = False, digits: int = 1) -> Table:
    """What the tasks share stands in the heading, what tells them apart in the columns' heads."""
    tasks = split_by_task(runs)
    facts = [_facts(task[0]) for task in tasks]
    told_apart = [name for name in facts[0] if len({own[name] for own in facts}) > 1]
    heads = [", ".join(filter(None, (own[n] for n in told_apart))) or "Mean" for own in facts]
    columns = [Column(head, head, "domain", digits) for head in heads]
    groups = [{(g.method, g.difference): g for g in group_runs(task)} for task in tasks]
    keys = dict.fromkeys(key for own in groups for key in own)
    rows = [_row([own.get(key) for own in groups], intervals) for key in keys]
    order = list(dict.fromkeys(run.method for run in runs))
    rows.sort(key=lambda row: (row.section != FREE, order.index(row.method)))
    rows = without_lone_section(rows)
    notes = []
    if any(cell.spread is not None for row in rows for cell in row.cells):
        notes.append(spread_note(intervals))
    if any(run.collapsed for run in runs):
        notes.append(COLLAPSED_NOTE)
    heading = ", ".join(filter(None, (facts[0][n] for n in facts[0] if n not in told_apart)))
    return Table(heading, tuple(columns), tuple(mark_best(rows, columns)), tuple(notes), intervals)


def _facts(run: RunResult) -> dict[str, str]:
    severity, count = severity_of(run), len(run.domains)
    return {
        "benchmark": run.benchmark,
        "backbone": run.backbone,
        "severity": f"severity {severity}" if severity else "",
        "stream": stream_label(run) or "continual",
        "domains": "1 domain" if count == 1 else f"{count} domains",
    }


def _row(found: Sequence[Group | None], intervals: bool) -> Row:
    groups = [group for group in found if group is not None]
    seeds = {len(group.runs) for group in groups}
    runs = [run for group in groups for run in group.runs]
    # Where the tasks were run with different numbers of seeds, no one number is right.
    label = groups[0].label if len(seeds) == 1 else groups[0].name
    cells = [
        error_cell([run.mean_error for run in group.runs], intervals) if group else Cell()
        for group in found
    ]
    method = groups[0].method
    return Row(marked(label, runs), method, max(seeds), tuple(cells), section=section_of(runs))
