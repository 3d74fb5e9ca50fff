"""What was run and what came out, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bombus.report.columns import format_value
from bombus.report.groups import Group, differing, listed, severity_in_words, stream_label
from bombus.report.layout import FREE, Row, Table
from bombus.report.records import RunResult


def sum_up(table: Table, groups: Sequence[Group]) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    ours = [row for row in table.rows if not row.published]
    return [_what_was_run(runs), *_what_came_out(table, ours), *_cautions(runs, ours)]


def _what_was_run(runs: Sequence[RunResult]) -> str:
    first = runs[0]
    methods = list(dict.fromkeys(run.method for run in runs))
    images = either(d.samples for run in runs for d in run.domains)
    batches = either(run.stream.get("batch_size", "unknown size") for run in runs)
    seeds = sorted({run.seed for run in runs})
    kind, _, options = (stream_label(first) or "continual").partition(", ")
    stream = f"{kind} stream ({options})" if options else f"{kind} stream"
    severity = severity_in_words(first)
    hard = f" at {severity}" if severity else ""
    return (
        f"{count(len(runs), 'run')} of {count(len(methods), 'method')} ({listed(methods)}) with "
        f"{'seeds' if len(seeds) > 1 else 'seed'} {listed(map(str, seeds))}, on {first.benchmark} "
        f"with {first.backbone}: a {stream} of {count(len(first.domains), 'domain')}{hard}, "
        f"{images} images a domain, in batches of {batches}."
    )


def _what_came_out(table: Table, ours: Sequence[Row]) -> list[str]:
    place = next(i for i, c in enumerate(table.columns) if c.kind == "mean")
    # Rounded as the table is: what reads the same there is not called better here.
    shown = {row.label: format_value(row.cells[place].value, table.columns[place]) for row in ours}

    def best_of(rows: Sequence[Row]) -> tuple[list[Row], str, str]:
        """Those, several where they are equal, their names, and their error."""
        lowest = min((shown[row.label] for row in rows), key=float)
        equal = [row for row in rows if shown[row.label] == lowest]
        return equal, listed(row.label for row in equal), lowest

    def gain(error: str) -> str:
        return f"{float(error) - float(least):.{table.columns[place].digits}f} points"

    best, names, least = best_of(ours)
    behind = [row for row in ours if row not in best]
    if not behind:
        return [f"{names}: {least} % of the answers are wrong."]
    told = f"{names} {'makes' if len(best) == 1 else 'share'} the fewest errors: {least} % on "
    _, runners_up, error = best_of(behind)
    told += f"average over the domains, {gain(error)} below the next best, {runners_up} ({error} %)"
    source = [shown[row.label] for row in behind if row.method == "source"]
    if source and source[0] != error:
        told += f", and {gain(source[0])} below the model that does not adapt ({source[0]} %)"
    free = [row for row in ours if row.section == FREE]
    if not free or any(row in free for row in best):
        return [f"{told}."]
    others, names, error = best_of(free)
    verb = "is" if len(others) == 1 else "are"
    beside = f"of what did not, the best {verb} {names} ({error} %)"
    who = "It" if len(best) == 1 else "They"
    return [f"{told}.", f"{who} saw source data beforehand; {beside}."]


def _cautions(runs: Sequence[RunResult], ours: Sequence[Row]) -> list[str]:
    parts = []
    if len(ours) > 1 and all(row.seeds == 1 for row in ours):
        parts.append(
            "Every method ran with one seed: how much of a difference is chance is unknown."
        )
    if caution := differing(runs):
        parts.append(caution)
    return parts


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def either(values: Iterable[int | str]) -> str:
    texts = [f"{v:,}" if isinstance(v, int) else str(v) for v in dict.fromkeys(values)]
    *before, last = texts
    return f"{', '.join(before)} or {last}" if before else last
