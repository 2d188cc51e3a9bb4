"""The statement was committed, its answer was lost: whoever repeats it gets the same answer, and no second effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from taskharbor.drivers.base import ClaimRequest, Extension, SettleAnswer, Transition
from taskharbor.drivers.postgres import PostgresDriver, connections, sql
from taskharbor.drivers.postgres.changes import Changes
from taskharbor.errors import StoreUnavailable
from taskharbor.records import AttemptStatus, NewJob, Options, State
from tests.faults.audit import audit
from tests.faults.processes import Crew, called, wait_until
from tests.postgres.proxy import Proxy, proxy_thread

T = TypeVar("T")
SECOND = 1_000_000
LEASE = 60 * SECOND

STATEMENTS = sql.statements("taskharbor")
COMMIT = "COMMIT"
# How both statements for a single job begin: which of them a producer uses depends on how busy it is.
ENQUEUE_OF_ONE = STATEMENTS["enqueue_one"].partition("RETURNING")[0]
assert STATEMENTS["enqueue_announced"].startswith(ENQUEUE_OF_ONE)


def job(number: int, **more: object) -> NewJob:
    return NewJob(f"019b76da-a800-7000-8000-{number:012x}", "task", **more)  # type: ignore[arg-type]


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    await driver.close()
    proxy = Proxy(dsn)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def driver(proxy: Proxy) -> AsyncIterator[PostgresDriver]:
    """Through the proxy."""
    driver = PostgresDriver(proxy.dsn)
    yield driver
    await driver.close()


@pytest.fixture(params=[True, False], ids=["cut", "silent"])
def cut(request: pytest.FixtureRequest) -> bool:
    """The connection is cut after the loss, or stays silent for ever."""
    return bool(request.param)


async def lost(proxy: Proxy, statement: str, cut: bool, call: Callable[[], Awaitable[T]]) -> StoreUnavailable:
    """The error of a call whose answer is lost, and certainly nothing else."""
    before = proxy.swallowed
    proxy.swallow_answer(statement, cut=cut)
    with pytest.MonkeyPatch.context() as impatient, pytest.raises(StoreUnavailable) as refused:
        if not cut:  # only time tells
            impatient.setattr(connections, "PROMPT_SECONDS", 1.0)
            impatient.setattr(connections, "COMMAND_SECONDS", 1.0)
        async with asyncio.timeout(60):
            await call()
    assert proxy.swallowed == before + 1
    return refused.value


# -- verb by verb --------------------------------------------------------------------------------


async def test_enqueue_repeated_with_its_id_is_the_same_job(proxy: Proxy, driver: PostgresDriver, cut: bool):
    error = await lost(proxy, STATEMENTS["enqueue_alike"], cut, lambda: driver.enqueue([job(1), job(2)]))
    assert error.job_ids == (job(1).id, job(2).id)
    again = await driver.enqueue([job(1), job(2), job(3)])
    assert [(each.id, each.existed) for each in again] == [
        (job(1).id, True),
        (job(2).id, True),
        (job(3).id, False),
    ]
    assert (await driver.counts())[State.READY] == 3


@pytest.mark.parametrize(("is_quiet", "statement"), [(True, "enqueue_announced"), (False, "enqueue_one")])
async def test_enqueue_repeated_with_its_key_is_the_same_job(
    proxy: Proxy,
    driver: PostgresDriver,
    cut: bool,
    is_quiet: bool,
    statement: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """A quiet producer's commit announces itself; that of a busy one does not."""
    if not is_quiet:
        monkeypatch.setattr(Changes, "sender_if_quiet", lambda self: None)
    keyed = job(1, idempotency_key="k")
    await lost(proxy, STATEMENTS[statement], cut, lambda: driver.enqueue([keyed]))
    [again] = await driver.enqueue([job(2, idempotency_key="k")])
    assert (again.id, again.existed) == (keyed.id, True)
    assert (await driver.counts())[State.READY] == 1


async def test_transaction_whose_commit_was_not_answered_is_the_same_when_repeated(
    proxy: Proxy, driver: PostgresDriver, cut: bool
):
    """A job with tags takes several statements: the answer that counts is the commit's."""
    tagged = job(1, options=Options(tags=("a", "b")))
    await lost(proxy, COMMIT, cut, lambda: driver.enqueue([tagged]))
    [again] = await driver.enqueue([tagged])
    assert (again.id, again.existed) == (tagged.id, True)
    assert (await driver.counts())[State.READY] == 1


async def test_claim_repeated_with_its_token_gives_the_same_jobs(
    proxy: Proxy, driver: PostgresDriver, cut: bool
):
    await driver.enqueue([job(number) for number in range(1, 6)])
    request = ClaimRequest("worker/1", LEASE, 3)
    await lost(proxy, STATEMENTS["claim"], cut, lambda: driver.claim(request))
    again = await driver.claim(request)
    assert [(each.id, each.number) for each in again.jobs] == [(job(n).id, 1) for n in (1, 2, 3)]
    counts = await driver.counts()
    assert (counts[State.RUNNING], counts[State.READY]) == (3, 2)
    others = await driver.claim(ClaimRequest("worker/2", LEASE, 5))
    assert [each.id for each in others.jobs] == [job(4).id, job(5).id]


@pytest.mark.parametrize("ending", ["success", "failure"])
async def test_settle_repeated_answers_done_and_happens_once(
    proxy: Proxy, driver: PostgresDriver, cut: bool, ending: str
):
    """A success alone is one statement, anything else a transaction of several."""
    await driver.enqueue([job(1), job(2)])
    claim = await driver.claim(ClaimRequest("worker/1", LEASE, 2))
    status, to = (
        (AttemptStatus.SUCCEEDED, State.SUCCEEDED)
        if ending == "success"
        else (AttemptStatus.FAILED, State.READY)
    )
    settled = [
        Transition("worker/1", each.id, each.number, status, to, each.attempts + (to is State.READY))
        for each in claim.jobs
    ]
    await lost(
        proxy,
        STATEMENTS["settle_and_release"] if ending == "success" else COMMIT,
        cut,
        lambda: driver.settle(settled),
    )
    for _ in range(2):
        assert [each.answer for each in await driver.settle(settled)] == [SettleAnswer.DONE] * 2
    for each in claim.jobs:
        assert [(row.number, row.status) for row in await driver.history(each.id)] == [(1, status)]
    counts = await driver.counts()
    assert counts[to] == 2
    assert counts[State.RUNNING] == 0


async def test_heartbeat_and_collection_whose_answers_were_lost_can_be_repeated(
    proxy: Proxy, driver: PostgresDriver, cut: bool
):
    await driver.enqueue([job(1)])
    await driver.claim(ClaimRequest("worker/1", LEASE, 1))
    await lost(proxy, STATEMENTS["extend"], cut, lambda: driver.extend([Extension("worker/1", 0)]))
    [extended] = (await driver.extend([Extension("worker/1", LEASE)])).leases
    assert (
        extended.answer is SettleAnswer.LEASE_EXPIRED
    )  # the one whose answer was lost took effect: no time at all
    await lost(proxy, STATEMENTS["take_expired"], cut, lambda: driver.take_expired("worker/2", LEASE))
    taken = await driver.take_expired("worker/2", LEASE)
    assert taken is not None
    assert [(each.id, each.number) for each in taken.jobs] == [(job(1).id, 1)]
    assert await driver.take_expired("worker/3", LEASE) is None


async def test_transaction_of_a_client_that_vanished_holds_its_locks_for_seconds_only(
    proxy: Proxy, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
):
    """The server never hears that its client has given up, and the client's next connection waits for the lock."""
    monkeypatch.setattr(connections, "PROMPT_SECONDS", 0.5)
    assert connections.IDLE_SECONDS == 5
    monkeypatch.setattr(connections, "IDLE_SECONDS", 6.0)  # a busy machine repeats its call before that
    await driver.enqueue([job(1)])
    await driver.claim(ClaimRequest("worker/1", LEASE, 1))
    failure = Transition("worker/1", job(1).id, 1, AttemptStatus.FAILED, State.READY, 1, delay=0)
    await lost(proxy, STATEMENTS["insert_attempts"], False, lambda: driver.settle([failure]))
    with pytest.raises(StoreUnavailable):
        await driver.settle([failure])  # the lock is held
    async with asyncio.timeout(60):
        while True:
            try:
                [settled] = await driver.settle([failure])
                break
            except StoreUnavailable:
                continue
    assert settled.answer is SettleAnswer.DONE
    assert [(row.number, row.status) for row in await driver.history(job(1).id)] == [
        (1, AttemptStatus.FAILED)
    ]


# -- a whole system ------------------------------------------------------------------------------


def test_answers_lost_again_and_again_lose_and_double_nothing(crew: Crew):
    """A worker and a producer in processes of their own; again and again an answer of theirs is lost."""
    with proxy_thread(crew.url) as through:
        workers = [crew.start("work", url=through.dsn, concurrency=10, lease_seconds=5.0) for _ in range(2)]
        producer = crew.start("insist", url=through.dsn, high=0.02, pause=0.0)
        for round_ in range(10):
            for statement in (ENQUEUE_OF_ONE, STATEMENTS["claim"], STATEMENTS["settle_and_release"]):
                done = through.proxy.swallowed + 1
                through.do(partial(through.proxy.swallow_answer, statement))
                what = f"{statement[:200]} {round_}"
                wait_until(lambda d=done: through.proxy.swallowed >= d, what=what)  # type: ignore[misc]
        wait_until(lambda: len(crew.lines("accepted")) > 300, 60, "the producer's work")
        producer.terminate()
        assert producer.wait(60) == 0, crew.errors()
        wait_until(crew.is_done, 100, "the end of all jobs")
        assert through.proxy.swallowed >= 30
        assert [worker.poll() for worker in workers] == [None, None], crew.errors()
    accepted = crew.lines("accepted")
    assert len(crew.lines("repeated")) >= 10
    assert len(set(accepted)) == len(accepted)
    assert crew.counts()["succeeded"] == len(accepted)  # one job each, however often it was sent
    found = called(crew.harbor, audit(crew.harbor.driver, accepted, crew.executions()))
    found.assert_nothing_wrong()
    assert found.repeated == found.losses == 0  # nobody died, so nothing runs twice
