"""A process that has done enough keeps what it has begun, and its successor has the rest."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from taskharbor.client.handle import Job
from taskharbor.records import Reason, State
from tests.supervisor.conftest import Shop, is_alive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

LEASE = 10.0  # a slow disk may hold up the process that extends it
GRACE = "0.2"


def begun_and_retiring(shop: Shop, jobs: int = 1) -> int:
    """The number of a process that has begun all that it may, once its successor is there."""
    shop.wait(lambda: len(shop.executors()) == jobs, "the executions")
    shop.wait(lambda: len(shop.lines("workers")) == 2, "the successor")
    [process] = set(shop.executors())
    return process


def test_what_a_process_that_retires_has_begun_ends_there_while_its_successor_works(shop: Shop):
    """Neither the grace nor the lease is a limit; nor is an at_most_once job interrupted."""
    jobs = [shop.harbor.enqueue("until_released", delivery=each) for each in (None, "at_most_once")]
    shop.start(processes=1, max_jobs=2, lease_seconds=LEASE, grace_seconds=GRACE)
    first = begun_and_retiring(shop, jobs=2)
    [note] = shop.enqueue_notes([1])
    assert note.result(timeout=60) == 1
    assert int(shop.lines("executions")[-1].split()[1]) != first
    expiry = _expiry(jobs[1])
    shop.wait(lambda: _expiry(jobs[1]) - expiry > 1.5 * LEASE, "the lease to be extended")
    assert is_alive(first)
    (shop.folder / "release").touch()
    assert [job.result(timeout=60) for job in jobs] == [first, first]
    shop.wait(lambda: not is_alive(first), "its end")
    assert [[str(row.status) for row in job.history()] for job in jobs] == [["succeeded"]] * 2
    assert "a worker process died" not in shop.errors()


def _expiry(job: Job[object]) -> float:
    expires_at = job.refresh().lease_expires_at
    assert expires_at is not None
    return expires_at.timestamp()


def test_a_process_goes_on_beyond_its_limit_until_its_predecessor_is_gone(small: Shop):
    small.harbor.enqueue("until_released")
    small.start(processes=1, max_jobs=1, grace_seconds=GRACE)
    first = begun_and_retiring(small)
    for n in range(1, 5):
        [note] = small.enqueue_notes([n])
        note.result(timeout=60)
    [second] = set(small.executors()[1:])
    assert sorted(small.children()) == sorted([first, second])
    assert "goes on until its predecessor is gone" in small.errors()
    (small.folder / "release").touch()
    small.wait(lambda: len(small.lines("workers")) == 3, "the end of the second one's time")
    small.wait(lambda: len(small.children()) == 1, "the end of both")
    assert not is_alive(second)


def test_a_shutdown_gives_a_process_that_retires_its_grace_and_no_more(small: Shop):
    job, once = (small.harbor.enqueue("until_released", delivery=each) for each in (None, "at_most_once"))
    parent = small.start(processes=1, max_jobs=2, lease_seconds=30, grace_seconds=GRACE)
    begun_and_retiring(small, jobs=2)
    parent.terminate()
    assert parent.wait(60) == 0, small.errors()
    assert not small.children()
    assert job.refresh().state is State.READY
    assert [str(row.status) for row in job.history()] == ["released"]
    assert (once.refresh().state, once.refresh().reason) == (State.DEAD, Reason.INTERRUPTED)


def test_a_process_that_retires_stops_by_the_rules_when_its_supervisor_is_killed(small: Shop):
    job = small.harbor.enqueue("until_released")
    parent = small.start(processes=1, max_jobs=1, lease_seconds=30, grace_seconds=GRACE)
    begun_and_retiring(small)
    parent.kill()
    parent.wait()
    small.wait(lambda: not small.children(), "the end of both")
    assert [str(row.status) for row in job.history()] == ["released"]


def test_the_job_of_a_process_that_dies_while_it_retires_begins_again_in_its_successor(small: Shop):
    job = small.harbor.enqueue("until_released")
    small.start(processes=1, max_jobs=1, lease_seconds=30, grace_seconds=GRACE)
    first = begun_and_retiring(small)
    os.kill(first, signal.SIGKILL)
    small.wait(lambda: len(small.executors()) == 2, "the second execution")
    assert small.executors()[1] == int(small.lines("workers")[1])
    assert "was killed by SIGKILL" in str(job.history()[-1].error)


def test_a_process_that_stands_still_while_it_retires_is_ended(small: Shop):
    small.harbor.enqueue("block_when_released")
    small.start(processes=1, max_jobs=1, lease_seconds=30, grace_seconds=GRACE, stuck_seconds=5)
    first = begun_and_retiring(small)
    (small.folder / "release").touch()
    small.wait(lambda: small.lines("stuck"), "the event")
    small.wait(lambda: not is_alive(first), "its end")
    small.wait(lambda: len(small.executors()) >= 2, "the second execution")


def test_a_drain_is_over_only_when_what_came_of_those_that_retire_is_done(small: Shop):
    small.harbor.enqueue("enqueue_child_when_released")
    parent = small.start(processes=1, max_jobs=1, drain=True)
    first = begun_and_retiring(small)
    small.wait(lambda: len(small.lines("stopped")) == 1, "the successor, which finds nothing to do")
    assert is_alive(first)
    (small.folder / "release").touch()
    assert parent.wait(60) == 0, small.errors()
    assert small.executions()[7] == 1
    assert small.is_done()
