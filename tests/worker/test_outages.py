"""A store that is away for a while, or refuses what it is given: nothing is lost, nobody else suffers."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor import Context, Worker
from taskharbor.errors import PayloadError, StoreUnavailable
from taskharbor.records import Reason, State
from tests.worker.stage import attempts_of, soon, statuses, the_job, until, until_state, working


def away(*_: object) -> Exception:
    return StoreUnavailable("the store is away")


async def test_a_claim_is_repeated_until_the_store_is_back(faulty, store, clock):
    @faulty.task
    async def work() -> int:
        return 1

    store.fail["claim"] = away
    job = await work.aenqueue()
    async with working(faulty):
        await clock.jump(20)
        assert store.calls["claim"] > 3
        assert store.calls["claim"] < 50  # with pauses in between
        del store.fail["claim"]
        await clock.jump(3)
        assert await soon(job.aresult()) == 1
    assert await statuses(job) == ["succeeded"]


async def test_a_claim_whose_answer_was_lost_is_asked_again_and_gives_the_same_jobs(faulty, store, clock):
    lost_answers = 2

    async def lose_the_answer() -> None:
        nonlocal lost_answers
        if lost_answers:
            lost_answers -= 1
            raise StoreUnavailable("the connection broke")

    calls = []

    @faulty.task
    async def work(n: int) -> None:
        calls.append(n)

    jobs = await work.aenqueue_many([{"n": n} for n in range(5)])
    store.after["claim"] = lose_the_answer
    async with working(faulty):
        await clock.jump(1)
        for job in jobs:
            await soon(job.aresult())
    assert calls == [0, 1, 2, 3, 4]
    assert [await statuses(job) for job in jobs] == [["succeeded"]] * 5
    assert [(await the_job(faulty, job)).number for job in jobs] == [1] * 5


async def test_a_settle_is_repeated_until_the_store_is_back(faulty, store, clock):
    calls = []

    @faulty.task
    async def work(n: int) -> int:
        calls.append(n)
        return n

    store.fail["settle"] = away
    jobs = await work.aenqueue_many([{"n": n} for n in range(10)])
    async with working(faulty, lease_seconds=30):
        await clock.jump(100)  # heartbeats go through, so the lease is kept
        assert [(await the_job(faulty, job)).state for job in jobs] == [State.RUNNING] * 10
        del store.fail["settle"]
        await clock.jump(3)
        assert [await soon(job.aresult()) for job in jobs] == list(range(10))
    assert calls == list(range(10))


async def test_a_settle_whose_answer_was_lost_is_done_once(faulty, store, clock):
    lost_answers = 3

    async def lose_the_answer() -> None:
        nonlocal lost_answers
        if lost_answers:
            lost_answers -= 1
            raise StoreUnavailable("the connection broke")

    @faulty.task
    async def child() -> None: ...

    @faulty.task
    async def work(ctx: Context) -> int:
        ctx.enqueue(child.s())
        return 1

    store.after["settle"] = lose_the_answer
    job = await work.aenqueue()
    async with working(faulty):
        await clock.jump(5)
        assert await soon(job.aresult()) == 1
        await until_state(job, State.SUCCEEDED)
    assert await statuses(job) == ["succeeded"]
    assert sum((await faulty.jobs.acounts()).values()) == 2  # one child, not one for each try


async def test_a_settle_that_comes_too_late_is_refused_and_the_job_runs_again(faulty, store, clock):
    calls = []

    @faulty.task
    async def work() -> int:
        calls.append(1)
        return len(calls)

    async with working(faulty, lease_seconds=3):
        for verb in ("settle", "extend", "take_expired"):
            store.fail[verb] = away
        job = await work.aenqueue()
        await clock.jump(10)
        assert calls == [1]
        store.fail.clear()
        await clock.jump(5)
        assert await soon(job.aresult()) == 2
    rows = await attempts_of(job)
    assert [str(row.status) for row in rows] == ["lost", "succeeded"]
    assert rows[0].worker_survived  # an outage counts for no job
    assert (await the_job(faulty, job)).attempts == 0


async def test_a_short_outage_of_heartbeats_costs_nothing(faulty, store, clock):
    release = asyncio.Event()
    begun = asyncio.Event()

    @faulty.task
    async def work() -> int:
        begun.set()
        await release.wait()
        return 1

    job = await work.aenqueue()
    async with working(faulty, lease_seconds=30):
        await soon(begun.wait())
        for _ in range(5):
            store.fail["extend"] = away
            await clock.jump(15)
            del store.fail["extend"]
            await clock.jump(15)
        release.set()
        assert await soon(job.aresult()) == 1
    assert await statuses(job) == ["succeeded"]


async def test_everything_away_at_once_and_back_again(faulty, store, clock):
    """Minutes of nothing, again and again: every job is done in the end, none is condemned."""
    executions: dict[int, int] = {}

    @faulty.task
    async def work(n: int) -> int:
        executions[n] = executions.get(n, 0) + 1
        await asyncio.sleep(0)
        return n

    jobs = await work.aenqueue_many([{"n": n} for n in range(60)])
    async with working(faulty, concurrency=5, lease_seconds=30):
        for _ in range(5):
            await clock.jump(0.5)
            for verb in ("claim", "settle", "extend", "take_expired", "history", "note"):
                store.fail[verb] = away
            await clock.jump(100)
            store.fail.clear()
        await clock.jump(60)
        assert [await soon(job.aresult()) for job in jobs] == list(range(60))
    for job in jobs:
        assert (await statuses(job)).count("succeeded") == 1
        assert (await the_job(faulty, job)).attempts == 0


async def test_maintenance_waits_out_an_outage(faulty, store, clock):
    @faulty.task
    async def work() -> int:
        return 1

    async with working(faulty):
        store.fail["take_expired"] = away
        await clock.jump(10)
        del store.fail["take_expired"]
        job = await work.aenqueue()
        await clock.jump(1)
        assert await soon(job.aresult()) == 1


async def test_progress_that_cannot_be_stored_costs_nothing(faulty, store):
    @faulty.task
    async def work(ctx: Context) -> int:
        ctx.progress(0.5)
        return 1

    for error in (StoreUnavailable("away"), ValueError("strange")):
        store.fail["note"] = lambda *_, error=error: error
        job = await work.aenqueue()
        await soon(Worker(faulty).drain())
        assert await job.aresult() == 1


# -- refused for its content ---------------------------------------------------------------------


@pytest.mark.parametrize("culprits", [{3}, {0, 15}, {7, 8, 9}, set(range(16))], ids=str)
async def test_a_batch_refused_for_its_content_is_halved_until_the_culprit_is_alone(faulty, store, culprits):
    release = asyncio.Event()
    begun = []

    @faulty.task
    async def work(n: int) -> str:
        begun.append(n)
        await release.wait()
        return f"result {n}"

    jobs = await work.aenqueue_many([{"n": n} for n in range(16)])
    bad = {jobs[n].id for n in culprits}

    def refuse(transitions):
        if any(each.job_id in bad and each.result is not None for each in transitions):
            return PayloadError("cannot store this")
        return None

    store.fail["settle"] = refuse
    async with working(faulty):
        await until(lambda: len(begun) == 16)
        release.set()
        for n, job in enumerate(jobs):
            found = await until_state(job, State.SUCCEEDED, State.DEAD)
            if n in culprits:
                assert (found.state, found.reason) == (State.DEAD, Reason.UNRECOVERABLE)
                assert "the store refused" in (found.error or "")
            else:
                assert await job.aresult() == f"result {n}"
    assert [await statuses(jobs[n]) for n in sorted(culprits)] == [["failed"]] * len(culprits)


async def test_a_failure_refused_for_its_content_is_settled_with_a_safe_error(faulty, store, clock):
    @faulty.task(max_attempts=3)
    async def fail() -> None:
        raise ValueError("strange text")

    def refuse(transitions):
        return (
            PayloadError("cannot store") if any("strange" in (t.error or "") for t in transitions) else None
        )

    store.fail["settle"] = refuse
    job = await fail.aenqueue()
    await Worker(faulty).drain()
    found = await the_job(faulty, job)
    assert (found.state, found.attempts) == (State.SCHEDULED, 1)  # retried as it would have been
    assert "the store refused" in (found.error or "")


async def test_a_success_refused_for_its_content_is_reported_as_dead(faulty, store):
    """Events and log lines speak of what was settled, not of what should have been."""
    told = []
    for event in ("succeeded", "dead"):
        faulty.on(event)(lambda event: told.append((event.name, event.reason)))

    @faulty.task
    async def work() -> str:
        return "strange"

    store.fail["settle"] = lambda transitions: PayloadError("no") if transitions[0].result else None
    await work.aenqueue()
    await soon(Worker(faulty).drain())
    await faulty.events.aclose()
    assert told == [("dead", "unrecoverable")]


async def test_a_child_that_cannot_be_stored_fails_its_parent_only(faulty, store):
    @faulty.task
    async def child() -> None: ...

    @faulty.task
    async def parent(ctx: Context, bad: bool) -> int:
        ctx.enqueue(child.s())
        if bad:
            ctx.enqueue(child.using(tags=["bad"]).s())
        return 1

    def refuse(transitions):
        bad = any("bad" in each.options.tags for t in transitions for each in t.inserts)
        return PayloadError("cannot store") if bad else None

    store.fail["settle"] = refuse
    jobs = [await parent.aenqueue(bad=n == 1) for n in range(3)]
    await soon(Worker(faulty).drain())
    assert [(await the_job(faulty, job)).state for job in jobs] == [
        State.SUCCEEDED,
        State.DEAD,
        State.SUCCEEDED,
    ]
