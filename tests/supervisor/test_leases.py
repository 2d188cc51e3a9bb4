"""Leases are extended from outside: no handler can starve its own heartbeat."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from taskharbor.records import State
from tests.faults.processes import pause
from tests.supervisor.conftest import Shop

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

LEASE = 10.0  # a slow disk may hold up the process that extends it


def test_handlers_that_hold_up_their_processes_past_the_lease_are_started_once(shop: Shop):
    """One holds the GIL, one blocks the event loop: neither lets its process extend a lease."""
    jobs = [shop.harbor.enqueue(task, {"seconds": 15}) for task in ("hold_gil", "block_loop")]
    shop.started(processes=2, concurrency=1, lease_seconds=LEASE)
    assert [job.result(timeout=100) for job in jobs] == [15, 15]
    assert shop.executions() == {0: 2}
    assert [[str(row.status) for row in job.history()] for job in jobs] == [["succeeded"]] * 2


def test_a_process_whose_supervisor_hangs_extends_for_itself(small: Shop):
    job = small.harbor.enqueue("until_released")
    parent = small.started(processes=1, lease_seconds=LEASE)
    small.wait(lambda: small.executions()[0] == 1, "the execution")

    def expiry() -> float:
        expires_at = job.refresh().lease_expires_at
        assert expires_at is not None
        return expires_at.timestamp()

    first = expiry()
    pause(parent, small.url)
    small.wait(lambda: expiry() - first > 1.5 * LEASE, "the lease to be extended")
    os.kill(parent.pid, signal.SIGCONT)
    (small.folder / "release").touch()
    job.result(timeout=60)
    assert small.executions() == {0: 1}
    # and the supervisor is well: it sees to the next one
    again = small.harbor.enqueue("note", {"n": 7})
    assert again.result(timeout=60) == 7
    parent.terminate()
    assert parent.wait(60) == 0


def test_a_cancel_request_that_the_supervisor_hears_reaches_the_process(shop: Shop):
    job = shop.harbor.enqueue("until_released")
    shop.started(processes=1, lease_seconds=LEASE)
    shop.wait(lambda: shop.executions()[0] == 1, "the execution")
    shop.harbor.jobs.cancel(job.id)
    shop.wait(lambda: job.refresh().state is State.CANCELLED, "the cancellation")


def test_a_cancel_request_reaches_a_supervised_process_before_any_heartbeat(shop: Shop):
    """The process looks by itself: with an hour's lease the next heartbeat is twenty minutes away."""
    job = shop.harbor.enqueue("until_released")
    shop.started(processes=1, lease_seconds=3600)
    shop.wait(lambda: shop.executions()[0] == 1, "the execution")
    shop.harbor.jobs.cancel(job.id)
    shop.wait(lambda: job.refresh().state is State.CANCELLED, "the cancellation")


def test_stats_name_what_runs_in_a_supervised_process(small: Shop):
    """The supervisor tells the store, even of a process that cannot speak."""
    job = small.harbor.enqueue("block_until_released")
    small.started(processes=1, lease_seconds=LEASE)
    small.wait(lambda: any(job.id in lease.running for lease in _leases(small)), "the note of what runs")
    (small.folder / "release").touch()
    job.result(timeout=60)


def _leases(shop: Shop):
    from taskharbor.sync import run_inline

    return run_inline(shop.harbor.driver.leases())
