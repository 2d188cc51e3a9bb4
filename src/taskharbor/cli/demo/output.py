"""The output of the demo: live on a terminal, line by line in a pipe, none with --json."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from taskharbor.cli.screen import STYLES, aligned, rich_table, terminal_console
from taskharbor.codec import decode_payload
from taskharbor.records import JobRecord, State
from taskharbor.telemetry.logs import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_WIDTH = 12
READING_SECONDS = 0.8  # to read a scene's title before it begins


class Output(AbstractContextManager["Output"]):
    """What the scenario shows. This one shows nothing."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def __exit__(self, *_: object) -> None: ...

    def scene(self, title: str) -> None:
        """Begin a scene."""

    def say(self, text: str, style: str = "") -> None:
        """Print an event."""

    def show(self, jobs: Sequence[JobRecord]) -> None:
        """Show the jobs of the scene in their current state."""

    def summary(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show how every job ended."""

    def close(self, lines: Sequence[str]) -> None:
        """Print the last lines."""


class Lines(Output):
    """For pipes and logs: every event a line, with the time since the start."""

    def scene(self, title: str) -> None:
        click.echo(f"\n{title}")

    def say(self, text: str, style: str = "") -> None:
        click.echo(f"{self.seconds:6.2f}s  {one_line(text)}")

    def summary(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        click.echo(f"\n{aligned(columns, rows)}")

    def close(self, lines: Sequence[str]) -> None:
        click.echo("\n" + "\n".join(lines))


class LiveTable(Output):
    """For a terminal: events scroll by, above a live table of the scene's jobs."""

    def __init__(self) -> None:
        super().__init__()
        from rich.live import Live

        self._console = terminal_console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def scene(self, title: str) -> None:
        self.show([])
        self._print(f"\n{title}", "bold")
        time.sleep(READING_SECONDS)

    def say(self, text: str, style: str = "") -> None:
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(
            padding=(0, 2, 0, 0)
        )  # so that a long one goes on under its text, not under the time
        line.add_row(Text(f"{self.seconds:6.2f}s", style="dim"), Text(one_line(text), style=style))
        self._console.print(line)

    def show(self, jobs: Sequence[JobRecord]) -> None:
        self._live.update(_standing(jobs), refresh=True)

    def summary(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.show([])
        self._print("")
        self._console.print(rich_table(columns, rows))

    def close(self, lines: Sequence[str]) -> None:
        self._print("\n" + "\n".join(lines))

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style))


def _standing(jobs: Sequence[JobRecord]) -> RenderableType:
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if not jobs:
        return Text("")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
    for width in (None, 9, 9, BAR_WIDTH):
        table.add_column(no_wrap=True, min_width=width)
    table.add_column(no_wrap=True, ratio=1)
    for job in jobs:
        state = str(job.state)
        done = 1.0 if job.state is State.SUCCEEDED else job.progress.fraction if job.progress else 0.0
        table.add_row(
            Text(f"{job.task} {_subject(job)}"),
            Text(state, style=STYLES[state]),
            Text(f"attempt {job.number}" if job.number else ""),
            ProgressBar(total=1.0, completed=done, width=BAR_WIDTH),
            Text(one_line(job.error or "") if job.state is not State.SUCCEEDED else "", style="dim"),
        )
    return Panel(table, border_style="dim")


def _subject(job: JobRecord) -> str:
    """What the job is about: its first argument."""
    return one_line(str(next(iter(decode_payload(job.payload).values()), "")))


def output_for(*, as_json: bool, is_terminal: bool) -> Output:
    if as_json:
        return Output()
    return LiveTable() if is_terminal else Lines()
