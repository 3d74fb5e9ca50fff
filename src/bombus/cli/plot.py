"""bombus plot: pictures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro


def plot(
    what: Annotated[Literal["loss", "stream"], tyro.conf.Positional],
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR...")],
    /,
    *,
    out: Path,
) -> None:
    """Draw runs over the stream, as a vector picture (.svg) and as pixels (.png).

    loss: one run of a method with a consistency loss (bee): the loss and its levels batch by
    batch, with a red circle wherever the method replayed its anchors or, where it never does,
    noticed a shift.

    stream: the error of several runs over the same stream, a line a method.

    Example: bombus plot loss runs/bee --out loss

    Args:
        what: which picture.
        runs: folders of runs; for stream also folders of such folders.
        out: where to write: OUT.svg and OUT.png.
    """
    from bombus.errors import ConfigError

    if not runs:
        raise ConfigError(f"Name the runs to draw, e.g. `bombus plot {what} runs/bee --out {out}`.")
    # The path without a suffix of ours; "stream.v1" keeps its own.
    place = out.with_suffix("") if out.suffix in (".svg", ".png") else out
    if what == "loss":
        from bombus.report.loss_figure import loss_figure
        from bombus.report.records import read_batches
        from bombus.report.triggers import judge_alarms

        if len(runs) > 1:
            raise ConfigError(f"The loss is drawn of one run at a time, but {len(runs)} are given.")
        paths = loss_figure(runs[0], place)
        print(f"The loss against the stream: {judge_alarms(read_batches(runs[0]))}.")
    else:
        from bombus.report.figures import stream_figure
        from bombus.report.records import find_runs

        paths = stream_figure(find_runs(runs), place)
    print(f"Written to {' and '.join(map(str, paths))}")
