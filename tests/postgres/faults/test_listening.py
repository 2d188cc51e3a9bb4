"""A worker that waits: what it hears, what it costs, and that it hears again after its listener was lost."""

from __future__ import annotations

import subprocess
import sys
import time

from taskharbor.drivers.postgres import changes
from tests.faults.processes import Crew, wait_until
from tests.postgres import store
from tests.postgres.proxy import proxy_thread

SCRIPT = """
import sys
from taskharbor import Harbor

Harbor(sys.argv[1]).enqueue("note", {"n": int(sys.argv[2])})
"""


def _listeners(dsn: str) -> set[int]:
    found = store.query(
        dsn,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 "
        "AND state = 'idle'",
        changes.LISTENER,
    )
    return {row["pid"] for row in found}


def _promptly(crew: Crew, n: int) -> None:
    wait_until(lambda: crew.executions_of()[n], what="the execution, long before the next poll")


def test_lost_listener_is_rebuilt_and_work_begins_without_waiting_for_polls(crew: Crew) -> None:
    """The net is an hour wide: whatever is found, is found by listening."""
    worker = crew.worker(net_seconds=3600.0)
    lost: set[int] = set()
    for n in range(3):
        [listener] = wait_until(lambda: _listeners(crew.url) - lost, what="a listener")
        crew.enqueue_notes([2 * n])
        _promptly(crew, 2 * n)
        store.query(crew.url, "SELECT pg_terminate_backend($1)", listener)
        lost.add(listener)
        wait_until(lambda: _listeners(crew.url) - lost, what="another listener")
        crew.enqueue_notes([2 * n + 1])
        _promptly(crew, 2 * n + 1)
    assert worker.poll() is None


def test_script_that_enqueues_and_ends_is_heard(crew: Crew) -> None:
    """It closes nothing: its last notification goes out all the same."""
    crew.worker(net_seconds=3600.0)
    wait_until(lambda: _listeners(crew.url), what="a listener")
    for n in range(5):
        subprocess.run([sys.executable, "-c", SCRIPT, crew.url, str(n)], check=True, timeout=60)
        _promptly(crew, n)


def test_idle_worker_makes_fewer_than_two_queries_a_second(crew: Crew) -> None:
    """With a listener, and behind a pooler without one."""
    with proxy_thread(crew.url) as listening, proxy_thread(crew.url) as polling:
        crew.worker(url=listening.dsn)
        crew.worker(url=f"{polling.dsn}?listen=off")
        wait_until(lambda: _listeners(crew.url), what="a listener")
        # The start of a worker takes more queries.
        wait_until(lambda: _claims(listening.proxy.statements) >= 2, what="a second claim")
        wait_until(lambda: _claims(polling.proxy.statements) >= 2, what="a second claim")
        before = [len(_queries(through.proxy.statements)) for through in (listening, polling)]
        began = time.monotonic()
        time.sleep(10)
        seconds = time.monotonic() - began
        after = [len(_queries(through.proxy.statements)) for through in (listening, polling)]
        for least, most in zip(before, after, strict=True):
            assert 0 < (most - least) / seconds < 2


def _claims(statements: list[tuple[int, str]]) -> int:
    return sum("claim_on_trail" in text for _, text in statements)


def _queries(statements: list[tuple[int, str]]) -> list[str]:
    return [text for _, text in statements if text not in ("BEGIN;", "COMMIT;")]
