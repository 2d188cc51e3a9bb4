"""What stream workers have recorded, put together: each topic and group, with its partitions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from taskharbor.drivers.contract.reading import StreamPartition, WorkerRecord


class PartitionReading(Struct, frozen=True):
    """A partition, and the worker that reads it."""

    partition: int
    worker: str
    committed: int | None  # the offset that the group has committed
    position: int  # the offset of the next message to read
    end: int | None  # the offset of the next message that a producer writes
    lag: int | None  # messages that are not committed
    incomplete: int  # messages that were read and are not finished
    ahead: int  # messages that are finished beyond the committed offset
    paused: bool


class StreamReading(Struct, frozen=True):
    """A topic and a consumer group, with every live worker that is a member."""

    topic: str
    group: str
    queue: str  # where messages that failed are retried
    workers: list[str]
    partitions: list[PartitionReading]
    lag: int | None  # of all partitions that a worker has; None without one, or if that of one is not known
    # Where failed messages are retried: in the `store`, in `topics`, or by the workers of the jobs that the messages
    # become (`ingest`). `mixed` if its workers do not agree, None if none of them says it.
    retries: str | None


MIXED = "mixed"


def readings_of(workers: Iterable[WorkerRecord]) -> list[StreamReading]:
    """Put together what the members of each group have recorded."""
    found: dict[tuple[str, str], tuple[set[str], dict[int, PartitionReading], set[str]]] = {}
    for worker in workers:
        if worker.stream is not None:
            name = worker.stream.topic, worker.stream.group
            names, partitions, retries = found.setdefault(name, (set(), {}, set()))
            names.add(worker.name)
            if worker.stream.retries is not None:
                retries.add(worker.stream.retries)
            for each in worker.stream.partitions:
                known = partitions.get(each.partition)
                # While a partition moves, two members may show it: the one that has read further has it.
                if known is None or each.position >= known.position:
                    partitions[each.partition] = _reading(each, worker.name)
    return [
        _stream(topic, group, names, [partitions[number] for number in sorted(partitions)], retries)
        for (topic, group), (names, partitions, retries) in sorted(found.items(), key=lambda each: each[0])
    ]


def _reading(each: StreamPartition, worker: str) -> PartitionReading:
    return PartitionReading(
        each.partition,
        worker,
        each.committed,
        each.position,
        each.end,
        each.lag,
        each.incomplete,
        each.ahead,
        each.paused,
    )


def _stream(
    topic: str, group: str, workers: set[str], partitions: list[PartitionReading], retries: set[str]
) -> StreamReading:
    lags = [each.lag for each in partitions]
    lag = None if not lags or None in lags else sum(each or 0 for each in lags)
    agreed = MIXED if len(retries) > 1 else next(iter(retries), None)
    return StreamReading(topic, group, f"stream:{topic}", sorted(workers), partitions, lag, agreed)
