"""A network that swallows everything for a while and tells nobody: the same processes go on when it is back."""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.audit import Findings, audit
from tests.faults.processes import BUSY_MACHINE_SECONDS, Crew, called, wait_until
from tests.postgres import store
from tests.postgres.faults.crews import crew_on
from tests.postgres.proxy import ProxyThread, proxy_thread

LONG_SECONDS = float(os.environ.get("TASKHARBOR_FAULT_HOLE_SECONDS", "10"))
GO_ON_SECONDS = 10.0 + BUSY_MACHINE_SECONDS  # after the network's return


def _goes_on(crew: Crew, worker: subprocess.Popen[bytes], before: int, since: float) -> None:
    left = GO_ON_SECONDS - (time.monotonic() - since)
    wait_until(lambda: crew.executed_by(worker) > before, left, "the next execution")


def _through_a_hole(crew: Crew, through: ProxyThread, seconds: float, **options: float) -> list[str]:
    """A busy worker and an idle one, a hole, and what comes after it; the jobs."""
    busy = crew.start("work", url=through.dsn, queues=["busy"], concurrency=5, **options)
    idle = crew.start("work", url=through.dsn, queues=["idle"], concurrency=5, **options)
    jobs = crew.enqueue_notes(range(20), queue="busy", low=0.8, high=1.2)
    jobs += crew.enqueue_notes([20], queue="idle")
    wait_until(lambda: crew.executed_by(busy) >= 8 and crew.executed_by(idle), what="work")

    through.do(through.proxy.dig_hole)
    jobs += crew.enqueue_notes([21], queue="idle")  # who listens will not hear of it
    jobs += crew.enqueue_notes(range(22, 32), queue="busy", low=0.8, high=1.2)
    time.sleep(seconds)  # nothing to wait for: that is what a hole is
    before = {worker: crew.executed_by(worker) for worker in (busy, idle)}
    assert before[idle] == 1
    through.do(through.proxy.fill_hole)

    back_at = time.monotonic()
    for worker in (idle, busy):
        _goes_on(crew, worker, before[worker], back_at)
    wait_until(crew.is_done, 100, "the end of all jobs")
    assert (busy.poll(), idle.poll()) == (None, None), crew.errors()
    return [job.id for job in jobs]


def _survive(folder: Path, seconds: float, lease_seconds: float) -> Findings:
    with store.database() as dsn, crew_on(folder, dsn) as crew, proxy_thread(dsn) as through:
        jobs = _through_a_hole(crew, through, seconds, lease_seconds=lease_seconds)
        return called(crew.harbor, audit(crew.harbor.driver, jobs, crew.executions()))


@pytest.mark.timeout(400)
def test_workers_go_on_after_a_hole_in_the_network(tmp_path: Path) -> None:
    """Three holes, each with workers and a database of its own, at the same time: most of it is waiting."""
    holes = {
        "longer than the lease": (4.0, 2.0),
        "shorter": (4.0, 30.0),
        "as long as the lease": (LONG_SECONDS, LONG_SECONDS),
    }
    store.server()  # in the thread that stays
    with ThreadPoolExecutor() as pool:
        surviving = {name: pool.submit(_survive, tmp_path / name, *hole) for name, hole in holes.items()}
    found = {name: each.result() for name, each in surviving.items()}
    for each in found.values():
        each.assert_nothing_wrong()
        assert each.repeated <= each.losses
    assert found["longer than the lease"].losses > 0  # it was lost, and run again
    assert found["shorter"].losses == 0  # it was settled: the lease outlasted the hole
