"""Where the logs of a consumer end: what its lag is measured against."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from confluent_kafka import TopicPartition
from msgspec.structs import replace

from taskharbor.drivers.contract.reading import StreamPartition

LOOK_SECONDS = 1.0  # between two looks


class Ends:
    """The ends, as the last answers of the brokers said. The consumer's thread looks; any thread may ask."""

    def __init__(self) -> None:
        self._next_look = 0.0
        self._ends: dict[tuple[str, int], int] = {}  # never changed, only replaced: other threads read it

    def look(self, consumer: Any, partitions: Iterable[tuple[str, int]]) -> None:
        """Note them, if it is time. This asks no broker, and never waits."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        ends: dict[tuple[str, int], int] = {}
        for each in sorted(partitions):
            end = consumer.get_watermark_offsets(TopicPartition(*each), cached=True)[1]
            if end >= 0:
                ends[each] = end
        self._ends = ends

    def seen(
        self, topic: str, of: Sequence[StreamPartition], paused: Collection[int] = ()
    ) -> list[StreamPartition]:
        """Add what only the consumer knows: where the log ends, and whether it reads on."""
        ends = self._ends
        return [
            replace(each, end=ends.get((topic, each.partition)), paused=each.partition in paused)
            for each in of
        ]
