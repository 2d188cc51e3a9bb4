"""Durable steps: done once for a job, under its lease, and remembered by every later attempt."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from taskharbor import Context, LeaseLost, Worker, current_context
from taskharbor.drivers.base import ClaimRequest, StepNote
from taskharbor.errors import OperationRefused, StoreUnavailable
from taskharbor.records import State
from taskharbor.rescue import rescue_expired_leases
from taskharbor.worker.handlers import steps as steps_module
from taskharbor.worker.handlers.threads import Interruption
from tests.worker.stage import soon, statuses, the_job, until, working


@dataclass
class Receipt:
    number: int
    at: datetime


class Ledger:
    """Counts how often each thing was really done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def sync(self, what: str) -> Receipt:
        self.done.append(what)
        return Receipt(len(self.done), datetime(2026, 1, 1, tzinfo=UTC))

    async def later(self, what: str) -> Receipt:
        await asyncio.sleep(0)
        return self.sync(what)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


# -- a step is done once -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "later"])
async def test_step_is_done_once_and_remembered_by_the_next_attempt(harbor, clock, drained, ledger, kind):
    seen: list[Any] = []

    @harbor.task
    async def order(ctx: Context) -> Any:
        receipt = await ctx.step("charge", getattr(ledger, kind), "charge")
        seen.append(receipt)
        if ctx.retry_count == 0:
            raise ValueError("after the charge")
        return receipt.number

    job = await order.aenqueue()
    await drained(harbor)
    clock.advance(60)
    await drained(harbor)
    assert await job.aresult(0) == 1
    assert ledger.done == ["charge"]
    # The first time it is what it will be later: of the annotated type, read back from JSON.
    assert seen == [Receipt(1, datetime(2026, 1, 1, tzinfo=UTC))] * 2


@pytest.mark.parametrize("kind", ["sync", "later"])
async def test_step_of_a_handler_in_a_thread_gives_the_value_itself(harbor, clock, drained, ledger, kind):
    @harbor.task
    def order(ctx: Context) -> Any:
        receipt = ctx.step("charge", getattr(ledger, kind), "charge")
        if ctx.retry_count == 0:
            raise ValueError("after the charge")
        assert current_context().step("ship", ledger.sync, "ship").number == 2
        return receipt.number

    job = await order.aenqueue()
    await drained(harbor)
    clock.advance(60)
    await drained(harbor)
    assert await job.aresult(0) == 1
    assert ledger.done == ["charge", "ship"]


async def test_step_works_inside_a_middleware(harbor, drained, ledger):
    @harbor.middleware
    async def around(ctx, call):
        await ctx.step("before", ledger.sync, "before")
        return await call()

    @harbor.task
    def order(ctx: Context) -> Any:
        return ctx.step("charge", ledger.sync, "charge").number

    job = await order.aenqueue()
    await drained(harbor)
    assert await job.aresult(0) == 2


async def test_steps_may_be_taken_side_by_side(harbor, clock, drained, ledger):
    @harbor.task
    async def order(ctx: Context) -> list[int]:
        receipts = await asyncio.gather(*(ctx.step(f"s{i}", ledger.later, f"s{i}") for i in range(5)))
        if ctx.retry_count == 0:
            raise ValueError
        return [receipt.number for receipt in receipts]

    job = await order.aenqueue()
    await drained(harbor)
    clock.advance(60)
    await drained(harbor)
    assert await job.aresult(0) == [1, 2, 3, 4, 5]


async def test_step_that_raises_stores_nothing(harbor, clock, drained, ledger):
    @harbor.task
    async def order(ctx: Context) -> Any:
        def charge() -> int:
            ledger.sync("charge")
            if ctx.retry_count == 0:
                raise ValueError
            return 7

        return await ctx.step("charge", charge)

    job = await order.aenqueue()
    await drained(harbor)
    assert await harbor.jobs.asteps(job.id) == []
    clock.advance(60)
    await drained(harbor)
    assert (await job.aresult(0), ledger.done) == (7, ["charge", "charge"])


async def test_requeue_keeps_the_steps_and_delete_takes_them(harbor, drained, ledger):
    @harbor.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("charge", ledger.sync, "charge")
        if ctx.job.number == 1:
            raise ValueError

    job = await order.aenqueue()
    await drained(harbor)
    await harbor.dlq.arequeue(job.id)
    await drained(harbor)
    assert ledger.done == ["charge"]
    [step] = await harbor.jobs.asteps(job.id)
    assert (step.name, step.number, step.result) == (
        "charge",
        1,
        {"number": 1, "at": "2026-01-01T00:00:00Z"},
    )
    await harbor.jobs.adelete(job.id)
    assert await harbor.driver.steps(job.id) == {}


async def test_none_is_a_result_too(harbor, clock, drained, ledger):
    @harbor.task
    async def order(ctx: Context) -> None:
        assert await ctx.step("nothing", lambda: ledger.done.append("nothing")) is None
        if ctx.retry_count == 0:
            raise ValueError

    job = await order.aenqueue()
    await drained(harbor)
    clock.advance(60)
    await drained(harbor)
    assert (await job.aresult(0), ledger.done) == (None, ["nothing"])


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda ctx: ctx.step("", len, "x"), "step: it is empty"),
        (lambda ctx: ctx.step("a\nb", len, "x"), "control character"),
        (lambda ctx: ctx.step("a", 5), "takes a name, a function"),
        (lambda ctx: ctx.step("a", object), "step 'a': the result cannot be stored as JSON"),
        (lambda ctx: ctx.step("a", lambda: "x" * 2_000_000), "and the limit is"),
        (lambda ctx: ctx.sleep("a", -1), "seconds"),
        (lambda ctx: ctx.sleep("a", float("nan")), "seconds"),
    ],
)
async def test_what_cannot_be_a_step_is_refused_with_one_clear_error(memory, drained, act, told):
    @memory.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        await act(ctx)

    job = await order.aenqueue()
    await drained(memory)
    assert told in str((await the_job(memory, job)).error)


@pytest.mark.parametrize("again", ["step", "sleep"])
async def test_name_is_used_once_in_an_attempt(memory, drained, ledger, again):
    @memory.task(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("charge", ledger.sync, "charge")
        await (ctx.step("charge", ledger.sync, "again") if again == "step" else ctx.sleep("charge", 1))

    job = await order.aenqueue()
    await drained(memory)
    assert "has used the step name 'charge' already" in str((await the_job(memory, job)).error)
    assert ledger.done == ["charge"]


async def test_steps_of_a_job_are_bounded(memory, drained, monkeypatch):
    monkeypatch.setattr(steps_module, "STEPS_MAX", 3)
    monkeypatch.setattr(steps_module, "STEPS_BYTES_MAX", 100)

    @memory.task(max_attempts=1)
    async def many(ctx: Context) -> None:
        for i in range(4):
            await ctx.step(f"s{i}", lambda: 1)

    @memory.task(max_attempts=1)
    async def large(ctx: Context) -> None:
        for i in range(2):
            await ctx.step(f"s{i}", lambda: "x" * 80)

    jobs = [await many.aenqueue(), await large.aenqueue()]
    await drained(memory)
    errors = [str((await the_job(memory, job)).error) for job in jobs]
    assert "at most 3 steps" in errors[0]
    assert "at most 100 bytes together" in errors[1]
    assert [len(await memory.jobs.asteps(job.id)) for job in jobs] == [3, 1]


# -- the fence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_step_that_the_lease_no_longer_covers_ends_the_handler(memory, clock, ledger, is_async):
    """The attempt was paused past its lease: its step is refused, it stops, and nothing of it is settled."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def act(ctx: Context) -> None:
        begun.set()
        go_on.wait(60)
        try:
            ctx.step("charge", ledger.sync, "late")
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            ended.set()

    async def act_async(ctx: Context) -> None:
        begun.set()
        await until(go_on.is_set)
        try:
            await ctx.step("charge", ledger.sync, "late")
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            ended.set()

    handler = memory.task(name="act")(act_async if is_async else act)
    async with working(memory, lease_seconds=3600) as worker:
        job = await handler.aenqueue()
        await until(begun.is_set)
        # Somebody else has the job now.
        later = await memory.driver.now() + 4_000_000_000
        await memory.driver.take_expired("other/1", 3_600_000_000, now=later)
        go_on.set()
        await until(ended.is_set)
        run = worker._run
        assert run is not None
        await until(lambda: not run._pipeline.running)
        assert [lease.token for lease in await memory.driver.leases()] == ["other/1"]
    # A thread may be interrupted in the very moment in which it is told.
    assert [type(error) for error in raised] in ([[LeaseLost]] if is_async else [[LeaseLost], [Interruption]])
    assert await memory.driver.steps(job.id) == {}
    assert await statuses(job) == []


async def test_step_is_stored_when_the_store_is_back(faulty, store, clock, drained, ledger):
    away = [StoreUnavailable("away")] * 3
    store.fail["note"] = lambda *_: away.pop() if away else None

    @faulty.task
    async def order(ctx: Context) -> Any:
        return (await ctx.step("charge", ledger.sync, "charge")).number

    async with working(faulty):
        job = await order.aenqueue()
        while (await the_job(faulty, job)).state is not State.SUCCEEDED:
            clock.advance(0.5)
            await asyncio.sleep(0.001)
    assert (ledger.done, store.calls["note"]) == (["charge"], 4)


async def test_first_attempt_reads_no_steps(faulty, store, drained, ledger):
    reads = []
    steps = store.steps

    async def counted(job_id: str) -> Any:
        reads.append(job_id)
        return await steps(job_id)

    store.steps = counted

    @faulty.task
    async def order(ctx: Context) -> Any:
        return (await ctx.step("charge", ledger.sync, "charge")).number

    await order.aenqueue()
    await drained(faulty)
    assert (ledger.done, reads) == (["charge"], [])


# -- sleeping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_sleep_releases_the_slot_and_resumes_at_that_step(harbor, clock, drained, ledger, is_async):
    async def wait_async(ctx: Context) -> str:
        await ctx.step("before", ledger.sync, "before")
        await ctx.sleep("a-day", 86_400)
        await ctx.step("after", ledger.sync, "after")
        return "awake"

    def wait(ctx: Context) -> str:
        ctx.step("before", ledger.sync, "before")
        ctx.sleep("a-day", 86_400)
        ctx.step("after", ledger.sync, "after")
        return "awake"

    job = await harbor.task(name="wait")(wait_async if is_async else wait).aenqueue()
    await drained(harbor, concurrency=1)
    asleep = await the_job(harbor, job)
    assert (asleep.state, asleep.attempts, ledger.done) == (State.SCHEDULED, 0, ["before"])
    clock.advance(86_399)
    await drained(harbor)
    assert ledger.done == ["before"]
    clock.advance(1)
    await drained(harbor)
    assert (await job.aresult(0), ledger.done) == ("awake", ["before", "after"])
    assert await statuses(job) == ["slept", "succeeded"]
    [first, _] = (await job.ahistory())[::-1]
    assert first.detail == "asleep: a-day"


async def test_sleep_that_was_not_settled_goes_on_for_the_rest_of_its_time(faulty, store, clock, drained):
    """The worker died between storing the sleep and letting go: the next attempt sleeps only what is left."""

    @faulty.task
    async def wait(ctx: Context) -> int:
        await ctx.sleep("an-hour", 3_600)
        return ctx.job.number

    job = await wait.aenqueue()
    store.fail["settle"] = lambda *_: StoreUnavailable("away")
    worker = Worker(faulty, lease_seconds=30)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        await until(lambda: store.calls["settle"])
        worker.stop()
        worker.stop()
        await running
    del store.fail["settle"]
    clock.advance(600)
    await drained(faulty)
    asleep = await the_job(faulty, job)
    assert (await statuses(job), asleep.state) == (["lost", "slept"], State.SCHEDULED)
    assert (asleep.run_at - asleep.enqueued_at).total_seconds() == 3_600
    clock.advance(3_000)
    await drained(faulty)
    assert await job.aresult(0) == 3


async def nap(ctx: Context) -> None:
    await ctx.sleep("nap", 10)


async def test_sleep_in_a_task_group_and_behind_except_exception_still_sleeps(harbor, clock, drained):
    @harbor.task
    async def wait(ctx: Context) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(nap(ctx))
        except Exception:
            return "swallowed"
        return "awake"

    job = await wait.aenqueue()
    await drained(harbor)
    assert (await the_job(harbor, job)).state is State.SCHEDULED
    clock.advance(10)
    await drained(harbor)
    assert await job.aresult(0) == "awake"


async def test_at_most_once_may_not_sleep(harbor, drained):
    @harbor.task(delivery="at_most_once")
    async def wait(ctx: Context) -> None:
        await ctx.sleep("nap", 10)

    job = await wait.aenqueue()
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.state, "may not sleep" in str(found.error)) == (State.DEAD, True)


async def test_timeout_counts_each_waking_span(memory, clock):
    """Six seconds, an hour's sleep and six seconds more are within a timeout of ten."""

    begun: list[int] = []

    @memory.task(timeout=10)
    async def wait(ctx: Context) -> str:
        begun.append(ctx.attempt)
        await ctx.step("first", clock.sleep, 6)
        await ctx.sleep("an-hour", 3_600)
        await ctx.step("second", clock.sleep, 6)
        return "awake"

    async with working(memory):
        job = await wait.aenqueue()
        while (record := await the_job(memory, job)).state not in (State.SUCCEEDED, State.DEAD):
            # The clock stands still until what is due has begun: a worker hands back what it does not begin.
            if record.state is State.SCHEDULED or len(begun) == record.number > 0:
                clock.advance(60 if record.state is State.SCHEDULED else 1)
            await asyncio.sleep(0.0005)
    assert await statuses(job) == ["slept", "succeeded"]


async def test_sleeping_job_can_be_cancelled(harbor, clock, drained):
    @harbor.task
    async def wait(ctx: Context) -> None:
        await ctx.sleep("nap", 10)

    job = await wait.aenqueue()
    await drained(harbor)
    assert (await harbor.jobs.acancel(job.id)).state is State.CANCELLED


async def test_name_of_a_step_cannot_be_that_of_a_sleep_later(memory, clock, drained, ledger):
    @memory.task(max_attempts=2)
    async def order(ctx: Context) -> None:
        if ctx.retry_count == 0:
            await ctx.step("x", lambda: 1)
            raise ValueError
        await ctx.sleep("x", 1)

    job = await order.aenqueue()
    await drained(memory)
    clock.advance(60)
    await drained(memory)
    assert "cannot name a sleep" in str((await the_job(memory, job)).error)


async def test_children_of_an_attempt_that_fell_asleep_do_not_exist(harbor, clock, drained):
    @harbor.task
    async def child() -> None: ...

    @harbor.task
    async def parent(ctx: Context) -> str:
        child_id = ctx.enqueue(child.s())
        await ctx.sleep("nap", 10)
        return child_id

    job = await parent.aenqueue()
    await drained(harbor)
    assert (await harbor.jobs.acounts())["ready"] == 0
    clock.advance(10)
    await drained(harbor)
    assert (await harbor.jobs.aget(await job.aresult(0))).state is State.SUCCEEDED


# -- losses --------------------------------------------------------------------------------------


async def test_newly_stored_step_resets_the_losses(harbor, clock):
    """Lost alone again and again, but further on each time: that is no poison. Without a step it is."""
    driver = harbor.driver

    @harbor.task
    async def climb() -> None: ...

    async def lose(job: Any, step: str | None) -> State:
        for suspects in (False, True):
            request = ClaimRequest(
                f"w/{clock.now()}-{suspects}", 1_000_000, 1, suspects=suspects, max_losses=2
            )
            claim = await driver.claim(request)
            for claimed in claim.jobs:
                if step is not None:
                    await driver.note([StepNote(request.token, claimed.id, claimed.number, step, "1")])
            if claim.jobs:
                break
        clock.advance(5)
        await rescue_expired_leases(driver)
        return (await the_job(harbor, job)).state

    climber = await climb.aenqueue()
    assert [await lose(climber, f"s{n}") for n in range(8)] == [State.READY] * 8
    assert [await lose(climber, None) for _ in range(3)] == [State.READY, State.READY, State.DEAD]


async def test_a_step_that_the_store_refuses_fails_the_attempt(faulty, store, drained):
    @faulty.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.step("charge", lambda: "charged")

    store.fail["note"] = lambda notes: OperationRefused("string or blob too big")
    job = await work.aenqueue()
    await soon(drained(faulty))
    assert "string or blob too big" in (await job.arefresh()).error
