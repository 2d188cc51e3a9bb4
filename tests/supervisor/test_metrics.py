"""What all processes of a worker have counted, at one port: exact while they come and go, and never twice."""

from __future__ import annotations

import os
import signal
import socket
import sys
import urllib.request
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.postgres.server import free_port
from tests.supervisor.conftest import Shop

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

RECYCLED = int(os.environ.get("TASKHARBOR_FAULT_RECYCLED", "20"))
JOBS_EACH = 5
AHEAD_MAX = 50  # jobs that a process with such a pace may have claimed ahead

Samples = dict[tuple[str, str, str], float]  # by name, queue and task


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, sample.labels.get("queue", ""), sample.labels.get("task", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, task: str = "note") -> float:
    return found.get((f"taskharbor_{name}", "default", task), 0.0)


def counted(port: int, name: str, task: str = "note") -> float:
    return value(scrape(port), name, task)


def attempts(shop: Shop, jobs: list[Any]) -> Counter[str]:
    """Return how many attempts the store has, by status."""
    return Counter(str(row.status) for job in jobs for row in job.history(limit=100))


def test_children_that_are_recycled_count_exactly_and_leave_nothing_behind(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    left, port, jobs = tmp_path / "temporary", free_port(), RECYCLED * JOBS_EACH
    left.mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    parent = shop.started(processes=2, max_jobs=JOBS_EACH, metrics_port=port)
    shop.enqueue_notes(range(jobs))
    seconds = 60 + 6.0 * RECYCLED
    shop.wait(shop.is_done, "the jobs", seconds)
    # A child may do a job more than it has to, since it ends what it has begun: then fewer of them did all of these.
    while len(shop.lines("workers")) <= RECYCLED:
        shop.enqueue_notes(range(jobs, jobs + JOBS_EACH))
        jobs += JOBS_EACH
        shop.wait(shop.is_done, "some more jobs", seconds)
    shop.wait(lambda: counted(port, "jobs_succeeded_total") == jobs, "the counts")
    found = scrape(port)
    for name in (
        "jobs_enqueued_total",
        "jobs_started_total",
        "job_wait_seconds_count",
        "job_duration_seconds_count",
    ):
        assert value(found, name) == jobs, name
    assert found["taskharbor_settle_batch_jobs_sum", "", ""] >= jobs  # handed back ones are settled as well
    for name in ("jobs_failed_total", "jobs_lost_total", "jobs_dead_total", "retries_total"):
        assert value(found, name) == 0, name
    assert _shared_memories(parent.pid) <= 4  # two that work, and perhaps two that retire
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 0
    assert list(left.iterdir()) == []


def _shared_memories(pid: int) -> int:
    maps = Path(f"/proc/{pid}/maps")
    return maps.read_text().count("memfd:taskharbor") if maps.exists() else 0


def test_children_that_are_killed_count_nothing_twice(shop: Shop):
    port, kills, at_once = free_port(), 6, 4
    parent = shop.started(processes=2, concurrency=at_once, metrics_port=port, lease_seconds=5)
    jobs = shop.enqueue_notes(range(400), seconds=0.02)
    for kill in range(kills):
        shop.wait(lambda: len(shop.lines("executions")) >= 40 * (kill + 1), "some executions")  # noqa: B023
        shop.wait(shop.children, "a child")
        os.kill(shop.children()[-1], signal.SIGKILL)
    shop.wait(shop.is_done, "the jobs")
    stored = attempts(shop, jobs)
    assert stored["succeeded"] == len(jobs)
    # One more job of each process, so that what the last settles count is there as well.
    small = [job.result(timeout=60) for job in shop.enqueue_notes(range(400, 420))]
    shop.wait(lambda: counted(port, "jobs_lost_total") >= stored["lost"], "the losses")
    found = scrape(port)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 0
    # A kill loses the counts of a claim and of a settle, each of no more jobs than a process holds.
    held, ended = at_once + AHEAD_MAX, len(jobs) + len(small)
    assert ended - kills * held <= value(found, "jobs_succeeded_total") <= ended
    assert ended - kills * held <= value(found, "jobs_enqueued_total") <= ended
    assert value(found, "jobs_lost_total") == stored["lost"] > 0
    assert value(found, "jobs_started_total") <= ended + stored["lost"]


def test_a_job_that_kills_its_process_is_counted_by_the_supervisor(small: Shop):
    port = free_port()
    small.started(processes=1, metrics_port=port)
    poison = small.harbor.enqueue("die", {"how": "kill"})
    small.wait(lambda: poison.refresh().state == "dead", "its end")
    small.wait(lambda: counted(port, "jobs_dead_total", "die") == 1, "the count")
    assert counted(port, "jobs_lost_total", "die") == attempts(small, [poison])["lost"] > 1
    assert counted(port, "jobs_enqueued_total", "die") == 1


def test_processes_leave_what_they_counted_in_the_roll_ups(shop: Shop):
    """Exactly, because each of them retires or is stopped."""
    parent = shop.started(processes=2, max_jobs=10)
    shop.enqueue_notes(range(45))
    failed = [shop.harbor.enqueue("fail", max_attempts=1) for _ in range(5)]
    shop.wait(lambda: shop.is_done() and all(job.refresh().state == "dead" for job in failed), "the jobs")
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(60) == 0
    found: Counter[tuple[str, str]] = Counter()
    for task in ("note", "fail"):
        for point in shop.harbor.stats.series(task=task, since=timedelta(hours=1)):
            for name in ("enqueued", "started", "succeeded", "dead"):
                found[task, name] += getattr(point, name)
    assert found == {
        **{("note", name): 45 for name in ("enqueued", "started", "succeeded")},
        **{("fail", name): 5 for name in ("enqueued", "started", "dead")},
        ("note", "dead"): 0,
        ("fail", "succeeded"): 0,
    }


@pytest.mark.parametrize("processes", [{}, {"processes": 2}], ids=["one process", "supervised"])
def test_the_port_shows_the_store_where_that_is_asked_for(small: Shop, processes: dict[str, int]):
    port = free_port()
    small.start(metrics_port=port, metrics_store=True, metrics_prefix="", **processes)
    small.wait(lambda: len(small.lines("workers")) == processes.get("processes", 1), "the workers")
    small.enqueue_notes(range(7))
    small.harbor.enqueue("note", {"n": 7}, delay=3_600)  # so that its queue is there
    small.wait(lambda: scrape(port).get(("jobs_succeeded_total", "default", "note")) == 7, "the counts")
    small.wait(
        lambda: scrape(port).get(("workers", "", "")) == processes.get("processes", 1), "the workers' records"
    )
    found = scrape(port)
    assert found["store_up", "", ""] == 1
    assert found["queue_paused", "default", ""] == 0
    assert found["worker_slots", "", ""] == 100 * processes.get("processes", 1)


@pytest.mark.parametrize("processes", [{}, {"processes": 1}], ids=["one process", "supervised"])
def test_a_port_that_is_taken_is_an_error_at_the_start(small: Shop, processes: dict[str, int]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert small.start(metrics_port=port, **processes).wait(60) == 1
    assert f"no metrics port at 127.0.0.1:{port}: Address already in use" in small.errors()
    assert small.lines("workers") == []
