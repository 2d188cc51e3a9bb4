"""Races about backlogs: a message that joins one, its end, and a worker that takes a partition over."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor.drivers.base import Cancel, OperationVerdict, SettleAnswer
from taskharbor.drivers.contract.handing_over import BacklogPlace, HandedOver, HandOverAnswer, NotOwner
from taskharbor.drivers.postgres import backlogs, handing_over
from taskharbor.records import State
from tests.postgres.races import NOW, Race, race, success

QUEUE = "stream:tasks"
KEY = "log:a"


def message(race: Race, position: int, *, opens: bool = False) -> HandedOver:
    job = race.new(queue=QUEUE, idempotency_key=f"{KEY}:{position:06}")
    return HandedOver(job, backlog=BacklogPlace(KEY, position, opens))


async def ended(race: Race) -> str:
    """A backlog whose only job has succeeded, and which no round has looked at since."""
    first = message(race, 1, opens=True)
    assert await race.driver.hand_over([first], now=NOW) == [HandOverAnswer.STORED]
    token, claim = await race.claim()
    assert await race.settle(success(token, claim.jobs[0])) == [SettleAnswer.DONE]
    return first.job.id


@race
async def test_message_that_joins_while_the_backlog_ends_finds_none(race: Race) -> None:
    """The round holds the backlog's row: the message waits for it, and then runs from the log."""
    await ended(race)
    joining = message(race, 2)
    async with race.transaction() as session:
        assert await backlogs.advance(session, [KEY]) == []
        answer = asyncio.create_task(race.driver.hand_over([joining], now=NOW))
        await race.until_somebody_waits()
        assert not answer.done()
    assert await answer == [HandOverAnswer.NO_BACKLOG]
    assert await race.driver.get([joining.job.id]) == [None]


@race
async def test_backlog_that_a_message_is_joining_does_not_end(race: Race) -> None:
    """The message holds the backlog's row: the round leaves it alone, and the next one releases the message."""
    await ended(race)
    joining = message(race, 2)
    async with race.transaction() as session:
        assert await handing_over.hand_over(session, [joining], []) == [HandOverAnswer.STORED]
        advanced = await race.driver.advance(100, now=NOW)  # waits for nothing
        assert advanced.released == []
    assert await race.state(joining.job.id) is State.WAITING
    assert (await race.driver.advance(100, now=NOW)).released == [joining.job.id]


@race
async def test_job_that_ends_while_a_message_joins_lets_it_run(race: Race) -> None:
    """The end of the last job takes no lock of the backlog, and no message is left behind."""
    first = message(race, 1, opens=True)
    await race.driver.hand_over([first], now=NOW)
    token, claim = await race.claim()
    joining = message(race, 2)
    async with race.transaction() as session:
        await handing_over.hand_over(session, [joining], [])
        assert await race.settle(success(token, claim.jobs[0])) == [SettleAnswer.DONE]
    assert (await race.driver.advance(100, now=NOW)).released == [joining.job.id]


@race
async def test_job_that_is_cancelled_while_it_is_released_is_cancelled(race: Race) -> None:
    """The operator waits for the round, and cancels what is runnable by then."""
    await ended(race)
    joining = message(race, 2)
    await race.driver.hand_over([joining], now=NOW)
    async with race.transaction() as session:
        assert await backlogs.advance(session, [KEY]) == [joining.job.id]
        cancel = asyncio.create_task(race.operate(Cancel(), joining.job.id))
        await race.until_somebody_waits()
    assert await cancel == [OperationVerdict.DONE]
    assert await race.state(joining.job.id) is State.CANCELLED
    await race.driver.advance(100, now=NOW)
    assert await race.driver.backlogs("", "~", 10) == []


@race
async def test_partition_is_taken_over_after_the_hand_over_that_is_under_way(race: Race) -> None:
    """Whoever takes it over then sees what was handed over; later hand-overs of the old owner are refused."""
    old = await race.driver.own("log")
    first, second = message(race, 1, opens=True), message(race, 2, opens=True)
    async with race.transaction() as session:
        await handing_over.hand_over(session, [first], [old])
        taking = asyncio.create_task(race.driver.own("log"))
        await race.until_somebody_waits()
    assert (await taking).epoch == old.epoch + 1
    with pytest.raises(NotOwner):
        await race.driver.hand_over([second], owners=[old], now=NOW)
    assert await race.driver.get([second.job.id]) == [None]
