"""Large payloads and results: batches are bounded in bytes as well as in number."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Context, Harbor, Worker, chord
from taskharbor.drivers.base import CLAIM_BYTES, SETTLE_BYTES, claimed_size, transition_size
from taskharbor.errors import OperationRefused, StoreUnavailable, WorkflowStuck
from taskharbor.worker.pipeline import dependency_results
from taskharbor.worker.pipeline.fetcher import AHEAD_BYTES
from taskharbor.worker.pipeline.pipeline import HELD_BYTES
from tests.worker.stage import soon, until, working

MEBIBYTE = 1_048_576
TEXT = '"\\' * 200_000  # as JSON 800,000 bytes, and twice that as JSON in JSON


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[Harbor]:
    """A harbor on an SQLite whose texts end at 64 MB, not at 1 GB: the same error for a fraction of the data."""
    async with Harbor(f"sqlite:///{tmp_path}/harbor.db?synchronous=normal") as harbor:
        await harbor.jobs.acounts()
        engine: Any = harbor.driver._engine  # type: ignore[attr-defined]
        engine._writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64_000_000)
        yield harbor


async def test_large_payloads_behind_quick_jobs_do_not_stop_a_worker(narrow: Harbor) -> None:
    """Quick handlers make a worker claim many at once; that must not be more than the store can hand out."""
    done: list[str] = []

    @narrow.task
    async def quick(n: int) -> None:
        done.append("quick")

    @narrow.task
    async def large(text: str) -> None:
        assert text == TEXT
        done.append("large")

    await quick.aenqueue_many([{"n": n} for n in range(2_000)])
    for _ in range(6):
        await large.aenqueue_many([{"text": TEXT}] * 10)
    await soon(Worker(narrow).drain())
    assert done == ["quick"] * 2_000 + ["large"] * 60


async def test_jobs_claimed_ahead_are_bounded_in_bytes(faulty, store):
    """However quick the handlers are: what lies in a worker's memory follows from its slots and a limit in bytes."""
    claims: list[int] = []
    claimed = begun = 0
    ahead: list[int] = []
    claim = store.claim

    async def watched(request, *, now=None):
        nonlocal claimed
        answer = await claim(request, now=now)
        claims.append(sum(map(claimed_size, answer.jobs)))
        claimed += len(answer.jobs)
        ahead.append(claimed - begun)
        return answer

    store.claim = watched

    @faulty.task
    async def large(text: str) -> None:
        nonlocal begun
        begun += 1

    size = MEBIBYTE * 9 // 10
    await large.aenqueue_many([{"text": "x" * size}] * 200)
    await soon(Worker(faulty, concurrency=5).drain())
    assert max(claims) <= CLAIM_BYTES
    assert max(ahead) * size <= AHEAD_BYTES + CLAIM_BYTES + 5 * size
    assert begun == 200


# -- results -------------------------------------------------------------------------------------


async def test_settles_are_bounded_in_bytes(faulty, store):
    """Results, errors and children count; an attempt that leaves more than the limit behind is settled by itself."""
    sizes: list[list[int]] = []
    store.fail["settle"] = lambda transitions: sizes.append([*map(transition_size, transitions)])

    @faulty.task
    async def child(text: str) -> None: ...

    @faulty.task
    async def large(ctx: Context, children: int) -> str:
        for _ in range(children):
            ctx.enqueue(child.s("x" * (MEBIBYTE // 2)))
        return "y" * 500_000

    jobs = await large.aenqueue_many([{"children": 12 if n == 7 else 0} for n in range(100)])
    async with working(faulty, concurrency=100):
        for job in jobs:
            assert len(await soon(job.aresult())) == 500_000
    assert sum(map(len, sizes)) >= 112
    assert all(sum(each) <= SETTLE_BYTES or len(each) == 1 for each in sizes)
    assert max(map(sum, sizes)) > SETTLE_BYTES
    assert max(map(len, sizes)) >= 8  # as many as fit


async def test_a_worker_begins_nothing_more_while_too_much_waits_to_be_settled(faulty, store):
    """A store that is away, or slow, does not fill a worker's memory with results."""
    begun = 0
    is_away = True

    @faulty.task
    async def large(n: int) -> str:
        nonlocal begun
        begun += 1
        return "y" * 1_000_000

    store.fail["settle"] = lambda transitions: StoreUnavailable("away") if is_away else None
    jobs = await large.aenqueue_many([{"n": n} for n in range(300)])
    async with working(faulty, concurrency=10):
        await until(lambda: begun * 1_000_000 > HELD_BYTES)
        claims = store.calls["claim"]
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert begun * 1_000_000 <= HELD_BYTES + 10 * 1_000_000
        assert store.calls["claim"] <= claims + 1
        is_away = False
        await faulty.driver.clock.jump(3)
        for job in jobs:
            assert len(await soon(job.aresult())) == 1_000_000
    assert begun == 300


# -- claims that fail although the store is there ------------------------------------------------


async def test_a_claim_that_fails_for_what_it_hands_out_is_not_repeated_unchanged(faulty, store, caplog):
    """Half as many the next time: what one job is to blame for is narrowed down to it, and the others go on."""
    limits: list[int] = []
    culprit_is_there = True

    def refuse(request):
        limits.append(request.limit)
        return OperationRefused("string or blob too big") if culprit_is_there and request.limit > 3 else None

    @faulty.task
    async def work(n: int) -> int:
        return n

    store.fail["claim"] = refuse
    jobs = await work.aenqueue_many([{"n": n} for n in range(40)])
    async with working(faulty, concurrency=50):
        assert [await soon(job.aresult()) for job in jobs] == list(range(40))
        culprit_is_there = False
        jobs = await work.aenqueue_many([{"n": n} for n in range(40)])
        assert [await soon(job.aresult()) for job in jobs] == list(range(40))
    assert max(limits[-3:]) > 3
    assert limits[:5] == [50, 25, 12, 6, 3]
    assert sum("claiming fewer" in each.message for each in caplog.records) >= 4


async def test_a_job_that_cannot_be_claimed_is_told_of_and_tried_again_with_pauses(
    faulty, store, clock, caplog
):
    @faulty.task
    async def work() -> int:
        return 1

    store.fail["claim"] = lambda request: TypeError("a bug")
    job = await work.aenqueue()
    async with working(faulty, concurrency=4):
        await clock.jump(20)
        assert 10 < store.calls["claim"] < 60
        assert any("cannot be claimed" in each.message for each in caplog.records)
        store.fail.clear()
        await clock.jump(3)
        assert await soon(job.aresult()) == 1


# -- what a job takes of others ------------------------------------------------------------------


async def test_results_of_others_are_read_a_bounded_number_of_bytes_at_a_time(faulty, store, monkeypatch):
    """Many that begin at once share reads, as far as their results fit; one that takes too much fails alone."""
    monkeypatch.setattr(dependency_results, "RESULTS_LIMIT", 250_000)
    reads: list[int] = []
    read = store.results

    async def watched(ids, **options):
        answers = await read(ids, **options)
        reads.append(sum(len(each.result or "") for members in answers for each in members))
        return answers

    store.results = watched

    @faulty.task
    async def text(size: int) -> str:
        return "x" * size

    @faulty.task
    async def length(texts: list[str]) -> int:
        return sum(map(len, texts))

    fitting = [await chord([text.s(50_000), text.s(50_000)], length.s()).aenqueue() for _ in range(10)]
    too_large = await chord([text.s(200_000), text.s(200_000)], length.s()).aenqueue()
    await soon(Worker(faulty, concurrency=50).drain())
    assert [await each.aresult(0) for each in fitting] == [100_000] * 10
    with pytest.raises(WorkflowStuck, match="the limit of 250,000 bytes"):
        await too_large.aresult(0)
    assert max(reads) <= 250_000
    assert sum(reads) >= 1_000_000


@pytest.mark.parametrize("error", [OperationRefused("the store refused it"), TypeError("a bug")], ids=type)
async def test_results_that_cannot_be_read_fail_the_jobs_that_take_them(faulty, store, clock, error):
    """No outage: it is not repeated unchanged, and the delays of the policy lie between two tries."""

    @faulty.task
    async def one() -> int:
        return 1

    @faulty.task(max_attempts=3)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async def refuse(ids: Any, **options: Any) -> Any:
        store.calls["results"] += 1
        raise error

    store.results = refuse
    job = await chord([one.s(), one.s()], total.s()).aenqueue()
    async with working(faulty):
        await clock.jump(60)
        with pytest.raises(WorkflowStuck, match=str(error)):
            await soon(job.aresult())
    assert store.calls["results"] == 3
