"""Handlers in processes of their own: what comes back from them, and how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from typing import Any

import pytest

from taskharbor import Harbor, RemoteError, RetryPolicy, Worker
from taskharbor.clock import ManualClock
from taskharbor.errors import ConfigurationError
from taskharbor.records import Reason, State
from taskharbor.worker.handlers.isolation.pool import IDLE_SECONDS
from tests.worker import isolated
from tests.worker.apart import apart, begun, children_of, done, is_alive
from tests.worker.stage import attempts_of, soon, statuses, the_job, until, working

# -- what comes back -----------------------------------------------------------------------------


async def test_results_come_back_intact(harbor):
    jobs = {
        5: await apart(harbor, isolated.add).aenqueue(3),
        7: await apart(harbor, isolated.add_async).aenqueue(3, y=4),
        2: await apart(harbor, isolated.own_loop).aenqueue(),  # a loop of its own is no problem
        "DECORATED": await apart(harbor, isolated.decorated).aenqueue("decorated"),
        "plain": await apart(harbor, isolated.inside.__wrapped__.function).aenqueue("plain"),
        "method": await apart(harbor, isolated.Namespace.method).aenqueue("method"),
    }
    receipt = await apart(harbor, isolated.receipt).aenqueue()
    await done(harbor, concurrency=2)
    for result, job in jobs.items():
        assert await job.aresult() == result
    found = await receipt.aresult()
    assert isinstance(found, isolated.Receipt)
    assert found.pid != os.getpid()


async def test_a_task_that_importing_declares_is_used_as_it_is_declared(tmp_path):
    jobs = [await isolated.declared.aenqueue("new"), await isolated.inside.__wrapped__.aenqueue("quiet")]
    old = await isolated.harbor.aenqueue("isolated.declared", {"word": "by name"})
    await done(isolated.harbor, concurrency=1)
    assert [await job.aresult() for job in (*jobs, old)] == ["new", "quiet", "by name"]


async def test_errors_come_back_intact(memory):
    job = await apart(memory, isolated.odd).aenqueue()
    await done(memory)
    found = await the_job(memory, job)
    assert (found.state, found.reason) == (State.DEAD, Reason.EXHAUSTED)
    [attempt] = await attempts_of(job)
    assert attempt.error == "OddError: nobody knows: ünïcode"
    assert "isolated.py" in str(attempt.traceback)
    assert "raise OddError" in str(attempt.traceback)
    assert "taskharbor/worker" not in str(attempt.traceback)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"never_retry_on": [LookupError]}, Reason.NOT_RETRYABLE),  # a base class
        ({"never_retry_on": [isolated.OddError]}, Reason.NOT_RETRYABLE),
        ({"never_retry_on": ["ÜNÏCODE"]}, Reason.NOT_RETRYABLE),
        ({"retry_on": [ValueError]}, Reason.NOT_RETRYABLE),
        ({"retry_on": ["odderror"], "never_retry_on": [KeyError]}, None),
        ({"retry_on": [isolated.OddError]}, None),
    ],
    ids=["base", "type", "text", "other", "name", "same"],
)
async def test_errors_are_classified_as_if_they_had_been_raised_here(memory, policy, reason):
    retry = RetryPolicy(max_attempts=5, initial=60, **policy)
    by_task = await apart(memory, isolated.odd, retry=retry, max_attempts=5).aenqueue()
    by_worker = await apart(memory, isolated.odd, name="other", max_attempts=5).aenqueue()
    await done(memory, retry=retry, concurrency=1)
    for job in (by_task, by_worker):
        found = await the_job(memory, job)
        assert (found.state, found.reason) == (State.SCHEDULED if reason is None else State.DEAD, reason)


async def test_unrecoverable_and_retry_after_mean_what_they_mean(memory, clock):
    no_use = await apart(memory, isolated.unrecoverable, max_attempts=5).aenqueue()
    later = await apart(memory, isolated.later, max_attempts=5).aenqueue()
    await done(memory, concurrency=1)
    assert (await the_job(memory, no_use)).reason is Reason.UNRECOVERABLE
    found = await the_job(memory, later)
    assert found.state is State.SCHEDULED
    assert (found.run_at - ManualClock.DEFAULT_START).total_seconds() == 77


async def test_an_exit_of_the_handler_is_a_failure_not_a_loss(memory):
    job = await apart(memory, isolated.leave).aenqueue()
    await done(memory)
    [attempt] = await attempts_of(job)
    assert (str(attempt.status), attempt.error) == ("failed", "SystemExit: farewell")


async def test_large_values_pass_and_too_large_ones_are_refused(memory):
    longest = 1_048_576 - 100
    there = await apart(memory, isolated.length_of).aenqueue("é" * (longest // 2))
    back = await apart(memory, isolated.text_of).aenqueue(longest)
    too_much = await apart(memory, isolated.text_of, name="too_much").aenqueue(10_000_000)
    no_json = await apart(memory, isolated.unstorable).aenqueue()
    await done(memory, concurrency=2)
    assert await there.aresult() == longest // 2
    assert len(await back.aresult()) == longest
    found = await the_job(memory, too_much)
    assert found.reason is Reason.UNRECOVERABLE
    assert "the result takes 10,000,002 bytes as JSON, and the limit is 1,048,576" in str(found.error)
    assert "the result cannot be stored" in str((await the_job(memory, no_json)).error)


async def test_output_passes_through(memory, capfd):
    await apart(memory, isolated.say).aenqueue("hello")
    await done(memory)
    out = capfd.readouterr()
    assert "hello\n" in out.out
    assert "HELLO\n" in out.err


# -- the context ---------------------------------------------------------------------------------


async def test_the_context_works_inside(harbor, clock, caplog):
    caplog.set_level(logging.INFO)
    task = apart(harbor, isolated.tell_context, timeout=90)
    job = await task.using(correlation_id="upload-7", meta={"tenant": "acme"}).aenqueue()
    await done(harbor)
    told = await job.aresult()
    assert told == {
        "id": job.id,
        "task": "tell_context",
        "attempt": 1,
        "retry_count": 0,
        "correlation_id": "upload-7",
        "meta": {"tenant": "acme"},
        "deadline": "2026-01-01T00:01:30+00:00",
        "cancelled": False,
    }
    found = await the_job(harbor, job)
    assert found.progress is not None
    assert (found.progress.fraction, found.progress.message, found.progress.value) == (
        0.25,
        "begun",
        {"rows": 1},
    )
    [line] = [record for record in caplog.records if record.name == "taskharbor.task"]
    assert line.getMessage() == "from the process"
    assert vars(line)["fields"] == {
        "job": job.id, "task": "tell_context", "queue": "default", "attempt": 1, "correlation_id": "upload-7",
        "own": 5, "odd": "/",
    }  # fmt: skip
    assert line.process != os.getpid()
    assert [record.getMessage() for record in caplog.records if record.name == "elsewhere"] == ["plain"]


async def test_children_exist_if_and_only_if_the_attempt_succeeds(harbor):
    parents = apart(harbor, isolated.with_children)
    fine = await parents.using(meta={"tenant": "acme"}).aenqueue(3)
    failed = await parents.aenqueue(3, fail=True)
    bad = await apart(harbor, isolated.bad_child).aenqueue()
    await done(harbor, concurrency=1)
    ids = await fine.aresult()
    children = [await harbor.jobs.aget(child) for child in ids]
    assert [(child.task, child.priority, child.payload, child.meta) for child in children] == [
        ("isolated.small", 5, {"n": n}, {"tenant": "acme"}) for n in range(3)
    ]
    assert len(await harbor.jobs.alist(task="isolated.small")) == 3
    assert (await the_job(harbor, failed)).state is State.DEAD
    assert "PayloadError" in str((await the_job(harbor, bad)).error)


async def test_what_a_handler_leaves_behind_cannot_speak_for_the_next_job(memory, tmp_path):
    """Its thread still has the old context; what that says is late."""
    release = str(tmp_path / "release")
    first = await apart(memory, isolated.leave_a_thread_behind).aenqueue(release)
    second = await apart(memory, isolated.after_release).aenqueue(release)
    await done(memory, concurrency=1)
    assert (await the_job(memory, first)).progress is None
    progress = (await the_job(memory, second)).progress
    assert progress is not None
    assert progress.fraction == 0.1


# -- processes -----------------------------------------------------------------------------------


async def test_a_warm_process_is_used_again(memory):
    pid = apart(memory, isolated.pid)
    jobs = [await pid.aenqueue() for _ in range(20)]
    await done(memory, concurrency=1)
    assert len({await job.aresult() for job in jobs}) == 1


async def test_handlers_compute_at_the_same_time(memory, tmp_path):
    meet = apart(memory, isolated.meet)
    one = await meet.aenqueue(str(tmp_path), "one", "other")
    other = await meet.aenqueue(str(tmp_path), "other", "one")
    await done(memory, concurrency=2)
    assert await one.aresult() != await other.aresult()


async def test_a_process_is_replaced_after_so_many_jobs(memory):
    pid = apart(memory, isolated.pid)
    jobs = [await pid.aenqueue() for _ in range(6)]
    await done(memory, concurrency=1, handler_max_jobs=2)
    pids = [await job.aresult() for job in jobs]
    assert [pids.count(each) for each in dict.fromkeys(pids)] == [2, 2, 2]


async def test_an_idle_process_is_retired(memory, clock):
    pid = apart(memory, isolated.pid)
    async with working(memory, concurrency=1):
        first = await soon((await pid.aenqueue()).aresult())
        await clock.jump(IDLE_SECONDS - 1)
        assert is_alive(first)
        await clock.jump(1)
        await until(lambda: not is_alive(first))
        assert await soon((await pid.aenqueue()).aresult()) != first


async def test_no_process_is_left_when_the_worker_has_stopped(memory):
    before = children_of(os.getpid())
    job = await apart(memory, isolated.pid).aenqueue()
    await done(memory, concurrency=1)
    await until(lambda: children_of(os.getpid()) <= before)
    assert not is_alive(await job.aresult())


async def test_an_idle_process_that_was_killed_costs_no_job_anything(memory):
    pid = apart(memory, isolated.pid)
    async with working(memory, concurrency=1):
        first = await soon((await pid.aenqueue()).aresult())
        os.kill(first, signal.SIGKILL)
        second = await pid.aenqueue()
        assert await soon(second.aresult()) != first
    assert "lost" not in await statuses(second)


async def test_many_jobs_at_once_do_not_start_as_many_processes(memory):
    """A process that becomes free is taken before another one is started."""
    pid = apart(memory, isolated.pid)
    jobs = [await pid.aenqueue() for _ in range(100)]
    await done(memory, concurrency=100)
    assert len({await job.aresult() for job in jobs}) <= 20


async def test_nothing_of_the_worker_is_open_in_the_process(tmp_path, clock):
    async with Harbor(f"sqlite:///{tmp_path}/harbor.db", clock=clock) as harbor:
        with socket.socket() as listening:
            listening.listen()
            listening.set_inheritable(True)
            job = await apart(harbor, isolated.open_files).aenqueue()
            async with working(harbor):
                files = set(await soon(job.aresult()))
                ours = {name for name in isolated.open_files() if name.startswith(("socket:", str(tmp_path)))}
    assert len(ours) > 2
    assert not files & ours


async def test_hooks_run_in_each_process(memory, tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    monkeypatch.setenv("CLOSED_FILE", str(closed))
    memory.on_worker_start(isolated.open_something)
    memory.on_worker_stop(isolated.close_something)
    job = await apart(memory, isolated.what_is_open).aenqueue()
    pid = await apart(memory, isolated.pid).aenqueue()
    worker = Worker(memory, concurrency=1)
    async with worker:
        process = await soon(pid.aresult())
        closed.unlink(missing_ok=True)
        worker.stop()
        await until(lambda: closed.exists() and closed.read_text() == str(process))
    assert await job.aresult() == [f"opened in {process}"]


async def test_a_hook_that_another_process_cannot_find_is_refused_at_once(memory):
    @memory.on_worker_start
    def local() -> None: ...

    apart(memory, isolated.add)
    with pytest.raises(ConfigurationError, match="on_worker_start hook is .*local.*top level of a module"):
        await Worker(memory).drain()


async def test_a_process_that_cannot_start_puts_its_job_back_uncounted(memory):
    memory.on_worker_start(isolated.fail_to_open_elsewhere)
    isolated.worker_process = os.getpid()
    job = await apart(memory, isolated.add, delivery="at_most_once").aenqueue(1)
    await done(memory)
    found = await the_job(memory, job)
    assert (found.state, found.attempts) == (State.SCHEDULED, 0)
    [attempt] = await attempts_of(job)
    assert (str(attempt.status), attempt.started_at) == ("released", None)
    assert "cannot be started: ConnectionError: the database is away" in str(attempt.error)


async def test_signals_to_the_whole_tree_are_left_to_the_worker(memory):
    job = await apart(memory, isolated.signalled).aenqueue()
    await done(memory)
    assert await job.aresult() == "SIGTERM"


# -- middleware ----------------------------------------------------------------------------------


async def test_middleware_runs_in_the_worker_around_the_call(memory, tmp_path):
    seen: list[Any] = []

    @memory.middleware
    async def around(ctx, call):
        try:
            value = await call()
        except RemoteError as error:
            seen.append((ctx.job.task, error.type_name, str(error)))
            raise
        seen.append((ctx.job.task, os.getpid(), value))
        return value

    good = await apart(memory, isolated.receipt).aenqueue()
    bad = await apart(memory, isolated.odd, retry=RetryPolicy(retry_on=[ValueError])).aenqueue()
    dying = await apart(memory, isolated.die).aenqueue("exit")
    await done(memory, concurrency=1, max_losses=1)
    assert isinstance(await good.aresult(), isolated.Receipt)
    assert isinstance(seen[0][2], isolated.Receipt)
    assert seen[0][1] == os.getpid()
    assert seen[1] == ("odd", "OddError", "OddError: nobody knows: ünïcode")
    found = await the_job(memory, bad)
    assert found.reason is Reason.NOT_RETRYABLE
    assert "raise OddError" in str((await attempts_of(bad))[0].traceback)
    assert seen[2] == ("die", "", "lost: its process ended with exit code 3")
    assert (await the_job(memory, dying)).reason is Reason.POISON


async def test_middleware_may_call_twice_or_not_at_all(memory):
    @memory.middleware
    async def around(ctx, call):
        if ctx.job.task == "add":
            return None
        return [await call(), await call()]

    never = await apart(memory, isolated.add).aenqueue(1)
    twice = await apart(memory, isolated.pid).aenqueue()
    await done(memory, concurrency=1)
    assert await never.aresult() is None
    first, second = await twice.aresult()
    assert first == second


async def test_a_timeout_of_the_middlewares_own_kills_the_process(memory, tmp_path):
    @memory.middleware
    async def around(ctx, call):
        running = asyncio.ensure_future(call())
        await begun(tmp_path / "begun")
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            return "gave up"

    job = await apart(memory, isolated.hang).aenqueue(str(tmp_path / "begun"))
    await done(memory)
    assert await job.aresult() == "gave up"
    assert not is_alive(int((tmp_path / "begun").read_text()))
