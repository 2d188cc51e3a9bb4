"""`taskharbor queue …`"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from shlex import quote
from typing import TYPE_CHECKING

import click

from taskharbor.cli.screen import Cell, Screen
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.views.queue_documents import QueueDocument


@click.group(no_args_is_help=False)
def queue() -> None:
    """List, pause and resume queues.

    \b
    Example:
      taskharbor queue list
    """


@queue.command("list")
@with_session
def list_queues(session: Session) -> None:
    """List every queue that has ready, scheduled or running jobs, or is paused.

    \b
    Example:
      taskharbor queue list --json
    """
    from taskharbor.views.queue_documents import QueueDocument, QueueList

    found = session.run(lambda harbor: harbor.queues.alist())
    queues = QueueList([QueueDocument.of(queue) for queue in found], None)
    if session.screen.as_json:
        session.screen.document(queues)
    else:
        tell_queues(session.screen, queues.items)


QUEUE_COLUMNS = ("QUEUE", "PAUSED", "READY", "SCHEDULED", "RUNNING", "OLDEST")
NO_QUEUES = "no queue has unfinished jobs"


def tell_queues(screen: Screen, queues: list[QueueDocument]) -> None:
    rows = queue_rows(queues)
    if not any(queue.paused for queue in queues):
        screen.table(QUEUE_COLUMNS, rows, empty=NO_QUEUES)
        return
    told = [(*row, q.paused_by, q.paused_since) for row, q in zip(rows, queues, strict=True)]
    screen.table((*QUEUE_COLUMNS, "PAUSED BY", "SINCE"), told, optional=("SINCE", "PAUSED BY"))


def queue_rows(queues: list[QueueDocument]) -> list[tuple[Cell, ...]]:
    return [(q.name, q.paused, q.ready, q.scheduled, q.running, _age(q.oldest_ready_seconds)) for q in queues]


def _age(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


@queue.command("pause")
@click.argument("name")
@with_session
def pause(session: Session, name: str) -> None:
    """Pause the queue NAME: no more of its jobs start. Running jobs continue.

    \b
    Example:
      taskharbor queue pause mail
    """
    known = session.run(lambda harbor: _change(harbor.queues.apause, harbor, name), create=True)
    _tell_flag(session.screen, name, paused=True)
    if known and name not in known:
        session.screen.note(
            f"no queue {name} has unfinished jobs, and no live worker names it{_meant(name, known)} "
            f"To take it back: taskharbor queue resume {quote(name)}{session.words}"
        )


@queue.command("resume")
@click.argument("name")
@with_session
def resume(session: Session, name: str) -> None:
    """Resume the paused queue NAME.

    \b
    Example:
      taskharbor queue resume mail
    """
    known = session.run(lambda harbor: _change(harbor.queues.aresume, harbor, name), create=True)
    _tell_flag(session.screen, name, paused=False)
    if name not in known:
        session.screen.note(
            f"no queue {name} was paused or has unfinished jobs{_meant(name, known)} See `taskharbor queue list`"
        )


async def _change(change: Callable[[str], Awaitable[object]], harbor: Harbor, name: str) -> set[str]:
    """Pause or resume a queue; return the queues that were known before."""
    from taskharbor.views.workers import workers_of

    known = {each.name for each in await harbor.queues.alist()}
    known |= {queue for worker in await workers_of(harbor) for queue in worker.queues or ()}
    await change(name)
    return known


def _meant(name: str, known: set[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else "."


def _tell_flag(screen: Screen, name: str, *, paused: bool) -> None:
    if screen.as_json:
        from taskharbor.views.queue_documents import QueueFlag

        screen.document(QueueFlag(name, paused))
    else:
        screen.line(f"{name}: {'paused' if paused else 'resumed'}")
