"""A snapshot held open under load: another client's long transaction keeps the server from removing what is dead.

Jobs are enqueued and drained all the time by one process, a few thousand of them in the store at any moment. Slice by
slice: before, while an idle transaction holds its snapshot, and after it has let go.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchmarks.asynchronous import AsyncContestant
from benchmarks.contestant import Contestant
from benchmarks.stores import fresh_store

SLICE_SECONDS = 10.0
AFTER_SLICES = 3
OUTSTANDING_MAX = 5_000
CHUNK = 500
WARM_UP_SECONDS = 2.0


class SnapshotContestant(AsyncContestant):
    """A contestant whose store lets a client hold a snapshot of it."""

    @abstractmethod
    def snapshot(self) -> AbstractAsyncContextManager[None]:
        """An idle transaction, until the block ends, that sees the store as it was when it began."""


def can_churn(contestant: type[Contestant]) -> bool:
    return (
        issubclass(contestant, SnapshotContestant)
        and contestant.put_many_exists
        and contestant.separate_worker
    )


def measure_churn(contestant: Contestant, held_seconds: float, parent: Path) -> dict[str, float | None]:
    if not isinstance(contestant, SnapshotContestant):
        raise TypeError(f"{contestant.name} has no store whose snapshot could be held")
    with fresh_store(type(contestant), parent) as directory:
        contestant.setup(directory)
        try:
            return contestant.run(churn(contestant, held_seconds))
        finally:
            contestant.close()


async def churn(contestant: SnapshotContestant, held_seconds: float) -> dict[str, float | None]:
    """Jobs a second in each slice, by its label, in the order of time."""
    length = min(SLICE_SECONDS, held_seconds / 2)
    rates: dict[str, float | None] = {}

    async def measure(label: str, slices: int) -> None:
        for number in range(1, slices + 1):
            before, begun = contestant.ran, time.perf_counter()
            await asyncio.sleep(length)
            rates[f"{label} {number}"] = (contestant.ran - before) / (time.perf_counter() - begun)

    async with contestant.working(), producing(contestant):
        await asyncio.sleep(WARM_UP_SECONDS)
        await measure("before", 1)
        async with contestant.snapshot():
            await measure("held", round(held_seconds / length))
        await measure("after", AFTER_SLICES)
    return rates


@asynccontextmanager
async def producing(contestant: SnapshotContestant) -> AsyncIterator[None]:
    """Enqueue whenever fewer than `outstanding` jobs are outstanding."""

    async def produce() -> None:
        put = 0
        while True:
            if put - contestant.ran < OUTSTANDING_MAX:
                await contestant.put_many(CHUNK)
                put += CHUNK
            else:
                await asyncio.sleep(0.001)

    producer = asyncio.create_task(produce())
    try:
        yield
    finally:
        producer.cancel()
        await asyncio.wait([producer])
    if not producer.cancelled():
        producer.result()
