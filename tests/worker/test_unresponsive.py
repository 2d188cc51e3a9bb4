"""Sync handlers that do not end: people hear of them, and the worker can be made to end for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from taskharbor import RetryPolicy, UnresponsiveHandler, Worker
from taskharbor.cli.stats import doing
from taskharbor.errors import ConfigurationError
from taskharbor.records import Reason, State
from taskharbor.views.workers import workers_of
from taskharbor.worker.handlers.threads import Interruption
from tests.worker.stage import soon, statuses, the_job, until, until_state, working

LATER = RetryPolicy(max_attempts=3, initial=3600, maximum=3600)
GIVEN_UP = "does not end; this worker shuts down so that its process can be replaced"
TOLD = "and has not; its slot stays occupied"


class Deaf:
    """A handler that goes on whatever is raised in its thread."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        while not self.release.is_set():
            try:
                while not self.release.wait(0.001):
                    pass
            except Interruption:
                continue


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    deaf = Deaf()
    yield deaf
    deaf.release.set()


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    return [record.fields for record in caplog.records if message in record.message]  # type: ignore[attr-defined]


async def test_a_handler_that_does_not_end_is_told_of_again_and_again(memory, clock, caplog, deaf):
    caplog.set_level(logging.WARNING)
    job = await memory.task(name="deaf", timeout=10, max_attempts=1)(deaf).aenqueue()
    async with working(memory):
        await until(deaf.begun.is_set)
        await clock.jump(10)
        assert told(caplog, TOLD) == []
        await clock.jump(6)
        [first] = told(caplog, TOLD)
        assert (first["job"], first["task"], first["why"]) == (job.id, "deaf", "timeout")
        await clock.jump(6)
        assert len(told(caplog, TOLD)) == 2
        await clock.jump(65)
        assert len(told(caplog, TOLD)) == 4  # each after twice as long: 5, 10, 20, 40
        deaf.release.set()
        await until_state(job, State.DEAD)
    assert told(caplog, GIVEN_UP) == []


async def test_a_handler_that_does_not_end_is_seen_in_stats(memory, clock, deaf):
    job = await memory.task(name="deaf")(deaf).using(timeout=10).aenqueue()
    async with working(memory, lease_seconds=3):
        await until(deaf.begun.is_set)
        await clock.jump(5)
        [worker] = await workers_of(memory)
        assert doing(worker.running) == "deaf for 5.0s"
        await memory.jobs.acancel(job.id)
        [worker] = await workers_of(memory)
        assert doing(worker.running) == "deaf for 5.0s (cancel requested)"
        await clock.jump(25)
        [worker] = await workers_of(memory)
        assert doing(worker.running) == "deaf for 30s (should have ended 20s ago: timeout)"
        assert worker.running[0].overdue_seconds == 20
        deaf.release.set()
        await until_state(job, State.CANCELLED)


async def test_a_worker_can_be_made_to_end_for_it(memory, clock, caplog, deaf):
    """It shuts down by the rules: others finish, what has not begun is handed back, and the job has timed out."""
    begun, release = threading.Event(), threading.Event()

    @memory.task
    def other() -> str:
        begun.set()
        assert release.wait(60)
        return "finished"

    job = await memory.task(name="deaf", timeout=10, retry=LATER)(deaf).aenqueue()
    beside = await other.aenqueue()
    worker = Worker(memory, concurrency=2, unresponsive_seconds=60, grace_seconds=1000)
    with pytest.raises(UnresponsiveHandler, match="a handler of deaf did not end within 60 s of the request"):
        async with worker:
            await until(lambda: deaf.begun.is_set() and begun.is_set())
            waiting = await other.aenqueue()
            await clock.jump(65)
            assert told(caplog, GIVEN_UP) == []
            await clock.jump(10)
            assert len(told(caplog, GIVEN_UP)) == 1
            # The rest is given its grace, and the stubborn one's lease is kept meanwhile: nobody else begins it.
            await clock.jump(100)
            assert (await the_job(memory, job)).state is State.RUNNING
            release.set()
            await until_state(beside, State.SUCCEEDED)
            await clock.jump(2)
    assert await statuses(job) == ["timed_out"]
    found = await the_job(memory, job)
    assert (found.state, found.attempts) == (State.SCHEDULED, 1)
    assert (await the_job(memory, waiting)).state is State.READY


async def test_a_cancelled_handler_is_given_up_as_well(memory, clock, deaf):
    job = await memory.task(name="deaf")(deaf).aenqueue()
    with pytest.raises(UnresponsiveHandler):
        async with Worker(memory, unresponsive_seconds=30, lease_seconds=3):
            await until(deaf.begun.is_set)
            await memory.jobs.acancel(job.id)
            await clock.jump(40)
    assert (await the_job(memory, job)).state is State.CANCELLED


async def test_without_a_limit_nothing_ends_the_worker(memory, clock, deaf):
    job = await memory.task(name="deaf", timeout=10, max_attempts=1)(deaf).aenqueue()
    async with working(memory):
        await until(deaf.begun.is_set)
        await clock.jump(300)
        assert (await the_job(memory, job)).state is State.RUNNING
        deaf.release.set()
        await until_state(job, State.DEAD)


async def test_a_handler_that_had_timed_out_has_timed_out_also_when_the_worker_is_stopped(
    memory, clock, deaf
):
    """It is abandoned with its thread; what it was interrupted for decides, not the shutdown."""
    job = await memory.task(name="deaf", timeout=10, delivery="at_most_once")(deaf).aenqueue()
    worker = Worker(memory, grace_seconds=5)
    async with worker:
        await until(deaf.begun.is_set)
        await clock.jump(10)
        worker.stop()
        await clock.jump(5)
        await clock.jump(2)
        await soon(until_state(job, State.DEAD))
    assert await statuses(job) == ["timed_out"]
    assert (await the_job(memory, job)).reason is Reason.NOT_RETRYABLE


def test_the_limit_is_checked(memory):
    with pytest.raises(ConfigurationError, match="unresponsive_seconds must be more than 0"):
        Worker(memory, unresponsive_seconds=0)
