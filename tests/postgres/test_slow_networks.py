"""A slow network: what takes longer than any limit of ours arrives all the same, for as long as it moves.

The limits are set to half a second, and the network to a speed at which what is sent takes several times that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from taskharbor.drivers.base import ClaimRequest, SettleAnswer, StepNote, Transition, member_id
from taskharbor.drivers.postgres import PostgresDriver, connections
from taskharbor.errors import StoreUnavailable
from taskharbor.records import AttemptStatus, NewJob, NewWorkflow, State
from tests.postgres.proxy import Proxy

T = TypeVar("T")
SECOND = 1_000_000
LEASE = 600 * SECOND
BYTES_PER_SECOND = 400_000
LARGE = "x" * 40_000


def job(number: int, payload: str = "{}") -> NewJob:
    return NewJob(f"019b76da-a800-7000-8000-{number:012x}", "task", payload)


def large_jobs(count: int) -> list[NewJob]:
    return [job(number, f'{{"x":"{LARGE}"}}') for number in range(1, count + 1)]


@pytest.fixture
async def near(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresDriver]:
    """A driver beside the server."""
    monkeypatch.setattr(connections, "PROMPT_SECONDS", 0.5)
    monkeypatch.setattr(connections, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(connections, "PATIENCE_MAX", 1)
    driver = PostgresDriver(dsn)
    await driver.migrate()
    yield driver
    await driver.close()


@pytest.fixture
async def proxy(dsn: str, near: PostgresDriver) -> AsyncIterator[Proxy]:
    proxy = Proxy(dsn, bytes_per_second=BYTES_PER_SECOND)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def far(proxy: Proxy) -> AsyncIterator[PostgresDriver]:
    """A driver behind the slow network."""
    driver = PostgresDriver(proxy.dsn)
    yield driver
    await driver.close()


async def surely(call: Callable[[], Awaitable[T]]) -> T:
    """As a worker does: a machine so busy that nothing moves for long is an outage. Transfers must get through."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def claimed(driver: PostgresDriver, count: int) -> None:
    await driver.enqueue([job(number) for number in range(1, count + 1)])
    assert len((await driver.claim(ClaimRequest("worker/1", LEASE, count))).jobs) == count


def success(number: int, result: str | None = f'"{LARGE}"', **more: object) -> Transition:
    return Transition(
        "worker/1",
        job(number).id,
        1,
        AttemptStatus.SUCCEEDED,
        State.SUCCEEDED,
        result=result,
        **more,  # type: ignore[arg-type]
    )


async def test_results_that_take_longer_than_the_limit_to_send_are_settled(far: PostgresDriver) -> None:
    """As one statement where all are plain successes that were claimed here."""
    await surely(lambda: claimed(far, 15))
    answers = await surely(lambda: far.settle([success(number) for number in range(1, 16)]))
    assert [each.answer for each in answers] == [SettleAnswer.DONE] * 15
    assert (await surely(far.counts))[State.SUCCEEDED] == 15


async def test_what_is_settled_in_a_transaction_may_take_long_to_send(
    near: PostgresDriver, far: PostgresDriver
) -> None:
    """As after a lost answer, and as failures are: to the server, who is still sending is idle."""
    await claimed(near, 15)
    answers = await surely(lambda: far.settle([success(number) for number in range(1, 16)]))
    assert [each.answer for each in answers] == [SettleAnswer.DONE] * 15
    assert (await near.counts())[State.SUCCEEDED] == 15


async def test_one_attempts_many_large_children_may_take_long_to_send(
    near: PostgresDriver, far: PostgresDriver
) -> None:
    """They are stored with it or not at all, so they are one transaction."""
    await claimed(near, 1)
    children = tuple(job(number + 100, each.payload) for number, each in enumerate(large_jobs(15)))
    [answer] = await surely(lambda: far.settle([success(1, None, inserts=children)]))
    assert answer.answer is SettleAnswer.DONE
    assert (await near.counts())[State.READY] == 15


async def test_claim_that_takes_longer_than_the_limit_to_arrive_is_answered(
    near: PostgresDriver, far: PostgresDriver
) -> None:
    await near.enqueue(large_jobs(15))
    claim = await surely(lambda: far.claim(ClaimRequest("worker/1", LEASE, 100)))
    assert [each.payload for each in claim.jobs] == [each.payload for each in large_jobs(15)]


async def test_jobs_that_take_longer_than_the_limit_to_send_are_stored(
    near: PostgresDriver, far: PostgresDriver
) -> None:
    answers = await surely(lambda: far.enqueue(large_jobs(15)))
    assert [each.id for each in answers] == [each.id for each in large_jobs(15)]
    assert (await near.counts())[State.READY] == 15


async def test_workflow_that_takes_longer_than_the_limit_to_send_is_stored(
    near: PostgresDriver, far: PostgresDriver
) -> None:
    workflow = NewWorkflow(job(0).id, "{}")
    jobs = [
        NewJob(member_id(workflow.id, index), "task", each.payload)
        for index, each in enumerate(large_jobs(15))
    ]
    await surely(lambda: far.enqueue_workflow(workflow, jobs))
    assert (await near.counts())[State.READY] == 15


async def test_step_that_takes_longer_than_the_limit_to_send_is_kept(
    near: PostgresDriver, far: PostgresDriver
) -> None:
    await claimed(near, 1)
    note = StepNote("worker/1", job(1).id, 1, "download", f'"{LARGE * 15}"')
    assert await surely(lambda: far.note([note])) == [SettleAnswer.DONE]
    assert (await near.steps(job(1).id))["download"].result == note.result


# -- what does not move --------------------------------------------------------------------------


async def test_transfer_that_stops_moving_is_given_up(
    near: PostgresDriver, far: PostgresDriver, proxy: Proxy
) -> None:
    """A swallowed one is not waited for as long as it would have taken; and its locks are free soon after."""
    await claimed(near, 40)
    transitions = [success(number) for number in range(1, 41)]
    settling = asyncio.ensure_future(far.settle(transitions))
    await asyncio.sleep(0.75)
    proxy.dig_hole()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(60):
            await settling
    answers = await surely(lambda: near.settle(transitions))
    assert [each.answer for each in answers] == [SettleAnswer.DONE] * 40
