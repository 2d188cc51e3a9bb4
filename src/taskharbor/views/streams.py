"""The topics that live workers read, as documents."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskharbor.stream_readings import StreamReading
from taskharbor.views.documents import Document


class StreamPartitionDocument(Document):
    """A partition, and the worker that reads it."""

    partition: int
    worker: str
    committed: Annotated[int, Meta(description="The offset that the group has committed.")] | None
    position: Annotated[int, Meta(description="The offset of the next message to read.")]
    end: Annotated[int, Meta(description="The offset of the next message that a producer writes.")] | None
    lag: Annotated[int, Meta(description="Messages that are not committed.")] | None
    incomplete: Annotated[int, Meta(description="Messages that were read and are not finished.")]
    ahead: Annotated[int, Meta(description="Messages that are finished beyond the committed offset.")]
    paused: bool


class StreamDocument(Document):
    """A topic and a consumer group, with every live worker that is a member."""

    topic: str
    group: str
    queue: Annotated[str, Meta(description="Where messages that failed are retried.")]
    workers: list[str]
    partitions: list[StreamPartitionDocument]
    lag: (
        Annotated[int, Meta(description="Of all partitions; null without one, or if one is not known.")]
        | None
    )
    retries: (
        Annotated[
            str,
            Meta(
                description="Where messages that failed are retried: store, topics, or ingest (as the jobs that "
                "messages become); mixed if the workers do not agree."
            ),
        ]
        | None
    )


class StreamList(Document):
    """Every topic and group that live workers read."""

    items: list[StreamDocument]
    next_cursor: None


def stream_list(streams: list[StreamReading]) -> StreamList:
    return StreamList(
        [
            StreamDocument.of(
                stream, partitions=[StreamPartitionDocument.of(each) for each in stream.partitions]
            )
            for stream in streams
        ],
        None,
    )
