"""Pruning on PostgreSQL: small transactions that nobody waits for; and vacuuming, which cleans up after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor.client import retention
from taskharbor.client.retention import Retention
from taskharbor.drivers.base import Cancel, ClaimRequest, Extension, Requeue, SettleAnswer
from taskharbor.drivers.postgres import operate
from taskharbor.drivers.postgres.connections import Connections
from taskharbor.records import NewJob, State
from tests.postgres.races import LEASE, NOW, PATIENCE_SECONDS, Race, race, success

OLD = {State.SUCCEEDED: NOW + 1, State.DEAD: NOW + 1, State.CANCELLED: NOW + 1}


async def _finished(race: Race, count: int) -> list[str]:
    """Jobs that have succeeded, no longer named by any lease."""
    await race.driver.enqueue([race.new() for _ in range(count)], now=NOW)
    token, claim = await race.claim(limit=count)
    await race.settle(*[success(token, job) for job in claim.jobs])
    return [job.id for job in claim.jobs]


@race
async def test_prune_in_the_middle_blocks_no_claim_settle_enqueue_or_heartbeat(race: Race) -> None:
    """Its transaction stays open, with everything deleted, while the others come and go."""
    pruned = await _finished(race, 20)
    await race.ready()
    await race.ready()
    token, claim = await race.claim(limit=1)
    async with race.transaction() as session:
        assert await operate.prune(session, OLD, 100) == 20
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert len((await race.claim())[1].jobs) == 1
            assert await race.settle(success(token, claim.jobs[0])) == [SettleAnswer.DONE]
            added = await race.ready(idempotency_key="new")
            other, another = await race.claim()
            beat = await race.driver.extend([Extension(other, LEASE)], now=NOW)
            assert beat.leases[0].answer is SettleAnswer.DONE
            assert [job.id for job in another.jobs] == [added]
            assert await race.driver.take_expired("collector/1", LEASE, now=NOW) is None
            assert await race.driver.expire(10, now=NOW) == []
            await race.driver.counts(now=NOW)
            # A second prune passes over what the first one holds.
            assert await race.driver.prune(OLD, 100, now=NOW) == 1
    assert await race.driver.get(pruned, now=NOW) == [None] * 20


@race
async def test_prune_waits_for_nobody(race: Race) -> None:
    """A job that an operator holds is left for the next time."""
    pruned = await _finished(race, 3)
    async with race.transaction() as session:
        await session.rows("lock_jobs", [pruned[0]])
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await race.driver.prune(OLD, 100, now=NOW) == 2
    assert await race.driver.prune(OLD, 100, now=NOW) == 1


@race
async def test_job_requeued_between_looking_and_locking_is_not_pruned(race: Race) -> None:
    job_id = await race.ready()
    await race.driver.operate(Cancel(), [job_id], now=NOW)
    async with race.transaction() as session:
        session.stop_before = "try_lock_jobs"
        pruning = asyncio.ensure_future(operate.prune(session, OLD, 100))
        await session.stopped.wait()
        await race.operate(Requeue(), job_id)
        session.go_on.set()
        assert await pruning == 0
    assert await race.state(job_id) is State.READY


@race
async def test_backlog_is_pruned_in_several_bounded_transactions(race: Race) -> None:
    """Each of them deletes at most a batch, and each is committed before the next one begins."""
    driver = race.driver
    count = 2 * retention.BATCH + 100
    jobs = [NewJob(f"019b76da-a800-7000-8001-{n:012x}", "task") for n in range(count)]
    for start in range(0, count, 550):
        await driver.enqueue(jobs[start : start + 550])
        claim = await driver.claim(ClaimRequest(f"worker/{start}", LEASE, 1_000))
        await driver.settle([success(f"worker/{start}", job) for job in claim.jobs])
    left: list[int] = []
    original = Connections.transact

    async def noting(self: Connections, *arguments: Any, **options: Any) -> Any:
        answer = await original(self, *arguments, **options)
        async with self.dedicated() as connection:  # what others see by now
            left.append(await connection.fetchval(f'SELECT count(*) FROM "{driver.schema}".jobs'))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connections, "transact", noting)
        assert await Retention(succeeded=0.0).prune(driver) == count
    assert left == [count - retention.BATCH, count - 2 * retention.BATCH, 0]
    assert (await driver.counts())[State.SUCCEEDED] == 0


HOT = {
    "ready": {"autovacuum_vacuum_scale_factor=0.02", "autovacuum_vacuum_cost_delay=0"},
    "leases": {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_cost_delay=0", "fillfactor=50"},
    "claims": {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_cost_delay=0"},
    "tallies": {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_cost_delay=0"},
}


@race
async def test_tables_that_turn_over_are_vacuumed_early(race: Race) -> None:
    """Long before the default fifth of them is dead, and without pausing; what claims keep outside as well."""
    async with race.transaction() as session:
        rows = await session.connection.fetch(
            "SELECT c.relname, c.reloptions, t.reloptions AS toast FROM pg_class AS c "
            "LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid WHERE c.relnamespace = $1::text::regnamespace",
            race.driver.schema,
        )
    options = {row["relname"]: set(row["reloptions"] or ()) for row in rows}
    for table, wanted in HOT.items():
        assert wanted <= options[table]
        assert any(option.startswith("autovacuum_vacuum_threshold=") for option in options[table])
    [toast] = [row["toast"] for row in rows if row["relname"] == "claims"]
    assert "autovacuum_vacuum_scale_factor=0" in toast
