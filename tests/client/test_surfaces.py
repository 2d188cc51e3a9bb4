"""One implementation, two surfaces: synchronous calls, asynchronous ones, and both at once."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import ConfigurationError, Harbor, Job, Worker
from taskharbor.client import sync_methods
from taskharbor.client.dead_letters import DeadLetters
from taskharbor.client.jobs import Jobs
from taskharbor.client.queues import Queues
from taskharbor.client.task import Enqueueable


@pytest.fixture
def unwarned() -> Iterator[None]:
    """As if nobody had been warned yet in this process."""
    before = list(sync_methods._warned)
    sync_methods._warned.clear()
    yield
    sync_methods._warned[:] = before


@pytest.mark.parametrize("kind", [Harbor, Jobs, DeadLetters, Queues, Job, Enqueueable])
def test_every_asynchronous_method_has_a_synchronous_form_with_the_same_parameters(kind: type):
    pairs = [
        (name, name[1:])
        for name, method in vars(kind).items()
        if inspect.iscoroutinefunction(method) and name.startswith("a") and not name.startswith("_")
    ]
    assert pairs
    for asynchronous, synchronous in pairs:
        one, other = getattr(kind, asynchronous), getattr(kind, synchronous)
        assert inspect.signature(one).parameters.keys() == inspect.signature(other).parameters.keys()
        assert other.__name__ == synchronous
        assert asynchronous in (other.__doc__ or "")


@pytest.mark.usefixtures("unwarned")
async def test_the_sync_form_inside_a_loop_works_and_warns_once_naming_the_async_form(harbor: Harbor):
    with pytest.warns(
        RuntimeWarning, match=r"enqueue\(\) was called inside a running.*`await …aenqueue\(\)`"
    ) as got:
        job = harbor.enqueue("t")
    assert Path(got[0].filename) == Path(__file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert job.refresh().state == "ready"
        assert harbor.jobs.counts()["ready"] == 1
        harbor.enqueue_many([])


@pytest.mark.usefixtures("unwarned")
def test_the_sync_form_outside_a_loop_never_warns(harbor: Harbor):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harbor.enqueue("t").refresh()
    assert sync_methods._warned == []


@pytest.mark.usefixtures("unwarned")
async def test_a_thread_beside_the_loop_is_not_inside_it(harbor: Harbor):
    job = await asyncio.to_thread(harbor.enqueue, "t")
    assert (await job.arefresh()).state == "ready"
    assert sync_methods._warned == []


async def test_sync_and_async_calls_of_one_harbor_see_the_same_jobs(harbor: Harbor):
    one = await harbor.aenqueue("t")
    two = await asyncio.to_thread(harbor.enqueue, "t")
    assert {job.id for job in await harbor.jobs.alist()} == {one.id, two.id}


def test_a_harbor_may_be_used_on_one_loop_after_another(harbor: Harbor):
    ids = [asyncio.run(harbor.aenqueue("t")).id for _ in range(3)]
    assert {job.id for job in harbor.jobs.list()} == set(ids)


def test_a_harbor_may_be_used_on_several_loops_at_once(harbor: Harbor):
    async def enqueue_some() -> None:
        await asyncio.gather(*(harbor.aenqueue("t") for _ in range(50)))

    threads = [threading.Thread(target=asyncio.run, args=(enqueue_some(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert harbor.jobs.counts()["ready"] == 200


def test_a_harbor_is_a_context_manager(tmp_path: Path):
    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:
        harbor.enqueue("t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.db"]  # closed: the log is gone


async def test_a_harbor_is_an_asynchronous_context_manager(tmp_path: Path):
    async with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:
        await harbor.aenqueue("t")
        await harbor.jobs.acounts()
    assert os.listdir(tmp_path) == ["h.db"]


def test_leaving_the_block_with_an_error_lets_it_through_and_closes(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), Harbor(f"sqlite:///{tmp_path}/h.db") as harbor:
        harbor.enqueue("t")
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.db"]


def test_a_closed_harbor_that_is_used_again_opens_anew(tmp_path: Path):
    harbor = Harbor(f"sqlite:///{tmp_path}/h.db")
    harbor.close()
    for _ in range(3):
        harbor.enqueue("t")
        harbor.close()
        harbor.close()
    assert harbor.jobs.counts()["ready"] == 3
    harbor.close()


async def test_a_closed_harbor_that_is_used_again_opens_anew_by_the_async_form(harbor: Harbor):
    for _ in range(3):
        job = await harbor.aenqueue("t")
        await job.arefresh()
        await harbor.aclose()
        await harbor.aclose()
    assert (await harbor.jobs.acounts())["ready"] in (3, 0)  # what is in memory may go with the close


def test_nothing_is_opened_before_first_use(tmp_path: Path):
    harbor = Harbor(f"sqlite:///{tmp_path}/h.db")
    harbor.task(name="t")(lambda: None)
    assert list(tmp_path.iterdir()) == []
    harbor.close()
    assert list(tmp_path.iterdir()) == []


def test_threads_that_use_a_harbor_while_others_close_it_neither_fail_nor_hang(tmp_path: Path):
    harbor = Harbor(f"sqlite:///{tmp_path}/h.db?synchronous=normal")
    failures: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(60):
                harbor.enqueue("t").refresh()
        except BaseException as error:
            failures.append(error)

    def use_async() -> None:
        async def several() -> None:
            for _ in range(60):
                await (await harbor.aenqueue("t")).arefresh()

        try:
            asyncio.run(several())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=target) for target in (use, use, use_async, use_async)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        harbor.close()
    for thread in threads:
        thread.join()
    assert failures == []
    assert harbor.jobs.counts()["ready"] == 240
    harbor.close()


def test_a_relative_path_is_meant_from_where_the_harbor_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    harbor = Harbor("sqlite:///h.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with harbor:
        harbor.enqueue("t")
    assert (tmp_path / "h.db").exists()


# -- which store ---------------------------------------------------------------------------------


def test_without_a_url_it_is_the_environments_else_a_file_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO, logger="taskharbor"):
        assert Harbor().url == "sqlite:///taskharbor.db"
    assert str(tmp_path / "taskharbor.db") in caplog.text
    monkeypatch.setenv("TASKHARBOR_URL", "memory://")
    assert Harbor().url == "memory://"
    assert Harbor("sqlite:///other.db").url == "sqlite:///other.db"
    monkeypatch.setenv("TASKHARBOR_URL", "")
    assert Harbor().url == "sqlite:///taskharbor.db"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "a store's URL looks like"),
        (5, "a store's URL looks like"),
        (Path("harbor.db"), "a store's URL looks like"),
        (b"memory://", "a store's URL looks like"),
        ("harbor.db", "a store's URL looks like"),
        (
            "mysql://host/db",
            r"no driver for 'mysql://'; the known stores are memory://, postgres://, postgresql://, sqlite://",
        ),
        ("://x", "no driver for"),
        ("memory://x", "memory:// takes nothing behind it"),
        ("sqlite://", "three slashes and a path"),
        ("sqlite:///", "three slashes and a path"),
        ("sqlite://harbor.db", "three slashes and a path"),
        ("sqlite://host/harbor.db", "three slashes and a path"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///a%00b", "NUL"),
        ("sqlite:///a.db?sync=off", r"unknown option sync in .*SQLite takes \?synchronous="),
        ("sqlite:///a.db?synchronous=off", "synchronous must be FULL, NORMAL or EXTRA"),
        ("sqlite:///a.db?synchronous=", "synchronous must be FULL, NORMAL or EXTRA"),
        ("sqlite:///a.db?synchronous=full;DROP", "synchronous must be FULL, NORMAL or EXTRA"),
    ],
)
def test_a_url_that_names_no_store_is_refused_at_once(url: Any, said: str, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=said):
        Harbor(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "file"),
    [
        ("with space.db", "with space.db"),
        ("a%20b%3F.db", "a b?.db"),
        ("hash#1.db", "hash#1.db"),
        ("tab\tnewline\n.db", "tab\tnewline\n.db"),
        ("ünï.db", "ünï.db"),
        ("%25.db", "%.db"),
        ("no-suffix", "no-suffix"),
        ("percent%zz.db", "percent%zz.db"),
    ],
)
def test_the_file_that_a_url_names_is_the_one_that_is_used(written: str, file: str, tmp_path: Path):
    with Harbor(f"sqlite:///{tmp_path}/{written}") as harbor:
        harbor.enqueue("t")
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_a_scheme_may_be_written_in_capitals(tmp_path: Path):
    with Harbor(f"SQLite:///{tmp_path}/x.db") as harbor:
        harbor.enqueue("t")
    assert (tmp_path / "x.db").exists()


# -- interruption --------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys, threading, time
from taskharbor import Harbor
harbor = Harbor("sqlite:///" + sys.argv[1])
stored = []
armed = False
def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def enqueue_many():
    for _ in range(150):
        stored.append(harbor.enqueue("t").id)
def press_often():
    while any(thread.is_alive() for thread in threads):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.002)
threads = [threading.Thread(target=enqueue_many) for _ in range(3)]
for thread in threads:
    thread.start()
presser = threading.Thread(target=press_often)
presser.start()
mine, interrupts = [], 0
while presser.is_alive():
    try:
        armed = True
        mine.append(harbor.enqueue("t").id)
        armed = False
    except KeyboardInterrupt:
        interrupts += 1
presser.join()
for thread in threads:
    thread.join()
assert len(stored) == 450, len(stored)
assert interrupts, "none came"
kept = set()
cursor = None
while True:
    page = harbor.jobs.list(limit=1000, cursor=cursor)
    kept |= {job.id for job in page}
    cursor = page.next_cursor
    if cursor is None:
        break
assert kept >= {*stored, *mine}, "an acknowledged job is missing"
print("well")
"""


def test_an_interrupt_ends_only_the_call_that_it_interrupted(tmp_path: Path):
    """Ctrl-C comes to the thread that happens to commit for all of them."""
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, f"{tmp_path}/h.db?synchronous=normal"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.stdout == "well\n", run.stderr


FROM_A_SIGNAL_HANDLER = """
import os, signal, sys, threading, time
from taskharbor import Harbor, StoreError
harbor = Harbor("sqlite:///" + sys.argv[1])
outcomes = {"stored": 0, "told": 0}
def handle(*_):
    try:
        harbor.enqueue("from the handler")
        harbor.jobs.counts()
        outcomes["stored"] += 1
    except StoreError as error:
        assert "signal handler" in str(error), error
        outcomes["told"] += 1
signal.signal(signal.SIGUSR1, handle)
main = threading.main_thread().ident
over = threading.Event()
def press_often():
    while not over.is_set():
        signal.pthread_kill(main, signal.SIGUSR1)
        time.sleep(0.001)
presser = threading.Thread(target=press_often)
presser.start()
for _ in range(300):
    harbor.enqueue("t").refresh()
over.set()
presser.join()
kept = harbor.jobs.counts()["ready"]
assert kept >= 300 + outcomes["stored"], (kept, outcomes)
print("well")
"""


def test_a_signal_handler_that_interrupts_a_call_is_told_so_rather_than_waiting_for_ever(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-c", FROM_A_SIGNAL_HANDLER, f"{tmp_path}/h.db?synchronous=normal"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout == "well\n", run.stderr


async def test_a_cancelled_enqueue_leaves_the_store_usable(harbor: Harbor):
    for _ in range(20):
        task = asyncio.create_task(harbor.aenqueue("t"))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # a store in memory has done it already
            await task
    await harbor.aenqueue("t")
    assert 1 <= (await harbor.jobs.acounts())["ready"] <= 21


async def test_a_worker_and_a_producer_share_a_harbor(harbor: Harbor):
    @harbor.task
    async def double(x: int) -> int:
        return 2 * x

    async with Worker(harbor):
        jobs = await double.aenqueue_many({"x": n} for n in range(20))
        assert [await job.aresult(timeout=60) for job in jobs] == [2 * n for n in range(20)]
