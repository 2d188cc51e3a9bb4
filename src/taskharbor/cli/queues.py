"""`taskharbor queue …`"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from taskharbor.cli.screen import Cell, Screen
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.views.documents import QueueDocument


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
    """List every queue that has unfinished jobs or is paused.

    \b
    Example:
      taskharbor queue list --json
    """
    from taskharbor.views.documents import QueueDocument, QueueList

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
    session.run(lambda harbor: harbor.queues.apause(name), create=True)
    _tell_flag(session.screen, name, paused=True)


@queue.command("resume")
@click.argument("name")
@with_session
def resume(session: Session, name: str) -> None:
    """Resume the paused queue NAME.

    \b
    Example:
      taskharbor queue resume mail
    """
    session.run(lambda harbor: harbor.queues.aresume(name), create=True)
    _tell_flag(session.screen, name, paused=False)


def _tell_flag(screen: Screen, name: str, *, paused: bool) -> None:
    if screen.as_json:
        from taskharbor.views.documents import QueueFlag

        screen.document(QueueFlag(name, paused))
    else:
        screen.line(f"{name}: {'paused' if paused else 'resumed'}")
