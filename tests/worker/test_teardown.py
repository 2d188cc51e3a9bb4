"""A worker that is torn down, or whose parts fail, leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import Worker
from taskharbor.errors import StoreUnavailable
from taskharbor.records import Reason, State
from tests.worker.stage import soon, statuses, the_job, until, until_state, working
from tests.worker.test_delivery import vanish


async def test_a_cancelled_drain_releases_what_it_had(harbor):
    begun = asyncio.Event()

    @harbor.task
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await work.aenqueue()
    running = asyncio.ensure_future(Worker(harbor).drain())
    await soon(begun.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await the_job(harbor, job)).state is State.READY
    assert await statuses(job) == ["released"]
    slots = [task for task in asyncio.all_tasks() if "_serve_slot" in repr(task)]
    assert slots == []


@pytest.mark.parametrize("verb", ["change_token", "wait_for_change"])
async def test_a_store_that_cannot_be_watched_for_a_while_stops_nobody(memory, clock, verb, monkeypatch):
    @memory.task
    async def work() -> int:
        return 1

    driver = memory.driver
    whole = getattr(driver, verb)
    failures = [StoreUnavailable("away"), StoreUnavailable("away")]

    def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return whole(*args)

    monkeypatch.setattr(driver, verb, failing)
    async with working(memory):
        for _ in range(3):
            await clock.jump(1)
        job = await work.aenqueue()
        for _ in range(3):
            await clock.jump(1)
        assert await soon(job.aresult()) == 1
    assert failures == []


async def test_a_handler_that_cancels_its_own_task_fails_and_costs_no_slot(harbor, drained):
    @harbor.task(max_attempts=1)
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    @harbor.task(max_attempts=1)
    async def leaves_a_cancellation_behind() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    @harbor.task
    async def ordinary() -> int:
        return 2

    failing = await cancels_itself.aenqueue_many([{}] * 3)
    odd = await leaves_a_cancellation_behind.aenqueue_many([{}] * 3)
    jobs = await ordinary.aenqueue_many([{}] * 5)
    await soon(drained(harbor, concurrency=2))
    assert [(await the_job(harbor, job)).state for job in failing] == [State.DEAD] * 3
    assert [(await the_job(harbor, job)).state for job in (*odd, *jobs)] == [State.SUCCEEDED] * 8


async def test_a_validator_that_exits_costs_no_slot(harbor, drained, monkeypatch):
    @harbor.task(max_attempts=1)
    async def work(n: int) -> int:
        return n

    def exits(_text: str) -> dict[str, Any]:
        raise SystemExit(3)

    bad = await work.aenqueue(1)
    whole = type(work.plan).decode
    monkeypatch.setattr(
        type(work.plan), "decode", lambda plan, text: exits(text) if "1" in text else whole(plan, text)
    )
    good = await work.aenqueue(2)
    await soon(drained(harbor, concurrency=1))
    assert (await the_job(harbor, bad)).state is State.DEAD
    assert (await the_job(harbor, good)).state is State.SUCCEEDED


async def test_options_that_cannot_be_read_put_only_their_own_job_back(memory, clock):
    """Another version may have written them."""

    @memory.task
    async def work() -> int:
        return 1

    bad = await work.aenqueue()
    stored = memory.driver._store.jobs[bad.id]
    stored.row = replace(stored.row, unreadable_options='{"retry": {"jitter": "unheard of"}}')
    good = await work.aenqueue()
    async with working(memory):
        assert await soon(good.aresult()) == 1
        await until_state(bad, State.SCHEDULED)
        for _ in range(20):
            await clock.jump(30)
        found = await until_state(bad, State.DEAD)
    assert found.reason is Reason.INVALID_PAYLOAD
    assert "options" in (found.error or "")


async def test_a_worker_restarted_under_its_name_is_not_handed_its_predecessors_jobs(memory, clock):
    begun = []

    @memory.task(delivery="at_most_once")
    async def pay() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    job = await pay.aenqueue()
    first = Worker(memory, name="mailer", lease_seconds=3)
    running = asyncio.ensure_future(first.run())
    await until(lambda: begun)
    await vanish(first, running)
    async with working(memory, name="mailer", lease_seconds=3):
        await clock.jump(2)
        assert begun == [1]
        await clock.jump(3)
        await until_state(job, State.DEAD)
    assert begun == [1]


async def test_a_stop_does_not_wait_for_a_store_longer_than_the_leases_last(faulty, store, clock):
    begun = asyncio.Event()

    @faulty.task
    async def work() -> None:
        begun.set()

    await work.aenqueue()
    store.fail["settle"] = lambda *_: StoreUnavailable("away")
    worker = Worker(faulty, lease_seconds=3, grace_seconds=1)
    running = asyncio.ensure_future(worker.run())
    await soon(begun.wait())
    worker.stop()
    for _ in range(12):
        await clock.jump(1)
    await soon(running)


async def test_a_repeated_settle_of_a_dead_job_is_told_as_dead(faulty, store, clock, caplog):
    """The first answer was lost, the second says only that it is done."""
    events = []

    @faulty.on("dead")
    async def told(event: Any) -> None:
        events.append(event.name)

    @faulty.task(max_attempts=1)
    async def work() -> None:
        raise ValueError("boom")

    answers_lost: list[int] = []

    async def lose_the_first_answer() -> None:
        if not answers_lost:
            answers_lost.append(1)
            raise StoreUnavailable("the answer was lost")

    job = await work.aenqueue()
    store.after["settle"] = lose_the_first_answer
    async with working(faulty):
        for _ in range(3):
            await clock.jump(1)
        await until_state(job, State.DEAD)
        await until(lambda: events)
    assert "scheduling retry" not in caplog.text
