"""A harbor that was used before a fork works afterwards, in the child and in the parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from taskharbor import Harbor, Worker


def in_child(do: Callable[[], object], seconds: int = 30) -> Callable[[], None]:
    """Begin this in a forked child; what is returned waits for it, and fails as it failed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            import signal

            signal.alarm(seconds)  # a child that hangs is one that failed
            do()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait() -> None:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return wait


def ready(harbor: Harbor) -> int:
    return harbor.jobs.counts()["ready"]


def test_parent_and_child_both_go_on(harbor: Harbor):
    harbor.enqueue("t")
    seen = in_child(lambda: (harbor.enqueue("t"), harbor.enqueue("t"), harbor.jobs.list()))
    harbor.enqueue("t")
    seen()
    assert ready(harbor) == 4


def test_a_child_keeps_its_jobs_when_the_parent_closes_before_it(harbor: Harbor):
    """SQLite removes the log with the last connection, and must not take the parent's for that."""
    harbor.enqueue("t")
    (told, tell), (heard, hear) = os.pipe(), os.pipe()

    def enqueue_before_and_after() -> None:
        harbor.enqueue("t")
        os.write(tell, b"x")
        os.read(heard, 1)
        for _ in range(10):
            harbor.enqueue("t")

    wait = in_child(enqueue_before_and_after)
    os.read(told, 1)
    harbor.close()
    os.write(hear, b"x")
    wait()
    assert ready(harbor) == 12


def test_a_parent_keeps_its_jobs_when_the_child_closes_before_it(harbor: Harbor):
    harbor.enqueue("t")
    in_child(lambda: (harbor.enqueue("t"), harbor.close()))()
    for _ in range(10):
        harbor.enqueue("t")
    assert ready(harbor) == 12


def test_a_fork_while_other_threads_write_and_read(harbor: Harbor, file: Path):
    stop = threading.Event()
    enqueued = [0, 0, 0]
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            while not stop.is_set():
                harbor.enqueue("t")
                enqueued[number] += 1
                harbor.jobs.counts()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            in_child(lambda: (harbor.enqueue("t"), harbor.jobs.counts()))()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert ready(harbor) == sum(enqueued) + 15
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_fork_with_the_writers_thread_and_a_loop_alive(harbor: Harbor):
    """The threads that serve asynchronous callers are not in the child: it starts its own."""

    async def use() -> None:
        await harbor.aenqueue("t")
        await harbor.jobs.acounts()

    async def before_and_after() -> None:
        await use()
        wait = in_child(lambda: asyncio.run(use()))
        await asyncio.gather(*(use() for _ in range(20)))
        wait()
        await use()

    def child_of_a_child() -> None:
        asyncio.run(use())
        in_child(lambda: (asyncio.run(use()), harbor.enqueue("t")))()
        harbor.enqueue("t")

    asyncio.run(before_and_after())
    in_child(child_of_a_child)()
    assert ready(harbor) == 23 + 4


def test_a_fork_while_asynchronous_writes_wait_loses_and_doubles_none(harbor: Harbor):
    async def several() -> list[str]:
        enqueues = [asyncio.create_task(harbor.aenqueue("t")) for _ in range(200)]
        await asyncio.sleep(0)
        wait = in_child(lambda: harbor.enqueue("t"))
        jobs = await asyncio.gather(*enqueues)
        wait()
        return [job.id for job in jobs]

    assert len(set(asyncio.run(several()))) == 200
    assert ready(harbor) == 201


def test_a_child_may_work_what_the_parent_enqueued(harbor: Harbor):
    @harbor.task
    def double(x: int) -> int:
        return 2 * x

    job = double.enqueue(21)
    in_child(lambda: Worker(harbor).drain_sync())()
    assert job.result(timeout=60) == 42


def test_several_harbors_on_one_file_survive_a_fork(harbor: Harbor, file: Path):
    with Harbor(f"sqlite:///{file}") as other:
        harbor.enqueue("t")
        other.enqueue("t")
        wait = in_child(lambda: (harbor.enqueue("t"), other.enqueue("t"), harbor.close(), other.enqueue("t")))
        other.close()
        harbor.enqueue("t")
        wait()
        assert ready(harbor) == ready(other) == 6


def test_a_pool_of_forked_processes_shares_a_harbor(harbor: Harbor):
    harbor.enqueue("t")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        jobs = [pool.apply_async(_enqueue_some, (harbor.url,)) for _ in range(6)]
        assert [job.get(60) for job in jobs] == [10] * 6
        pool.close()
        pool.join()
    assert ready(harbor) == 61


def _enqueue_some(url: str) -> int:
    with Harbor(url) as harbor:
        return len([harbor.enqueue("t") for _ in range(10)])


def test_threads_may_fork_at_once(harbor: Harbor):
    harbor.enqueue("t")
    failures: list[BaseException] = []

    def fork_often() -> None:
        try:
            for _ in range(5):
                in_child(lambda: harbor.enqueue("t"))()
                harbor.enqueue("t")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fork_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ready(harbor) == 41


def test_a_harbor_that_was_never_used_is_not_opened_by_a_fork(file: Path):
    harbor = Harbor(f"sqlite:///{file}")
    in_child(lambda: None)()
    assert not file.exists()
    harbor.close()
