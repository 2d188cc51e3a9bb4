"""News of one SQLite file: many wait at little cost, nobody is held up, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers.sqlite import SQLiteDriver, changes
from taskharbor.drivers.sqlite.engine import Engine
from taskharbor.drivers.sqlite.session import Session
from taskharbor.records import NewJob
from taskharbor.sync import run_inline

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
LONG_SECONDS = 600.0


@pytest.fixture
async def driver(file: Path) -> AsyncIterator[SQLiteDriver]:
    driver = SQLiteDriver(str(file))
    await driver.open()
    yield driver
    await driver.close()


@pytest.fixture
def blinks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every pause that was made on the spot."""
    made: list[float] = []
    sleep = time.sleep

    def pause(seconds: float) -> None:
        made.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    return made


def inotify_descriptors() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own descriptor is gone by now
            found += "inotify" in os.readlink(f"/proc/self/fd/{name}")
    return found


def job(number: int) -> NewJob:
    return NewJob(id=f"019b76da-a800-7000-8000-{number:012x}", task="t")


async def waiting(
    driver: SQLiteDriver, count: int, seconds: float = LONG_SECONDS
) -> list[asyncio.Task[None]]:
    token = driver.change_token()
    waiters = [asyncio.create_task(driver.wait_for_change(token, seconds)) for _ in range(count)]
    await asyncio.sleep(0)
    return waiters


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released by every other thread that waits for token, at its first look."""
    arrivals, test_thread = threading.Semaphore(0), threading.get_ident()
    arrived: set[int] = set()
    data_version = Engine.data_version_if_open

    def look(engine: Engine) -> int | None:
        version, thread = data_version(engine), threading.get_ident()
        if thread != test_thread and thread not in arrived:
            arrived.add(thread)
            arrivals.release()
        return version

    monkeypatch.setattr(Engine, "data_version_if_open", look)
    return arrivals


async def test_long_read_does_not_hold_up_the_news(driver: SQLiteDriver):
    reading, go_on = threading.Event(), threading.Event()

    def read(session: Session) -> None:
        reading.set()
        assert go_on.wait(60)

    long_read = asyncio.create_task(driver._engine.read(read))
    await asyncio.to_thread(reading.wait, 60)
    answer = asyncio.create_task(asyncio.to_thread(driver.change_token))
    done, _ = await asyncio.wait([answer], timeout=30)
    go_on.set()
    await long_read
    assert done


@linux
async def test_many_that_wait_on_one_loop_share_one_descriptor(driver: SQLiteDriver, blinks: list[float]):
    before = inotify_descriptors()
    waiters = await waiting(driver, 400)
    assert inotify_descriptors() - before <= 1
    await driver.enqueue([job(1)])
    await asyncio.wait_for(asyncio.gather(*waiters), 60)
    # One of them looks for all: about as many as a commit takes tenths of milliseconds, not four hundred times that.
    assert len(blinks) < 200


async def test_change_between_looking_and_waiting_is_not_missed(driver: SQLiteDriver):
    token = driver.change_token()
    await driver.enqueue([job(1)])
    await asyncio.wait_for(driver.wait_for_change(token, LONG_SECONDS), 60)


async def test_those_with_older_news_and_those_with_none_wait_together(driver: SQLiteDriver):
    old = driver.change_token()
    await driver.enqueue([job(1)])
    [current] = await waiting(driver, 1)
    await asyncio.wait_for(driver.wait_for_change(old, LONG_SECONDS), 60)
    assert not current.done()
    await driver.enqueue([job(2)])
    await asyncio.wait_for(current, 60)


async def test_each_gives_up_at_its_own_time(driver: SQLiteDriver):
    patient = (await waiting(driver, 1))[0]
    await asyncio.wait_for(driver.wait_for_change(driver.change_token(), 0.01), 60)
    assert not patient.done()
    await driver.enqueue([job(1)])
    await asyncio.wait_for(patient, 60)


async def test_cancelled_wait_disturbs_nobody_and_leaves_nothing_behind(driver: SQLiteDriver):
    first, second = await waiting(driver, 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await driver.enqueue([job(1)])
    await asyncio.wait_for(second, 60)
    [loop_watch] = driver._watch._by_loop.values()
    assert (loop_watch._waiting, loop_watch._next_look, loop_watch._log) == ({}, None, None)


async def test_closing_leaves_nobody_waiting(driver: SQLiteDriver, arrivals: threading.Semaphore):
    waiters = await waiting(driver, 3)
    token = driver.change_token()
    in_thread = asyncio.create_task(
        asyncio.to_thread(lambda: run_inline(driver.wait_for_change(token, LONG_SECONDS)))
    )
    assert await asyncio.to_thread(arrivals.acquire, timeout=60)
    before = inotify_descriptors() if sys.platform.startswith("linux") else 0
    await driver.close()
    await asyncio.wait_for(asyncio.gather(*waiters, in_thread), 60)
    assert driver._engine._writer is None, "nobody has opened it again"
    assert before == 0 or inotify_descriptors() < before


def test_loop_that_was_closed_under_its_waiters_is_forgotten(file: Path):
    driver = SQLiteDriver(str(file))

    async def leave_waiting() -> None:
        await waiting(driver, 1)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(leave_waiting())
    pending = asyncio.all_tasks(loop)
    loop.close()

    async def wait_shortly() -> None:
        await driver.wait_for_change(driver.change_token(), 0.01)
        await driver.close()

    asyncio.run(wait_shortly())
    assert driver._watch._by_loop == {}
    del pending


@linux
def test_synchronous_waits_hold_few_descriptors(file: Path, arrivals: threading.Semaphore):
    driver = SQLiteDriver(str(file))
    before = inotify_descriptors()
    token = driver.change_token()
    threads = [
        threading.Thread(target=lambda: run_inline(driver.wait_for_change(token, LONG_SECONDS)))
        for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    assert all(arrivals.acquire(timeout=60) for _ in threads)
    held = inotify_descriptors() - before
    run_inline(driver.enqueue([job(1)]))
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert 1 <= held <= changes.DESCRIPTORS_MAX
    run_inline(driver.close())
    assert inotify_descriptors() == before


@linux
async def test_wait_outlasts_a_log_that_is_replaced(driver: SQLiteDriver, file: Path):
    """The last connection to close removes the log; a watch of the old one would tell nothing."""
    [waiter] = await waiting(driver, 1)
    await asyncio.sleep(0.01)
    driver._engine.close()
    await asyncio.wait_for(waiter, 60)  # the new connection's number is another one: that is news
    [waiter] = await waiting(driver, 1)
    other = SQLiteDriver(str(file))
    await other.enqueue([job(1)])
    await asyncio.wait_for(waiter, 60)
    await other.close()


# -- closing beside those who wait ---------------------------------------------------------------


class Turnstile:
    """Stands where the lock of the newsreader is, and tells when another thread comes to it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._keeper = threading.get_ident()
        self.comes = threading.Semaphore(0)

    def acquire(self, *arguments: Any) -> bool:
        if threading.get_ident() != self._keeper:
            self.comes.release()
        return self._lock.acquire(*arguments)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def await_another(self) -> None:
        """Until somebody comes who has not come yet."""
        while self.comes.acquire(blocking=False):
            pass
        assert self.comes.acquire(timeout=LONG_SECONDS)


def wait_in_a_loop(driver: SQLiteDriver, token: int) -> None:
    asyncio.run(driver.wait_for_change(token, LONG_SECONDS))


def wait_synchronously(driver: SQLiteDriver, token: int) -> None:
    run_inline(driver.wait_for_change(token, LONG_SECONDS))


@linux
@pytest.mark.parametrize("wait", [wait_in_a_loop, wait_synchronously])
def test_closing_is_not_undone_by_one_who_is_about_to_look(
    file: Path, wait: Callable[[SQLiteDriver, int], None]
):
    """He has seen that nobody has closed it, and looks when it is closed."""
    descriptors = inotify_descriptors()
    driver = SQLiteDriver(str(file))
    run_inline(driver.open())
    driver._engine._change_lock = turnstile = Turnstile()  # type: ignore[assignment]
    waiter = threading.Thread(target=wait, args=(driver, driver.change_token()))
    waiter.start()
    turnstile.await_another()
    turnstile.await_another()  # he waits by now
    with turnstile:
        turnstile.await_another()
        run_inline(driver.close())
    waiter.join(LONG_SECONDS)
    assert not waiter.is_alive()
    assert driver._engine._writer is None, "nobody has opened it again"
    assert inotify_descriptors() == descriptors


def test_wait_for_news_of_a_store_that_was_closed_ends_at_once_and_opens_nothing(file: Path):
    driver = SQLiteDriver(str(file))
    run_inline(driver.open())
    token = driver.change_token()
    run_inline(driver.close())
    wait_synchronously(driver, token)
    wait_in_a_loop(driver, token)
    assert driver._engine._writer is None
    assert driver.change_token() != token  # whoever looks again finds that there may be news
    run_inline(driver.close())
