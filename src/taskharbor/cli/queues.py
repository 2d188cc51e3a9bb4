"""`taskharbor queue …`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.screen import Screen
from taskharbor.cli.session import Session, with_session

if TYPE_CHECKING:
    from taskharbor.client.queues import Queue


@click.group(no_args_is_help=False)
def queue() -> None:
    """See the queues; pause and resume them.

    \b
    Example:
      taskharbor queue list
    """


@queue.command("list")
@with_session
def list_queues(session: Session) -> None:
    """Show every queue that holds unfinished jobs or is paused.

    \b
    Example:
      taskharbor queue list --json
    """
    queues = session.run(lambda harbor: harbor.queues.alist())
    if session.screen.as_json:
        from taskharbor.views import documents

        session.screen.document(documents.of_list([documents.of_queue(queue) for queue in queues]))
    else:
        tell_queues(session.screen, queues)


def tell_queues(screen: Screen, queues: list[Queue]) -> None:
    screen.table(
        ("QUEUE", "PAUSED", "READY", "SCHEDULED", "RUNNING", "OLDEST"),
        [(q.name, q.paused, q.ready, q.scheduled, q.running, q.oldest_ready_age) for q in queues],
        empty="no queue holds unfinished jobs",
    )


@queue.command("pause")
@click.argument("name")
@with_session
def pause(session: Session, name: str) -> None:
    """Stop the jobs of the queue NAME from being begun; those that run go on.

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
    """Let the jobs of the queue NAME run again.

    \b
    Example:
      taskharbor queue resume mail
    """
    session.run(lambda harbor: harbor.queues.aresume(name), create=True)
    _tell_flag(session.screen, name, paused=False)


def _tell_flag(screen: Screen, name: str, *, paused: bool) -> None:
    if screen.as_json:
        screen.document({"name": name, "paused": paused})
    else:
        screen.line(f"{name}: {'paused' if paused else 'resumed'}")
