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
@click.option("--url", metavar="URL", help="Use this store, and leave the jobs there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def demo(url: str | None, as_json: bool) -> None:
    """Show what TaskHarbor does, in about 12 seconds.

    Real workers serve a temporary SQLite store: jobs succeed, one is retried, one dies and is
    requeued, and one survives its worker, which is killed.
    The demo removes everything that it made.

    \b
    Example:
      taskharbor demo
    """
    screen = Screen(as_json=as_json)
    if url is not None and url.startswith("memory:"):
        raise click.UsageError(
            "the demo's workers cannot share memory://; name another store, or leave --url out"
        )
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="taskharbor-demo-") as folder:
        _run(url, Path(folder), screen)


def _run(url: str | None, folder: Path, screen: Screen) -> None:
    from taskharbor.cli.demo.output import output_for
    from taskharbor.cli.demo.scenario import QUEUE, Scenario
    from taskharbor.cli.demo.workers import Workers
    from taskharbor.client.harbor import Harbor

    store = url or f"sqlite:///{folder}/harbor.db"
    with (
        Harbor(store) as harbor,
        output_for(as_json=screen.as_json, is_terminal=screen.is_terminal) as output,
        Workers(store, QUEUE, folder) as workers,
    ):
        scenario = Scenario(harbor, output, workers, folder)
        scenario.run()
        if screen.as_json:
            screen.document(scenario.document())
            return
        output.summary(("JOBS", "TASK", "STATE", "ATTEMPTS"), scenario.summary())
        output.close(
            [
                f"Done in {output.seconds:.1f} s: {len(scenario.jobs)} jobs, every one of them succeeded.",
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
    """Let SIGTERM raise, so that no worker and no folder stays behind."""

    def end(number: int, frame: object) -> None:
        sys.exit(TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread, which owns the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
