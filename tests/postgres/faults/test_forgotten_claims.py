"""A server that crashes may forget a claim, unless an `at_most_once` job is under it: what that means, and what not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from taskharbor.drivers.base import Claimed, ClaimRequest, Extension, Note, SettleAnswer, StepNote, Transition
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.records import AttemptStatus, Delivery, NewJob, State
from tests.postgres.server import DURABLE, Server, running

T = TypeVar("T")

LEASE = 60_000_000
# The server's own process that writes what no commit waits for comes so late that a crash is always before it.
LATE = {**DURABLE, "wal_writer_delay": "10s", "autovacuum": "off"}
JOB = "019b76da-a800-7000-8000-000000000001"
TRIES = 20


def on(server: Server, story: Callable[[PostgresDriver], Awaitable[T]]) -> T:
    """With a driver of its own: connections do not outlast the server."""

    async def run() -> T:
        driver = PostgresDriver(server.dsn())
        try:
            return await story(driver)
        finally:
            await driver.close()

    return asyncio.run(run())


def crash(server: Server) -> None:
    """In immediate mode: what was not written to the log by now is gone."""
    server.stop(signal.SIGQUIT)
    server.start()


async def is_flushed(server: Server) -> bool:
    connection = await asyncpg.connect(server.dsn())
    try:
        return bool(
            await connection.fetchval("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
        )
    finally:
        await connection.close()


async def claimed(driver: PostgresDriver, token: str) -> Claimed:
    claim = await driver.claim(ClaimRequest(token, LEASE, 1, once_limit=1))
    [job] = claim.jobs
    return job


def success(token: str, job: Claimed) -> Transition:
    return Transition(token, job.id, job.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED)


async def enqueued(driver: PostgresDriver, delivery: Delivery | None = None) -> None:
    await driver.migrate()
    await driver.enqueue([NewJob(JOB, "work", delivery=delivery)])


def test_claim_that_a_crash_forgot_is_made_anew_and_only_the_new_lease_commits() -> None:
    """The attempt number is given out again. The old lease proves nothing, whatever its worker tries."""
    with running(LATE) as server:
        on(server, enqueued)

        async def claim_without_a_flush(driver: PostgresDriver) -> tuple[str, Claimed]:
            for n in range(TRIES):  # by chance the log may be flushed just then
                token = f"worker-a/{n}"
                job = await claimed(driver, token)
                if not await is_flushed(server):
                    return token, job
                back = Transition(token, job.id, job.number, AttemptStatus.RELEASED, State.READY)
                await driver.settle([back])
            raise AssertionError("every claim was on disk at once")

        old_token, old = on(server, claim_without_a_flush)
        crash(server)

        async def claim_again(driver: PostgresDriver) -> Claimed:
            [record] = await driver.get([JOB])
            assert record is not None
            assert record.state is State.READY  # forgotten
            return await claimed(driver, "worker-b/1")

        new = on(server, claim_again)
        assert new.number == old.number

        async def try_everything(driver: PostgresDriver) -> None:
            [refused] = await driver.settle([success(old_token, old)])
            assert refused.answer is SettleAnswer.LEASE_MISMATCH
            notes: list[Note] = [StepNote(old_token, old.id, old.number, "step", "1")]
            assert await driver.note(notes) == [SettleAnswer.LEASE_MISMATCH]
            heartbeat = await driver.extend([Extension(old_token, LEASE)])
            assert heartbeat.leases[0].answer is SettleAnswer.NOT_RUNNING  # its worker interrupts the handler
            [done] = await driver.settle([success("worker-b/1", new)])
            assert done.answer is SettleAnswer.DONE
            [late] = await driver.settle([success(old_token, old)])
            assert late.answer is SettleAnswer.NOT_RUNNING
            rows = await driver.history(JOB)
            assert [row.worker for row in rows if row.status is AttemptStatus.SUCCEEDED] == ["worker-b"]
            assert await driver.steps(JOB) == {}

        on(server, try_everything)


def test_claim_of_an_at_most_once_job_is_never_forgotten() -> None:
    """It is on disk before the job begins: after a crash no other worker gets it."""
    with running(LATE) as server:
        on(server, lambda driver: enqueued(driver, Delivery.AT_MOST_ONCE))
        job = on(server, lambda driver: claimed(driver, "worker-a/1"))
        crash(server)

        async def look(driver: PostgresDriver) -> None:
            assert (await driver.claim(ClaimRequest("worker-b/1", LEASE, 1, once_limit=1))).jobs == []
            [settled] = await driver.settle([success("worker-a/1", job)])
            assert settled.answer is SettleAnswer.DONE

        on(server, look)


def test_claim_is_on_disk_once_the_job_is_marked_as_at_most_once() -> None:
    """Where only the worker's declaration knows it: the mark, which comes before the begin, takes the claim along."""
    with running(LATE) as server:
        on(server, enqueued)

        async def claim_and_mark(driver: PostgresDriver) -> Claimed:
            job = await claimed(driver, "worker-a/1")
            heartbeat = await driver.extend([Extension("worker-a/1", LEASE, at_most_once=(job.id,))])
            assert heartbeat.leases[0].answer is SettleAnswer.DONE
            return job

        job = on(server, claim_and_mark)
        crash(server)

        async def look(driver: PostgresDriver) -> None:
            assert (await driver.claim(ClaimRequest("worker-b/1", LEASE, 1, once_limit=1))).jobs == []
            expired = await driver.take_expired("collector/1", LEASE, now=await driver.now() + 2 * LEASE)
            assert expired is not None
            assert [each.delivery for each in expired.jobs] == [Delivery.AT_MOST_ONCE]
            assert [each.number for each in expired.jobs] == [job.number]

        on(server, look)
