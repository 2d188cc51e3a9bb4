"""Events and hooks: they tell what happened, and never delay or fail a job."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import pytest

from taskharbor import RetryPolicy, Worker
from taskharbor.clock import from_micros
from taskharbor.errors import ConfigurationError
from taskharbor.records import State
from taskharbor.telemetry.events import EVENT_NAMES, Event
from tests.worker.stage import said, soon, statuses, the_job, until, until_state, working
from tests.worker.test_delivery import vanish


class LeaseUpdate:
    """Subscribed to every event."""

    def __init__(self, harbor) -> None:
        self.events: list[Event] = []
        for name in EVENT_NAMES:

            @harbor.on(name)
            async def hear(event: Event) -> None:
                self.events.append(event)

    def names(self, job) -> list[str]:
        return [event.name for event in self.events if event.job_id == job.id]

    def of(self, name: str) -> Event:
        [event] = [event for event in self.events if event.name == name]
        return event


def test_there_are_eight_events_of_jobs_and_one_of_processes():
    assert sorted(EVENT_NAMES) == sorted(
        ["enqueued", "started", "succeeded", "failed", "retried", "dead", "lost", "cancelled", "stuck"]
    )


async def test_a_success_is_enqueued_started_succeeded(harbor, clock):
    heard = LeaseUpdate(harbor)

    @harbor.task(name="t")
    async def work() -> None: ...

    job = await work.using(queue="q", correlation_id="c").aenqueue()
    worker = Worker(harbor)
    await worker.drain()
    assert heard.names(job) == ["enqueued", "started", "succeeded"]
    event = heard.of("succeeded")
    assert (event.task, event.queue, event.attempt, event.correlation_id) == ("t", "q", 1, "c")
    assert (event.worker, event.at) == (worker.name, from_micros(clock.now()))


async def test_a_failure_is_failed_then_retried_and_in_the_end_dead(harbor, clock, drained):
    heard = LeaseUpdate(harbor)

    @harbor.task(max_attempts=2)
    async def fail() -> None:
        raise ValueError("broken")

    job = await fail.aenqueue()
    await drained(harbor)
    retried = heard.of("retried")
    assert (retried.error, retried.delay_seconds) == ("ValueError: broken", 1.0)
    assert retried.retry_at == from_micros(clock.now()) + timedelta(seconds=1)
    clock.advance(1)
    await drained(harbor)
    assert heard.names(job) == ["enqueued", "started", "failed", "retried", "started", "failed", "dead"]
    dead = heard.of("dead")
    assert (dead.reason, dead.error, dead.attempt) == ("exhausted", "ValueError: broken", 2)


async def test_a_job_that_was_not_begun_in_time_is_told_cancelled(harbor, clock, drained):
    heard = LeaseUpdate(harbor)

    @harbor.task
    async def work() -> None: ...

    soon_over = from_micros(clock.now()) + timedelta(seconds=1)
    job = await work.using(expires_at=soon_over, correlation_id="c").aenqueue()
    clock.advance(1)
    await drained(harbor)
    assert heard.names(job) == ["enqueued", "cancelled"]
    cancelled = heard.of("cancelled")
    assert (cancelled.reason, cancelled.correlation_id) == ("expired", "c")


async def test_a_cancelled_running_job_is_told_cancelled(memory, clock):
    heard = LeaseUpdate(memory)
    begun = asyncio.Event()

    @memory.task
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await hang.aenqueue()
    async with working(memory):
        await soon(begun.wait())
        await memory.jobs.acancel(job.id)
        await clock.jump(10)
        await until_state(job, State.CANCELLED)
    assert heard.names(job) == ["enqueued", "started", "cancelled"]
    assert heard.of("cancelled").reason == "cancelled"


async def test_a_lost_job_is_told_lost_by_whoever_collects_it(memory, clock):
    heard = LeaseUpdate(memory)
    begun = []

    @memory.task(name="t")
    async def work() -> None:
        begun.append(1)
        if len(begun) == 1:
            await asyncio.Event().wait()

    job = await work.using(correlation_id="c").aenqueue()
    worker = Worker(memory, lease_seconds=3)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: begun)
    await vanish(worker, running)
    clock.advance(4)
    await Worker(memory).drain()
    assert heard.names(job) == ["enqueued", "started", "lost", "started", "succeeded"]
    lost = heard.of("lost")
    assert (lost.worker, lost.attempt, lost.correlation_id) == (worker.name, 1, "c")


async def test_a_lost_job_that_was_to_be_cancelled_is_told_cancelled(memory, clock, caplog):
    heard = LeaseUpdate(memory)
    begun = []

    @memory.task(name="t")
    async def work() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    job = await work.aenqueue()
    worker = Worker(memory, lease_seconds=3)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: begun)
    await memory.jobs.acancel(job.id)
    await vanish(worker, running)
    clock.advance(4)
    with caplog.at_level(logging.INFO):
        await Worker(memory).drain()
    assert (await the_job(memory, job)).state is State.CANCELLED
    assert heard.names(job) == ["enqueued", "started", "lost", "cancelled"]
    assert not any("runs again" in record.getMessage() for record in caplog.records)


async def test_a_lost_at_most_once_job_is_told_lost_and_dead(memory, clock):
    heard = LeaseUpdate(memory)
    begun = []

    @memory.task(delivery="at_most_once")
    async def once() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    job = await once.aenqueue()
    worker = Worker(memory, lease_seconds=3)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: begun)
    await vanish(worker, running)
    clock.advance(4)
    await Worker(memory).drain()
    assert heard.names(job) == ["enqueued", "started", "lost", "dead"]
    assert heard.of("dead").reason == "lost"


async def test_an_existing_job_is_not_told_enqueued_again(harbor):
    heard = LeaseUpdate(harbor)

    @harbor.task
    async def work() -> None: ...

    for _ in range(3):
        await work.using(idempotency_key="k").aenqueue()
    await asyncio.sleep(0)
    assert [event.name for event in heard.events] == ["enqueued"]


async def test_an_event_is_told_after_the_store_has_said_so(harbor):
    states = []

    @harbor.on("succeeded")
    async def look(event: Event) -> None:
        states.append((await harbor.jobs.aget(event.job_id)).state)

    @harbor.task
    async def work() -> None: ...

    await work.aenqueue()
    await Worker(harbor).drain()
    assert states == [State.SUCCEEDED]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_failing_subscriber_fails_nobody(harbor, caplog, sync, error):
    failed = threading.Event()

    def fail(event: Event) -> None:
        failed.set()
        raise error("subscriber broken")

    async def fail_async(event: Event) -> None:
        fail(event)

    harbor.on("succeeded")(fail if sync else fail_async)

    @harbor.task
    async def work() -> int:
        return 1

    job = await work.aenqueue()
    with caplog.at_level(logging.ERROR, "taskharbor.events"):
        await Worker(harbor).drain()
        await until(failed.is_set)
        await until(lambda: any("a subscriber failed" in r.getMessage() for r in caplog.records))
    assert await job.aresult() == 1
    assert await statuses(job) == ["succeeded"]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_slow_subscriber_delays_nobody(harbor, sync):
    release = threading.Event()
    told = []

    def slow(event: Event) -> None:
        assert release.wait(60)
        told.append(event.job_id)

    async def slow_async(event: Event) -> None:
        await until(release.is_set)
        told.append(event.job_id)

    harbor.on("started")(slow if sync else slow_async)

    @harbor.task
    async def work() -> int:
        return 1

    async with working(harbor):
        jobs = await work.aenqueue_many([{}] * 20)
        for job in jobs:
            assert await soon(job.aresult()) == 1
        assert told == []
        release.set()
        await until(lambda: len(told) == 20)


async def test_an_unknown_event_is_refused(memory):
    with pytest.raises(ConfigurationError, match="no event is called 'finished'"):
        memory.on("finished")(print)


# -- hooks ---------------------------------------------------------------------------------------


async def test_start_hooks_run_before_the_first_job_and_stop_hooks_after_the_last_in_reverse(harbor):
    order = []

    @harbor.on_worker_start
    def open_first():
        order.append("open 1")

    @harbor.on_worker_start
    async def open_second():
        await asyncio.sleep(0)
        order.append("open 2")

    @harbor.on_worker_stop
    def close_first():
        order.append("close 1")

    @harbor.on_worker_stop
    async def close_second():
        await asyncio.sleep(0)
        order.append("close 2")

    @harbor.task
    async def work() -> None:
        order.append("work")

    await work.aenqueue()
    await Worker(harbor).drain()
    assert order == ["open 1", "open 2", "work", "close 2", "close 1"]


async def test_a_failing_start_hook_fails_the_worker_before_any_job(memory):
    calls, closed = [], []

    @memory.on_worker_start
    def broken():
        raise RuntimeError("no database")

    @memory.on_worker_stop
    def close():
        closed.append(1)

    @memory.task
    async def work() -> None:
        calls.append(1)

    await work.aenqueue()
    with pytest.raises(RuntimeError, match="no database"):
        await Worker(memory).drain()
    with pytest.raises(RuntimeError, match="no database"):
        async with Worker(memory):
            pass
    assert calls == []
    assert closed == [1, 1]


async def test_a_failing_stop_hook_does_not_keep_the_others_from_closing(memory):
    closed = []

    @memory.on_worker_stop
    def close():
        closed.append(1)

    @memory.on_worker_stop
    def broken():
        raise RuntimeError("cannot close")

    with pytest.raises(RuntimeError, match="cannot close"):
        await Worker(memory).drain()
    assert closed == [1]


# -- log lines -----------------------------------------------------------------------------------


async def test_a_retry_line_says_its_number_the_maximum_the_delay_and_the_time(harbor, clock, caplog):
    @harbor.task(name="t")
    async def fail() -> None:
        raise ValueError("broken")

    job = await fail.using(correlation_id="c").aenqueue()
    policy = RetryPolicy(max_attempts=4, initial=1, jitter=None)
    with caplog.at_level(logging.INFO, "taskharbor"):
        await Worker(harbor, retry=policy).drain()
    [record] = [record for record in caplog.records if "retry" in record.getMessage()]
    assert said(record) == f"Job {job.id} failed, scheduling retry 1/3 in 1s (at 2026-01-01T00:00:01.000Z)"
    assert record.levelno == logging.WARNING
    fields = record.fields
    assert {name: fields[name] for name in ("job", "task", "attempt", "correlation_id")} == {
        "job": job.id,
        "task": "t",
        "attempt": 1,
        "correlation_id": "c",
    }
    assert (fields["retry"], fields["max_retries"], fields["delay"]) == (1, 3, 1.0)
    assert (fields["at"], fields["error"]) == ("2026-01-01T00:00:01.000Z", "ValueError: broken")


async def test_every_ending_leaves_one_line_with_the_jobs_fields(memory, caplog, drained):
    @memory.task(name="good")
    async def good() -> None: ...

    @memory.task(name="bad", max_attempts=1)
    async def bad() -> None:
        raise ValueError("broken")

    jobs = {
        "succeeded": await good.aenqueue(),
        "failed and is dead, reason exhausted": await bad.aenqueue(),
        "was put back for 1s (until 2026-01-01T00:00:01.000Z): no task": await memory.aenqueue("unknown"),
    }
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        await drained(memory)
    for message, job in jobs.items():
        [record] = [record for record in caplog.records if getattr(record, "fields", {}).get("job") == job.id]
        assert said(record).startswith(f"Job {job.id} {message}")
    texts = [said(record) for record in caplog.records]
    assert " started (queues: all; tasks: bad, good); when stopped, it gives running jobs 7 s" in texts[0]
    assert texts[-1].endswith(" stopped")


async def test_log_lines_survive_a_hostile_error(memory, caplog, drained):
    from taskharbor.telemetry.logs import JsonFormatter, KeyValueFormatter

    @memory.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError("line one\nlevel=ERROR forged\x1b[31m\ud800\0")

    await fail.aenqueue()
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        await drained(memory)
    for record in caplog.records:
        for formatter in (KeyValueFormatter(), JsonFormatter()):
            line, *traceback = formatter.format(record).split("\n")
            assert "\x1b" not in line
            assert all(each.startswith("    | ") and each.isprintable() for each in traceback)
            line.encode()
