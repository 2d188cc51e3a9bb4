"""kill -9 in the middle of workflows: every step is done in the end, once and in its order.

TASKHARBOR_FAULT_RUNS=10 makes it the long form: as many runs of the chord, and a hundred chains with a hundred kills.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Workflow, chain, chord, group
from tests.faults.crew import declare
from tests.faults.processes import Crew, wait_until
from tests.postgres import store as postgres

RUNS = int(os.environ.get("TASKHARBOR_FAULT_RUNS", "1"))
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
    pytest.mark.timeout(300 if RUNS == 1 else 3600),
]

MEMBERS = 1_000
KILL_EVERY_SECONDS = 0.5
OPTIONS = {"concurrency": 4, "lease_seconds": 1.0}


@pytest.fixture(params=["sqlite", "postgres"])
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crew]:
    if request.param == "sqlite":
        crew = Crew(tmp_path)
        yield from _declared(crew)
        return
    with postgres.database() as dsn:
        yield from _declared(Crew(tmp_path, dsn))


def _declared(crew: Crew) -> Iterator[Crew]:
    crew.harbor.migrate()
    declare(crew.harbor)
    try:
        yield crew
    finally:
        crew.close()


def killed_meanwhile(crew: Crew, workflow: Workflow, kills: int, chance: random.Random) -> int:
    """Two workers, of which one is killed every half second; how often, until the workflow is over."""
    workers = [crew.worker(**OPTIONS) for _ in range(2)]
    killed = 0
    while killed < kills and workflow.refresh().state == "running":
        time.sleep(KILL_EVERY_SECONDS)
        victim = chance.randrange(2)
        crew.kill(workers[victim])
        killed += 1
        workers[victim] = crew.worker(**OPTIONS)
    wait_until(lambda: workflow.refresh().state != "running", 120, "the end of the workflow")
    for worker in workers:
        crew.kill(worker)
    return killed


def attempts(crew: Crew, job_id: str) -> list[Any]:
    rows = crew.harbor.jobs.history(job_id, limit=100)
    assert [str(row.status) for row in rows].count("succeeded") == 1
    assert {str(row.status) for row in rows} <= {"succeeded", "lost", "released"}
    return rows


@pytest.mark.parametrize("run", range(RUNS))
def test_chord_whose_workers_are_killed_has_one_finalizer_with_all_results_in_order(crew: Crew, run: int):
    tasks = crew.harbor.tasks
    workflow = chord([tasks["member"].s(n) for n in range(MEMBERS)], tasks["finalizer"].s()).enqueue()
    killed = killed_meanwhile(crew, workflow, kills=200, chance=random.Random(run))
    assert killed > 0
    assert workflow.result(timeout=60) == list(range(MEMBERS)), crew.errors()
    assert crew.counts()["succeeded"] == MEMBERS + 1 == sum(crew.counts().values())
    # Whenever the finalizer began, every member had been executed, and had ended.
    assert all(int(line) >= MEMBERS for line in crew.lines("finalizers"))
    *members, finalizer = workflow.jobs
    last = max(job.finished_at for job in members if job.finished_at is not None)
    for row in attempts(crew, finalizer.id):
        assert row.finished_at >= last
    for job in random.Random(run).sample(members, 100):
        attempts(crew, job.id)


def test_chains_whose_workers_are_killed_keep_their_order_and_have_one_job_for_each_step(crew: Crew):
    chains, kills = (100, 100) if RUNS > 1 else (30, 8)
    link = crew.harbor.tasks["link"]
    workflow = group(
        chain(link.s([], 0), *(link.s(n=n) for n in range(1, 10))) for _ in range(chains)
    ).enqueue()
    killed_meanwhile(crew, workflow, kills, random.Random(5))
    assert workflow.result(timeout=60) == [list(range(10))] * chains, crew.errors()
    assert crew.counts()["succeeded"] == chains * 10 == sum(crew.counts().values())
    for job_id in workflow.jobs.ids[:200]:
        attempts(crew, job_id)
