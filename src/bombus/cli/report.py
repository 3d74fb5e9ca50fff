"""bombus report: runs as one page for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR...")],
    /,
    *,
    out: Path = Path("report.html"),
) -> None:
    """Write runs up as one HTML page that can be mailed, archived or printed: it needs no network.

    At the top, in sentences, what was run and what came out best. Then for each benchmark, network
    and stream: the error by domain beside published numbers, quality and cost (a click on a column
    sorts), the error over the stream, a heat map, error against cost, what BEE saw inside, and
    every run's settings, hashes and versions. The same runs give the same bytes.

    Example: bombus report runs/ results/cifar10-c --out report.html

    Args:
        runs: folders of finished runs, folders of such folders, or run.json files; the error over
            the stream is drawn of runs that still have their batches.jsonl.
        out: the page, a name that ends in .html.
    """
    import sys

    from bombus.errors import ConfigError
    from bombus.report.page import make_page
    from bombus.report.records import find_runs, find_unfinished, read_run, write_file

    if not runs:
        raise ConfigError(
            "Name the runs to report on, e.g. `bombus report runs/ --out report.html`."
        )
    if out.suffix not in (".html", ".htm") or out.is_dir():
        raise ConfigError(f"Got --out {out}, expected a file whose name ends in .html.")
    results = [read_run(path) for path in find_runs(runs)]
    for folder in find_unfinished(runs):
        print(f"bombus: left out {folder}, which is unfinished (--resume).", file=sys.stderr)
    write_file(out, make_page(results))
    print(f"Written to {out}")
