"""Dead jobs of a few causes: grouped by them, and replayed with a brake while workers are killed."""

from __future__ import annotations

import os
import random
import sys
import time

import pytest

from taskharbor.client.error_groups import ErrorGroup
from taskharbor.records import AttemptStatus, State
from tests.faults.processes import Crew, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

JOBS = int(os.environ.get("TASKHARBOR_FAULT_GROUPED", "450"))
REPLAYED = 1 + 10 + 100  # up to the slice that the brake stops


def die(crew: Crew, jobs: int) -> list[ErrorGroup]:
    """Jobs that have died of three causes, with ids, numbers, URLs and paths in their texts."""
    crew.enqueue_notes(range(jobs), task="charge")
    worker = crew.worker(concurrency=50)
    wait_until(crew.is_done, what="the deaths")
    crew.kill(worker)
    return crew.harbor.dlq.groups()


def test_jobs_of_three_causes_are_three_groups(crew: Crew):
    groups = die(crew, JOBS)
    assert sum(group.count for group in groups) == JOBS
    assert sorted(group.count for group in groups) == sorted(len(range(n, JOBS, 3)) for n in range(3))


def test_replay_stops_by_its_brake_although_its_worker_is_killed(crew: Crew):
    """The cause is gone for the newest jobs, which are the first two slices, and still there for all others."""
    chance = random.Random(11)
    [group, *_] = sorted(die(crew, JOBS), key=lambda each: str(each.error), reverse=True)
    newest = crew.harbor.dlq.list(fingerprint=group.fingerprint, limit=12)
    (crew.folder / "fixed").write_text(str(newest[10].payload["n"]))
    job = crew.harbor.dlq.replay(fingerprint=group.fingerprint, brake=0.2)
    give_up_at = time.monotonic() + 100
    kills = 0
    worker = crew.worker(concurrency=20, lease_seconds=1.0)
    while job.refresh().state is not State.SUCCEEDED:
        assert time.monotonic() < give_up_at, (crew.counts(), crew.errors())
        if kills < 4:
            time.sleep(chance.uniform(0.1, 0.6))
            crew.kill(worker)
            kills += 1
            worker = crew.worker(concurrency=20, lease_seconds=1.0)
        time.sleep(0.02)
    wait_until(crew.is_done, what="the jobs of the last slice")
    found = job.result(timeout=0)
    assert (found["requeued"], found["slices"], found["stopped"]) == (REPLAYED, 3, True)
    assert found["failed_same"] > 20
    # None was requeued twice: it has failed once to die, and at most once more. The others never ran again.
    everyone = [*crew.harbor.dlq.list(fingerprint=group.fingerprint, limit=1000)]
    failures = {each.id: _failures(each) for each in everyone}
    assert max(failures.values()) <= 2
    assert sum(count == 1 for count in failures.values()) >= len(everyone) - REPLAYED


def _failures(job) -> int:
    return sum(row.status is AttemptStatus.FAILED for row in job.history(limit=100))
