"""Jobs that stand aside: those of another application's tasks, and those that a hold keeps back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.client.handle import Job
from taskharbor.clock import MICROS_PER_SECOND, ManualClock
from taskharbor.drivers.base import Driver, WorkerRecord
from taskharbor.drivers.capabilities import Holds
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.records import JobRecord, Reason, State
from taskharbor.worker.upkeep.colleagues import TASKS_MAX, TRUSTED_SECONDS, known_tasks
from tests.postgres import store as postgres
from tests.worker.stage import attempts_of, soon, statuses, the_job, until_state, working


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def driver(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Driver]:
    """Every store of ours: each has its own way to let a job stand aside."""
    if request.param == "postgres":
        with postgres.fresh(clock) as driver:
            yield driver
    elif request.param == "sqlite":
        yield SQLiteDriver(f"{tmp_path}/harbor.db", synchronous="NORMAL", clock=clock)
    else:
        yield MemoryDriver(clock)


@pytest.fixture
async def harbor(driver: Driver) -> AsyncIterator[Harbor]:
    async with Harbor(driver=driver) as harbor:
        await harbor.amigrate()
        yield harbor


def application(harbor: Harbor, *names: str) -> Harbor:
    """Another application on the same store, with tasks of its own."""
    other = Harbor(driver=harbor.driver)
    for name in names:
        _declare(other, name)
    return other


def _declare(harbor: Harbor, name: str) -> None:
    async def work() -> str:
        return name

    harbor.task(name=name)(work)


async def record(harbor: Harbor, job: Job[Any]) -> JobRecord:
    [found] = await harbor.driver.get([job.id])
    assert found is not None
    return found


async def until_aside(harbor: Harbor, job: Job[Any], label: str | None) -> None:
    while (await record(harbor, job)).aside != label:  # noqa: ASYNC110 - the store tells no event
        await asyncio.sleep(0.0005)


# -- tasks that this worker does not know ----------------------------------------------------------


async def test_two_applications_on_one_queue_do_not_delay_each_other(harbor: Harbor):
    """No time passes here: a job that had to wait for a delay would never begin."""
    shop, blog = application(harbor, "shop:pay"), application(harbor, "blog:render")
    async with working(shop, name="shop", concurrency=2), working(blog, name="blog", concurrency=2):
        jobs = [await harbor.aenqueue(name) for name in ("shop:pay", "blog:render") * 20]
        results = [await soon(job.aresult()) for job in jobs]
    assert results == ["shop:pay", "blog:render"] * 20
    for job in jobs:
        rows = await attempts_of(job)
        assert [str(row.status) for row in rows[:-1]] == ["released"] * (len(rows) - 1)
        assert (await the_job(harbor, job)).attempts == 0


async def test_jobs_that_were_there_before_the_workers_are_not_delayed_either(harbor: Harbor):
    """The first worker finds no other that knows the task; the one that does takes the job whatever its delay."""
    job = await harbor.aenqueue("blog:render")
    async with working(application(harbor, "shop:pay"), name="shop"):
        await until_state(job, State.SCHEDULED)
        assert (await record(harbor, job)).aside == "task:blog:render"
        async with working(application(harbor, "blog:render"), name="blog"):
            assert await soon(job.aresult()) == "blog:render"
    assert await statuses(job) == ["released", "succeeded"]


async def test_a_drain_takes_what_others_have_put_aside(harbor: Harbor, drained):
    job = await harbor.aenqueue("blog:render")
    await drained(application(harbor, "shop:pay"))
    assert (await the_job(harbor, job)).state is State.SCHEDULED
    await drained(application(harbor, "blog:render"))
    assert await job.aresult() == "blog:render"


async def test_a_worker_whose_slots_are_taken_puts_foreign_jobs_aside(harbor: Harbor):
    shop, blog = application(harbor), application(harbor, "blog:render")
    release = asyncio.Event()

    async def wait() -> None:
        await release.wait()

    shop.task(name="shop:wait")(wait)
    async with working(shop, name="shop", concurrency=1, pace=1000.0):
        waiting = await harbor.aenqueue("shop:wait")
        await until_state(waiting, State.RUNNING)
        await WORKERS.put(harbor.driver, [_worker("blog", "blog:render")], 60 * MICROS_PER_SECOND)
        job = await harbor.aenqueue("blog:render")
        async with working(blog, name="blog"):
            assert await soon(job.aresult()) == "blog:render"
        release.set()
        await soon(waiting.aresult())


async def test_the_clock_of_an_unknown_task_runs_only_while_no_live_worker_knows_it(
    memory: Harbor, clock: ManualClock
):
    """While one is alive the job stands aside, however long; then it has its five minutes."""
    job = await memory.aenqueue("blog:render")
    async with working(application(memory, "shop:pay"), name="shop"):
        await until_state(job, State.SCHEDULED)
        for _ in range(40):
            await WORKERS.put(memory.driver, [_worker("blog", "blog:render")], 60 * MICROS_PER_SECOND)
            await clock.jump(15)
        assert (await record(memory, job)).aside == "task:blog:render"
        await WORKERS.drop(memory.driver, ["blog"])
        seconds = 0.0
        while (await job.arefresh()).state is not State.DEAD:
            await clock.jump(1)
            seconds += 1
            assert seconds < 400
    assert seconds >= 300 - 35  # the last look before the record went
    assert (await the_job(memory, job)).reason is Reason.UNKNOWN_TASK


async def test_a_worker_that_serves_another_queue_does_not_count(memory: Harbor, clock: ManualClock):
    """It knows the task, and will never be given the job."""
    await WORKERS.put(memory.driver, [_worker("blog", "blog:render", queues=("b",))], 60 * MICROS_PER_SECOND)
    job = await memory.aenqueue("blog:render")
    async with working(application(memory, "shop:pay"), name="shop"):
        await until_state(job, State.SCHEDULED)
    assert [row.detail for row in await memory.driver.history(job.id)] == ["unknown_task"]


async def test_a_worker_that_may_know_any_task_counts_as_one_that_knows_it(memory: Harbor):
    many = WorkerRecord("many", "host", 1, 1, 0, tasks=None)
    await WORKERS.put(memory.driver, [many], 60 * MICROS_PER_SECOND)
    job = await memory.aenqueue("blog:render")
    async with working(application(memory, "shop:pay"), name="shop"):
        await soon(until_aside(memory, job, "task:blog:render"))
    assert (await the_job(memory, job)).state is State.READY


def test_a_record_names_the_tasks_and_their_aliases_or_none():
    harbor = application(Harbor("memory://"), "a")
    harbor.task(name="new", aliases=["old"])(_nothing)
    known = known_tasks(harbor)
    assert known is not None
    assert {"a", "new", "old"} <= set(known)
    for number in range(TASKS_MAX):
        _declare(harbor, f"t{number}")
    assert known_tasks(harbor) is None


async def _nothing() -> None:
    pass


def _worker(name: str, task: str, queues: tuple[str, ...] | None = None) -> WorkerRecord:
    return WorkerRecord(name, "host", 1, 1, 0, queues, tasks=(task,))


# -- holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(HoldKind))
async def test_held_jobs_wait_and_the_others_run(harbor: Harbor, kind: HoldKind):
    """Nothing of a held job changes but its place; after the release it runs without a moment's delay."""
    app = application(harbor, "mail:send", "shop:pay")
    name = "mail:send" if kind is HoldKind.TASK else "bulk"
    holds = Holds.of(harbor.driver)
    assert await holds.hold(kind, name)
    held = [await harbor.aenqueue("mail:send", tags=["x", "bulk"], priority=9) for _ in range(3)]
    async with working(app, concurrency=1):
        other = await harbor.aenqueue("shop:pay")
        assert await soon(other.aresult()) == "shop:pay"
        for job in held:
            await soon(until_aside(harbor, job, f"hold:{kind}:{name}"))
            found = await the_job(harbor, job)
            assert (found.state, found.priority, found.attempts) == (State.READY, 9, 0)
        assert await holds.release(kind, name)
        assert [await soon(job.aresult()) for job in held] == ["mail:send"] * 3
    assert await statuses(held[0]) == ["released", "succeeded"]


async def test_a_hold_reaches_what_is_claimed_and_not_begun(memory: Harbor, clock: ManualClock):
    """With the next heartbeat at the latest; what has begun goes on."""
    app, release = application(memory), asyncio.Event()

    async def send() -> None:
        await release.wait()

    app.task(name="mail:send")(send)
    first, second = await memory.aenqueue("mail:send"), await memory.aenqueue("mail:send")
    async with working(app, concurrency=1, pace=1000.0, lease_seconds=1.5):
        await until_state(first, State.RUNNING)
        await until_state(second, State.RUNNING)
        await Holds.of(memory.driver).hold(HoldKind.TASK, "mail:send")
        await clock.jump(0.5)
        await soon(until_aside(memory, second, "hold:task:mail:send"))
        release.set()
        await until_state(first, State.SUCCEEDED)
        assert (await the_job(memory, second)).state is State.READY


async def test_a_held_job_of_a_task_that_no_worker_knows_is_held(memory: Harbor, drained):
    """A hold comes first; its clock as an unknown task runs when the hold is over."""
    await Holds.of(memory.driver).hold(HoldKind.TASK, "no:one")
    job = await memory.aenqueue("no:one")
    await drained(application(memory, "shop:pay"), unrunnable_grace_seconds=0)
    assert (await record(memory, job)).aside == "hold:task:no:one"
    await Holds.of(memory.driver).release(HoldKind.TASK, "no:one")
    await drained(application(memory, "shop:pay"), unrunnable_grace_seconds=0)
    assert (await the_job(memory, job)).reason is Reason.UNKNOWN_TASK


async def test_held_jobs_are_met_once(memory: Harbor, clock: ManualClock):
    """A worker does not wade through them again and again."""
    await Holds.of(memory.driver).hold(HoldKind.TASK, "mail:send")
    held = [await memory.aenqueue("mail:send") for _ in range(50)]
    async with working(application(memory, "mail:send"), concurrency=2):
        for job in held:
            await soon(until_aside(memory, job, "hold:task:mail:send"))
        await clock.jump(TRUSTED_SECONDS)
    assert {len(await attempts_of(job)) for job in held} == {1}
