"""What a person sees while a run goes on: a live line in a terminal, a line a domain in a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from bombus.finding import Finding
    from bombus.runs import Progress as RunProgress


def say(text: str) -> None:
    print(text, flush=True)


class _Bar:
    """A progress bar on the terminal while it is entered; nothing where there is no terminal."""

    def __init__(self, title: str, *columns: ProgressColumn) -> None:
        self.live = sys.stderr.isatty()
        self.console = Console(stderr=True)
        self.bar = Progress(
            *columns,
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
        )
        self.task = self.bar.add_task(title, total=None, status="")

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()


class RunView(_Bar):
    """The progress of one run; call `update` after every batch."""

    def __init__(self, title: str) -> None:
        super().__init__(
            title,
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
        )
        self.title = title
        self.recent_ms = 0.0

    def update(self, progress: RunProgress) -> None:
        ms = progress.record["ms"]
        self.recent_ms = ms if not self.recent_ms else 0.9 * self.recent_ms + 0.1 * ms
        one = progress.domain in progress.meter.counts  # else the batch is of many domains
        error = f"{progress.meter.error(progress.domain):.1f} %, " if one else ""
        status = (
            f"{progress.domain}: {error}"
            f"mean {progress.meter.mean():.1f} %, {self.recent_ms:.0f} ms/batch"
        )
        self.bar.update(self.task, completed=progress.done, total=progress.total, status=status)
        for event in progress.record["events"]:
            facts = ", ".join(f"{k} {v}" for k, v in event.items() if k != "event")
            self._line(f"batch {progress.record['batch']}: {event['event']} ({facts})")
        if not self.live and progress.last_of_domain:
            self._line(f"{progress.done}/{progress.total} {status}")

    def tell(self, finding: Finding) -> None:
        self._line(f"{finding.state}: {finding.text}")

    def _line(self, text: str) -> None:
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False, soft_wrap=True)


class CountView(_Bar):
    """The progress of a download or of making files: `update(done, total)`."""

    def __init__(self, title: str, unit: str) -> None:
        super().__init__(title, TextColumn("{task.description}"), BarColumn(bar_width=32))
        self.unit = unit

    def update(self, done: int, total: int | None) -> None:
        scale = 1e6 if self.unit == "MB" else 1
        status = f"{done / scale:,.0f} of {total / scale:,.0f} {self.unit}" if total else ""
        self.bar.update(self.task, completed=done, total=total, status=status)
