"""Leases: kept alive by the heartbeat, never committed under once lost, never held for more than needed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from taskharbor import Worker
from taskharbor.drivers.base import ClaimRequest
from taskharbor.errors import StoreUnavailable
from taskharbor.records import State
from taskharbor.rules.policy import SURVIVED_LOSSES_MAX
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.cells import PROCESS_METRICS
from taskharbor.worker.pipeline.fetcher import AHEAD_MAX, BATCH_MAX
from tests.worker.stage import attempts_of, said, soon, statuses, the_job, until, until_state, working


async def test_heartbeats_keep_a_long_jobs_lease_alive(memory, clock):
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task
    async def long() -> str:
        begun.set()
        await release.wait()
        return "done"

    job = await long.aenqueue()
    async with working(memory, lease_seconds=3), working(memory, lease_seconds=3):
        await soon(begun.wait())
        await clock.jump(600)  # two hundred leases long, with somebody else there who would collect it
        found = await the_job(memory, job)
        assert (found.state, found.number, found.lease_expired) == (State.RUNNING, 1, False)
        release.set()
        assert await soon(job.aresult()) == "done"
    assert await statuses(job) == ["succeeded"]


async def test_heartbeats_keep_a_long_sync_jobs_lease_alive(memory, clock):
    begun, release = threading.Event(), threading.Event()

    @memory.task
    def long() -> None:
        begun.set()
        assert release.wait(60)

    job = await long.aenqueue()
    async with working(memory, lease_seconds=3), working(memory, lease_seconds=3):
        await until(begun.is_set)
        await clock.jump(60)
        assert (await the_job(memory, job)).number == 1
        release.set()
        await until_state(job, State.SUCCEEDED)


async def test_an_idle_worker_sends_no_heartbeats(faulty, store, clock):
    @faulty.task
    async def work() -> None: ...

    async with working(faulty, lease_seconds=3):
        await (await work.aenqueue()).aresult()
        await clock.jump(60)
    assert store.calls["extend"] == 0


async def lose_the_lease(store, clock, seconds: float) -> None:
    """Keep heartbeats from the store until the lease is over, then let them through again."""
    store.fail["extend"] = lambda *_: StoreUnavailable("away")
    await clock.jump(seconds)
    del store.fail["extend"]


async def test_a_lost_lease_cancels_its_handler_commits_nothing_and_its_worker_survived(faulty, store, clock):
    begun = asyncio.Event()
    cancelled = []

    @faulty.task
    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    job = await hang.aenqueue()
    async with working(faulty, lease_seconds=3, grace_seconds=0) as worker:
        await soon(begun.wait())
        await lose_the_lease(store, clock, 5)
        await clock.jump(1)
        await until(lambda: cancelled)
        first = (await attempts_of(job))[0]
        assert (str(first.status), first.worker_survived, first.worker) == ("lost", True, worker.name)
        assert (await the_job(faulty, job)).attempts == 0
        # and it is its own rescuer
        await until_state(job, State.RUNNING)
        worker.stop()
        await clock.jump(1)
    assert (await statuses(job))[:1] == ["lost"]


async def test_expired_lease_cannot_commit(faulty, store, clock):
    """A handler that ends after its lease is over has done its work for nothing: somebody else does it again."""
    begun, release = asyncio.Event(), asyncio.Event()
    calls = []

    @faulty.task
    async def work() -> int:
        calls.append(1)
        n = len(calls)
        if n == 1:
            begun.set()
            await release.wait()
        return n

    job = await work.aenqueue()
    async with working(faulty, lease_seconds=3):
        await soon(begun.wait())
        store.fail["extend"] = lambda *_: StoreUnavailable("away")
        clock.advance(3.1)  # the loop does not go round meanwhile: as if the process had been paused
        release.set()  # so its success comes after the lease is over
        await until(lambda: store.calls["settle"])
        del store.fail["extend"]
        await clock.jump(1)
        assert await soon(job.aresult()) == 2
    rows = await attempts_of(job)
    assert [str(row.status) for row in rows] == ["lost", "succeeded"]
    assert rows[0].worker_survived


async def test_unbegun_jobs_of_a_lost_lease_are_not_begun(faulty, store, clock, monkeypatch):
    monkeypatch.setattr("taskharbor.worker.run.STALLED_SECONDS", 3600)  # what waits here is not handed back
    begun, release = asyncio.Event(), asyncio.Event()
    calls = []

    @faulty.task
    async def block() -> None:
        begun.set()
        await release.wait()

    @faulty.task
    async def work(n: int) -> None:
        calls.append((n, clock.monotonic()))

    async with working(faulty, concurrency=1, lease_seconds=3, pace=1000.0):
        await block.aenqueue()
        jobs = await work.aenqueue_many([{"n": n} for n in range(3)])
        await soon(begun.wait())
        await until_state(jobs[2], State.RUNNING)
        await lose_the_lease(store, clock, 5)
        release.set()
        for job in jobs:
            await clock.jump(1)
            await until_state(job, State.SUCCEEDED)
    assert [n for n, _ in calls] == [0, 1, 2]  # once each, under their second lease
    assert [await statuses(job) for job in jobs] == [["lost", "succeeded"]] * 3


async def test_a_job_that_waited_in_the_worker_for_longer_than_a_lease_begins_under_the_extended_one(
    memory, clock, monkeypatch
):
    monkeypatch.setattr("taskharbor.worker.run.STALLED_SECONDS", 3600)  # what waits here is not handed back
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task
    async def block() -> None:
        begun.set()
        await release.wait()

    @memory.task
    async def work(n: int) -> int:
        return n

    async with working(memory, concurrency=1, lease_seconds=3, pace=1000.0):
        await block.aenqueue()
        jobs = await work.aenqueue_many([{"n": n} for n in range(3)])
        await soon(begun.wait())
        await until_state(jobs[2], State.RUNNING)
        await clock.jump(20)
        release.set()
        assert [await soon(job.aresult()) for job in jobs] == [0, 1, 2]
    assert [(await the_job(memory, job)).number for job in jobs] == [1, 1, 1]


async def test_a_paused_queues_unbegun_jobs_are_handed_back_at_the_next_heartbeat(memory, clock, monkeypatch):
    monkeypatch.setattr("taskharbor.worker.run.STALLED_SECONDS", 3600)  # what waits here is not handed back
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task
    async def work(n: int) -> int:
        begun.set()
        await release.wait()
        return n

    async with working(memory, concurrency=1, lease_seconds=30, pace=1000.0):
        first = await work.using(queue="a").aenqueue(0)
        await soon(begun.wait())
        paused = await work.using(queue="a").aenqueue(1)
        other = await work.using(queue="b").aenqueue(2)
        await until_state(paused, State.RUNNING)
        await until_state(other, State.RUNNING)
        await memory.queues.apause("a")
        assert (await the_job(memory, paused)).state is State.RUNNING
        await clock.jump(9)
        assert (await the_job(memory, paused)).state is State.RUNNING
        await clock.jump(1)
        await until_state(paused, State.READY)
        assert await statuses(paused) == ["released"]
        release.set()
        assert await soon(other.aresult()) == 2
        assert await soon(first.aresult()) == 0  # what has begun goes on
        assert (await the_job(memory, paused)).state is State.READY
        await memory.queues.aresume("a")
        assert await soon(paused.aresult()) == 1


async def test_nothing_of_a_paused_queue_is_executed(harbor, drained):
    calls = []

    @harbor.task
    async def work(n: int) -> None:
        calls.append(n)

    await harbor.queues.apause("a")
    await work.using(queue="a").aenqueue(1)
    await work.aenqueue(2)
    await drained(harbor)
    assert calls == [2]
    await harbor.queues.aresume("a")
    await drained(harbor)
    assert calls == [2, 1]


# -- claiming ahead ------------------------------------------------------------------------------


class Requests:
    def __init__(self, store):
        self.all: list[ClaimRequest] = []
        store.fail["claim"] = self.see

    def see(self, request):
        self.all.append(request)


async def test_a_fresh_worker_claims_no_more_than_it_has_slots(faulty, store):
    @faulty.task
    async def work() -> None:
        await asyncio.sleep(0)

    requests = Requests(store)
    await work.aenqueue_many([{}] * 100)
    await Worker(faulty, concurrency=7).drain()
    assert requests.all[0].limit == 7
    assert (
        max(request.limit for request in requests.all) <= 7
    )  # its clock stood still: no rate, nothing ahead


async def test_claiming_ahead_is_bounded_however_fast_the_handlers_are(faulty, store, clock):
    held = []
    worker = Worker(faulty, concurrency=5)

    @faulty.task
    async def work() -> None:
        assert worker._run is not None
        held.append(len(worker._run._pipeline.claimed))

    requests = Requests(store)
    await work.aenqueue_many([{}] * 4000)

    worker._expected_pace = 1e9  # as if its handlers were very fast
    await worker.drain()
    assert max(held) <= AHEAD_MAX + 5
    assert max(request.limit for request in requests.all) <= BATCH_MAX


async def test_a_slow_worker_claims_nothing_ahead(memory, clock):
    """At one job a second, what it would claim ahead could be somebody else's long before it begins."""
    permits = asyncio.Semaphore(0)

    @memory.task
    async def slow() -> None:
        await permits.acquire()

    jobs = await slow.aenqueue_many([{}] * 12)
    async with working(memory, concurrency=2):
        for done in range(2, 12, 2):
            await clock.jump(2)
            assert (await memory.jobs.acounts())["running"] == 2
            permits.release()
            permits.release()
            for job in jobs[:done]:
                await until_state(job, State.SUCCEEDED)
        permits.release()
        permits.release()


async def test_an_at_most_once_job_is_never_claimed_beyond_free_slots(faulty, store, clock):
    begun, release = asyncio.Event(), asyncio.Event()
    calls = []

    @faulty.task
    async def block() -> None:
        begun.set()
        await release.wait()

    @faulty.task(name="once", delivery="at_most_once")
    async def once(n: int) -> int:
        calls.append(n)
        return n

    async with working(faulty, concurrency=1, pace=1000.0):
        await block.aenqueue()
        await soon(begun.wait())
        claims = store.calls["claim"]
        jobs = await once.aenqueue_many([{"n": n} for n in range(3)])
        await until(lambda: store.calls["claim"] > claims)
        await clock.settle()
        assert [(await the_job(faulty, job)).state for job in jobs] == [State.READY] * 3
        release.set()
        assert [await soon(job.aresult()) for job in jobs] == [0, 1, 2]
    assert calls == [0, 1, 2]


async def test_a_log_line_says_that_a_lease_was_lost(faulty, store, clock, caplog):
    begun = asyncio.Event()

    @faulty.task
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    await hang.aenqueue()
    worker = Worker(faulty, lease_seconds=3, grace_seconds=0)
    with caplog.at_level(logging.WARNING, "taskharbor.worker"):
        async with worker:
            await soon(begun.wait())
            await lose_the_lease(store, clock, 5)
            await clock.jump(1)
            worker.stop()
            await clock.jump(1)
    assert any("a lease expired before it was extended" in record.message for record in caplog.records)


async def test_heartbeat_beside_the_settle_of_the_last_job_loses_no_lease(faulty, store, clock, caplog):
    """The store has settled the job, and so forgotten its lease. The worker has not heard of it yet."""
    settled, may_hear = asyncio.Event(), asyncio.Event()

    async def hear_late() -> None:
        settled.set()
        await may_hear.wait()

    @faulty.task
    async def work() -> int:
        return 1

    store.after["settle"] = hear_late
    job = await work.aenqueue()
    with caplog.at_level(logging.WARNING, "taskharbor.worker"):
        async with working(faulty, lease_seconds=3, metrics=True) as worker:
            await soon(settled.wait())
            extended = store.calls["extend"]
            await clock.jump(1)
            assert store.calls["extend"] > extended
            may_hear.set()
            assert await soon(job.aresult()) == 1
            counted = worker._totals().snapshot().process
    assert [said(record) for record in caplog.records] == []
    assert counted[catalogue.offsets(PROCESS_METRICS)[catalogue.EXTENSIONS_REFUSED.name]] == 0


async def test_what_was_claimed_ahead_and_cannot_begin_is_handed_back_to_others(memory, clock):
    """Claimed ahead only as much as begins within a moment: when handlers turn slow, others may have the rest."""
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task
    async def block() -> None:
        begun.set()
        await release.wait()

    @memory.task
    async def work(n: int) -> int:
        return n

    async with working(memory, concurrency=1, pace=1000.0) as worker:
        await block.aenqueue()
        jobs = await work.aenqueue_many([{"n": n} for n in range(3)])
        await soon(begun.wait())
        await until_state(jobs[2], State.RUNNING)
        await clock.jump(2)
        await until_state(jobs[2], State.READY)
        async with working(memory) as other:
            assert other is not worker
            assert [await soon(job.aresult()) for job in jobs] == [0, 1, 2]
        assert await statuses(jobs[0]) == ["released", "succeeded"]
        release.set()


async def test_worker_survives_the_lease_of_jobs_that_had_not_begun(faulty, store, clock, monkeypatch):
    """An outage counts for no job, begun or not: none of them becomes a suspect."""
    monkeypatch.setattr("taskharbor.worker.run.STALLED_SECONDS", 3600)
    begun, release = asyncio.Event(), asyncio.Event()

    @faulty.task
    async def block() -> None:
        begun.set()
        await release.wait()

    async with working(faulty, concurrency=1, lease_seconds=3, pace=1000.0):
        jobs = await block.aenqueue_many([{}] * 3)
        await soon(begun.wait())
        await until_state(jobs[2], State.RUNNING)
        await lose_the_lease(store, clock, 5)
        await clock.jump(2)
        for job in jobs:
            lost = [row for row in await attempts_of(job) if str(row.status) == "lost"]
            assert all(row.worker_survived for row in lost)
        release.set()


async def test_a_handler_that_blocks_the_loop_for_longer_than_a_heartbeat_is_told_of(memory, caplog):
    @memory.task
    async def blocks() -> None:
        time.sleep(0.5)  # noqa: ASYNC251 - that is what it does wrong

    def told() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "stood still" in record.getMessage()]

    async with working(memory, lease_seconds=0.6):
        await soon((await blocks.aenqueue()).aresult())
        await until(told)
    assert told()[0].fields["seconds"] >= 0.5  # type: ignore[attr-defined]


async def test_a_handler_that_blocks_the_loop_past_the_lease_does_not_rerun_without_end(memory, clock):
    runs = []

    @memory.task
    async def blocks() -> None:
        runs.append(clock.now())
        clock.advance(10)  # nothing else of the worker runs until it returns
        await asyncio.sleep(0)

    async with working(memory, concurrency=2, lease_seconds=3):
        job = await blocks.aenqueue()
        for _ in range(300):
            if (await the_job(memory, job)).state is State.DEAD:
                break
            await clock.jump(1)
    found = await the_job(memory, job)
    assert (found.state, found.reason) == (State.DEAD, "lost")
    assert len(runs) == SURVIVED_LOSSES_MAX
    assert all(row.worker_survived for row in await attempts_of(job))
