"""What is particular to the memory driver, and one walk through its verbs.

What it shares with every store is proved by the conformance suite.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from taskharbor.clock import ManualClock
from taskharbor.drivers.base import (
    Cancel,
    Claimed,
    ClaimRequest,
    Delete,
    Extension,
    Occurrence,
    OperationResult,
    OperationVerdict,
    ProgressNote,
    Requeue,
    SettleAnswer,
    StepNote,
    Transition,
    Update,
)
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.memory.order import Order
from taskharbor.errors import ConfigurationError
from taskharbor.records import (
    AttemptStatus,
    Delivery,
    JobFilter,
    JobRecord,
    NewJob,
    Options,
    Progress,
    Reason,
    State,
)
from taskharbor.sync import run_inline

SECOND = 1_000_000
LEASE = 30 * SECOND


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver(clock: ManualClock) -> MemoryDriver:
    return MemoryDriver(clock)


def job(name: str, **options) -> NewJob:
    return NewJob(id=name, task="t", **options)


def request(token: str = "w/1", **options) -> ClaimRequest:
    given: dict[str, Any] = {"lease": LEASE, "limit": 10, "once_limit": 10}
    return ClaimRequest(token=token, **given | options)


def succeed(claimed: Claimed, token: str = "w/1", **options) -> Transition:
    given: dict[str, Any] = {"status": AttemptStatus.SUCCEEDED, "to": State.SUCCEEDED, "started_at": 1}
    return Transition(token=token, job_id=claimed.id, number=claimed.number, **given | options)


def put_back(claimed: Claimed, token: str = "w/1", **options) -> Transition:
    given: dict[str, Any] = {"status": AttemptStatus.RELEASED, "to": State.READY}
    return Transition(token=token, job_id=claimed.id, number=claimed.number, **given | options)


async def record(driver: MemoryDriver, name: str) -> JobRecord:
    (found,) = await driver.get([name])
    assert found is not None
    return found


async def claimed_ids(driver: MemoryDriver, token: str, **options) -> list[str]:
    return [one.id for one in (await driver.claim(request(token, **options))).jobs]


# -- a walk through the verbs --------------------------------------------------------------------


async def test_claim_is_in_strict_order_over_all_queues(driver: MemoryDriver, clock: ManualClock) -> None:
    now = clock.now()
    await driver.enqueue(
        [
            job("a", run_at=now - 1),
            job("b", run_at=now - 2, queue="mail"),
            job("c", run_at=now, priority=5, queue="mail"),
            job("d", run_at=now - 2),
            job("e", run_at=now + SECOND, priority=9),
            job("f", run_at=now, queue="paused"),
        ]
    )
    await driver.pause("paused", True)
    claim = await driver.claim(request())
    assert [one.id for one in claim.jobs] == ["c", "b", "d", "a"]
    assert claim.next_due == now + SECOND
    assert (await driver.claim(request())).jobs == claim.jobs


async def test_a_job_handed_back_keeps_its_place(driver: MemoryDriver, clock: ManualClock) -> None:
    await driver.enqueue([job(name) for name in "abc"])
    first = (await driver.claim(request(limit=2))).jobs
    answers = await driver.settle([put_back(one) for one in first])
    assert [answer.state for answer in answers] == [State.READY, State.READY]
    assert await claimed_ids(driver, "w/2") == ["a", "b", "c"]


async def test_claim_ends_before_an_at_most_once_job_too_many(driver: MemoryDriver) -> None:
    once = Delivery.AT_MOST_ONCE
    await driver.enqueue([job("a"), job("b", delivery=once), job("c", delivery=once), job("d")])
    assert await claimed_ids(driver, "w/1", once_limit=1) == ["a", "b"]


async def test_duplicates_are_answered_with_the_job_that_exists(driver: MemoryDriver) -> None:
    answers = await driver.enqueue(
        [job("a", idempotency_key="k"), job("b", idempotency_key="k"), job("a"), job("c")]
    )
    assert [(one.id, one.existed) for one in answers] == [
        ("a", False),
        ("a", True),
        ("a", True),
        ("c", False),
    ]
    assert (await driver.counts())[State.READY] == 2


async def test_an_unknown_dependency_stores_nothing(driver: MemoryDriver) -> None:
    with pytest.raises(ConfigurationError, match="depends on x"):
        await driver.enqueue([job("a"), job("b", depends_on=("x",))])
    assert sum((await driver.counts()).values()) == 0


async def test_dependants_are_released_by_the_last_success(driver: MemoryDriver) -> None:
    await driver.enqueue([job("z", depends_on=("a", "b")), job("a"), job("b")])
    a, b = (await driver.claim(request())).jobs
    first, second = await driver.settle([succeed(a), succeed(b)])
    assert (first.released, second.released) == ((), ("z",))
    assert await driver.operate(Delete(), ["a"]) == [
        OperationResult("a", OperationVerdict.CONFLICT, State.SUCCEEDED)
    ]
    assert await driver.prune({State.SUCCEEDED: 2**60}, 10) == 0
    assert await claimed_ids(driver, "w/2") == ["z"]


async def test_the_fence_refuses_in_order_and_changes_nothing(
    driver: MemoryDriver, clock: ManualClock
) -> None:
    await driver.enqueue([job("a")])
    (a,) = (await driver.claim(request())).jobs
    (other,) = await driver.settle([succeed(a, token="w/9")])
    assert other.answer is SettleAnswer.LEASE_MISMATCH
    clock.advance(30)
    (late,) = await driver.settle([succeed(a)])
    assert late.answer is SettleAnswer.LEASE_EXPIRED
    expired = await driver.take_expired("c/1", LEASE)
    assert expired is not None
    assert [one.id for one in expired.jobs] == ["a"]
    assert await driver.take_expired("c/1", LEASE) == expired
    again = await driver.take_expired("c/1", LEASE)
    assert again is not None
    assert again.worker_survived
    (lost,) = await driver.settle([put_back(a, token="c/1", status=AttemptStatus.LOST, suspect=True)])
    assert lost.answer is SettleAnswer.DONE
    (refused,) = await driver.settle([succeed(a)])
    assert (refused.answer, refused.recorded) == (SettleAnswer.NOT_RUNNING, AttemptStatus.LOST)
    claim = await driver.claim(request("w/2"))
    assert (claim.jobs, claim.suspects_waiting) == ([], True)
    assert await claimed_ids(driver, "w/2", suspects=True) == ["a"]


async def test_a_repeated_settle_answers_done_whatever_happened_since(driver: MemoryDriver) -> None:
    await driver.enqueue([job("a")])
    (a,) = (await driver.claim(request())).jobs
    dead = succeed(a, status=AttemptStatus.FAILED, to=State.DEAD, reason=Reason.EXHAUSTED, attempts=1)
    await driver.settle([dead])
    await driver.operate(Requeue(), ["a"])
    (again,) = await driver.settle([dead])
    assert again.answer is SettleAnswer.DONE
    found = await record(driver, "a")
    assert (found.state, found.attempts, found.reason) == (State.READY, 0, None)


async def test_a_request_to_cancel_loses_only_against_a_success(driver: MemoryDriver) -> None:
    await driver.enqueue([job("a"), job("b")])
    a, b = (await driver.claim(request())).jobs
    await driver.operate(Cancel(), ["a", "b"])
    heartbeat = await driver.extend([Extension("w/1", LEASE)])
    assert heartbeat.leases[0].cancel_requested == ("a", "b")
    child = job("child")
    await driver.settle([succeed(a), put_back(b, inserts=(child,))])
    assert [(await record(driver, name)).state for name in "ab"] == [State.SUCCEEDED, State.CANCELLED]
    assert await driver.get(["child"]) == [None]


async def test_an_occurrence_rearms_and_a_changed_version_is_refused(
    driver: MemoryDriver, clock: ManualClock
) -> None:
    await driver.enqueue([job("a")])
    await driver.operate(Update(priority=3), ["a"])
    (a,) = (await driver.claim(request())).jobs
    await driver.note([StepNote("w/1", "a", 1, "s", "1"), ProgressNote("w/1", "a", 1, Progress(0.5))])
    due = clock.now() + 60 * SECOND
    (changed,) = await driver.settle([succeed(a, occurrence=Occurrence(due, a.version - 1))])
    assert changed.answer is SettleAnswer.CHANGED
    (armed,) = await driver.settle([succeed(a, occurrence=Occurrence(due, a.version))])
    assert (armed.state, armed.run_at) == (State.SCHEDULED, due)
    found = await record(driver, "a")
    assert (found.due_at, found.progress, found.result) == (due, None, None)
    assert await driver.steps("a") == {}


async def test_expire_concerns_only_runs_that_have_not_begun(
    driver: MemoryDriver, clock: ManualClock
) -> None:
    ahead = clock.now() + SECOND
    await driver.enqueue([job(name, expires_at=ahead) for name in "abc"])
    a, b = (await driver.claim(request(limit=2))).jobs
    await driver.settle([put_back(a), put_back(b, started_at=1, status=AttemptStatus.FAILED, attempts=1)])
    clock.advance(1)
    assert await driver.expire(10) == ["a", "c"]
    states = [(await record(driver, name)).reason for name in "abc"]
    assert states == [Reason.EXPIRED, None, Reason.EXPIRED]


async def test_reads_agree_with_each_other(driver: MemoryDriver, clock: ManualClock) -> None:
    await driver.enqueue([job(f"{n:03}", options=Options(tags=("x",))) for n in range(5)])
    await driver.enqueue([job("later", delay=SECOND, queue="mail")])
    await driver.claim(request(limit=2))
    counts = await driver.counts()
    assert (counts[State.READY], counts[State.SCHEDULED], counts[State.RUNNING]) == (3, 1, 2)
    first = await driver.list(JobFilter(tag="x"), limit=3)
    second = await driver.list(JobFilter(tag="x"), limit=3, cursor=first.next_cursor)
    assert [one.id for one in first.jobs + second.jobs] == ["004", "003", "002", "001", "000"]
    assert second.next_cursor is None
    default, mail = await driver.queues()
    assert (default.ready, default.running, mail.scheduled) == (3, 2, 1)
    (lease,) = await driver.leases()
    assert (lease.worker, lease.open) == ("w", 2)


def test_an_order_stays_sorted_however_it_is_used() -> None:
    order: Order[str] = Order()
    names = [f"{n:04}" for n in range(2000)]
    for name in names:
        order.add(name)
    for name in names[:1500]:
        order.remove(name)
    for name in ("0003", "0001", "1600x"):
        order.add(name)
    assert list(order.before("1502")) == ["0001", "0003", "1500", "1501"]
    assert order.first_from("1600a") == "1600x"
    assert len(order) == len(list(order.descending())) == 503


# -- waiting -------------------------------------------------------------------------------------


async def test_wait_returns_at_once_when_something_came_since_the_last_look(driver: MemoryDriver) -> None:
    token = driver.change_token()
    await driver.claim(request())
    thread = threading.Thread(target=lambda: run_inline(driver.enqueue([job("a")])))
    thread.start()
    thread.join()
    # The clock stands still, so only the news can end this.
    await asyncio.wait_for(driver.wait_for_change(token, 60), 60)


async def test_change_that_was_seen_does_not_end_a_wait(driver: MemoryDriver) -> None:
    await driver.enqueue([job("a")])
    waiting = asyncio.create_task(driver.wait_for_change(driver.change_token(), 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    await driver.close()  # leaves nobody waiting
    await asyncio.wait_for(waiting, 60)


async def test_wait_is_woken_from_another_thread(driver: MemoryDriver) -> None:
    waiting = asyncio.create_task(driver.wait_for_change(driver.change_token(), 60))
    await asyncio.sleep(0)
    await asyncio.to_thread(lambda: run_inline(driver.enqueue([job("a")])))
    await asyncio.wait_for(waiting, 60)


async def test_wait_without_news_ends_by_the_clock(driver: MemoryDriver, clock: ManualClock) -> None:
    await driver.enqueue([job("a")])
    await driver.claim(request())
    waiting = asyncio.create_task(driver.wait_for_change(driver.change_token(), 60))
    await clock.jump(59)
    assert not waiting.done()
    await clock.jump(1)
    await asyncio.wait_for(waiting, 60)


def test_a_synchronous_wait_blocks_its_thread_until_there_is_news(driver: MemoryDriver) -> None:
    token = driver.change_token()
    thread = threading.Thread(target=lambda: run_inline(driver.enqueue([job("a")])))
    thread.start()
    run_inline(
        driver.wait_for_change(token, 60)
    )  # were the news missed, the test would run into its time limit
    assert driver.change_token() != token
    thread.join()
    run_inline(driver.wait_for_change(driver.change_token(), 0.001))


# -- threads and forks ---------------------------------------------------------------------------


def test_racing_threads_make_one_job_for_one_key(driver: MemoryDriver) -> None:
    answers: list[str] = []

    def enqueue(number: int) -> None:
        (answer,) = run_inline(driver.enqueue([job(str(number), idempotency_key="k")]))
        answers.append(answer.id)

    threads = [threading.Thread(target=enqueue, args=[number]) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 50
    assert len(set(answers)) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
def test_a_fork_copies_the_store_and_never_a_lock_that_is_held(driver: MemoryDriver) -> None:
    stop = threading.Event()

    def keep_busy() -> None:
        number = 0
        while not stop.is_set():
            run_inline(driver.enqueue([job(f"busy{number}")]))
            number += 1

    run_inline(driver.enqueue([job("a", priority=1)]))
    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                claim = run_inline(driver.claim(request(limit=1)))
                os._exit(0 if [one.id for one in claim.jobs] == ["a"] else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
    assert run_inline(driver.get(["a"]))[0].state is State.READY  # type: ignore[union-attr]


async def test_deadlines_of_jobs_that_have_ended_are_forgotten(driver: MemoryDriver, clock: ManualClock):
    later = clock.now() + 3600 * SECOND
    await driver.enqueue([job("live", expires_at=later)])
    for number in range(1_000):
        await driver.enqueue([job(f"{number}", expires_at=later)])
        await driver.operate(Cancel(), [f"{number}"])
    await driver.enqueue([job(f"more-{number}", expires_at=later) for number in range(1_000)])
    await driver.operate(Delete(), [f"more-{number}" for number in range(1_000)])
    assert len(driver._store.deadlines) < 100
    clock.advance(3600)
    assert await driver.expire(10) == ["live"]
