"""Races of two readers of one log: with the same expected offset, exactly one of them stores its batch."""

from __future__ import annotations

import asyncio

from taskharbor.drivers.contract.ingesting import AlikeMessages, Ingested, MessageBatch
from taskharbor.drivers.postgres import ingesting
from taskharbor.records import State
from tests.postgres.races import NOW, Race, begun, race

LOG = "cluster/tasks/id/group"


def batch(race: Race, expected: int | None, count: int, partition: int = 0) -> MessageBatch:
    jobs = [race.new() for _ in range(count)]
    group = AlikeMessages(jobs[0], [job.id for job in jobs], ["{}"] * count, [None] * count)
    return MessageBatch(LOG, partition, expected, (expected or 0) + count, [group])


@race
async def test_of_two_readers_at_one_offset_exactly_one_stores_its_batch(race: Race) -> None:
    """The second waits for the first one's commit, and then finds another offset than it expects."""
    for expected, next_offset in ((None, 30), (30, 60)):
        async with race.transaction() as session:
            [first] = await ingesting.ingest(session, [batch(race, expected, 30)])
            ingest = await begun(race.driver.ingest([batch(race, expected, 20)], now=NOW), race)
        [second] = await ingest
        assert first == Ingested(True, next_offset, NOW)
        assert second == Ingested(False, next_offset, NOW)
        assert (await race.driver.counts(now=NOW))[State.READY] == next_offset


@race
async def test_readers_that_meet_in_several_partitions_do_not_wait_crosswise(race: Race) -> None:
    """Each partition goes to one of them, whatever order they name them in."""
    await race.driver.ingest([MessageBatch(LOG, each, None, 1) for each in range(4)], now=NOW)
    mine = [batch(race, 1, 25, each) for each in (0, 1, 2, 3)]
    others = [batch(race, 1, 25, each) for each in (3, 2, 1, 0)]
    first, second = await asyncio.gather(
        race.driver.ingest(mine, now=NOW), race.driver.ingest(others, now=NOW)
    )
    assert [a.stored + b.stored for a, b in zip(first, reversed(second), strict=True)] == [1, 1, 1, 1]
    assert (await race.driver.counts(now=NOW))[State.READY] == 100
