"""The synchronous surface over a driver that suspends: its coroutines run on a private loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar

import pytest

from taskharbor import ConfigurationError, Event, Harbor, JobNotFound
from taskharbor.client import sync_methods
from taskharbor.drivers.base import Driver, Enqueued
from taskharbor.drivers.memory import MemoryDriver

NOBODY = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"
colour: ContextVar[str] = ContextVar("colour", default="none")


class SuspendingDriver(MemoryDriver):
    """As one that talks to a server: every verb suspends, and remembers on which loop it did."""

    inline: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.colours: list[str] = []
        self.cancelled = threading.Event()
        self.entered = threading.Event()

    async def enqueue(self, jobs: Any, *, now: int | None = None) -> list[Enqueued]:
        self.colours.append(colour.get())
        if jobs[0].task == "forever":
            self.entered.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return await super().enqueue(jobs, now=now)


def _suspending(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    async def suspend(self: SuspendingDriver, *args: Any, **kwargs: Any) -> Any:
        self.loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return await verb(self, *args, **kwargs)

    return suspend


for _name, _ in inspect.getmembers(Driver, inspect.iscoroutinefunction):
    setattr(SuspendingDriver, _name, _suspending(getattr(SuspendingDriver, _name)))


@pytest.fixture
def driver() -> SuspendingDriver:
    return SuspendingDriver()


@pytest.fixture
def suspending(driver: SuspendingDriver) -> Iterator[Harbor]:
    with Harbor(driver=driver) as harbor:
        yield harbor


def test_every_synchronous_form_works(suspending: Harbor):
    @suspending.task
    def double(x: int) -> int:
        return 2 * x

    job = double.enqueue(4)
    double.enqueue_many([{"x": 1}, {"x": 2}])
    assert job.refresh().state == "ready"
    assert suspending.jobs.counts()["ready"] == 3
    assert len(suspending.jobs.list()) == 3
    assert job.history() == []
    suspending.queues.pause("default")
    assert [queue.paused for queue in suspending.queues.list()] == [True]
    assert suspending.jobs.cancel(job.id).state == "cancelled"
    assert suspending.dlq.requeue_all() == 0
    assert suspending.prune() == 0


def test_errors_come_through_as_they_are(suspending: Harbor):
    with pytest.raises(JobNotFound, match=NOBODY):
        suspending.jobs.get(NOBODY)
    with pytest.raises(TimeoutError, match="still ready after 0.01 s"):
        suspending.enqueue("t").result(timeout=0.01)


def test_all_threads_share_one_private_loop(suspending: Harbor, driver: SuspendingDriver):
    def enqueue_some() -> None:
        for _ in range(20):
            suspending.enqueue("t")

    threads = [threading.Thread(target=enqueue_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert suspending.jobs.counts()["ready"] == 80
    assert len(set(driver.loops)) == 1


def test_the_private_loop_is_a_daemon_of_its_own(suspending: Harbor):
    suspending.enqueue("t")
    [thread] = [thread for thread in threading.enumerate() if thread.name == "taskharbor-loop"]
    assert thread.daemon


def test_inline_drivers_start_no_loop(monkeypatch: pytest.MonkeyPatch):
    def refuse(coroutine: Any) -> Any:
        coroutine.close()
        raise AssertionError("an inline driver needs no loop")

    monkeypatch.setattr(sync_methods, "run_on_loop_thread", refuse)
    with Harbor("memory://") as harbor:
        harbor.enqueue("t").refresh()


async def test_inside_a_running_loop_it_works_and_warns_once(suspending: Harbor, driver: SuspendingDriver):
    before = list(sync_methods._warned)
    sync_methods._warned.clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"enqueue\(\) was called inside a running.*aenqueue"):
            job = suspending.enqueue("t")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert job.refresh().state == "ready"
    finally:
        sync_methods._warned[:] = before
    assert asyncio.get_running_loop() not in driver.loops


async def test_both_surfaces_see_the_same_jobs_and_each_may_close(
    suspending: Harbor, driver: SuspendingDriver
):
    one = await suspending.aenqueue("t")
    two = await asyncio.to_thread(suspending.enqueue, "t")
    assert {job.id for job in await suspending.jobs.alist()} == {one.id, two.id}
    await asyncio.to_thread(suspending.close)
    await suspending.aclose()
    assert (await suspending.jobs.acounts())["ready"] == 2
    await asyncio.to_thread(suspending.close)
    assert len(set(driver.loops)) == 2


def test_the_callers_context_is_carried_over(suspending: Harbor, driver: SuspendingDriver):
    reset = colour.set("red")
    try:
        suspending.enqueue("t")
    finally:
        colour.reset(reset)
    suspending.enqueue("t")
    assert driver.colours == ["red", "none"]


def test_an_interrupted_call_is_cancelled(suspending: Harbor, driver: SuspendingDriver):
    over = threading.Event()

    def interrupt() -> None:
        driver.entered.wait(60)
        while not over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            over.wait(
                1
            )  # one that comes just before a thread begins to wait for a lock is noticed with the next

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            suspending.enqueue("forever")
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)
        thread.join()
    assert driver.cancelled.wait(60)
    assert suspending.enqueue("t").state == "ready"  # the loop goes on


def test_a_subscriber_on_the_private_loop_may_use_the_synchronous_form(suspending: Harbor):
    ids: list[str] = []
    done = threading.Event()

    @suspending.on("enqueued")
    async def follow(event: Event) -> None:
        if event.task == "first":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ids.append(suspending.enqueue("second").id)
            done.set()

    suspending.enqueue("first")
    assert done.wait(60)
    assert suspending.jobs.get(ids[0]).task == "second"


def test_a_child_of_a_fork_has_a_loop_of_its_own(suspending: Harbor):
    suspending.enqueue("t")
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # should it wait for the parent's loop
        try:
            suspending.enqueue("t")
            os._exit(0 if suspending.jobs.counts()["ready"] == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert suspending.jobs.counts()["ready"] == 1


@pytest.mark.parametrize("more", [{"url": "memory://"}, {"clock": MemoryDriver().clock}])
def test_a_driver_beside_a_url_or_a_clock_is_refused(driver: SuspendingDriver, more: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="a driver brings its own store and clock"):
        Harbor(driver=driver, **more)


async def test_closing_does_not_hold_up_the_loop(suspending: Harbor):
    """A subscriber that is slow delays the close, not the other tasks of the loop."""
    may_go_on = threading.Event()
    suspending.on("enqueued")(lambda event: may_go_on.wait(60))
    await suspending.aenqueue("t")
    closing = asyncio.create_task(suspending.aclose())
    began = time.monotonic()
    await asyncio.sleep(0.01)
    assert time.monotonic() - began < 30  # half of what the subscriber takes
    assert not closing.done()
    may_go_on.set()
    await asyncio.wait_for(closing, 60)
