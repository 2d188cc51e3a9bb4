"""A worker that is paused past its lease commits nothing; one that is told to stop leaves nothing behind."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from taskharbor.records import State
from tests.faults.processes import BUSY_MACHINE_SECONDS, Crew, pause, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.mark.parametrize("handler_ends", [True, False], ids=["its handler ends", "its handler goes on"])
def test_a_worker_paused_past_its_lease_commits_nothing(crew: Crew, handler_ends: bool):
    job = crew.harbor.enqueue("until_released")
    paused = crew.worker(lease_seconds=3, name="paused")
    wait_until(lambda: crew.executed_by(paused))
    pause(paused, crew.url)
    other = crew.worker(lease_seconds=100, name="other")
    wait_until(lambda: crew.executed_by(other), what="the other's execution")
    if handler_ends:  # the first thing it does when it wakes up is to succeed
        (crew.folder / f"release-{paused.pid}").touch()
    paused.send_signal(signal.SIGCONT)
    wait_until(lambda: job.history()[-1].worker_survived, what="the sign of life")
    found = job.refresh()
    assert (found.state, found.number, found.worker) == (State.RUNNING, 2, "other")
    (crew.folder / f"release-{other.pid}").touch()
    assert job.result(timeout=60) == other.pid
    second, first = job.history()
    assert (str(first.status), first.worker, first.worker_survived) == ("lost", "paused", True)
    assert (str(second.status), second.worker) == ("succeeded", "other")
    assert job.refresh().attempts == 0
    # and it is well again
    again = crew.harbor.enqueue("note", {"n": 7})
    other.terminate()
    assert other.wait(60) == 0
    assert again.result(timeout=60) == 7


@pytest.mark.parametrize("task", ["note", "note_sync"])
def test_sigterm_under_load_exits_in_time_and_nothing_is_redelivered(crew: Crew, task: str):
    jobs = crew.enqueue_notes(range(2000), task=task)
    grace = 5.0
    total = 0
    for _ in range(3):  # at three different moments of the work
        total += 150
        worker = crew.worker(concurrency=10, lease_seconds=30, grace_seconds=grace)
        wait_until(lambda: len(crew.lines("executions")) > total, what="load")  # noqa: B023
        told_at = time.monotonic()
        worker.terminate()
        assert worker.wait(60) == 0, crew.errors()
        assert time.monotonic() - told_at < grace + 2 + BUSY_MACHINE_SECONDS
        counts = crew.counts()
        assert counts["running"] == 0, "something is stuck until its lease runs out"
        assert counts["succeeded"] == len(crew.lines("executions"))
    assert crew.counts()["ready"] > 0, "the signals came too late to matter"

    last = crew.worker(concurrency=10, lease_seconds=30)
    wait_until(crew.is_done)
    last.terminate()
    assert last.wait(60) == 0
    assert crew.executions_of() == dict.fromkeys(range(2000), 1)
    for job in jobs:
        statuses = [str(row.status) for row in job.history()]
        assert statuses.count("succeeded") == 1
        assert set(statuses) <= {"succeeded", "released"}


def test_a_long_handler_is_released_after_the_grace_and_the_process_exits(crew: Crew):
    job = crew.harbor.enqueue("until_released")
    worker = crew.worker(grace_seconds=0.2, lease_seconds=30)
    wait_until(lambda: crew.executed_by(worker))
    worker.terminate()
    assert worker.wait(0.2 + 2 + BUSY_MACHINE_SECONDS) == 0
    found = job.refresh()
    assert (found.state, found.attempts) == (State.READY, 0)
    [row] = job.history()
    assert str(row.status) == "released"


def test_a_killed_workers_jobs_start_again_within_the_lease_and_a_second(crew: Crew):
    job = crew.harbor.enqueue("until_released")
    first = crew.worker(lease_seconds=1, concurrency=1)
    wait_until(lambda: crew.executed_by(first))
    second = crew.worker(lease_seconds=1)
    crew.enqueue_notes([1])  # the first one is busy with its only slot: the second shows that it is at work
    wait_until(lambda: crew.executed_by(second))
    crew.kill(first)
    killed_at = time.monotonic()
    wait_until(lambda: crew.executed_by(second) == 2)
    assert time.monotonic() - killed_at < 1 + 1 + BUSY_MACHINE_SECONDS
    (crew.folder / f"release-{second.pid}").touch()
    assert job.result(timeout=60) == second.pid
