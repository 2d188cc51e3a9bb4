"""A worker process dies: its supervisor settles at once what it leaves behind, and starts another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from taskharbor.records import Reason, State
from tests.faults.processes import BUSY_MACHINE_SECONDS
from tests.supervisor.conftest import Shop, is_alive

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def test_a_job_of_a_killed_process_starts_again_within_two_seconds(shop: Shop):
    job = shop.harbor.enqueue("until_released")
    shop.started(processes=2, lease_seconds=100)
    shop.wait(lambda: shop.executions()[0] == 1, "the first execution")
    [victim] = shop.executors()
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    shop.wait(lambda: shop.executions()[0] == 2, "the second execution")
    assert time.monotonic() - killed_at < 2 + BUSY_MACHINE_SECONDS
    (shop.folder / "release").touch()
    assert job.result(timeout=60) == shop.executors()[1] != victim
    second, first = job.history()
    assert str(first.status) == "lost"
    assert "was killed by SIGKILL" in str(first.error)
    assert first.started_at is not None
    assert first.worker != second.worker
    assert job.refresh().attempts == 0
    # and there are two of them again
    shop.wait(lambda: len(shop.children()) == 2, "the replacement")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("segfault", "was killed by SIGSEGV"),
        ("exit", "ended with exit code 3"),
        ("exit 0", "ended with exit code 0"),
    ],
)
def test_history_tells_how_the_process_ended(small: Shop, how: str, told: str):
    job = small.harbor.enqueue("die", {"how": how})
    small.start(processes=1, lease_seconds=30)
    small.wait(job.history, "the loss")
    first = job.history()[-1]
    assert (str(first.status), first.detail) == ("lost", "together")
    assert told in str(first.error)


@pytest.mark.timeout(400)  # about thirty processes, one after the other
def test_good_jobs_beside_poisonous_ones_all_succeed(shop: Shop):
    """TASKHARBOR_FAULT_POISON=4 for four among a thousand."""
    poisonous = int(os.environ.get("TASKHARBOR_FAULT_POISON", "2"))
    good, poison = [], []
    for start in range(0, 250 * poisonous, 250):
        poison.append(shop.harbor.enqueue("die", {"how": "kill"}))
        good += shop.enqueue_notes(range(start, start + 250))
    shop.start(processes=2, concurrency=10, lease_seconds=30, drain=True)
    assert shop.parents[0].wait(300) == 0, shop.errors()
    assert shop.counts()["succeeded"] == 250 * poisonous
    assert shop.counts()["dead"] == poisonous
    for job in poison:
        found = job.refresh()
        assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.POISON, 0)
        rows = job.history(limit=100)
        lost = [row for row in rows if str(row.status) == "lost"]
        assert {str(row.status) for row in rows} <= {
            "lost",
            "released",
        }  # handed back where it was only claimed
        assert sum(row.detail == "alone" for row in lost) == 5
        assert all("SIGKILL" in str(row.error) for row in lost)
    assert {job.refresh().state for job in good} == {State.SUCCEEDED}


def test_an_at_most_once_job_is_begun_once_and_what_had_not_begun_is_handed_back(small: Shop):
    """One slot: while the first one kills its process, the others are only claimed, or not even that."""
    deadly = small.harbor.enqueue("die", {"how": "kill"}, delivery="at_most_once", priority=9)
    others = [small.harbor.enqueue("note", {"n": n}, delivery="at_most_once") for n in range(1, 30)]
    small.start(processes=1, concurrency=1, lease_seconds=30, drain=True)
    assert small.parents[0].wait(60) == 0, small.errors()
    assert (deadly.refresh().state, deadly.refresh().reason) == (State.DEAD, Reason.LOST)
    assert "SIGKILL" in str(deadly.history()[0].error)
    assert small.executions() == dict.fromkeys(range(30), 1)
    assert {job.refresh().state for job in others} == {State.SUCCEEDED}
    assert {str(row.status) for job in others for row in job.history()} <= {"succeeded", "released"}


def test_a_whole_tree_that_is_killed_loses_its_jobs_for_no_longer_than_the_lease(shop: Shop):
    job = shop.harbor.enqueue("until_released")
    parent = shop.started(processes=1, lease_seconds=6)
    shop.wait(lambda: shop.executions()[0] == 1, "the first execution")
    [victim] = shop.executors()
    shop.started(processes=1, lease_seconds=6)
    parent.kill()
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    shop.wait(lambda: shop.executions()[0] == 2, "the second execution")
    assert time.monotonic() - killed_at < 6 + 1 + BUSY_MACHINE_SECONDS
    (shop.folder / "release").touch()
    job.result(timeout=60)
    lost = job.history()[-1]
    # A deployment, say: it counts against nobody but for the higher limit.
    assert (str(lost.status), lost.detail) == ("lost", "supervised")


def test_nothing_of_a_dead_process_is_left_when_its_job_begins_again(small: Shop):
    small.harbor.enqueue("die_with_offspring")
    small.started(processes=1, lease_seconds=30)
    small.wait(small.is_done, "the second execution")
    [size] = small.lines("sizes")
    time.sleep(0.1)  # it would have written ten times
    assert (small.folder / "offspring").stat().st_size == int(size)


def test_subscribers_of_a_living_process_hear_what_a_dead_one_lost(small: Shop):
    job = small.harbor.enqueue("until_released")
    small.started(processes=2, lease_seconds=30)
    small.wait(lambda: small.executions()[0] == 1, "the first execution")
    [victim] = small.executors()
    os.kill(victim, signal.SIGKILL)
    small.wait(lambda: small.lines("lost"), "the event")
    [line] = small.lines("lost")
    assert line.split()[0] == job.id
    assert int(line.split()[1]) != victim


def test_children_stop_by_the_rules_when_their_supervisor_is_killed(shop: Shop):
    job = shop.harbor.enqueue("until_released")
    parent = shop.started(processes=2, lease_seconds=30, grace_seconds=60)
    shop.wait(lambda: shop.executions()[0] == 1, "the execution")
    [busy] = shop.executors()
    parent.kill()
    parent.wait()
    shop.wait(lambda: shop.children() == [busy], "the end of the idle one")
    late = shop.harbor.enqueue("note", {"n": 1})
    (shop.folder / "release").touch()
    shop.wait(lambda: not shop.children(), "the end of both")
    assert job.refresh().state is State.SUCCEEDED
    assert late.refresh().state is State.READY  # they claim no more
    assert sorted(shop.lines("stopped")) == sorted(shop.lines("workers"))  # with all their hooks


def test_a_child_that_stood_still_while_its_supervisor_was_killed_ends_when_it_goes_on(small: Shop):
    job = small.harbor.enqueue("until_released")
    parent = small.started(processes=1, lease_seconds=30, grace_seconds="0.2")
    small.wait(lambda: small.executions()[0] == 1, "the execution")
    [child] = small.children()
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    assert is_alive(child)
    os.kill(child, signal.SIGCONT)
    small.wait(lambda: not small.children(), "its end")
    assert job.refresh().state is State.READY
    assert [str(row.status) for row in job.history()] == ["released"]


def test_a_process_that_is_told_to_stop_by_somebody_else_is_replaced(small: Shop):
    small.started(processes=1)
    [first] = small.children()
    os.kill(first, signal.SIGTERM)
    small.wait(lambda: len(small.lines("workers")) == 2, "the replacement")
    small.wait(lambda: not is_alive(first), "the end of the first")
    assert "a worker process died" not in small.errors()


def test_the_command_line_of_a_process_tells_nothing(shop: Shop):
    shop.started(processes=1)
    [child] = shop.children()
    command = subprocess.run(
        ["ps", "-o", "args=", "-p", str(child)], capture_output=True, text=True, check=True
    )
    assert "taskharbor.cli.child" in command.stdout
    assert shop.url.rpartition("/")[2] not in command.stdout
