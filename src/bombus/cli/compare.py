"""bombus compare: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR...")],
    /,
    *,
    format: Literal["text", "markdown", "latex", "csv"] = "text",
    cost: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    quality: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    intervals: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    means: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    by: Literal["visit", "severity"] | None = None,
    rows: tuple[str, ...] = (),
    published: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")
    ] = True,
    digits: int | None = None,
    out: Path | None = None,
) -> None:
    """Put runs side by side in a table: error in per cent by domain, best and second best marked.

    Runs that differ only in their seed are averaged; each benchmark and network gets a table of
    its own. What others printed for the same task and network stands below our rows.

    Example: bombus compare runs/ --format latex --out table.tex

    Args:
        runs: folders of finished runs, folders of such folders, or run.json files; also the
            results.json of a `bombus paper`, whose table is then made from its runs, and sweeps
            (the .jsonl of lab/sweep.py), a row a setting that was tried.
        format: text for the terminal, markdown, latex (booktabs), or csv for programs.
        cost: add milliseconds a batch, passes, peak memory and the source data a method needs.
        quality: add calibration error, log loss and how many batches a domain takes to adapt to.
        intervals: give the 95 % interval over seeds of every error, domains included.
        means: one table for all: a column a benchmark, network or stream, its mean error.
        by: a column a visit (recurring streams) or a severity (gradual ones) in the place of one a
            domain.
        rows: of a results.json or a sweep: only these, by name, in this order.
        published: leave the published numbers out.
        digits: decimals of an error; by default 1, of a results.json or a sweep 2.
        out: write to this file instead of the terminal.
    """
    import os
    import shutil
    import sys

    from bombus.errors import ConfigError
    from bombus.methods import place
    from bombus.report import table
    from bombus.report.experiment import is_experiment, read_experiment
    from bombus.report.means import means_table
    from bombus.report.parts import parts_tables
    from bombus.report.records import find_runs, find_unfinished, read_run, write_file
    from bombus.report.sweep import is_sweep, read_sweep, sweep_table

    if not runs:
        raise ConfigError("Name the runs to compare, e.g. `bombus compare runs/tent runs/bee`.")
    if digits is not None and not 0 <= digits <= 6:
        raise ConfigError(f"Got --digits {digits}, expected 0 to 6.")
    experiments = [path for path in runs if is_experiment(path)]
    sweeps = [path for path in runs if is_sweep(path)]
    others = [path for path in runs if path not in (*experiments, *sweeps)]
    if rows and not (experiments or sweeps):
        raise ConfigError("--rows chooses rows of a results.json or a sweep; name one, too.")
    if (experiments or sweeps) and (cost or quality or intervals or means or by):
        raise ConfigError(
            f"{(*experiments, *sweeps)[0]} is one table, with visits and intervals where there are "
            "some; leave out --cost, --quality, --intervals, --means and --by."
        )
    errors = 1 if digits is None else digits
    results = sorted(map(read_run, find_runs(others)), key=lambda run: place(run.method))
    for folder in find_unfinished(others):
        print(f"bombus: left out {folder}, which is unfinished (--resume).", file=sys.stderr)
    if (means or by) and (cost or quality or (means and by)):
        raise ConfigError(
            f"{'--means' if means else f'--by {by}'} has room for errors alone; leave out --cost, "
            "--quality and what else makes another table."
        )
    if means:
        tables = [means_table(results, intervals=intervals, digits=errors)] if results else []
    elif by:
        tables = parts_tables(results, by, intervals=intervals, digits=errors)
    else:
        tables = table.make_tables(
            results,
            published=published,
            cost=cost,
            quality=quality,
            intervals=intervals,
            digits=errors,
        )
    finer = 2 if digits is None else digits
    for path in experiments:
        tables.append(read_experiment(path, rows=rows, published=published, digits=finer))
    if sweeps:
        tried = [line for path in sweeps for line in read_sweep(path)]
        tables.append(sweep_table(tried, rows=rows, digits=finer))
    if format == "text":
        screen = out is None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if screen else 120
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        text = table.to_text(tables, width=max(width, 60), styled=screen and not plain)
    else:
        write = {"markdown": table.to_markdown, "latex": table.to_latex, "csv": table.to_csv}
        text = write[format](tables)
    if out is None:
        print(text, end="")
    else:
        write_file(out, text.encode())
        print(f"Written to {out}")
