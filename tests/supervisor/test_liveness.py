"""A process that stands still is replaced; one that has done enough, too."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from taskharbor.cli import cli
from taskharbor.records import State
from tests.supervisor.conftest import Shop

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def test_a_stuck_process_is_reported_with_its_stacks_and_replaced(small: Shop):
    job = small.harbor.enqueue("block_loop", {"seconds": 300})
    small.started(processes=1, lease_seconds=30, stuck_seconds=5)
    small.wait(lambda: len(small.executors()) >= 2, "the replacement")
    first = job.history()[-1]
    assert str(first.status) == "lost"
    assert "showed no sign of life for 5 s and was killed" in str(first.error)
    told = "\n".join(small.lines("stderr"))
    assert "a worker process shows no sign of life and is replaced" in told
    assert job.id in told
    assert "most recent call first" in told
    assert "in block_loop" in told


def test_a_stuck_process_is_told_by_its_replacement(small: Shop):
    job = small.harbor.enqueue("block_loop", {"seconds": 300})
    small.started(processes=1, lease_seconds=30, stuck_seconds=5)
    small.wait(lambda: small.lines("stuck"), "the event")
    worker, jobs, teller, error = small.lines("stuck")[0].split(" ", 3)
    stuck = small.executors()[0]
    assert f"-{stuck}-" in worker
    assert jobs == job.id
    assert int(teller) != stuck
    assert error == "no sign of life for 5 s"


def test_a_stuck_process_that_holds_the_gil_is_reported_by_another_process(small: Shop):
    small.harbor.enqueue("hold_gil", {"seconds": 300})
    small.started(processes=2, lease_seconds=30, stuck_seconds=5)
    small.wait(lambda: small.lines("stuck"), "the event")
    told = small.lines("stuck")[0].split()
    assert int(told[2]) != small.executors()[0]
    # The subscriber before it has raised: nobody is the worse for it.
    note = small.harbor.enqueue("note", {"n": 7})
    small.wait(lambda: note.refresh().state is State.SUCCEEDED, "another job")
    assert "a subscriber failed" in "\n".join(small.lines("stderr"))


def test_a_process_is_replaced_after_so_many_jobs_and_none_is_lost(small: Shop):
    jobs = small.enqueue_notes(range(100))
    small.start(processes=1, max_jobs=30, drain=True)
    assert small.parents[0].wait(60) == 0, small.errors()
    assert small.executions() == dict.fromkeys(range(100), 1)
    by_process = [small.executors().count(pid) for pid in dict.fromkeys(small.executors())]
    # One that is ready before its predecessor is gone, on a machine that is busy, may begin more than its share.
    assert by_process[0] == 30
    assert all(share >= 30 for share in by_process[:-1])
    assert {str(row.status) for job in jobs for row in job.history()} <= {"succeeded", "released"}


def test_a_process_with_too_much_memory_is_replaced_and_no_job_is_lost(small: Shop):
    job = small.harbor.enqueue("grow", {"mib": 300})
    small.started(processes=1, max_memory=250)
    small.wait(lambda: len(small.lines("workers")) == 2, "the replacement")
    assert job.refresh().state is State.SUCCEEDED
    assert [str(row.status) for row in job.history()] == ["succeeded"]
    assert "more than 250" in small.errors()


def test_stats_show_supervised_workers_also_while_they_are_idle(shop: Shop):
    parent = shop.started(processes=2, concurrency=7, queues="mail,default")
    shop.wait(lambda: len(_workers(shop)) == 2, "both workers")
    assert {worker["pid"] for worker in _workers(shop)} == set(shop.children())
    for worker in _workers(shop):
        assert (worker["slots"], worker["queues"], worker["open"]) == (7, ["mail", "default"], 0)
        assert worker["expired"] is False
        assert str(parent.pid) in worker["supervisor"]
    # What a child tells of itself comes with one of the next records.
    shop.wait(lambda: all(worker["memoryMib"] for worker in _workers(shop)), "their memory", seconds=40)
    assert all(worker["loopLagSeconds"] >= 0 for worker in _workers(shop))
    os.kill(shop.children()[0], signal.SIGKILL)
    shop.wait(lambda: {worker["pid"] for worker in _workers(shop)} == set(shop.children()), "the replacement")
    parent.terminate()
    assert parent.wait(60) == 0
    assert _workers(shop) == []


def _workers(shop: Shop) -> list[dict[str, Any]]:
    answer = CliRunner().invoke(cli, ["stats", "--json", "--url", shop.url])
    assert answer.exit_code == 0, answer.stderr
    workers: list[dict[str, Any]] = json.loads(answer.stdout)["workers"]
    return workers


def test_a_process_with_a_handler_that_does_not_end_is_replaced(small: Shop):
    job = small.harbor.enqueue("heed_nothing")
    small.started(processes=1, unresponsive_seconds="0.5", grace_seconds=1)
    small.wait(lambda: len(small.lines("workers")) == 2, "the replacement", seconds=80)
    small.wait(lambda: job.refresh().state is State.DEAD, "the end of the job")
    assert "a worker process died" not in small.errors()


def test_a_limit_of_memory_that_no_process_can_keep_does_not_spin(small: Shop):
    small.start(processes=1, max_memory=5)
    small.wait(lambda: "worker processes exit soon after their start" in small.errors(), "the pause")
    assert "of memory, more than 5" in small.errors()
