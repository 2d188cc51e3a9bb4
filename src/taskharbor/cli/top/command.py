"""The command: one frame after the other on a terminal, one for a pipe."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from taskharbor.cli.parameters import duration
from taskharbor.cli.screen import Screen, rich_table
from taskharbor.cli.session import Session, with_session
from taskharbor.cli.top.frame import Frame, Rates, document, headline, look, rates_between, tables
from taskharbor.errors import StoreError
from taskharbor.telemetry.logs import masked, one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from taskharbor.client.harbor import Harbor

INTERVAL_MIN = 0.1
COST_MAX = 0.2  # of the time, at most, is spent on looking: a large store is looked at less often
ROWS_PLAIN = 20
LINES_AROUND = 14  # headline, headings, titles and the spaces between four tables


@click.command
@click.option(
    "--interval", type=duration, default="2", show_default=True, help="How long one frame is shown."
)
@click.option(
    "--once", is_flag=True, help="Print one frame after one interval, and exit; the default in a pipe."
)
@with_session
def top(session: Session, interval: float, once: bool) -> None:
    """Watch queues, rates, workers, running jobs and dead ones.

    Leave it with q or Ctrl-C. It only reads. Rates show how the counts changed in one interval. With --json, or
    in a pipe, it prints one frame.

    \b
    Examples:
      taskharbor top -A app:harbor
      taskharbor top --url sqlite:///harbor.db --interval 500ms --once
    """
    interval = max(interval, INTERVAL_MIN)
    screen = session.screen
    if once or screen.as_json or not screen.is_terminal:
        session.run(lambda harbor: _show_once(harbor, screen, interval))
    else:
        session.run(lambda harbor: _show_live(harbor, screen.console, interval))


async def _show_once(harbor: Harbor, screen: Screen, interval: float) -> None:
    before = await look(harbor)
    await asyncio.sleep(interval)
    frame = await look(harbor)
    rates = rates_between(before, frame)
    if screen.as_json:
        screen.document(document(frame, rates))
        return
    for line in headline(frame, rates):
        screen.line(line)
    for table in tables(frame, ROWS_PLAIN):
        screen.heading(table.title)
        screen.table(table.columns, table.rows, empty=table.empty, optional=table.optional)


async def _show_live(harbor: Harbor, console: Console, interval: float) -> None:
    from rich.live import Live
    from rich.text import Text

    leaving = asyncio.Event()
    before: Frame | None = None
    with (
        _leaving_by_signals(leaving),
        _leaving_by_key(leaving),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not leaving.is_set():
            pause = interval
            try:
                frame = await look(harbor)
            except StoreError as error:  # it may come back
                outage = one_line(masked(f"the store is unavailable: {error}"))
                live.update(Text(outage, style="red"), refresh=True)
            else:
                rates = None if before is None else rates_between(before, frame)
                live.update(_drawn(frame, rates, console), refresh=True)
                before = frame
                pause = max(interval, frame.took / COST_MAX)
            with suppress(TimeoutError):
                await asyncio.wait_for(leaving.wait(), pause)


def _drawn(frame: Frame, rates: Rates | None, console: Console) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows_max = max(3, (console.height - LINES_AROUND) // 4)
    parts: list[RenderableType] = [Text(line, no_wrap=True) for line in headline(frame, rates)]
    for table in tables(frame, rows_max):
        parts.append(Text(f"\n{table.title}", style="bold"))
        if table.rows:
            parts.append(rich_table(table.columns, table.rows, table.optional, console.width))
        else:
            parts.append(Text(table.empty, style="dim"))
    parts.append(Text("\nq leaves", style="dim"))
    return Group(*parts)


# -- leaving -------------------------------------------------------------------------------------


@contextmanager
def _leaving_by_signals(leaving: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        for number in numbers:
            loop.add_signal_handler(number, leaving.set)
    except NotImplementedError:  # Windows: Ctrl-C interrupts, as everywhere
        yield
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def _leaving_by_key(leaving: asyncio.Event) -> Iterator[None]:
    """Keys come one by one, unechoed, while this is active; afterwards the terminal is as it was."""
    if os.name != "posix" or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        keys = os.read(keyboard, 64)
        if not keys:
            loop.remove_reader(keyboard)
        elif b"q" in keys or b"Q" in keys:
            leaving.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
