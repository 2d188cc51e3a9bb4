"""`taskharbor streams`: what live stream workers read, and how far they are behind."""

from __future__ import annotations

import click

from taskharbor.cli.session import Session, with_session

COLUMNS = (
    "TOPIC",
    "GROUP",
    "PARTITION",
    "LAG",
    "COMMITTED",
    "END",
    "INCOMPLETE",
    "PAUSED",
    "RETRIES",
    "WORKER",
)


@click.command
@with_session
def streams(session: Session) -> None:
    """List the topics that live workers read, by partition.

    Workers record it every five seconds. The lag is how many messages the group has not committed.

    \b
    Example:
      taskharbor streams --json
    """
    from taskharbor.views.streams import stream_list

    found = session.run(lambda harbor: harbor.streams.alist())
    if session.screen.as_json:
        session.screen.document(stream_list(found))
        return
    rows = [
        (
            stream.topic,
            stream.group,
            each.partition,
            each.lag,
            each.committed,
            each.end,
            each.incomplete,
            each.paused,
            stream.retries,
            each.worker,
        )
        for stream in found
        for each in stream.partitions
    ]
    idle = [
        (stream.topic, stream.group, *[None] * 6, stream.retries, worker)
        for stream in found
        for worker in sorted(set(stream.workers) - {each.worker for each in stream.partitions})
    ]
    session.screen.table(COLUMNS, [*rows, *idle], empty="no worker reads a topic")
