"""Shutdown across the supervisor and its children."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from taskharbor.records import Reason, State
from tests.faults.processes import BUSY_MACHINE_SECONDS
from tests.supervisor.conftest import Shop, is_alive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

RESTARTS = int(os.environ.get("TASKHARBOR_FAULT_RESTARTS", "5"))


@pytest.mark.timeout(300 + 30 * RESTARTS)
def test_rolling_restarts_under_load_redeliver_nothing(shop: Shop):
    jobs, restarts = 400 * RESTARTS, RESTARTS
    enqueued = [
        job
        for start in range(0, jobs, 400)
        for job in shop.enqueue_notes(range(start, start + 400), seconds=0.01)
    ]
    options = {"processes": 2, "concurrency": 4, "lease_seconds": 30, "grace_seconds": 20}
    for restart in range(1, restarts + 1):
        parent = shop.start(**options)
        goal = jobs * restart // (restarts + 2)
        shop.wait(lambda: len(shop.lines("executions")) >= goal, "load", 100)  # noqa: B023
        parent.send_signal(signal.SIGTERM if restart % 2 else signal.SIGINT)
        assert parent.wait(60) == 0, shop.errors()
        assert shop.counts()["running"] == 0, "something is stuck until its lease runs out"
    assert shop.counts()["ready"] > 0, "the restarts came too late to matter"
    last = shop.start(**options, drain=True)
    assert last.wait(200) == 0, shop.errors()
    assert shop.counts()["succeeded"] == jobs
    assert shop.executions() == dict.fromkeys(range(jobs), 1)
    for job in enqueued[:: jobs // 400]:
        statuses = [str(row.status) for row in job.history()]
        assert statuses.count("succeeded") == 1
        assert set(statuses) <= {"succeeded", "released"}


@pytest.mark.parametrize("task", ["until_released", "hold_gil", "block_loop"])
def test_what_does_not_end_is_released_and_all_is_over_in_time(small: Shop, task: str):
    """Also a handler that no interruption reaches: then its process is ended."""
    payload = {} if task == "until_released" else {"seconds": 100}
    job = small.harbor.enqueue(task, payload)
    once = small.harbor.enqueue(task, payload, delivery="at_most_once")
    parent = small.started(processes=2, concurrency=1, lease_seconds=30, grace_seconds=0.5)
    small.wait(lambda: len(small.executors()) == 2, "both executions")
    told_at = time.monotonic()
    parent.terminate()
    assert parent.wait(60) == 0, small.errors()
    assert time.monotonic() - told_at < 0.5 + 2 + BUSY_MACHINE_SECONDS
    assert not small.children()
    assert (job.refresh().state, job.refresh().attempts) == (State.READY, 0)
    assert [str(row.status) for row in job.history()] == ["released"]
    assert (once.refresh().state, once.refresh().reason) == (State.DEAD, Reason.INTERRUPTED)


def test_a_second_signal_ends_now(small: Shop):
    job = small.harbor.enqueue("until_released")
    parent = small.started(processes=2, grace_seconds=100)
    small.wait(lambda: small.executions()[0] == 1, "the execution")
    parent.terminate()
    small.wait(lambda: "supervisor stops" in small.errors(), "the first signal")
    parent.send_signal(signal.SIGINT)
    assert parent.wait(60) == 0
    small.wait(lambda: not small.children(), "the end of the children")
    assert job.refresh().state is State.RUNNING  # until its lease runs out


def test_a_process_that_retires_has_its_grace_when_all_are_told_to_stop(small: Shop):
    job = small.harbor.enqueue("until_released")
    parent = small.started(processes=1, grace_seconds=100, max_jobs=1)
    small.wait(lambda: "worker retires" in small.errors(), "the end of its time")
    parent.terminate()
    small.wait(lambda: "supervisor stops" in small.errors(), "the signal")
    (small.folder / "release").touch()
    assert parent.wait(60) == 0, small.errors()
    assert [str(row.status) for row in job.history()] == ["succeeded"]


def test_ctrl_c_in_a_terminal_reaches_the_supervisor_alone(small: Shop):
    """As the terminal does it: to the whole group of processes in the foreground."""
    job = small.harbor.enqueue("note", {"n": 1, "seconds": 1.0})
    parent = small.started(processes=1, grace_seconds=30)
    small.wait(lambda: small.executions()[1] == 1, "the execution")
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(60) == 0
    assert job.refresh().state is State.SUCCEEDED


def test_a_signal_while_the_children_are_starting_ends_all(small: Shop):
    parent = small.start(processes=2)
    small.wait(lambda: " started processes=" in small.errors(), "the start")
    parent.terminate()
    assert parent.wait(60) == 0, small.errors()
    assert not [pid for pid in small.children() if is_alive(pid)]
