"""kill -9 at any moment: every accepted job is done in the end, and none is settled twice."""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from typing import Any

import pytest

from taskharbor.records import Reason, State
from tests.faults.kills import survive_kills
from tests.faults.processes import Crew, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def test_workers_killed_again_and_again_lose_nothing_and_settle_nothing_twice(crew: Crew):
    kills = 20
    found = survive_kills(
        crew, jobs=2000, kills=kills, workers=2, concurrency=8, handler_seconds=0.08, seed=20
    )
    found.assert_nothing_wrong()
    assert 0 < found.losses < kills * 100  # what was in flight: begun, or claimed for the next moment


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
    options: dict[str, Any] = {"concurrency": 10, "lease_seconds": 1.0}
    give_up_at = time.monotonic() + 100
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
