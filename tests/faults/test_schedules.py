"""Two, then five workers with 200 one-second schedules, and one of them killed every three seconds.

Ten seconds of it in the suite; TASKHARBOR_FAULT_SECONDS=60 for a minute.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor.client.handle import Attempt
from taskharbor.client.options import checked_options
from taskharbor.client.schedule import checked_recurrence, recurring_job, schedule_id
from taskharbor.clock import MICROS_PER_SECOND, to_micros
from tests.faults.processes import BUSY_MACHINE_SECONDS, Crew, called, wait_until
from tests.postgres import store

SECONDS = float(os.environ.get("TASKHARBOR_FAULT_SECONDS", "10"))
SCHEDULES = 200
KILL_SECONDS = 3.0

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
    pytest.mark.timeout(int(300 + 3 * SECONDS)),
]


@pytest.fixture(params=["sqlite", "postgres"])
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crew]:
    if request.param == "sqlite":
        yield from _closing(Crew(tmp_path))
        return
    with store.database() as dsn:
        crew = Crew(tmp_path, dsn)
        crew.harbor.migrate()
        yield from _closing(crew)


def _closing(crew: Crew) -> Iterator[Crew]:
    try:
        yield crew
    finally:
        crew.close()


def name(n: int) -> str:
    return f"s{n:05d}"


def is_once(n: int) -> bool:
    return n % 2 == 1


def add_schedules(crew: Crew, count: int, schedule: str, **options: Any) -> None:
    """All at once, since they may be due soon."""

    async def add() -> None:
        now = await crew.harbor.driver.now()
        jobs = []
        for n in range(count):
            recurrence = checked_recurrence(name(n), "default", {"schedule": schedule}, declared=False)
            given = checked_options(
                {"delivery": "at_most_once" if is_once(n) else "at_least_once", **options}
            )
            jobs.append(recurring_job("due", f'{{"n":{n}}}', given, recurrence, now))
        await crew.harbor.schedules._ensure(jobs)
        await crew.harbor.aclose()

    asyncio.run(add())


class Executed:
    """What the workers wrote down: (schedule, attempt number) → when it was due; and how often that was executed."""

    def __init__(self, crew: Crew) -> None:
        self.due: dict[tuple[int, int], int] = {}
        self.times: Counter[tuple[int, int]] = Counter()
        for line in crew.lines("occurrences"):
            n, due_at, number, _pid = map(int, line.split())
            self.due[n, number] = due_at
            self.times[n, number] += 1


def test_every_claimed_occurrence_runs_and_none_of_at_most_once_twice(crew: Crew):
    options = {"concurrency": 50, "lease_seconds": 5.0}  # no busy machine loses them all
    add_schedules(crew, SCHEDULES, "* * * * * *")
    workers = [crew.worker(**options) for _ in range(2)]
    begun_at = time.monotonic()
    kills = 0
    while time.monotonic() - begun_at < SECONDS:
        time.sleep(KILL_SECONDS)
        if len(workers) == 2 and time.monotonic() - begun_at >= SECONDS / 2:
            workers += [crew.worker(**options) for _ in range(3)]
        victim = at_work(crew, [worker.pid for worker in workers])
        crew.kill(workers[victim])
        kills += 1
        workers[victim] = crew.worker(**options)
    killed_at = crew.harbor.driver.clock.now()

    def all_alive() -> bool:
        return all(
            each.due_at and to_micros(each.due_at) > killed_at for each in crew.harbor.schedules.list()
        )

    wait_until(all_alive, 100, "an occurrence of each schedule after the last kill")
    for worker in workers:
        worker.terminate()
    for worker in workers:
        assert worker.wait(60) == 0, crew.errors()
    assert crew.counts()["dead"] == 0
    assert crew.counts()["scheduled"] + crew.counts()["ready"] == SCHEDULES

    executed = Executed(crew)
    lost = sum(check(n, executed, history_of(crew, n)) for n in range(SCHEDULES))
    assert lost > 0, "the kills came to nothing"
    print(f"{len(executed.due)} executions of {SCHEDULES} schedules, {kills} kills, {lost} attempts lost")


def at_work(crew: Crew, pids: list[int]) -> int:
    """One that has just begun an occurrence: to be killed in the midst of it."""
    before = len(crew.lines("occurrences"))
    wait_until(lambda: len(crew.lines("occurrences")) > before, what="an execution")
    return pids.index(int(crew.lines("occurrences")[-1].split()[-1]))


def history_of(crew: Crew, n: int) -> list[Attempt]:
    """Oldest first."""
    return crew.harbor.jobs.history(schedule_id("default", name(n)), limit=1000)[::-1]


def check(n: int, executed: Executed, rows: list[Attempt]) -> int:
    """One schedule's history against what was executed; how many of its attempts were lost."""
    by_due: dict[int, list[Attempt]] = defaultdict(list)
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        status, times = str(row.status), executed.times[n, row.number]
        assert status in {"succeeded", "lost", "released"}, (n, status, row.error)
        assert times == {"succeeded": 1, "released": 0}.get(status, min(times, 1)), (
            n,
            row.number,
            status,
            times,
        )
        if (n, row.number) in executed.due:
            by_due[executed.due[n, row.number]].append(row)
    assert by_due, f"schedule {n} was never executed"
    dues = list(by_due)
    assert dues == sorted(dues), "an occurrence came after a later one"
    for due_at, attempts in by_due.items():
        assert due_at % MICROS_PER_SECOND == 0, "it drifts"
        assert all(to_micros(row.started_at) >= due_at for row in attempts if row.started_at)
        if is_once(n):
            assert len(attempts) == 1, f"at_most_once schedule {n} ran twice for one occurrence"
        # Executed again only where an execution was lost, and until it succeeded.
        assert [str(row.status) for row in attempts[:-1]] == ["lost"] * (len(attempts) - 1)
    # An occurrence was missed only while the run before it was late or under way.
    for due_at, following in itertools.pairwise(dues):
        if following - due_at > MICROS_PER_SECOND:
            before = [row for row in rows if row.number < by_due[following][0].number]
            assert to_micros(before[-1].finished_at) >= following - MICROS_PER_SECOND, (n, due_at, following)
    return sum(str(row.status) == "lost" for row in rows)


def test_many_schedules_due_at_once_do_not_hold_up_another_queue(crew: Crew):
    """TASKHARBOR_FAULT_SCHEDULES=10000 for the whole number."""
    count = int(os.environ.get("TASKHARBOR_FAULT_SCHEDULES", "1000"))
    due_at = crew.harbor.driver.clock.now() // MICROS_PER_SECOND + 5 + count // 1000
    moment = time.gmtime(due_at)
    expression = f"{moment.tm_sec} {moment.tm_min} {moment.tm_hour} {moment.tm_mday} {moment.tm_mon} *"
    add_schedules(crew, count, expression, queue="many")
    crew.worker(queues=["many"], concurrency=100)
    crew.worker(queues=["others"], concurrency=10)
    late_by = crew.harbor.driver.clock.now() / MICROS_PER_SECOND - due_at
    jobs = []

    def done() -> bool:
        jobs.append(crew.harbor.enqueue("note", {"n": 0}, queue="others"))
        time.sleep(0.02)
        return len(crew.lines("occurrences")) >= count

    wait_until(done, 100, "the end of them all")
    ended_at = crew.harbor.driver.clock.now()
    executed = [line.split()[0] for line in crew.lines("occurrences")]
    assert len(set(executed)) == len(executed) == count
    for job in jobs:
        job.result(timeout=60)
    records = called(crew.harbor, crew.harbor.driver.get([job.id for job in jobs]))
    waits = [
        (record.enqueued_at, record.finished_at)
        for record in records
        if record is not None and record.finished_at is not None
    ]
    assert len(waits) == len(jobs)
    longest = max(finished_at - enqueued_at for enqueued_at, finished_at in waits) / MICROS_PER_SECOND
    assert longest < 2 + BUSY_MACHINE_SECONDS, f"another queue stood still for {longest:.2f} s"
    beside = [finished_at for enqueued_at, finished_at in waits if enqueued_at >= due_at * MICROS_PER_SECOND]
    assert sum(finished_at < ended_at for finished_at in beside) >= len(beside) / 2, (
        "another queue stood still"
    )
    print(f"{count} schedules (late by {late_by:.1f} s): others waited at most {longest:.3f} s")
