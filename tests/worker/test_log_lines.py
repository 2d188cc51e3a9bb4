"""What a worker's log says: in words under plain logging, each thing once, with the traceback of what failed."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from taskharbor import Harbor, RetryPolicy, Worker
from taskharbor.telemetry.logs import JsonFormatter, KeyValueFormatter, log_line
from tests.worker import isolated
from tests.worker.apart import apart, done
from tests.worker.stage import said, soon, until, working

PLAIN = logging.Formatter(logging.BASIC_FORMAT)  # what logging.basicConfig() sets up
EXACT = RetryPolicy(max_attempts=4, initial=1, jitter=None)


def fail_deep() -> None:
    raise ValueError("out of order")


def declare(harbor: Harbor, **options: Any) -> Any:
    @harbor.task(name="report", queue="slow", **options)
    async def fail() -> None:
        fail_deep()

    return fail


async def lines_of(harbor: Harbor, caplog: pytest.LogCaptureFixture, **options):
    """The records about jobs that a drain leaves."""
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        await Worker(harbor, retry=EXACT, **options).drain()
    return [record for record in caplog.records if "job" in getattr(record, "fields", {})]


async def test_a_line_is_readable_under_plain_logging(memory, caplog):
    job = await declare(memory).using(correlation_id="order-7").aenqueue()
    [record] = await lines_of(memory, caplog, log_tracebacks=False)
    assert PLAIN.format(record) == (
        f"WARNING:taskharbor.worker:Job {job.id} failed, scheduling retry 1/3 in 1s (at 2026-01-01T00:00:01.000Z) "
        'task=report queue=slow attempt=1 correlation_id=order-7 seconds=0 error="ValueError: out of order"'
    )


async def test_a_line_says_each_thing_once(memory, caplog):
    job = await declare(memory).aenqueue()
    [record] = await lines_of(memory, caplog, log_tracebacks=False)
    line = KeyValueFormatter().format(record)
    assert line.endswith(PLAIN.format(record).partition("taskharbor.worker:")[2])  # the same words
    for thing in (job.id, "report", "out of order", "1/3", "2026-01-01T00:00:01.000Z", "slow"):
        assert line.count(thing) == 1, thing
    document = json.loads(JsonFormatter().format(record))
    assert document["message"] == said(record)
    assert (document["job"], document["retry"], document["max_retries"]) == (job.id, 1, 3)


async def test_a_failed_attempt_logs_its_traceback(harbor, caplog):
    await declare(harbor).aenqueue()
    [record] = await lines_of(harbor, caplog)
    plain = PLAIN.format(record).splitlines()
    assert plain[1] == "Traceback (most recent call last):"
    assert "in fail_deep" in PLAIN.format(record)
    assert plain[-1] == "ValueError: out of order"
    ours = KeyValueFormatter().format(record).splitlines()
    assert [line.removeprefix("    | ") for line in ours[1:]] == plain[1:]
    assert "in fail_deep" in json.loads(JsonFormatter().format(record))["traceback"]


async def test_a_handler_in_a_process_of_its_own_logs_its_traceback(memory, caplog):
    await apart(memory, isolated.odd).aenqueue()
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        await done(memory)
    [record] = [record for record in caplog.records if " is dead" in said(record)]
    assert "raise OddError" in PLAIN.format(record)


async def test_tracebacks_can_be_left_out(memory, caplog):
    job = await declare(memory).aenqueue()
    [record] = await lines_of(memory, caplog, log_tracebacks=False)
    assert len(PLAIN.format(record).splitlines()) == 1
    [attempt] = await job.ahistory()
    assert "in fail_deep" in str(attempt.traceback)  # the history has it


async def test_a_traceback_of_a_hostile_error_stays_on_its_lines(memory, caplog):
    @memory.task
    async def fail() -> None:
        raise ValueError("one\x1b[2J\rtwo\n2026-01-01T00:00:00.000Z ERROR forged")

    await fail.aenqueue()
    [record] = await lines_of(memory, caplog)
    for line in PLAIN.format(record).split("\n"):
        assert line.isprintable()
    assert PLAIN.format(record).split("\n")[0].count("forged") == 1


async def test_the_last_failure_says_after_how_many_retries(memory, clock, caplog):
    job = await declare(memory, max_retries=3).aenqueue()
    for _ in range(4):
        await lines_of(memory, caplog)
        clock.advance(60)
    told = [said(record) for record in caplog.records if f"Job {job.id}" in said(record)]
    assert [text.partition(" (at ")[0] for text in told] == [
        f"Job {job.id} failed, scheduling retry 1/3 in 1s",
        f"Job {job.id} failed, scheduling retry 2/3 in 2s",
        f"Job {job.id} failed, scheduling retry 3/3 in 4s",
        f"Job {job.id} failed after 3 retries and is dead, reason exhausted",
    ]


async def test_a_recurring_job_says_when_its_next_occurrence_is(memory, clock, caplog):
    declare(memory, max_retries=3, schedule="0 * * * *")
    await Worker(memory).drain()
    clock.advance(3600)
    for _ in range(4):
        await lines_of(memory, caplog)
        clock.advance(60)
    last = [record for record in caplog.records if "job" in getattr(record, "fields", {})][-1]
    job = last.fields["job"]
    assert said(last) == (
        f"Job {job} failed after 3 retries, rescheduled for next occurrence: 2026-01-01T02:00:00Z"
    )


# -- starting and stopping -----------------------------------------------------------------------


async def test_a_stop_says_what_is_awaited_and_for_how_long(memory, clock, caplog):
    begun, release = asyncio.Event(), asyncio.Event()

    @memory.task
    async def work() -> None:
        begun.set()
        await release.wait()

    job = await work.aenqueue()
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        async with working(memory, grace_seconds=7) as worker:
            await soon(begun.wait())
            worker.stop()
            await until(lambda: any(" stops" in text for text in caplog.messages))
            release.set()
    [told] = [said(record) for record in caplog.records if " stops" in said(record)]
    assert told == (
        f"Worker {worker.name} stops; it waits up to 7 s for 1 job: {job.id}. A second signal ends it at once"
    )


async def test_the_end_of_the_grace_says_what_is_interrupted(memory, clock, caplog):
    begun = asyncio.Event()

    @memory.task
    async def work() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    job = await work.aenqueue()
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        worker = Worker(memory, grace_seconds=7)
        running = asyncio.create_task(worker.run())
        await soon(begun.wait())
        worker.stop()
        await until(lambda: any(" stops" in text for text in caplog.messages))
        await clock.jump(8)
        await soon(running)
    told = [said(record) for record in caplog.records]
    assert f"the grace period of 7 s is over; interrupting 1 job: {job.id}" in told


async def test_a_worker_with_nothing_to_wait_for_says_only_that_it_stops(memory, caplog):
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        async with working(memory) as worker:
            await until(lambda: worker._phase == "at work")
    assert [said(record) for record in caplog.records][-2:] == [
        f"Worker {worker.name} stops",
        f"Worker {worker.name} stopped",
    ]


async def test_a_worker_says_which_queues_and_tasks_it_serves(memory, caplog):
    for n in range(60):
        memory.task(name=f"task{n:02}")(fail_deep)
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        await Worker(memory, queues=["mail", "slow"], name="w", grace_seconds=3).drain()
    first = said(caplog.records[0])
    assert first.startswith("Worker w started (queues: mail, slow; tasks: task00, task01, ")
    assert first.endswith("task49, and 10 more); when stopped, it gives running jobs 3 s")
    assert not any(record.levelno > logging.INFO for record in caplog.records)


async def test_a_worker_that_knows_no_task_warns(memory, caplog):
    with caplog.at_level(logging.WARNING, "taskharbor.worker"):
        await Worker(memory, name="w").drain()
    [told] = [said(record) for record in caplog.records]
    assert told.startswith("Worker w knows no task of an application")


# -- one renderer --------------------------------------------------------------------------------


def test_a_line_without_a_field_that_it_names_is_written_all_the_same(caplog):
    logger = logging.getLogger("taskharbor.worker")
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        log_line(
            logger,
            logging.INFO,
            "Job {job} {nothing} {list}",
            {"job": "{x}", "list": ["a", "b"], "none": None},
        )
    assert caplog.messages == ["Job {x} ? a, b"]
    assert caplog.records[0].funcName == "test_a_line_without_a_field_that_it_names_is_written_all_the_same"
