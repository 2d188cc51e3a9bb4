"""`taskharbor demo`"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from taskharbor.cli.screen import Screen

TERMINATED = 143  # as a shell says of a process that SIGTERM ended


@click.command
@click.option("--url", metavar="URL", help="Perform on this store, and leave the jobs there to look at.")
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
def demo(url: str | None, as_json: bool) -> None:
    """Show TaskHarbor at work, in about 12 seconds.

    Real workers serve a temporary SQLite store: jobs succeed, one is retried, one dies and is
    requeued, and one outlives a worker that is killed.
    Everything it makes is removed at the end.

    \b
    Example:
      taskharbor demo
    """
    screen = Screen(as_json=as_json)
    if url is not None and url.startswith("memory:"):
        raise click.UsageError(
            "memory:// cannot be shared with the demo's workers; name another store, or none"
        )
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="taskharbor-demo-") as folder:
        _perform(url, Path(folder), screen)


def _perform(url: str | None, folder: Path, screen: Screen) -> None:
    from taskharbor.cli.demo.crew import Crew
    from taskharbor.cli.demo.play import QUEUE, Play
    from taskharbor.cli.demo.stage import stage_for
    from taskharbor.client.harbor import Harbor

    store = url or f"sqlite:///{folder}/harbor.db"
    with (
        Harbor(store) as harbor,
        stage_for(as_json=screen.as_json, is_terminal=screen.is_terminal) as stage,
        Crew(store, QUEUE, folder) as crew,
    ):
        play = Play(harbor, stage, crew, folder)
        play.perform()
        if screen.as_json:
            screen.document(play.document())
            return
        stage.summary(("JOBS", "TASK", "STATE", "ATTEMPTS"), play.summary())
        stage.close(
            [
                f"Done in {stage.seconds:.1f} s: {len(play.jobs)} jobs, every one of them succeeded.",
                "",
                *what_next(url),
            ]
        )


def what_next(url: str | None) -> list[str]:
    if url is not None:
        return [
            "Look at what it left:",
            f"  taskharbor list --queue demo --url {url}",
            f"  taskharbor stats --url {url}",
        ]
    return [
        "Try it yourself; jobs are kept in ./taskharbor.db:",
        "  taskharbor worker                                # in a second terminal",
        "  taskharbor enqueue echo message=hello --wait 10  # its result",
        "  taskharbor enqueue fail times:=3                 # retried three times",
        "  taskharbor enqueue fail --max-attempts 1         # dies at once",
        "  taskharbor dlq list                              # where it is found",
        "  taskharbor stats                                 # all at a glance",
    ]


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the show as an exception does, so that no worker and no folder stays behind."""

    def end(number: int, frame: object) -> None:
        sys.exit(TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
