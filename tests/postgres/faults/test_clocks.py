"""Workers whose own clock is wrong by five minutes: the server's decides."""

from __future__ import annotations

import time

from taskharbor.records import State
from tests.faults.processes import Crew, wait_until

FIVE_MINUTES = 300.0
LEASE_SECONDS = 10.0  # a disk may stand still for seconds


def test_workers_whose_clock_is_wrong_neither_steal_nor_lose_a_lease_nor_run_early(crew: Crew) -> None:
    workers = [
        crew.worker(clock_off_by=off_by, concurrency=1, lease_seconds=LEASE_SECONDS)
        for off_by in (FIVE_MINUTES, 0.0, -FIVE_MINUTES)
    ]
    # One job for each of them; all of them look for expired leases several times a lease.
    held = [crew.harbor.enqueue("until_released") for _ in workers]
    wait_until(lambda: all(crew.executed_by(worker) == 1 for worker in workers), what="a job for each")
    time.sleep(1.5 * LEASE_SECONDS)
    assert {job.refresh().state for job in held} == {State.RUNNING}
    assert len(crew.executions()) == 3
    for worker in workers:
        (crew.folder / f"release-{worker.pid}").touch()
    assert {job.result(timeout=60) for job in held} == {worker.pid for worker in workers}
    for job in held:  # one may have been claimed ahead, and handed back: never lost
        assert {str(row.status) for row in job.history()} <= {"succeeded", "released"}
    assert len(crew.executions()) == 3

    # Due soon, and due within the five minutes that one of them is ahead.
    soon = [crew.harbor.enqueue("note", {"n": n}, delay=1.0 + n / 10) for n in range(1, 6)]
    later = [crew.harbor.enqueue("note", {"n": n}, delay=200.0) for n in range(6, 9)]
    wait_until(lambda: all(job.refresh().state is State.SUCCEEDED for job in soon), what="what was due")
    for job in soon:
        [row] = job.history()
        assert row.started_at is not None
        assert job.run_at <= row.started_at <= row.finished_at  # by the server's clock, all of them
    assert {job.refresh().state for job in later} == {State.SCHEDULED}
    assert [worker.poll() for worker in workers] == [None] * 3, crew.errors()
