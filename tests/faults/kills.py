"""Workers that are killed at random, and replaced."""

from __future__ import annotations

import random
import subprocess
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

    def enqueue_more() -> None:
        """The kills must not come too late: there is always something to execute."""
        if len(accepted) - crew.counts()["succeeded"] < jobs // 7:
            more = range(len(accepted), len(accepted) + jobs // 7)
            accepted.extend(crew.enqueue_notes(more, high=handler_seconds))

    def executes(worker: subprocess.Popen[bytes]) -> bool:
        enqueue_more()
        return crew.executed_by(worker) > 0

    for _ in range(kills):
        victim = chance.randrange(workers)
        # In the midst of its work, at a moment that differs every time.
        wait_until(lambda: executes(alive[victim]), what=f"an execution (of {crew.errors()})")  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.5 / workers))
        enqueue_more()
        crew.kill(alive[victim])
        alive[victim] = crew.start("work", **options)
    wait_until(crew.is_done, 100, "the end of all jobs")
    return called(crew.harbor, audit(crew.harbor.driver, [job.id for job in accepted], crew.executions()))
