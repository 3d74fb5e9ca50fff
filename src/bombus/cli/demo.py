"""bombus demo: every cheap method on the embedded images, a table and a picture."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path


def demo(*, out: Path = Path("demo-report"), samples: int = 600, seed: int = 1) -> None:
    """Stream 15 corruptions of embedded images through every method that is cheap enough.

    Needs no download. Writes OUT/report.html (open it in a browser), OUT/table.md, OUT/stream.svg,
    OUT/stream.png and the runs beside them.

    Args:
        out: folder for the report; a former demo's report in it is replaced, an interrupted demo
            goes on.
        samples: images a corruption, of the 1,000 embedded ones; fewer are quicker.
        seed: of the sample order.
    """
    from bombus.cli.view import RunView, say
    from bombus.data.benchmarks import find_benchmark
    from bombus.errors import ConfigError
    from bombus.methods import known_methods
    from bombus.models import runs_without_source
    from bombus.report.figures import stream_figure
    from bombus.report.layout import make_tables
    from bombus.report.page import make_page
    from bombus.report.records import read_run, write_file
    from bombus.report.table import to_markdown, to_text
    from bombus.runs import Run
    from bombus.settings import RunSettings

    chosen = RunSettings(method="source", samples=samples, seed=seed)  # checked before all else
    runs = out / "runs"
    if out.exists() and any(out.iterdir()) and not runs.is_dir():
        raise ConfigError(f"{out} is not empty and holds no demo report; choose another --out.")
    report = out / "report.html"
    if report.exists() or _asked(runs) != {(samples, seed)}:
        report.unlink(missing_ok=True)  # first: without it, what is there counts as interrupted
        shutil.rmtree(runs, ignore_errors=True)
    benchmark = find_benchmark("demo")
    images = benchmark.open(None)  # once, so that every picture is corrupted once
    cheap = [
        name
        for name, method in known_methods().items()
        if method.cheap and runs_without_source(method, benchmark)
    ]
    for number, name in enumerate(cheap, start=1):
        with RunView(f"{number}/{len(cheap)} {name}") as view:
            settings = replace(chosen, method=name)
            run = Run(settings, images=images)
            run.execute(runs / name, watch=view.update, resume=True)
    results = [read_run(runs / name) for name in cheap]
    tables = make_tables(results)
    write_file(out / "table.md", to_markdown(tables).encode())
    pictures = stream_figure([runs / name for name in cheap], out / "stream")
    write_file(report, make_page(results))
    say(to_text(tables))
    written = ["report.html", "table.md", *(p.name for p in pictures), "runs/"]
    say(f"Written to {out}: {', '.join(written)}")


def _asked(runs: Path) -> set[tuple[int, int]]:
    """Samples and seed of the runs that are there."""
    begun = [json.loads(path.read_bytes()) for path in runs.glob("*/settings.json")]
    return {(one["samples"], one["seed"]) for one in begun}
