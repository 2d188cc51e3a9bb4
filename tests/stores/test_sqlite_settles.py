"""Plain successes that are settled together share a row of `settles`. Nobody but the file can tell."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from taskharbor import conformance
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import (
    Claimed,
    ClaimRequest,
    Delete,
    Driver,
    OperationVerdict,
    Requeue,
    SettleAnswer,
    SettleResult,
    Transition,
)
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver, operate, settle
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.records import AttemptStatus, JobFilter, NewJob, Reason, State
from taskharbor.sync import run_inline
from tests.drivers.test_conformance import fresh_sqlite

MINUTE = 60_000_000
ROUNDS = 10  # of a race: who comes first is left to the machine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver(file: Path, clock: ManualClock) -> Iterator[SQLiteDriver]:
    with opened(file, clock) as driver:
        yield driver


@pytest.fixture
def other(driver: SQLiteDriver, file: Path, clock: ManualClock) -> Iterator[SQLiteDriver]:
    """Another connection to the same file."""
    with opened(file, clock) as driver:
        yield driver


@contextmanager
def opened(file: Path, clock: ManualClock) -> Iterator[SQLiteDriver]:
    driver = SQLiteDriver(str(file), clock=clock)
    run_inline(driver.open())
    yield driver
    run_inline(driver.close())


def id_of(number: int) -> str:
    return f"019b76da-a800-7000-8000-{number:012x}"


def claimed(
    driver: Driver, count: int, token: str = "w/1", *, first: int = 0, **fields: Any
) -> list[Claimed]:
    """New jobs, under a lease of their own."""
    jobs = [NewJob(id=id_of(n), task="t", **fields) for n in range(first, first + count)]
    run_inline(driver.enqueue(jobs))
    return run_inline(driver.claim(ClaimRequest(token, MINUTE, count))).jobs


def success(job: Claimed, token: str = "w/1", **fields: Any) -> Transition:
    return Transition(
        token, job.id, job.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED, job.attempts, **fields
    )


def settled(driver: Driver, transitions: Sequence[Transition]) -> list[SettleResult]:
    return run_inline(driver.settle(transitions))


def delete_each(driver: Driver, ids: Sequence[str]) -> None:
    for job_id in ids:
        run_inline(driver.operate(Delete(), [job_id]))


def answers(results: Sequence[SettleResult]) -> set[SettleAnswer]:
    return {result.answer for result in results}


def rows(driver: SQLiteDriver, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(driver.path)) as connection:
        return connection.execute(statement).fetchall()


def settles(driver: SQLiteDriver) -> dict[str, int]:
    """How many attempts share each settle, by its token. Every row of the file that says so agrees."""
    counted = {
        row[0]: row[1:]
        for row in rows(driver, "SELECT id, token, attempts, finished_at FROM taskharbor_settles")
    }
    lists = dict(rows(driver, "SELECT settle_id, ids FROM taskharbor_settled"))
    named = rows(driver, "SELECT settle_id, job_id FROM taskharbor_attempts WHERE settle_id IS NOT NULL")
    assert counted.keys() == lists.keys() == {settle_id for settle_id, _ in named}
    for settle_id, (_, attempts, _) in counted.items():
        ids = [job_id for each, job_id in named if each == settle_id]
        assert attempts == len(ids)
        assert set(ids) <= set(json.loads(lists[settle_id]))
    return {token: attempts for token, attempts, _ in counted.values()}


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run them in a thread each, from one moment on; what each returned."""
    gate = threading.Barrier(len(works))
    returned: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        gate.wait()
        returned[index] = works[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return returned


# -- what is stored, and what is read ------------------------------------------------------------


def test_successes_of_one_settle_share_a_row(driver: SQLiteDriver):
    jobs = claimed(driver, 20)
    assert answers(settled(driver, [success(job, started_at=5) for job in jobs])) == {SettleAnswer.DONE}
    assert settles(driver) == {"w/1": 20}
    own = "status, retry_count, attempts, token, worker, finished_at, next_at, result, worker_survived"
    assert set(rows(driver, f"SELECT {own} FROM taskharbor_attempts")) == {(None,) * 9}


def test_few_successes_have_rows_of_their_own(driver: SQLiteDriver):
    jobs = claimed(driver, settle.SHARED_MIN - 1)
    settled(driver, [success(job) for job in jobs])
    assert settles(driver) == {}
    assert len(rows(driver, "SELECT * FROM taskharbor_attempts WHERE token = 'w/1'")) == len(jobs)


def test_each_lease_of_one_call_has_a_settle_of_its_own(driver: SQLiteDriver):
    first, second = claimed(driver, 10), claimed(driver, 12, "v/1", first=10, queue="other")
    mixed = [success(job) for job in first] + [success(job, "v/1") for job in second]
    assert answers(settled(driver, mixed[::-1])) == {SettleAnswer.DONE}
    assert settles(driver) == {"w/1": 10, "v/1": 12}
    [attempt] = run_inline(driver.history(second[0].id))
    assert attempt.worker == "v"


def test_readers_see_what_the_reference_sees(driver: SQLiteDriver, clock: ManualClock):
    """With and without results, with failures before, with priorities and queues of all kinds."""
    told: list[Any] = []
    for store in (driver, MemoryDriver(ManualClock(clock.now()))):
        jobs = claimed(store, 10) + claimed(store, 10, "w/2", first=10, priority=5, queue="other")
        failed = [
            Transition("w/2", job.id, 1, AttemptStatus.FAILED, State.READY, 1, started_at=1, error="no")
            for job in jobs[10:]
        ]
        settled(store, failed)
        again = run_inline(store.claim(ClaimRequest("w/3", MINUTE, 20))).jobs
        settled(store, [success(job, started_at=2) for job in jobs[:10]])
        ended = [
            success(job, "w/3", started_at=n, result="7" if n % 2 else None) for n, job in enumerate(again)
        ]
        settled(store, ended)
        ids = [id_of(n) for n in range(20)]
        told.append(
            (
                run_inline(store.get(ids)),
                [run_inline(store.history(job_id)) for job_id in ids],
                run_inline(store.list(JobFilter(state=State.SUCCEEDED))),
                run_inline(store.counts()),
            )
        )
    assert told[0] == told[1]
    assert settles(driver) == {"w/1": 10, "w/3": 10}
    assert all(check.ok for check in run_inline(driver.check()) if check.name == "places")


def test_member_of_a_settle_is_a_dependency_that_has_succeeded(driver: SQLiteDriver):
    jobs = claimed(driver, 10)
    settled(driver, [success(job, result="7") for job in jobs])
    dependant = NewJob(id=id_of(99), task="t", depends_on=(jobs[3].id,))
    [enqueued] = run_inline(driver.enqueue([dependant]))
    assert enqueued.state is State.READY
    [[member]] = run_inline(driver.results([dependant.id]))
    assert (member.job_id, member.succeeded, member.result) == (jobs[3].id, True, "7")


@pytest.mark.parametrize("room", ["claim", "enqueue", "operate", "reads", "settle", "workflows"])
def test_no_statement_reads_all_of_history(driver: SQLiteDriver, room: str):
    with closing(sqlite3.connect(driver.path)) as connection:
        for name, statement in statements(room).items():
            asked = re.sub(r"\?\d*|:\w+", "1", statement)
            steps = [step for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {asked}")]
            scans = [
                step for step in steps if step.startswith("SCAN") and step.split()[1] in NAMES_OF_HISTORY
            ]
            assert scans == [], name


# With the names that statements give them.
NAMES_OF_HISTORY = {"a", "h", "x", "s", "taskharbor_attempts", "taskharbor_history", "taskharbor_settles"}


# -- the fence -----------------------------------------------------------------------------------


def test_repeated_settle_changes_nothing(driver: SQLiteDriver):
    ended = [success(job) for job in claimed(driver, 10)]
    settled(driver, ended)
    again = settled(driver, ended)
    assert answers(again) == {SettleAnswer.DONE}
    assert {result.recorded for result in again} == {AttemptStatus.SUCCEEDED}
    assert settles(driver) == {"w/1": 10}
    assert run_inline(driver.counts())[State.SUCCEEDED] == 10


def test_settle_that_overlaps_another_adds_what_is_new(driver: SQLiteDriver):
    ended = [success(job) for job in claimed(driver, 30)]
    settled(driver, ended[:20])
    assert answers(settled(driver, ended[10:])) == {SettleAnswer.DONE}
    assert len(rows(driver, "SELECT * FROM taskharbor_attempts")) == 30
    assert sum(settles(driver).values()) == 20
    assert run_inline(driver.counts())[State.SUCCEEDED] == 30
    assert run_inline(driver.leases()) == []


def test_job_that_comes_twice_in_a_settle_is_recorded_once(driver: SQLiteDriver):
    ended = [success(job) for job in claimed(driver, 10)]
    assert answers(settled(driver, ended + ended[:1])) == {SettleAnswer.DONE}
    assert len(rows(driver, "SELECT * FROM taskharbor_attempts")) == 10
    assert run_inline(driver.counts())[State.SUCCEEDED] == 10


@pytest.mark.parametrize("wrong", ["number", "job", "token"])
def test_settle_with_a_member_that_its_lease_does_not_cover_settles_the_others(
    driver: SQLiteDriver, wrong: str
):
    jobs = claimed(driver, 10)
    ended = [success(job) for job in jobs]
    [foreign] = claimed(driver, 1, "v/1", first=50)
    ended[4] = {
        "number": Transition("w/1", jobs[4].id, 2, AttemptStatus.SUCCEEDED, State.SUCCEEDED),
        "job": success(foreign),
        "token": success(jobs[4], "v/1"),
    }[wrong]
    refused = [n for n, result in enumerate(settled(driver, ended)) if result.answer is not SettleAnswer.DONE]
    assert refused == [4]
    assert run_inline(driver.counts())[State.RUNNING] == 2


def test_expired_lease_settles_nothing(driver: SQLiteDriver, clock: ManualClock):
    ended = [success(job) for job in claimed(driver, 10)]
    clock.advance(60)
    assert answers(settled(driver, ended)) == {SettleAnswer.LEASE_EXPIRED}
    assert (settles(driver), rows(driver, "SELECT * FROM taskharbor_attempts")) == ({}, [])


def test_collector_and_late_finisher_settle_each_job_once(
    driver: SQLiteDriver, other: SQLiteDriver, clock: ManualClock
):
    """The finisher asks at the last moment of its lease, the collector at the first one after it."""
    for n in range(ROUNDS):
        token, collector = f"w/{n}", f"c/{n}"
        jobs = claimed(driver, 10, token, first=100 * n)
        ended = [success(job, token) for job in jobs]
        over = clock.now() + MINUTE

        def finish(ended: list[Transition] = ended, at: int = over - 1) -> set[SettleAnswer]:
            return answers(run_inline(driver.settle(ended, now=at)))

        def collect(collector: str = collector, at: int = over) -> set[SettleAnswer]:
            lease = run_inline(other.take_expired(collector, MINUTE, now=at))
            lost = [
                Transition(collector, job.id, job.number, AttemptStatus.LOST, State.DEAD, reason=Reason.LOST)
                for job in (lease.jobs if lease else [])
            ]
            return answers(run_inline(other.settle(lost, now=at)))

        finished, collected = at_once(finish, collect)
        ids = [job.id for job in jobs]
        states = {record.state for record in run_inline(driver.get(ids)) if record}
        if finished == {SettleAnswer.DONE}:
            assert (collected, states) == (set(), {State.SUCCEEDED})
        else:
            assert (collected, states) == ({SettleAnswer.DONE}, {State.DEAD})
            assert SettleAnswer.DONE not in finished
        assert {len(run_inline(driver.history(job_id))) for job_id in ids} == {1}
        settles(driver)


def test_settle_that_races_its_own_repeat_counts_once(driver: SQLiteDriver, other: SQLiteDriver):
    for n in range(ROUNDS):
        token = f"w/{n}"
        jobs = claimed(driver, 20, token, first=100 * n)
        ended = [success(job, token) for job in jobs]
        first, second = at_once(partial(settled, driver, ended), partial(settled, other, ended[::-1]))
        assert answers(first) == answers(second) == {SettleAnswer.DONE}
        assert settles(driver)[token] == 20
        assert run_inline(driver.counts())[State.SUCCEEDED] == 20 * (n + 1)


def test_settles_of_one_lease_by_two_connections_share_nothing_and_lose_nothing(
    driver: SQLiteDriver, other: SQLiteDriver
):
    for n in range(ROUNDS):
        token = f"w/{n}"
        ended = [success(job, token) for job in claimed(driver, 40, token, first=100 * n)]
        at_once(partial(settled, driver, ended[::2]), partial(settled, other, ended[1::2]))
        assert run_inline(driver.leases()) == []
        assert run_inline(driver.counts())[State.SUCCEEDED] == 40 * (n + 1)
        settles(driver)


# -- one member ----------------------------------------------------------------------------------


def test_settle_goes_with_its_last_member(driver: SQLiteDriver):
    jobs = claimed(driver, 10)
    settled(driver, [success(job) for job in jobs])
    for left, job in reversed(list(enumerate(jobs))):
        [deleted] = run_inline(driver.operate(Delete(), [job.id]))
        assert deleted.verdict is OperationVerdict.DONE
        assert settles(driver) == ({"w/1": left} if left else {})
        assert run_inline(driver.history(job.id)) == []
        assert all(len(run_inline(driver.history(each.id))) == 1 for each in jobs[:left])


def test_deletions_of_two_connections_are_both_counted(driver: SQLiteDriver, other: SQLiteDriver):
    for n in range(ROUNDS):
        token = f"w/{n}"
        jobs = claimed(driver, 20, token, first=100 * n)
        settled(driver, [success(job, token) for job in jobs])
        ids = [job.id for job in jobs]
        at_once(partial(delete_each, driver, ids[::2]), partial(delete_each, other, ids[1::2]))
        assert settles(driver) == {}


def test_deletion_races_a_repeated_settle(driver: SQLiteDriver, other: SQLiteDriver):
    """A deleted job does not come back, neither as an attempt nor in a tally."""
    for n in range(ROUNDS):
        token = f"w/{n}"
        jobs = claimed(driver, 20, token, first=100 * n)
        ended = [success(job, token) for job in jobs]
        settled(driver, ended[:15])
        doomed = [job.id for job in jobs[:5]]
        at_once(partial(delete_each, other, doomed), partial(settled, driver, ended))
        assert run_inline(driver.get(doomed)) == [None] * 5
        assert (
            rows(
                driver,
                "SELECT * FROM taskharbor_attempts WHERE job_id NOT IN (SELECT id FROM taskharbor_jobs)",
            )
            == []
        )
        assert run_inline(driver.counts())[State.SUCCEEDED] == 15 * (n + 1)
        settles(driver)


def test_succeeded_member_is_not_requeued(driver: SQLiteDriver):
    jobs = claimed(driver, 10)
    settled(driver, [success(job) for job in jobs])
    [answer] = run_inline(driver.operate(Requeue(), [jobs[0].id]))
    assert (answer.verdict, answer.state) == (OperationVerdict.CONFLICT, State.SUCCEEDED)
    assert settles(driver) == {"w/1": 10}


# -- pruning -------------------------------------------------------------------------------------


def test_pruning_goes_by_age_over_settles_and_single_rows(driver: SQLiteDriver, clock: ManualClock):
    """Slice by slice, the same jobs as the reference."""
    memory_clock = ManualClock(clock.now())
    memory = MemoryDriver(memory_clock)
    left: list[list[list[str]]] = []
    for store, time in ((driver, clock), (memory, memory_clock)):
        for n, count in enumerate((12, 3, 10, 9, 5)):
            jobs = claimed(store, count, f"w/{n}", first=100 * (5 - n))
            settled(store, [success(job, f"w/{n}") for job in jobs])
            if n != 2:  # the third and the fourth end in the same moment
                time.advance(1)
        kept = []
        for _ in range(8):
            before = {State.SUCCEEDED: time.now() - 500_000}
            run_inline(store.prune(before, 7))
            kept.append([job.id for job in run_inline(store.list(JobFilter())).jobs])
        left.append(kept)
    assert left[0] == left[1]
    assert left[0][-1] == []
    assert settles(driver) == {}


def test_pruning_leaves_what_is_too_young(driver: SQLiteDriver, clock: ManualClock):
    settled(driver, [success(job) for job in claimed(driver, 10)])
    clock.advance(10)
    young = claimed(driver, 10, "w/2", first=50)
    settled(driver, [success(job, "w/2") for job in young])
    assert run_inline(driver.prune({State.SUCCEEDED: clock.now()}, 100)) == 10
    assert settles(driver) == {"w/2": 10}


def test_pruned_part_of_a_settle_is_not_looked_for_again(driver: SQLiteDriver, clock: ManualClock):
    count = operate.SHORTENED_MIN
    settled(driver, [success(job) for job in claimed(driver, 2 * count)])
    clock.advance(1)
    run_inline(driver.prune({State.SUCCEEDED: clock.now()}, count))
    [(ids,)] = rows(driver, "SELECT ids FROM taskharbor_settled")
    assert json.loads(ids) == [id_of(n) for n in range(count, 2 * count)]


def test_job_that_was_stored_anew_is_not_pruned_for_its_former_self(driver: SQLiteDriver, clock: ManualClock):
    jobs = claimed(driver, 20)
    settled(driver, [success(job) for job in jobs])
    run_inline(driver.operate(Delete(), [job.id for job in jobs[:10]]))
    clock.advance(10)
    again = claimed(driver, 10, "w/2")
    settled(driver, [success(job, "w/2") for job in again])
    assert run_inline(driver.prune({State.SUCCEEDED: clock.now()}, 100)) == 10
    assert settles(driver) == {"w/2": 10}
    assert all(run_inline(driver.get([job.id for job in again])))


def test_pruning_races_a_deletion(driver: SQLiteDriver, other: SQLiteDriver, clock: ManualClock):
    for n in range(ROUNDS):
        token = f"w/{n}"
        jobs = claimed(driver, 20, token, first=100 * n)
        settled(driver, [success(job, token) for job in jobs])
        clock.advance(1)
        ids = [job.id for job in jobs[10:]]
        at_once(
            lambda: run_inline(driver.prune({State.SUCCEEDED: clock.now()}, 15)),
            partial(delete_each, other, ids),
        )
        settles(driver)
        run_inline(driver.prune({State.SUCCEEDED: clock.now()}, 15))
        assert (settles(driver), run_inline(driver.counts())[State.SUCCEEDED]) == ({}, 0)


# -- every story, with a settle for each success -------------------------------------------------


@contextmanager
def sharing_sqlite(clock: ManualClock) -> Iterator[SQLiteDriver]:
    """As if every success had company: the stories of the machine settle few at a time."""
    with patch.object(settle, "SHARED_MIN", 1), fresh_sqlite(clock) as driver:
        yield driver


# A few stories: the same machine tells many to the usual driver, and `make faults` tells many to this one too.
STORIES = int(os.environ.get("TASKHARBOR_CONFORMANCE_EXAMPLES", "10"))
TestSharingMachine = conformance.state_machine(sharing_sqlite, examples=STORIES)
