"""Handlers in processes of their own: how they end, and how their processes do."""

from __future__ import annotations

import select
from typing import Any

import pytest

from taskharbor import Worker
from taskharbor.records import Reason, State
from taskharbor.worker.handlers.isolation.running import CANCEL_PATIENCE_SECONDS
from taskharbor.worker.pipeline.cancel_watch import LOOK_SECONDS
from tests.worker import isolated
from tests.worker.apart import apart, begun, done, is_alive
from tests.worker.stage import (
    PATIENCE_SECONDS,
    attempts_of,
    soon,
    statuses,
    the_job,
    until,
    until_state,
    working,
)

# -- timeouts, cancellation, shutdown ------------------------------------------------------------


@pytest.mark.parametrize("function", [isolated.hang, isolated.hang_in_c], ids=["python", "c"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
async def test_a_timeout_kills_the_process_and_frees_the_slot(memory, clock, tmp_path, function, wrapped):
    if wrapped:

        @memory.middleware
        async def around(ctx, call):
            return await call()

    job = await apart(memory, function, timeout=5).aenqueue(str(tmp_path / "begun"))
    add = apart(memory, isolated.add)
    async with working(memory, concurrency=1):
        pid = await begun(tmp_path / "begun")
        waiting = await add.aenqueue(1)
        await clock.jump(5)
        await until_state(job, State.DEAD)
        assert not is_alive(pid)
        assert await soon(waiting.aresult()) == 3
    [attempt] = await attempts_of(job)
    assert str(attempt.status) == "timed_out"
    assert attempt.error == "TimeoutError: the attempt took longer than its timeout of 5 s"


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "middleware"])
async def test_a_result_that_the_worker_reads_after_the_timeout_is_late(memory, clock, tmp_path, wrapped):
    """The handler has returned in time, and the loop was too busy to hear of it."""
    if wrapped:

        @memory.middleware
        async def around(ctx, call):
            return await call()

    release = tmp_path / "release"
    task = apart(memory, isolated.wait_for, timeout=5)
    job = await task.aenqueue(str(tmp_path / "begun"), str(release))
    async with working(memory, concurrency=1) as worker:
        await begun(tmp_path / "begun")
        run: Any = worker._run
        [process] = [execution.process for execution in run._pipeline.running]
        await until(lambda: process._call.begun)
        release.touch()
        # Until the result is there; the loop has no turn in which it could be read.
        assert select.select([process._socket], [], [], PATIENCE_SECONDS)[0]
        clock.advance(5)
        await until_state(job, State.DEAD)
    assert await statuses(job) == ["timed_out"]


async def test_the_time_a_process_takes_to_start_is_not_the_handlers(memory, clock, tmp_path):
    job = await apart(memory, isolated.add, timeout=5).aenqueue(1)
    async with working(memory, concurrency=1):
        await clock.jump(10)  # while it starts, most likely; in no case may it matter
        assert await soon(job.aresult()) == 3


async def test_what_a_handler_has_started_is_killed_with_it(memory, clock, tmp_path):
    job = await apart(memory, isolated.with_grandchild, timeout=5).aenqueue(str(tmp_path / "begun"))
    async with working(memory):
        sleeper = await begun(tmp_path / "begun")
        await clock.jump(5)
        await until_state(job, State.DEAD)
        await until(lambda: not is_alive(sleeper))


async def test_what_a_handler_has_started_is_killed_when_it_dies(memory, tmp_path):
    job = await apart(memory, isolated.with_grandchild).aenqueue(str(tmp_path / "begun"), and_die=True)
    await done(memory, max_losses=1)
    sleeper = await begun(tmp_path / "begun")
    await until(lambda: not is_alive(sleeper))
    assert (await the_job(memory, job)).reason is Reason.POISON


async def test_what_a_handler_has_started_may_outlive_the_job_but_not_the_process(memory):
    start = apart(memory, isolated.with_lasting_grandchild)
    async with working(memory):
        sleeper = await soon((await start.aenqueue()).aresult())
        assert is_alive(sleeper)
    await until(lambda: not is_alive(sleeper))


async def test_a_cancelled_handler_may_end_by_itself(memory, clock, tmp_path):
    job = await apart(memory, isolated.until_cancelled).aenqueue(str(tmp_path / "begun"))
    async with working(memory, lease_seconds=3):
        await begun(tmp_path / "begun")
        await memory.jobs.acancel(job.id)
        await clock.jump(1)
        assert await soon(job.aresult()) == "ended by itself"  # a success that is settled first wins


async def test_a_cancelled_async_handler_is_cancelled(memory, clock, tmp_path):
    ended = tmp_path / "ended"
    job = await apart(memory, isolated.hang_async).aenqueue(str(tmp_path / "begun"), str(ended))
    add = apart(memory, isolated.pid)
    async with working(memory, lease_seconds=3, concurrency=1):
        process = await begun(tmp_path / "begun")
        await memory.jobs.acancel(job.id)
        await clock.jump(1)
        await until_state(job, State.CANCELLED)
        assert ended.read_text() == "cancelled"
        assert await soon((await add.aenqueue()).aresult()) == process  # it is none the worse for it
    assert await statuses(job) == ["cancelled"]


async def test_a_cancelled_handler_that_does_not_end_is_killed(memory, clock, tmp_path):
    job = await apart(memory, isolated.hang).aenqueue(str(tmp_path / "begun"))
    async with working(memory, lease_seconds=3):
        pid = await begun(tmp_path / "begun")
        await memory.jobs.acancel(job.id)
        await clock.jump(LOOK_SECONDS)
        await clock.jump(CANCEL_PATIENCE_SECONDS - 0.5)
        assert is_alive(pid)
        await clock.jump(0.5)
        await until_state(job, State.CANCELLED)
        assert not is_alive(pid)
    assert await statuses(job) == ["cancelled"]


async def test_a_shutdown_gives_grace_and_then_kills_and_releases(memory, clock, tmp_path):
    job = await apart(memory, isolated.hang).aenqueue(str(tmp_path / "begun"))
    polite = await apart(memory, isolated.until_cancelled).aenqueue(str(tmp_path / "polite"))
    worker = Worker(memory, grace_seconds=10)
    async with worker:
        pid = await begun(tmp_path / "begun")
        await begun(tmp_path / "polite")
        worker.stop()
        await until_state(polite, State.SUCCEEDED)  # the context was marked at once
        await clock.jump(9)
        assert is_alive(pid)
        await clock.jump(1)
        await until(lambda: not is_alive(pid))
    assert await statuses(job) == ["released"]
    found = await the_job(memory, job)
    assert (found.state, found.attempts) == (State.READY, 0)


async def test_a_second_stop_ends_now(memory, clock, tmp_path):
    await apart(memory, isolated.hang).aenqueue(str(tmp_path / "begun"))
    worker = Worker(memory, grace_seconds=1000)
    async with worker:
        pid = await begun(tmp_path / "begun")
        worker.stop()
        worker.stop()
    assert not is_alive(pid)


# -- a process that dies -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "lost: its process ended with exit code 3"),
        ("kill", "lost: its process was killed by SIGKILL (signal 9)"),
        ("segfault", "lost: its process was killed by SIGSEGV (signal 11)"),
    ],
)
async def test_a_job_that_ends_its_own_process_is_poison_in_the_end(memory, how, told):
    lost: list[str] = []

    @memory.on("lost")
    async def hear(event: Any) -> None:
        lost.append(event.job_id)

    job = await apart(memory, isolated.die).aenqueue(how)
    neighbours = [await apart(memory, isolated.add).aenqueue(n) for n in range(5)]
    await done(memory, concurrency=2, max_losses=3)
    found = await the_job(memory, job)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.POISON, 0)
    assert [(str(a.status), a.error, a.detail) for a in await attempts_of(job)] == [
        ("lost", told, "alone")
    ] * 3
    assert lost == [job.id] * 3
    for n, neighbour in enumerate(neighbours):
        assert await neighbour.aresult() == n + 2
        assert await statuses(neighbour) == ["succeeded"]


async def test_a_job_that_died_once_runs_again(harbor, tmp_path):
    job = await apart(harbor, isolated.die_once).aenqueue(str(tmp_path / "marker"))
    await done(harbor)
    assert await job.aresult() == "survived"
    assert await statuses(job) == ["lost", "succeeded"]


@pytest.mark.parametrize("declared", [True, False], ids=["by the task", "by the job"])
async def test_an_at_most_once_job_that_ended_its_process_is_lost(memory, declared):
    once = {"delivery": "at_most_once"}
    die = apart(memory, isolated.die, **(once if declared else {}))
    job = await memory.aenqueue("die", {"how": "exit"}, **({} if declared else once))
    assert die.name == "die"
    await done(memory)
    found = await the_job(memory, job)
    assert (found.state, found.reason) == (State.DEAD, Reason.LOST)
    assert await statuses(job) == ["lost"]
