"""Workers that are killed at random, and replaced."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.faults.audit import Findings, audit
from tests.faults.processes import Crew, called, wait_until


def survive_kills(
    crew: Crew, *, jobs: int, kills: int, workers: int, concurrency: int, handler_seconds: float, seed: int
) -> Findings:
    """So many SIGKILLs of workers in the midst of so many jobs; what the audit finds when all of them are done."""
    chance = random.Random(seed)
    options: dict[str, Any] = {"concurrency": concurrency, "lease_seconds": 2.0}
    accepted = crew.enqueue_notes(range(jobs), high=handler_seconds)
    alive = [crew.start("work", **options) for _ in range(workers)]
    for _ in range(kills):
        victim = chance.randrange(workers)
        # In the midst of its work, at a moment that differs every time.
        wait_until(lambda: crew.executed_by(alive[victim]), what=f"an execution (of {crew.errors()})")  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.5 / workers))
        if len(accepted) - crew.counts()["succeeded"] < jobs // 7:  # the kills must not come too late
            accepted += crew.enqueue_notes(
                range(len(accepted), len(accepted) + jobs // 7), high=handler_seconds
            )
        crew.kill(alive[victim])
        alive[victim] = crew.start("work", **options)
    wait_until(crew.is_done, 100, "the end of all jobs")
    return called(crew.harbor, audit(crew.harbor.driver, [job.id for job in accepted], crew.executions()))
