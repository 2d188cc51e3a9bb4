"""The server itself crashes under load: nothing that it has acknowledged is lost, and the same processes go on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from tests.faults.audit import audit
from tests.faults.processes import BUSY_MACHINE_SECONDS, Crew, called, wait_until
from tests.postgres.faults.crews import crew_on
from tests.postgres.server import DURABLE, Server, running

GO_ON_SECONDS = 10.0 + BUSY_MACHINE_SECONDS  # after the server's return


def _backends(server: Server) -> list[int]:
    """Those that work for us."""

    async def look() -> list[int]:
        connection = await asyncpg.connect(server.dsn())
        try:
            rows = await connection.fetch(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'taskharbor%'"
            )
            return [row["pid"] for row in rows]
        finally:
            await connection.close()

    return asyncio.run(look())


def _answers(server: Server) -> bool:
    try:
        _backends(server)
    except (OSError, asyncpg.PostgresError):
        return False
    return True


def _kill_a_backend(server: Server, chance: random.Random) -> None:
    """With SIGKILL: the server takes its shared memory for spoilt, ends everybody, and recovers as from a crash."""
    os.kill(chance.choice(_backends(server)), signal.SIGKILL)
    time.sleep(0.05)  # until it has noticed; it goes away then


def _restart_at_once(server: Server, _chance: random.Random) -> None:
    """In immediate mode: no farewells, no checkpoint."""
    server.stop(signal.SIGQUIT)
    server.start()


def _go_on(crew: Crew, workers: list[subprocess.Popen[bytes]], since: float, fault: str) -> None:
    executed = [crew.executed_by(worker) for worker in workers]
    accepted = len(crew.lines("accepted"))

    def again() -> bool:
        return len(crew.lines("accepted")) > accepted and all(
            crew.executed_by(worker) > before for worker, before in zip(workers, executed, strict=True)
        )

    wait_until(again, GO_ON_SECONDS - (time.monotonic() - since), f"work after {fault}")


@pytest.mark.timeout(400)
def test_five_crashes_of_the_server_under_load_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(5)
    faults: list[Callable[[Server, random.Random], None]] = [_kill_a_backend] * 3 + [_restart_at_once] * 2
    chance.shuffle(faults)
    with running(DURABLE) as server, crew_on(tmp_path, server.dsn()) as crew:
        workers = [crew.start("work", concurrency=10, lease_seconds=3.0) for _ in range(2)]
        producers = [crew.start("insist", high=0.1, pause=0.002) for _ in range(2)]
        wait_until(lambda: all(crew.executed_by(worker) for worker in workers), what="load")
        for fault in faults:
            time.sleep(chance.uniform(0.1, 0.8))  # any moment will do
            fault(server, chance)
            wait_until(lambda: _answers(server), what="the server's return")
            _go_on(crew, workers, time.monotonic(), fault.__name__)
        for producer in producers:
            producer.terminate()
        assert [producer.wait(60) for producer in producers] == [0, 0], crew.errors()
        wait_until(crew.is_done, 100, "the end of all jobs")
        assert [worker.poll() for worker in workers] == [None, None], crew.errors()
        accepted = crew.lines("accepted")
        assert len(crew.lines("repeated")) >= 5, "the producers did not notice anything"
        assert len(set(accepted)) == len(accepted) == crew.counts()["succeeded"]  # one job each
        found = called(
            crew.harbor, audit(crew.harbor.driver, accepted, crew.executions(), server_crashed=True)
        )
        found.assert_nothing_wrong()
