"""kill -9 at any moment: every accepted job is done in the end, and none is settled twice."""

from __future__ import annotations

import random
import sqlite3
import sys
import time

import pytest

from taskharbor.job import Reason, State
from tests.faults.conftest import Crew, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
    pytest.mark.timeout(100),
]

JOBS = 2000
KILLS = 20
CONCURRENCY = 8


def test_workers_killed_again_and_again_lose_nothing_and_settle_nothing_twice(crew: Crew):
    chance = random.Random(20)
    options = {"concurrency": CONCURRENCY, "lease_seconds": 2.0}
    jobs = [
        job
        for start in range(0, JOBS, 500)
        for job in crew.enqueue_notes(range(start, start + 500), low=0.0, high=0.08)
    ]
    workers = [crew.worker(**options) for _ in range(2)]
    for _ in range(KILLS):
        victim = chance.randrange(2)
        # In the midst of its work, at a moment that differs every time.
        wait_until(lambda: crew.executed_by(workers[victim]) > 0 or crew.is_done())  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.25))
        if len(jobs) - crew.counts()["succeeded"] < 300:  # a slow machine: the kills must not come too late
            jobs += crew.enqueue_notes(range(len(jobs), len(jobs) + 300), low=0.0, high=0.08)
        crew.kill(workers[victim])
        workers[victim] = crew.worker(**options)
    assert len(jobs) >= JOBS
    wait_until(crew.is_done, 60, "the end of all jobs")

    executions = crew.executions()
    lost_in_all = 0
    for n, job in enumerate(jobs):
        rows = crew.harbor.jobs.history(job.id, limit=100)
        statuses = [str(row.status) for row in rows]
        assert statuses.count("succeeded") == 1, statuses
        assert set(statuses) <= {"succeeded", "lost"}, statuses
        assert [row.number for row in rows] == list(range(len(rows), 0, -1))
        # A job is executed again only where an execution of it was lost.
        assert 1 <= executions[n] <= 1 + statuses.count("lost")
        lost_in_all += statuses.count("lost")
    assert crew.counts()["dead"] == 0
    assert 0 < lost_in_all < KILLS * 100  # what was in flight: begun, or claimed for the next moment


def test_what_was_acknowledged_survives_kills_during_enqueues(crew: Crew):
    chance = random.Random(7)
    crew.harbor.enqueue("note", {"n": 0})  # the schema is there
    for batch in (1, 1, 20, 20, 300):
        before = len(crew.lines("accepted"))
        producer = crew.start("enqueue", batch=batch)
        wait_until(lambda: len(crew.lines("accepted")) > before + 2)  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.1))
        crew.kill(producer)
    accepted = [job_id for line in crew.lines("accepted") for job_id in line.split()]
    assert len(set(accepted)) == len(accepted)
    for job_id in accepted:
        assert crew.harbor.jobs.get(job_id).state is State.READY
    # All or nothing: beyond what was acknowledged there is at most the last batch of each, whole.
    extra = crew.counts()["ready"] - 1 - len(accepted)
    assert extra in {one + twenty + many for one in range(3) for twenty in (0, 20, 40) for many in (0, 300)}
    with sqlite3.connect(crew.folder / "harbor.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_poisonous_job_ends_dead_and_all_its_neighbours_succeed(crew: Crew):
    good = crew.enqueue_notes(range(15), low=0.0, high=0.02)
    poison = crew.harbor.enqueue("poison")
    good += crew.enqueue_notes(range(15, 30), low=0.0, high=0.02)
    options = {"concurrency": 10, "lease_seconds": 0.5}
    give_up_at = time.monotonic() + 40
    worker = crew.worker(**options)
    while not crew.is_done():
        assert time.monotonic() < give_up_at, (crew.counts(), crew.errors())
        if worker.poll() is not None:
            worker = crew.start("work", **options)
        time.sleep(0.01)
    found = poison.refresh()
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.POISON, 0)
    assert {str(row.status) for row in poison.history(limit=100)} == {"lost"}
    # Five times alone, and at most twice with others before that.
    assert 5 <= len(crew.lines("strikes")) <= 7
    for n, job in enumerate(good):
        assert job.result(timeout=0) == n
        assert job.refresh().attempts == 0
