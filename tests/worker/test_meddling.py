"""Handlers that cancel what is not theirs: the worker goes on, and its other handlers are not blamed.

A handler that cancels every task of its loop cancels the test as well, if that runs there. So the worker has a loop of
its own here, in a thread.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Context, Harbor, Job, Worker
from taskharbor.own_tasks import OwnTask
from taskharbor.records import Reason, State
from taskharbor.worker.handlers.slot import Slot
from tests.faults.processes import wait_until
from tests.postgres import store as postgres
from tests.worker.stage import PATIENCE_SECONDS, FaultyDriver


def sweep(*, but: asyncio.Task[Any] | None = None) -> None:
    """Cancel every task of this loop."""
    for task in asyncio.all_tasks():
        if task is not but:
            task.cancel()


async def until_set(event: threading.Event) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not event.is_set():
        assert time.monotonic() < give_up_at, "it did not come about"
        await asyncio.sleep(0.001)


class Street:
    """Handlers that wait until they are let go, beside one that sweeps."""

    def __init__(self, harbor: Harbor) -> None:
        self.harbor = harbor
        self.begun: list[bool] = []  # for each begin of a neighbour, whether it is executed as a suspect
        self.someone_began, self.go_on = threading.Event(), threading.Event()

        @harbor.task(name="neighbour", max_attempts=1)
        async def neighbour(ctx: Context, n: int = 0) -> int:
            self.begun.append(ctx._execution.lease.alone)
            self.someone_began.set()
            await until_set(self.go_on)
            return n

        @harbor.task(name="sweeper", max_attempts=1)
        async def sweeper(spare_itself: bool = False) -> str:
            sweep(but=asyncio.current_task() if spare_itself else None)
            await asyncio.sleep(0)
            return "swept"

        self.neighbour, self.sweeper = neighbour, sweeper

    def wait_for_begins(self, count: int) -> None:
        wait_until(lambda: len(self.begun) >= count, what="the begin")

    def sweep(self, **arguments: Any) -> Job[str]:
        job = self.sweeper.enqueue(**arguments)
        return ended(job)


class Running:
    """A worker in its thread."""

    def __init__(self, worker: Worker, thread: threading.Thread, errors: list[BaseException]) -> None:
        self.worker = worker
        self.thread = thread
        self.errors = errors  # that ended it

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self.worker._run is not None
        return self.worker._run.loop

    def cancel(self, chosen: Callable[[asyncio.Task[Any]], bool]) -> list[asyncio.Task[Any]]:
        """As an application does that has nothing to do with any handler."""
        cancelled: list[asyncio.Task[Any]] = []
        done = threading.Event()

        def cancel() -> None:
            cancelled.extend(task for task in asyncio.all_tasks(self.loop) if chosen(task))
            for task in cancelled:
                task.cancel()
            done.set()

        self.loop.call_soon_threadsafe(cancel)
        assert done.wait(PATIENCE_SECONDS)
        return cancelled

    def ends(self) -> None:
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def at_work(
    harbor: Harbor, run: Callable[[Worker], Coroutine[Any, Any, None]] = Worker.run, **options: Any
) -> Iterator[Running]:
    worker = Worker(harbor, **options)
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(run(worker))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    wait_until(lambda: worker._run is not None or not thread.is_alive(), what="the worker")
    running = Running(worker, thread, errors)
    try:
        yield running
    finally:
        worker.stop()
        worker.stop()
        running.ends()


def ended(job: Job[Any]) -> Job[Any]:
    terminal = (State.SUCCEEDED, State.DEAD, State.CANCELLED)
    wait_until(lambda: job.refresh().state in terminal, what="the end of the job")
    return job.refresh()


def told(job: Job[Any]) -> list[tuple[str, str | None]]:
    """Status and detail of each attempt, oldest first."""
    return [(str(attempt.status), attempt.detail) for attempt in reversed(job.history(limit=100))]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was cancelled releases its jobs, however long that takes on a busy machine."""
    monkeypatch.setattr("taskharbor.worker.run.RELEASE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def street(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Street]:
    with ExitStack() as stack:
        if request.param == "postgres":
            harbor = Harbor(driver=stack.enter_context(postgres.fresh()))
        elif request.param == "sqlite":
            harbor = Harbor(f"sqlite:///{tmp_path}/harbor.db?synchronous=normal")
        else:
            harbor = Harbor("memory://")
        yield Street(stack.enter_context(harbor))


# -- a handler that cancels every task of its loop -----------------------------------------------


@pytest.mark.parametrize("spare_itself", [False, True], ids=["and itself", "but itself"])
def test_a_handler_that_cancels_every_task_does_not_end_its_worker(street, spare_itself):
    jobs = [street.neighbour.enqueue(n) for n in range(3)]
    with at_work(street.harbor) as running:
        street.wait_for_begins(3)
        swept = street.sweep(spare_itself=spare_itself)
        street.wait_for_begins(6)  # released, and begun again by the same worker
        street.go_on.set()
        assert [job.result(timeout=PATIENCE_SECONDS) for job in jobs] == [0, 1, 2]
        assert street.neighbour.enqueue(7).result(timeout=PATIENCE_SECONDS) == 7
        assert running.thread.is_alive()
    assert running.errors == []
    for job in jobs:
        assert told(job) == [("released", "disturbed"), ("succeeded", None)]
        assert job.refresh().attempts == 0
    if spare_itself:
        assert swept.result() == "swept"
    else:  # what it does to itself is its own failure
        assert (swept.state, swept.reason, swept.error) == (State.DEAD, Reason.EXHAUSTED, "CancelledError")


def test_sweepers_that_meet_end_with_their_own_limits(street):
    """Each disturbs the others, so each is executed alone in the end, and then fails by itself."""
    job = street.neighbour.enqueue(1)
    with at_work(street.harbor, concurrency=20) as running:
        street.wait_for_begins(1)
        sweepers = [street.sweeper.enqueue() for _ in range(4)]
        wait_until(lambda: len(street.begun) > 1, what="the second begin")
        street.go_on.set()
        assert [ended(sweeper).reason for sweeper in sweepers] == [Reason.EXHAUSTED] * 4
        assert job.result(timeout=PATIENCE_SECONDS) == 1
        assert running.thread.is_alive()
    assert job.refresh().attempts == 0


def test_a_job_that_is_disturbed_twice_is_executed_alone(street):
    job = street.neighbour.enqueue()
    with at_work(street.harbor):
        for begins in (1, 2):
            street.wait_for_begins(begins)
            street.sweep(spare_itself=True)
        street.wait_for_begins(3)
        assert street.begun == [False, False, True]
        street.go_on.set()
        assert job.result(timeout=PATIENCE_SECONDS) == 0
    assert told(job) == [("released", "disturbed")] * 2 + [("succeeded", None)]


def test_where_it_is_alone_it_counts_and_the_last_permitted_is_poison(street):
    """Cancelled from outside each time, by what no handler has started."""
    job = street.neighbour.enqueue()
    with at_work(street.harbor, max_losses=2) as running:
        for begins in range(1, 5):
            street.wait_for_begins(begins)
            running.cancel(lambda task: isinstance(task, Slot) and task.execution is not None)
        found = ended(job)
        assert running.thread.is_alive()
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.POISON, 0)
    assert told(job) == [("released", "disturbed")] * 2 + [("lost", "alone")] * 2
    assert found.error == "cancelled by neither its own handler nor the worker"


def test_an_at_most_once_job_that_is_disturbed_is_dead_interrupted(street):
    job = street.neighbour.using(delivery="at_most_once").enqueue()
    with at_work(street.harbor):
        street.wait_for_begins(1)
        street.sweep()
        found = ended(job)
    assert (found.state, found.reason) == (State.DEAD, Reason.INTERRUPTED)
    assert told(job) == [("cancelled", "disturbed")]
    assert len(street.begun) == 1


def test_what_a_disturbed_handler_makes_of_it_is_not_counted_either(street):
    begun = threading.Event()

    @street.harbor.task(max_attempts=1)
    async def translates() -> None:
        if begun.is_set():
            return
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_SECONDS)
        except asyncio.CancelledError:
            raise ConnectionError("aborted") from None

    job = translates.enqueue()
    with at_work(street.harbor):
        assert begun.wait(PATIENCE_SECONDS)
        street.sweep()
        ended(job)
    assert told(job) == [("released", "disturbed"), ("succeeded", None)]


def test_a_handler_in_a_thread_is_not_disturbed_in_its_steps():
    store = FaultyDriver()
    harbor = Harbor(driver=store)
    noting, swept = threading.Event(), threading.Event()

    @harbor.task(max_attempts=1)
    def steps(ctx: Context) -> int:
        return int(ctx.step("one", lambda: 1))

    @harbor.task(max_attempts=1)
    async def sweeper() -> None:
        await until_set(noting)
        sweep(but=asyncio.current_task())
        swept.set()

    async def slow() -> None:
        noting.set()
        await until_set(swept)

    store.before["note"] = slow
    job = steps.enqueue()
    with at_work(harbor):
        sweeper.enqueue()
        assert job.result(timeout=PATIENCE_SECONDS) == 1
    assert told(job) == [("succeeded", None)]


def test_a_handler_that_cancels_its_own_tasks_disturbs_no_other(street, caplog):
    @street.harbor.task(max_attempts=1)
    async def tidy() -> str:
        async def hang() -> None:
            await asyncio.sleep(PATIENCE_SECONDS)

        own = [asyncio.create_task(hang()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in own:
            task.cancel()
        await asyncio.wait(own)
        try:
            async with asyncio.timeout(0.001):
                await hang()
        except TimeoutError:
            return "tidy"
        return "?"

    with at_work(street.harbor):
        assert tidy.enqueue().result(timeout=PATIENCE_SECONDS) == "tidy"
    assert "not its own" not in caplog.text


def test_a_worker_inside_a_handler_can_be_timed_out_by_it(street):
    inner = Harbor("memory://")

    @street.harbor.task(max_attempts=1)
    async def outer() -> str:
        try:
            async with asyncio.timeout(0.05):
                await Worker(inner).run()
        except TimeoutError:
            return "timed out"
        return "?"

    with at_work(street.harbor):
        assert outer.enqueue().result(timeout=PATIENCE_SECONDS) == "timed out"


# -- the worker's own tasks ----------------------------------------------------------------------


def test_parts_of_a_worker_that_are_cancelled_without_a_stop_go_on(street, caplog):
    street.go_on.set()
    with at_work(street.harbor) as running:
        assert street.neighbour.enqueue(1).result(timeout=PATIENCE_SECONDS) == 1
        parts = running.cancel(lambda task: isinstance(task, OwnTask) and "_kept" in repr(task.get_coro()))
        idle = running.cancel(lambda task: isinstance(task, Slot))
        assert len(parts) > 8
        assert len(idle) > 0
        for n in range(5):
            assert street.neighbour.enqueue(n).result(timeout=PATIENCE_SECONDS) == n
        assert not any(task.done() for task in (*parts, *idle))
        running.worker.stop()
        running.ends()
    assert running.errors == []
    assert "cancelled without a stop; it goes on" in caplog.text


@pytest.mark.parametrize("verb", ["note", "settle"])
def test_a_committer_that_is_cancelled_without_a_stop_settles_what_it_had(verb):
    driver = FaultyDriver()
    held = threading.Event()

    async def hold_once() -> None:
        del driver.before[verb]
        held.set()
        await asyncio.Event().wait()

    with Harbor(driver=driver) as harbor:

        @harbor.task
        async def tells(ctx: Context) -> str:
            ctx.progress(0.5)  # noted and settled together, since it never suspends
            return "told"

        driver.before[verb] = hold_once
        with at_work(harbor) as running:
            job = tells.enqueue()
            assert held.wait(PATIENCE_SECONDS)
            running.cancel(lambda task: isinstance(task, OwnTask) and "_kept" in repr(task.get_coro()))
            assert job.result(timeout=PATIENCE_SECONDS) == "told"


# -- an application that cancels ----------------------------------------------------------------


def test_an_application_that_cancels_every_task_ends_the_worker(street):
    job = street.neighbour.enqueue()
    with at_work(street.harbor) as running:
        street.wait_for_begins(1)
        running.cancel(lambda task: True)
        running.ends()
        assert [type(error) for error in running.errors] == [asyncio.CancelledError]
    found = job.refresh()
    assert (found.state, found.attempts) == (State.READY, 0)
    assert told(job) == [("released", "the worker was shut down")]


def test_an_application_whose_main_returns_ends_the_worker_that_it_has_in_a_task(street):
    """`asyncio.run` cancels what is left, and waits for it."""
    job = street.neighbour.enqueue()
    tasks = []

    async def application(worker: Worker) -> None:
        tasks.append(asyncio.create_task(worker.run()))
        await until_set(street.someone_began)

    with at_work(street.harbor, application) as running:
        running.ends()
    assert running.errors == []
    assert tasks[0].cancelled()
    assert (job.refresh().state, job.refresh().attempts) == (State.READY, 0)


def test_a_handler_that_cancels_the_run_of_its_worker_alone_ends_it(street):
    """It knows the application's task, and means it."""
    mine: list[asyncio.Task[Any]] = []

    async def application(worker: Worker) -> None:
        task = asyncio.current_task()
        assert task is not None
        mine.append(task)
        await worker.run()

    @street.harbor.task
    async def end_it_all() -> None:
        mine[0].cancel()

    with at_work(street.harbor, application) as running:
        job = end_it_all.enqueue()
        running.ends()
        assert [type(error) for error in running.errors] == [asyncio.CancelledError]
    assert job.refresh().state in (State.SUCCEEDED, State.READY)


PROGRAM = """
import asyncio, os, signal, sys
from taskharbor import Harbor, Worker

harbor = Harbor(sys.argv[1])

@harbor.task(name="computes")
async def computes() -> None:
    os.kill(os.getpid(), signal.SIGINT)  # as a Ctrl-C that comes while a handler computes
    for _ in range(1000):
        pass
    await asyncio.sleep(3600)

harbor.enqueue("computes")
try:
    asyncio.run(Worker(harbor).run())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_ctrl_c_while_a_handler_computes_ends_the_application(tmp_path):
    url = f"sqlite:///{tmp_path}/harbor.db"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.stdout, run.returncode) == ("interrupted\n", 0), run.stderr
    with Harbor(url) as harbor:
        [job] = harbor.jobs.list()
        assert (job.state, job.attempts) == (State.READY, 0)


# -- real processes ------------------------------------------------------------------------------

SHOP = """
import asyncio
from pathlib import Path
from taskharbor import Harbor

harbor = Harbor()

@harbor.task(name="neighbour", max_attempts=1)
async def neighbour(n: int) -> int:
    Path(f"begun-{n}").touch()
    while not Path("swept").exists():
        await asyncio.sleep(0.01)
    return n

@harbor.task(name="sweeper", max_attempts=1)
async def sweeper() -> None:
    while len(list(Path().glob("begun-*"))) < 3:
        await asyncio.sleep(0.01)
    for task in asyncio.all_tasks():
        task.cancel()
    Path("swept").touch()
    await asyncio.sleep(3600)
"""


@pytest.mark.parametrize(
    "options", [[], ["--health-file=health"], ["--processes=1"]], ids=["plain", "with signs", "supervised"]
)
def test_the_command_survives_a_handler_that_cancels_every_task(tmp_path, options):
    (tmp_path / "shop.py").write_text(SHOP)
    url = f"sqlite:///{tmp_path}/harbor.db"
    command = [sys.executable, "-m", "taskharbor.cli", "worker", "-A", "shop:harbor", "--url", url, *options]
    with Harbor(url) as harbor:
        jobs = [harbor.enqueue("neighbour", {"n": n}) for n in range(3)]
        sweeper = harbor.enqueue("sweeper")
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert [ended(job).state for job in (*jobs, sweeper)] == [State.SUCCEEDED] * 3 + [State.DEAD]
                process.send_signal(signal.SIGTERM)
                _, log = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 0
        for job in jobs:
            assert told(job) == [("released", "disturbed"), ("succeeded", None)]
    assert log.count(" started (queues: ") == 1
    assert log.count(" cancels tasks that are not its own, and the worker goes on") == 1
    at_once = " was put back and runs again at once: cancelled by neither its own handler nor the worker "
    assert log.count(at_once) == 3
