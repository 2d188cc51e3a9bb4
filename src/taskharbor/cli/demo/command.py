"""`taskharbor demo`"""

from __future__ import annotations

import logging
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
@click.option(
    "--serve", is_flag=True, help="Show the dashboard of a shop with an hour of work behind it, until Ctrl-C."
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8400, show_default=True, help="Of the dashboard."
)
def demo(url: str | None, as_json: bool, serve: bool, port: int) -> None:
    """Show what TaskHarbor does, in about 12 seconds.

    Real workers serve a temporary SQLite store: jobs succeed, one is retried, one dies and is
    requeued, and one survives its worker, which is killed.
    The demo removes everything that it made.

    \b
    Examples:
      taskharbor demo
      taskharbor demo --serve
    """
    screen = Screen(as_json=as_json)
    if serve:
        if url is not None or as_json:
            raise click.UsageError(
                "--serve makes a store of its own and prints no document: leave --url and --json out"
            )
        with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="taskharbor-demo-") as folder:
            _serve(Path(folder), port, screen)
        return
    if url is not None and url.startswith("memory:"):
        raise click.UsageError(
            "the demo's workers cannot share memory://; name another store, or leave --url out"
        )
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="taskharbor-demo-") as folder:
        _run(url, Path(folder), screen)


def _serve(folder: Path, port: int, screen: Screen) -> None:
    """Fill a store with an hour of a shop's work, then work and serve until Ctrl-C."""
    import asyncio
    import os

    from taskharbor.cli.dev import run_here
    from taskharbor.cli.serve import require_server
    from taskharbor.cli.session import Session
    from taskharbor.telemetry import logs

    require_server("the dashboard needs")  # before an hour of work is made for nothing
    screen.line("An hour of a shop's work happens, in a few seconds …")
    path = folder / "shop.db"
    os.environ["TASKHARBOR_URL"] = f"sqlite:///{path}"  # where the shop's harbor keeps its jobs
    logs.configure("text", "error")
    from taskharbor.cli.demo import shop

    logging.getLogger("taskharbor").setLevel(logging.CRITICAL)  # its failures are part of the story
    asyncio.run(shop.fill(str(path)))
    logging.getLogger("taskharbor").setLevel(logging.NOTSET)
    run_here(Session("taskharbor.cli.demo.shop:harbor", None, screen), "127.0.0.1", port, 10)


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
