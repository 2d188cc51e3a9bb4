"""What a handler may know of, and do about, the attempt it runs in."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

from taskharbor import Context, Worker, current_context
from taskharbor.clock import from_micros
from taskharbor.errors import ConfigurationError, JobNotFound
from taskharbor.records import State
from tests.worker.stage import soon, the_job, until, until_state, working


async def test_attempt_counts_executions_of_the_run_and_retry_count_its_failures(harbor, clock, drained):
    seen = []

    @harbor.task(max_attempts=3)
    async def fail(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.retry_count, ctx.attempt_number))
        assert ctx.job.attempt_number == ctx.job.number == ctx.attempt_number
        raise ValueError

    job = await fail.aenqueue()
    for _ in range(3):
        await drained(harbor)
        clock.advance(60)
    await harbor.dlq.arequeue(job.id)
    await drained(harbor)
    assert seen == [(1, 0, 1), (2, 1, 2), (3, 2, 3), (1, 0, 4)]


async def test_the_job_is_there_as_it_was_claimed(harbor, drained):
    seen = []

    @harbor.task
    async def look(ctx: Context, n: int) -> None:
        job = ctx.job
        seen.append((job.id, job.state, job.payload, job.queue, job.priority, job.tags, job.meta))

    job = await look.using(queue="q", priority=3, tags=["x"], meta={"tenant": "acme"}).aenqueue(5)
    await drained(harbor)
    assert seen == [(job.id, State.RUNNING, {"n": 5}, "q", 3, ("x",), {"tenant": "acme"})]


async def test_the_correlation_id_is_kept_through_retries_and_passed_on_to_children(harbor, clock, drained):
    seen = []

    @harbor.task
    async def child(ctx: Context) -> None:
        seen.append(("child", ctx.correlation_id))

    @harbor.task
    async def parent(ctx: Context) -> None:
        seen.append(("parent", ctx.correlation_id))
        if ctx.retry_count == 0:
            raise ValueError
        ctx.enqueue(child.s())
        ctx.enqueue(child.using(correlation_id="its own").s())

    await parent.using(correlation_id="order-7").aenqueue()
    await drained(harbor)
    clock.advance(60)
    await drained(harbor)
    assert seen[:2] == [("parent", "order-7")] * 2
    assert sorted(seen[2:]) == [("child", "its own"), ("child", "order-7")]


async def test_a_childs_expires_in_counts_from_its_enqueue(harbor, clock, drained):
    ids = []

    @harbor.task
    async def child() -> None: ...

    @harbor.task
    async def parent(ctx: Context) -> None:
        ids.append(ctx.enqueue(child.using(expires_in=60, delay=30).s()))

    await parent.aenqueue()
    await drained(harbor)
    assert (await harbor.jobs.aget(ids[0])).record.expires_at == clock.now() + 60_000_000


async def test_meta_is_kept_through_retries_and_inherited_by_children(harbor, clock, drained):
    seen = []

    @harbor.task(meta={"kind": "child"})
    async def child(ctx: Context) -> None:
        seen.append(ctx.job.meta)

    @harbor.task
    async def parent(ctx: Context) -> None:
        seen.append(ctx.job.meta)
        if ctx.retry_count == 0:
            raise ValueError
        ctx.enqueue(child.s())
        ctx.enqueue(child.using(meta={"tenant": "its own"}).s())

    given = {"tenant": "acme", "kind": "parent", "traceparent": "00-1-2-01"}
    await parent.using(meta=given).aenqueue()
    await drained(harbor)
    clock.advance(60)
    await drained(harbor)
    assert seen[:2] == [given] * 2
    inherited = {"tenant": "acme", "kind": "child", "traceparent": "00-1-2-01"}
    assert sorted(seen[2:], key=str) == [inherited, inherited | {"tenant": "its own"}]


async def test_a_parents_meta_never_keeps_its_child_from_being_stored(harbor, drained):
    seen = []

    @harbor.task
    async def child(ctx: Context) -> None:
        seen.append(ctx.job.meta)

    @harbor.task
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.using(meta={f"own{n}": "" for n in range(31)}).s())
        ctx.enqueue(child.using(meta={"own": "v" * 500}).s())

    many = {"first": "1"} | {f"n{n}": "v" * 505 for n in range(7)} | {"last": "2"}
    await parent.using(meta=many).aenqueue()
    await drained(harbor)
    few, large = sorted(seen, key=len, reverse=True)
    assert few == {f"own{n}": "" for n in range(31)} | {"first": "1"}
    assert large == {"own": "v" * 500} | {name: value for name, value in many.items() if name != "n6"}


async def test_the_deadline_is_when_the_attempt_times_out(harbor, clock, drained):
    seen = []

    @harbor.task(timeout=30)
    async def with_timeout(ctx: Context) -> None:
        seen.append(ctx.deadline)

    @harbor.task
    async def without(ctx: Context) -> None:
        seen.append(ctx.deadline)

    await with_timeout.aenqueue()
    await drained(harbor)
    await without.aenqueue()
    await drained(harbor)
    assert seen == [from_micros(clock.now()) + timedelta(seconds=30), None]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_the_current_context_needs_no_parameter(harbor, drained, sync):
    def body() -> str:
        return current_context().job.id

    async def async_body() -> str:
        await asyncio.sleep(0)
        return await asyncio.create_task(deeper())

    async def deeper() -> str:
        return current_context().job.id

    task = harbor.task(name="t")(body if sync else async_body)
    jobs = await task.aenqueue_many([{}] * 5)
    await drained(harbor)
    assert [await job.aresult() for job in jobs] == [job.id for job in jobs]


def test_outside_of_a_job_there_is_no_current_context():
    with pytest.raises(ConfigurationError, match="outside of a job"):
        current_context()


async def test_the_loggers_lines_carry_the_fields_that_find_the_job_again(harbor, drained, caplog):
    @harbor.task(name="talk")
    async def talk(ctx: Context) -> None:
        ctx.logger.info("half way", extra={"fields": {"page": 3}})

    job = await talk.using(correlation_id="order-7").aenqueue()
    with caplog.at_level(logging.INFO):
        await drained(harbor)
    [record] = [record for record in caplog.records if record.name == "taskharbor.task"]
    assert record.fields == {
        "job": job.id,
        "task": "talk",
        "queue": "default",
        "attempt": 1,
        "correlation_id": "order-7",
        "page": 3,
    }


# -- progress ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_progress_is_stored_while_the_handler_runs(harbor, sync):
    reported, release = threading.Event(), threading.Event()

    def body(ctx: Context) -> None:
        ctx.progress(0.25)
        ctx.progress(0.5, "half way")
        reported.set()
        assert release.wait(60)

    async def async_body(ctx: Context) -> None:
        ctx.progress(0.25)
        ctx.progress(0.5, "half way")
        reported.set()
        await until(release.is_set)

    task = harbor.task(name="t")(body if sync else async_body)
    job = await task.aenqueue()
    async with working(harbor):
        await until(reported.is_set)
        found = await the_job(harbor, job)
        while found.progress is None or found.progress.fraction != 0.5:
            found = await the_job(harbor, job)
            await asyncio.sleep(0)
        assert found.progress.message == "half way"
        release.set()
        await until_state(job, State.SUCCEEDED)


async def test_progress_reported_right_before_the_end_is_kept(harbor, drained):
    @harbor.task
    async def work(ctx: Context) -> None:
        ctx.progress(1, "all")

    jobs = [await work.aenqueue() for _ in range(3)]
    await drained(harbor)
    for job in jobs:
        progress = (await the_job(harbor, job)).progress
        assert progress is not None
        assert (progress.fraction, progress.message) == (1.0, "all")


async def test_a_hostile_progress_message_is_stored_in_a_safe_form(harbor, drained):
    @harbor.task
    async def work(ctx: Context) -> str:
        ctx.progress(0.5, "\ud800\0" + "x" * 10_000)
        return "done"

    job = await work.aenqueue()
    await drained(harbor)
    assert await job.aresult() == "done"
    progress = (await the_job(harbor, job)).progress
    assert progress is not None
    assert progress.message == "\ufffd\ufffd" + "x" * 498


async def test_progress_takes_a_small_json_value(harbor, drained):
    @harbor.task
    async def work(ctx: Context) -> None:
        ctx.progress(0.5, "half", value={"rows": [1, "é"], "at": datetime(2026, 1, 1, tzinfo=UTC)})

    job = await work.aenqueue()
    await drained(harbor)
    progress = (await the_job(harbor, job)).progress
    assert progress is not None
    assert progress.value == {"rows": [1, "é"], "at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("x" * 4_095, "the value of progress takes 4,097 bytes as JSON, and the limit is 4,096"),
        ({"x": float("nan")}, "the value of progress cannot be stored as JSON"),
        (object(), "the value of progress cannot be stored as JSON"),
    ],
)
async def test_a_value_that_cannot_be_stored_is_the_handlers_error(memory, drained, value, complaint):
    @memory.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.progress(0.5, value=value)

    job = await work.aenqueue()
    await drained(memory)
    assert complaint in ((await the_job(memory, job)).error or "")


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "0.5", None, True])
async def test_a_fraction_outside_of_0_to_1_is_the_handlers_error(memory, drained, fraction):
    @memory.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.progress(fraction)

    job = await work.aenqueue()
    await drained(memory)
    assert "progress takes a fraction" in ((await the_job(memory, job)).error or "")


# -- children ------------------------------------------------------------------------------------


async def test_children_exist_if_the_attempt_succeeds(harbor, drained):
    executed = []

    @harbor.task
    async def child(n: int) -> None:
        executed.append(n)

    @harbor.task
    async def parent(ctx: Context) -> list[str]:
        return [ctx.enqueue(child.s(n)) for n in range(3)]

    job = await parent.aenqueue()
    await drained(harbor)
    ids = await job.aresult()
    assert len(set(ids)) == 3
    assert sorted(executed) == [0, 1, 2]
    for job_id in ids:
        assert (await harbor.jobs.aget(job_id)).state is State.SUCCEEDED


async def test_children_do_not_exist_if_the_attempt_fails(harbor, clock, drained):
    executed, ids = [], []

    @harbor.task
    async def child(n: int) -> None:
        executed.append(n)

    @harbor.task(max_attempts=2)
    async def parent(ctx: Context) -> None:
        ids.append(ctx.enqueue(child.s(ctx.retry_count)))
        if ctx.retry_count == 0:
            raise ValueError

    await parent.aenqueue()
    await drained(harbor)
    with pytest.raises(JobNotFound):
        await harbor.jobs.aget(ids[0])
    clock.advance(60)
    await drained(harbor)
    assert executed == [1]
    with pytest.raises(JobNotFound):
        await harbor.jobs.aget(ids[0])


async def test_children_do_not_exist_before_their_parent_has_succeeded(memory):
    ids, release = [], asyncio.Event()

    @memory.task
    async def child() -> None: ...

    @memory.task
    async def parent(ctx: Context) -> None:
        ids.append(ctx.enqueue(child.s()))
        await release.wait()

    job = await parent.aenqueue()
    async with working(memory):
        await until(lambda: ids)
        with pytest.raises(JobNotFound):
            await memory.jobs.aget(ids[0])
        release.set()
        await soon(job.aresult())
        assert (await memory.jobs.aget(ids[0])).task.endswith("child")


async def test_a_child_whose_key_exists_already_is_that_job_and_the_settle_succeeds(harbor, drained):
    executed = []

    @harbor.task
    async def child(n: int) -> None:
        executed.append(n)

    @harbor.task
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.using(idempotency_key="k").s(2))

    await child.using(idempotency_key="k").aenqueue(1)
    job = await parent.aenqueue()
    await drained(harbor)
    assert (await the_job(harbor, job)).state is State.SUCCEEDED
    assert executed == [1]


async def test_sync_handlers_have_children_too(harbor, drained):
    executed = []

    @harbor.task
    def child() -> None:
        executed.append(1)

    @harbor.task
    def parent(ctx: Context) -> None:
        ctx.enqueue(child.s())

    await parent.aenqueue()
    await drained(harbor)
    assert executed == [1]


async def test_a_worker_without_context_parameter_is_called_without_one(harbor):
    @harbor.task
    async def plain(a: int, *, b: int = 1) -> int:
        return a + b

    job = await plain.aenqueue(1, b=5)
    await Worker(harbor).drain()
    assert await job.aresult() == 6
