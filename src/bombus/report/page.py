"""Runs as one HTML page that needs nothing else: no network, no fonts, no programs but a browser.

The same runs give the same bytes. A style sheet (page.css) and a script (page.js) are put inline;
without the script the page reads the same, only its tables cannot be sorted.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from bombus.methods import place
from bombus.report.groups import group_runs, listed, split_by_task
from bombus.report.layout import make_tables
from bombus.report.markup import Html, tag
from bombus.report.page_diagnostics import diagnostics
from bombus.report.page_figures import cost_figure, has_log, make_series, stream_figures
from bombus.report.page_runs import provenance
from bombus.report.page_summary import count, sum_up
from bombus.report.page_table import cost_table, error_table, heat_map
from bombus.report.parts import PARTS, errors_of, parts_tables
from bombus.report.records import QUALITY, RunResult

Part = tuple[str, list[Html]]  # a heading and what stands below it


def make_page(runs: Sequence[RunResult]) -> bytes:
    """The page of these runs; those that differ only in their seed are averaged."""
    tasks = [_Task(f"task-{n}", task) for n, task in enumerate(split_by_task(runs), start=1)]
    alone = len(tasks) == 1
    heads = ["Results"] if alone else [task.heading for task in tasks]
    title = f"Test-time adaptation: {tasks[0].heading if alone else count(len(tasks), 'task')}"
    script = Html(_read("page.js"))
    return (
        "<!doctype html>\n"
        + tag(
            "html",
            tag(
                "head",
                tag("meta", charset="utf-8"),
                tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
                tag("meta", name="color-scheme", content="light dark"),
                # Even if something hostile got through, it could neither run nor call home.
                tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
                tag("title", title),
                tag("style", Html(_read("page.css"))),
            ),
            tag(
                "body",
                tag("header", tag("h1", title), _summary(tasks), id="summary"),
                tag("main", *(task.section(head) for task, head in zip(tasks, heads, strict=True))),
                tag("script", script),
            ),
            lang="en",
        )
        + "\n"
    ).encode(errors="replace")


class _Task:
    """The runs that can stand in one table, and their part of the page."""

    def __init__(self, id: str, runs: Sequence[RunResult]) -> None:
        self.id = id
        # Of a run and its copy in a ledger the first counts: let it be the one with its batches.
        runs = sorted(runs, key=lambda run: (place(run.method), not has_log(run)))
        quality = any(getattr(run, name) is not None for run in runs for name in QUALITY)
        (self.table,) = make_tables(runs, cost=True, quality=quality)
        # In the order of the table's rows.
        groups = sorted(group_runs(runs), key=lambda g: g.runs[0].source_access != "none")
        self.series = make_series(groups)
        self.runs = [run for group in groups for run in group.runs]
        self.heading = self.table.heading
        self.sentences = sum_up(self.table, groups)

    def section(self, heading: str) -> Html:
        parts = [("Error by domain", [error_table(self.table)])]
        for part in PARTS:
            if any(errors_of(run, part) for run in self.runs):
                (by_part,) = parts_tables(self.runs, part)
                parts.append((f"Error by {part}", [error_table(by_part, part)]))
        parts.append(("Quality and cost", [cost_table(self.table), self._notes()]))
        parts.append(self._stream())
        parts.append(("Methods by domains", [heat_map(self.table)]))
        if len(self.series) > 1:
            parts.append(("Error against cost", [cost_figure(f"{self.id}-cost", self.series)]))
        groups = [one.group for one in self.series]
        seen = diagnostics(f"{self.id}-diagnostics", groups)
        if seen:
            parts.append(("Inside the method", seen))
        parts.append(("Where the numbers come from", provenance(groups)))
        below = [tag("section", tag("h3", name), *content) for name, content in parts]
        return tag("section", tag("h2", heading), *below, id=self.id)

    def _notes(self) -> Html:
        return tag("ul", *(tag("li", note) for note in self.table.notes), class_="notes")

    def _stream(self) -> Part:
        content = stream_figures(self.id, self.series)
        seeds: dict[str, list[str]] = {}
        for run in self.runs:
            if not has_log(run):
                seeds.setdefault(run.method, []).append(f"{run.seed}")
        if seeds:
            names = listed(f"{method} ({', '.join(own)})" for method, own in seeds.items())
            told = (
                "Neither drawn here nor looked into below, because only the result was kept and "
                f"not its batches.jsonl, by method and seed: {names}."
            )
            content.append(tag("p", told, class_="missing"))
        return "Error over the stream", content


def _summary(tasks: Sequence[_Task]) -> Html:
    if len(tasks) == 1:
        return tag("div", *_paragraphs(tasks[0]))
    entries = []
    for task in tasks:
        link = tag("a", task.heading, href=f"#{task.id}")
        entries.append(tag("li", tag("p", link), *_paragraphs(task)))
    return tag("ol", *entries)


def _paragraphs(task: _Task) -> list[Html]:
    said, found, *more = task.sentences
    return [tag("p", said), tag("p", found, class_="found"), *(tag("p", text) for text in more)]


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _read(name: str) -> str:
    return (files("bombus.report") / name).read_text(encoding="utf-8")
