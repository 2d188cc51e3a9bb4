"""`taskharbor dev`: a worker and the dashboard in one process, which starts again when the code changes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskharbor.cli.entry import EXIT_FAILED, CommandFailed
from taskharbor.cli.session import Session, with_session
from taskharbor.telemetry.metrics.catalogue import PREFIX

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

LOOK_SECONDS = 0.4
STOP_SECONDS = (
    8.0  # that running jobs have to end in; then they are interrupted, and run again after the restart
)
GRACE_SECONDS = 2.0
FILES_MAX = 20_000
EXIT_CANNOT_LISTEN = 3  # tells the watching process that no change of the code helps
_ASKED_TO_END = (0, -signal.SIGINT, -signal.SIGTERM)
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


@click.command
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8400, show_default=True, help="0: any free one."
)
@click.option("--concurrency", type=click.IntRange(1), default=10, show_default=True, help="Jobs at a time.")
@click.option("--no-reload", is_flag=True, help="Do not start again when the code changes.")
@with_session
def dev(session: Session, host: str, port: int, concurrency: int, no_reload: bool) -> None:
    """Run a worker and the dashboard together, and start again on every change.

    It watches the Python files below the current folder. Jobs that are interrupted by a restart run again. For
    development on this machine: in production, run `taskharbor worker` and `taskharbor serve`.

    \b
    Example:
      taskharbor dev -A app:harbor
    """
    from taskharbor.cli.serve import require_server

    require_server("the dashboard needs")
    if no_reload:
        run_here(session, host, port, concurrency)
    else:
        _watch(_command(session, host, port, concurrency), Path.cwd())


def run_here(session: Session, host: str, port: int, concurrency: int) -> None:
    """Run a worker and the server on one loop, until a signal comes."""
    import asyncio

    from taskharbor.cli.serve import CannotListen, serve_harbor
    from taskharbor.cli.worker import offer_builtin
    from taskharbor.client.naming import words_for_others
    from taskharbor.telemetry import logs
    from taskharbor.worker.worker import Worker

    logs.configure("text", "info")

    async def work(harbor: Harbor) -> None:
        harbor.command_words = words_for_others(harbor, session.app)
        await harbor.amigrate()
        if session.app is None:
            offer_builtin(harbor)
        worker = Worker(harbor, concurrency=concurrency, grace_seconds=GRACE_SECONDS)
        worker._takes_interrupts = False  # the server takes the signals, and the worker stops after it
        working = asyncio.ensure_future(worker.run())
        serving = asyncio.ensure_future(serve_harbor(harbor, host, port, GRACE_SECONDS, (), 500, PREFIX))
        try:
            await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            worker.stop()
            if not serving.done() and working.done():
                serving.cancel()
            await asyncio.gather(working, serving, return_exceptions=True)
        for each in (serving, working):
            if not each.cancelled():
                try:
                    each.result()
                except CannotListen as error:
                    raise CommandFailed(error.message, EXIT_CANNOT_LISTEN) from None

    session.run(work, create=True)


def _command(session: Session, host: str, port: int, concurrency: int) -> list[str]:
    words = [sys.executable, "-m", "taskharbor.cli", "dev", "--no-reload"]
    words += ["--host", host, "--port", str(port), "--concurrency", str(concurrency)]
    words += [] if session.app is None else ["-A", session.app]
    words += [] if session.url is None else ["--url", session.url]
    return words


# -- watching ----------------------------------------------------------------------------------------


class _Child:
    """The process that works and serves: one at a time, and none is left behind."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End it: at once if another Ctrl-C comes while its jobs end."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        try:
            process.terminate()
            process.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()


def _watch(command: list[str], folder: Path) -> None:
    """Keep the command running, and start it again after each change of the code below a folder."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    child = _Child(command)
    seen = _files(folder)
    child.start()
    has_told = False
    try:
        while child.exit_code not in _ASKED_TO_END:
            time.sleep(LOOK_SECONDS)
            if child.exit_code == EXIT_CANNOT_LISTEN:
                sys.exit(EXIT_FAILED)  # it has said why
            if child.exit_code is not None and not has_told:
                click.echo("it ended; it starts again when the code changes (Ctrl-C to leave)", err=True)
                has_told = True
            now = _files(folder)
            if now == seen:
                continue
            changed = sorted(name for name in now.keys() | seen.keys() if now.get(name) != seen.get(name))
            click.echo(f"{', '.join(changed[:3])} changed: starting again", err=True)
            seen = now
            child.stop()
            child.start()
            has_told = False
    except KeyboardInterrupt:
        pass
    finally:
        child.stop()


def _files(folder: Path) -> dict[str, float]:
    """Return when each Python file below a folder was changed last, at most `FILES_MAX` of them."""
    found: dict[str, float] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(root, name)
                with contextlib.suppress(OSError):  # it was removed meanwhile
                    found[os.path.relpath(path, folder)] = os.stat(path).st_mtime
        if len(found) >= FILES_MAX:
            break
    return found
