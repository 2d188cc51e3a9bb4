"""The life of a worker: drain, run, `async with`, and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock
from taskharbor.errors import ConfigurationError
from taskharbor.records import State
from taskharbor.worker.pipeline.leases import StoreTime
from taskharbor.worker.run import WorkerRun
from tests.worker.stage import soon, the_job, until, until_state, working


async def test_drain_returns_at_once_when_there_is_nothing(harbor):
    await soon(Worker(harbor).drain())


@pytest.mark.parametrize("queues", ["mail", 5, object()], ids=["text", "number", "object"])
def test_queues_are_a_list_of_names(queues):
    with pytest.raises(ConfigurationError, match="queues must be a list of names"):
        Worker(Harbor("memory://"), queues=queues)


async def test_drain_leaves_what_is_scheduled(harbor, clock):
    @harbor.task
    async def work() -> None: ...

    now, later = await work.aenqueue(), await work.using(delay=5).aenqueue()
    await soon(Worker(harbor).drain())
    assert (await the_job(harbor, now)).state is State.SUCCEEDED
    assert (await the_job(harbor, later)).state is State.SCHEDULED


async def test_drain_does_what_its_jobs_bring_along(harbor):
    order = []

    @harbor.task
    async def countdown(n: int) -> None:
        order.append(n)
        if n:
            await countdown.aenqueue(n - 1)

    await countdown.aenqueue(5)
    await soon(Worker(harbor).drain())
    assert order == [5, 4, 3, 2, 1, 0]


async def test_drain_executes_what_a_running_handler_enqueues_and_waits_for(harbor, clock):
    """However long after the last empty claim it does so."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @harbor.task
    async def inner() -> int:
        return 42

    @harbor.task
    async def outer() -> int:
        begun.set()
        await go_on.wait()
        answer: int = await (await inner.aenqueue()).aresult()
        return answer

    job = await outer.aenqueue()
    draining = asyncio.ensure_future(Worker(harbor).drain())
    await soon(begun.wait())
    await inner.using(delay=60).aenqueue()  # news that bring nothing: the fetcher looks, and waits again
    await clock.settle(500)
    go_on.set()
    await soon(draining)
    assert await job.aresult() == 42


async def test_many_jobs_are_drained_each_once(harbor):
    calls: list[int] = []

    @harbor.task
    async def work(n: int) -> None:
        calls.append(n)

    await work.aenqueue_many([{"n": n} for n in range(3000)])
    await soon(Worker(harbor).drain())
    assert sorted(calls) == list(range(3000))
    assert (await harbor.jobs.acounts())["succeeded"] == 3000


async def test_two_workers_share_the_jobs_and_each_is_done_once(harbor):
    calls: list[int] = []

    @harbor.task
    async def work(n: int) -> None:
        await asyncio.sleep(0)
        calls.append(n)

    await work.aenqueue_many([{"n": n} for n in range(500)])
    await soon(asyncio.gather(*(Worker(harbor, concurrency=5).drain() for _ in range(3))))
    assert sorted(calls) == list(range(500))


def test_drain_sync_needs_no_loop(tmp_path):
    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:

        @harbor.task
        def double(n: int) -> int:
            return 2 * n

        job = double.enqueue(4)
        Worker(harbor).drain_sync()
        assert job.result(timeout=60) == 8


def test_an_interrupt_that_a_handler_raises_is_its_failure_where_ctrl_c_is_not_raised(tmp_path):
    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:

        @harbor.task(max_attempts=1)
        async def gives_up() -> None:
            await asyncio.sleep(0)
            raise KeyboardInterrupt

        @harbor.task
        async def fine() -> str:
            return "fine"

        odd, other = gives_up.enqueue(), fine.enqueue()
        Worker(harbor, concurrency=1).drain_sync()
        assert (odd.refresh().state, odd.refresh().error) == (State.DEAD, "KeyboardInterrupt")
        assert other.result(timeout=60) == "fine"


def test_a_handler_that_stops_the_event_loop_does_not_end_the_worker(tmp_path, caplog):
    def reports() -> list[str]:
        return [line for line in caplog.messages if "the event loop was stopped" in line]

    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:

        @harbor.task(max_attempts=1)
        async def stops(times: int) -> str:
            for _ in range(times):
                before = len(reports())
                asyncio.get_running_loop().stop()
                for _round in range(1000):  # a loop may make another round before it stops
                    await asyncio.sleep(0)
                    if len(reports()) > before:
                        break
            return "goes on"

        @harbor.task
        async def neighbour() -> str:
            await asyncio.sleep(0.01)
            return "undisturbed"

        jobs = [stops.enqueue(3), neighbour.enqueue(), stops.enqueue(1)]
        Worker(harbor).drain_sync()
        assert [job.result(timeout=60) for job in jobs] == ["goes on", "undisturbed", "goes on"]
        assert [len(job.history()) for job in jobs] == [1, 1, 1]
    assert sum(jobs[0].id in line for line in reports()) >= 3
    assert any(jobs[2].id in line for line in reports())


def test_a_stop_of_a_worker_whose_loop_was_closed_does_nothing():
    worker = Worker(Harbor("memory://"))

    async def run() -> WorkerRun:
        return WorkerRun(worker)

    worker._run = asyncio.run(run())  # as a Ctrl-C leaves it that ends the loop in the middle
    worker.stop()


async def test_async_with_works_meanwhile_and_stops_at_the_end(harbor):
    @harbor.task
    async def work(n: int) -> int:
        return n

    worker = Worker(harbor)
    async with worker:
        jobs = [await work.aenqueue(n) for n in range(5)]
        assert [await soon(job.aresult()) for job in jobs] == list(range(5))
    late = await work.aenqueue(9)
    await asyncio.sleep(0)
    assert (await the_job(harbor, late)).state is State.READY


async def test_async_with_stops_the_worker_when_its_body_fails(memory):
    worker = Worker(memory)
    with pytest.raises(KeyError):
        async with worker:
            raise KeyError
    assert worker._run is None


async def test_an_idle_worker_begins_a_new_job_without_time_having_to_pass(harbor):
    """By the store's token, not by polling: the clock stands still."""

    @harbor.task
    async def work(n: int) -> int:
        return n

    async with working(harbor, poll_seconds=3600):
        for n in range(20):
            assert await soon((await work.aenqueue(n)).aresult()) == n


async def test_a_scheduled_job_begins_when_its_time_comes_and_no_poll_is_near(memory, clock):
    begun = []

    @memory.task
    async def work() -> None:
        begun.append(clock.monotonic())

    async with working(memory, poll_seconds=3600):
        await work.using(delay=100).aenqueue()
        await clock.jump(99.9)
        assert begun == []
        await clock.jump(0.2)
        await until(lambda: begun)
    assert begun[0] == pytest.approx(100, abs=0.1)


async def test_a_worker_leaves_no_task_and_no_thread_of_its_own_behind(memory):
    import threading

    @memory.task
    def work() -> None: ...

    before = asyncio.all_tasks()
    await work.aenqueue_many([{}] * 10)
    await Worker(memory).drain()
    await until(lambda: not any(t.name.startswith("taskharbor-handler") for t in threading.enumerate()))
    await until(lambda: asyncio.all_tasks() == before)


async def test_finished_jobs_are_pruned_by_the_worker(clock):
    async with Harbor("memory://", clock=clock, retention={"succeeded": 60}) as harbor:

        @harbor.task
        async def work() -> None: ...

        job = await work.aenqueue()
        async with working(harbor):
            await until_state(job, State.SUCCEEDED)
            await clock.jump(200)
        assert (await harbor.jobs.acounts())["succeeded"] == 0


# -- the store's time ----------------------------------------------------------------------------


def test_the_stores_time_is_learned_from_its_answers():
    clock = ManualClock()
    time = StoreTime(clock)
    ahead = 3_600_000_000
    time.learn(clock.now() + ahead, time.asking())
    assert time.now() == clock.now() + ahead
    clock.advance(5)
    assert time.now() == clock.now() + ahead


def test_a_slow_answer_does_not_change_an_estimate_that_agrees_with_it():
    clock = ManualClock()
    time = StoreTime(clock)
    asked_at = time.asking()
    clock.advance(5)
    store_now = clock.now()  # the store read its clock here, and the answer took its time
    clock.advance(5)
    time.learn(store_now, asked_at)
    assert time.now() == clock.now()


def test_an_estimate_that_cannot_be_is_corrected_by_the_least_that_can():
    clock = ManualClock()
    time = StoreTime(clock)
    asked_at = time.asking()
    clock.advance(2)
    time.learn(clock.now() + 10_000_000, asked_at)
    assert time.now() == clock.now() + 10_000_000
    asked_at = time.asking()
    clock.advance(2)
    time.learn(clock.now() - 10_000_000, asked_at)
    assert time.now() == clock.now() - 8_000_000


def test_setting_the_clock_changes_nothing_about_the_stores_time():
    class SetClock(ManualClock):
        """Its wall time is set, as by an administrator; its monotonic time goes on."""

        ahead = 0

        def now(self) -> int:
            return super().now() + self.ahead

        def monotonic(self) -> float:
            return super().monotonic() - self.ahead / 1e6

    clock = SetClock()
    time = StoreTime(clock)
    time.learn(clock.now(), time.asking())
    true = clock.now()
    clock.ahead = 3_600_000_000
    assert time.now() == true
    clock.advance(1)
    assert time.now() == true + 1_000_000


# -- signals -------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys, time
from taskharbor import Harbor, Worker, Context

harbor = Harbor(sys.argv[1])

@harbor.task(name="polite")
def polite(ctx: Context) -> str:
    print("begun", flush=True)
    while not ctx.cancelled:
        time.sleep(0.005)
    return "finished in time"

@harbor.task(name="hang")
async def hang(ctx: Context) -> None:
    print("begun", flush=True)
    while not ctx.cancelled:
        await asyncio.sleep(0.005)
    print("marked", flush=True)
    await asyncio.Event().wait()

@harbor.on_worker_start
def ready():
    print("ready", flush=True)

@harbor.on_worker_stop
def stopped():
    print("stopped", flush=True)

Worker(harbor, grace_seconds=float(sys.argv[2])).run_sync()
print("returned", flush=True)
"""


class Program:
    def __init__(self, url: str, grace: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), url, str(grace)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def hear(self, word: str) -> None:
        line = self.read()
        if line != word:
            self.process.kill()
            raise AssertionError(f"{line!r} instead of {word!r}: {self.process.communicate()[1]}")

    def end(self) -> int:
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_shuts_run_sync_down_gracefully(tmp_path: Path, number: signal.Signals):
    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:
        job = harbor.enqueue("polite")
        program = Program(f"sqlite:///{tmp_path}/h.db", 30)
        program.hear("ready")
        program.hear("begun")
        program.process.send_signal(number)
        program.hear("stopped")
        program.hear("returned")
        assert program.end() == 0
        assert job.result(timeout=0) == "finished in time"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_second_signal_ends_now(tmp_path: Path):
    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:
        job = harbor.enqueue("hang")
        program = Program(f"sqlite:///{tmp_path}/h.db", 3600)
        program.hear("ready")
        program.hear("begun")
        program.process.send_signal(signal.SIGTERM)
        program.hear("marked")
        program.process.send_signal(signal.SIGTERM)
        program.hear("stopped")
        program.hear("returned")
        assert program.end() == 0
        assert job.refresh().state is State.RUNNING  # left to its lease


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_signal_with_a_grace_of_0_releases_what_runs(tmp_path: Path):
    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:
        job = harbor.enqueue("hang")
        program = Program(f"sqlite:///{tmp_path}/h.db", 0)
        program.hear("ready")
        program.hear("begun")
        program.process.send_signal(signal.SIGTERM)
        while (word := program.read()) != "stopped":
            assert word == "marked"  # or not: there is no grace
        program.hear("returned")
        assert program.end() == 0
        found = job.refresh()
        assert (found.state, found.attempts) == (State.READY, 0)
        assert [str(attempt.status) for attempt in job.history()] == ["released"]
