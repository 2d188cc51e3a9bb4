"""Counting: live below a bound, kept for a second above it, always live by a time that was given."""

from __future__ import annotations

import asyncpg
import pytest

from taskharbor.drivers.base import Cancel, ClaimRequest, Transition
from taskharbor.drivers.postgres import PostgresDriver, reads, settler
from taskharbor.records import AttemptStatus, JobFilter, NewJob, Reason, State

LEASE = 30_000_000


class Time:
    """The clock of what is kept: it moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(reads, "time", time)
    return time


async def _store(dsn: str, ready: int, scheduled: int = 0) -> PostgresDriver:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    jobs = [NewJob(f"019b76da-a800-7000-8000-{n:012x}", "task", queue=f"q{n % 2}") for n in range(ready)]
    later = [
        NewJob(f"019b76da-a800-7000-8001-{n:012x}", "task", delay=LEASE * 1000) for n in range(scheduled)
    ]
    await driver.enqueue([*jobs, *later])
    return driver


async def test_small_store_is_counted_anew_every_time(dsn: str, time: Time) -> None:
    """Whoever looks sees what he just did."""
    driver = await _store(dsn, 4)
    assert (await driver.counts())[State.READY] == 4
    await driver.enqueue([NewJob("019b76da-a800-7000-8002-000000000000", "task")])
    assert (await driver.counts())[State.READY] == 5
    claim = await driver.claim(ClaimRequest("worker/1", LEASE, 2))
    counts = await driver.counts()
    assert (counts[State.READY], counts[State.RUNNING], len(claim.jobs)) == (3, 2, 2)
    await driver.close()


async def test_large_backlog_is_counted_once_a_second(
    dsn: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "KEPT_FROM", 6)
    driver = await _store(dsn, 5, scheduled=2)
    before = await driver.counts()
    assert (before[State.READY], before[State.SCHEDULED]) == (5, 2)
    await driver.claim(ClaimRequest("worker/1", LEASE, 2))
    time.now += 0.9
    kept = await driver.counts()
    assert (kept[State.READY], kept[State.RUNNING]) == (5, 2)  # what is running costs little, and is live
    time.now += 0.2
    assert (await driver.counts())[State.READY] == 3
    await driver.close()


async def test_each_queue_is_kept_by_itself_and_the_list_of_queues_as_the_whole(
    dsn: str, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "KEPT_FROM", 3)
    driver = await _store(dsn, 8)
    first = await driver.queues()
    assert [(queue.name, queue.ready) for queue in first] == [("q0", 4), ("q1", 4)]
    await driver.claim(ClaimRequest("worker/1", LEASE, 1, ("q0",)))
    second = await driver.queues()
    assert [(queue.name, queue.ready, queue.running) for queue in second] == [("q0", 4, 1), ("q1", 4, 0)]
    assert second[0].oldest_ready_at == first[0].oldest_ready_at is not None
    assert (await driver.counts("q0"))[State.READY] == 3  # nobody had asked for this one
    await driver.close()


async def test_given_time_is_always_live(dsn: str, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a time of its own a test sees exactly what is there, and leaves nothing behind for others."""
    monkeypatch.setattr(reads, "KEPT_FROM", 1)
    driver = await _store(dsn, 3)
    now = await driver.now()
    for left in (2, 1, 0):
        await driver.claim(ClaimRequest(f"worker/{left}", LEASE, 1))
        assert (await driver.counts(now=now))[State.READY] == left
    assert (await driver.counts())[State.READY] == 0
    await driver.close()


async def test_operator_sees_what_he_did(dsn: str, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "KEPT_FROM", 1)
    driver = await _store(dsn, 3)
    assert (await driver.counts())[State.READY] == 3
    page = [f"019b76da-a800-7000-8000-{n:012x}" for n in range(3)]
    await driver.operate(Cancel(), page)
    assert (await driver.counts())[State.READY] == 0
    await driver.close()


async def test_counts_of_groups_are_folded_while_jobs_die(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each settle leaves a row; the list of groups would take longer with every one of them."""
    monkeypatch.setattr(settler, "FOLD_GROUPS_EVERY", 4)
    driver = await _store(dsn, 8)
    for n in range(8):
        claim = await driver.claim(ClaimRequest(f"worker/{n}", LEASE, 1))
        dead = [
            Transition(
                f"worker/{n}", job.id, job.number, AttemptStatus.FAILED, State.DEAD, attempts=1,
                reason=Reason.EXHAUSTED, error="no", fingerprint="a" * 16,
            )
            for job in claim.jobs
        ]  # fmt: skip
        await driver.settle(dead)
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("SELECT queue, jobs FROM taskharbor.dead_groups ORDER BY queue")
    assert [row["jobs"] for row in rows] == [4, 4]  # one for each of the two queues
    assert len({row["queue"] for row in rows}) == 2
    await connection.close()
    [group] = await driver.groups(JobFilter(state=State.DEAD), 10)
    assert group.count == 8
    await driver.close()
