"""One (queue, key), one job; one id, one job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from taskharbor import Harbor, State
from taskharbor.client.options import new_id


def test_the_same_key_gives_the_same_job_and_changes_nothing(harbor: Harbor):
    first = harbor.enqueue("t", {"x": 1}, idempotency_key="k", priority=1, tags=["a"])
    second = harbor.enqueue("other", {"x": 2}, idempotency_key="k", priority=9, tags=["b"], delay=60)
    assert (first.existed, second.existed) == (False, True)
    assert second.id == first.id
    assert (second.task, second.payload, second.priority, second.state, second.tags) == (
        "t",
        {"x": 1},
        1,
        "ready",
        ("a",),
    )
    assert first.refresh() == second
    assert sum(harbor.jobs.counts().values()) == 1
    assert harbor.jobs.list(tag="b") == []


async def test_the_same_key_by_the_async_form(harbor: Harbor):
    first = await harbor.aenqueue("t", idempotency_key="k")
    second = await harbor.aenqueue("t", idempotency_key="k")
    assert (second.id, second.existed) == (first.id, True)


def test_a_key_belongs_to_its_queue(harbor: Harbor):
    jobs = [harbor.enqueue("t", queue=queue, idempotency_key="k") for queue in ("a", "b")]
    assert [job.existed for job in jobs] == [False, False]
    assert jobs[0].id != jobs[1].id


def test_without_a_key_every_enqueue_is_a_new_job(harbor: Harbor):
    assert harbor.enqueue("t").id != harbor.enqueue("t").id


def test_the_same_id_gives_the_same_job_and_changes_nothing(harbor: Harbor):
    given = new_id()
    harbor.enqueue("t", {"x": 1}, id=given)
    again = harbor.enqueue("t", {"x": 2}, queue="other", id=given)
    assert (again.id, again.existed, again.payload, again.queue) == (given, True, {"x": 1}, "default")
    assert sum(harbor.jobs.counts().values()) == 1


def test_an_id_that_exists_wins_over_a_key_that_exists_as_well(harbor: Harbor):
    by_key = harbor.enqueue("t", idempotency_key="k")
    by_id = harbor.enqueue("t")
    again = harbor.enqueue("t", idempotency_key="k", id=by_id.id)
    assert again.existed
    assert again.id == by_id.id != by_key.id


def test_a_key_counts_within_one_batch_too(harbor: Harbor):
    @harbor.task
    def t(x: int) -> None: ...

    first, second, third = harbor.enqueue_many(
        [t.using(idempotency_key="k").s(1), t.s(2), t.using(idempotency_key="k").s(3)]
    )
    assert third.id == first.id != second.id
    assert [job.existed for job in (first, second, third)] == [False, False, True]
    assert third.payload == {"x": 1}


def test_a_key_names_the_job_whatever_became_of_it(harbor: Harbor, work: Callable[[Harbor], None]):
    @harbor.task(name="t", retry=None)
    def t(fails: bool) -> None:
        if fails:
            raise ValueError

    done = t.using(idempotency_key="done").enqueue(False)
    failed = t.using(idempotency_key="dead").enqueue(True)
    cancelled = t.using(idempotency_key="cancelled", delay=60).enqueue(True)
    harbor.jobs.cancel(cancelled.id)
    work(harbor)
    for key, job, state in (
        ("done", done, State.SUCCEEDED),
        ("dead", failed, State.DEAD),
        ("cancelled", cancelled, State.CANCELLED),
    ):
        again = t.using(idempotency_key=key).enqueue(True)
        assert (again.id, again.existed, again.state) == (job.id, True, state)
    assert harbor.jobs.counts()["ready"] == 0


def test_a_key_is_free_again_once_its_job_is_deleted(harbor: Harbor):
    first = harbor.enqueue("t", idempotency_key="k")
    harbor.jobs.delete(first.id)
    second = harbor.enqueue("t", idempotency_key="k")
    assert not second.existed
    assert second.id != first.id


@pytest.mark.parametrize("keys", [["k" * 1024], ["ключ", "KEY", "key", "Key "[:-1] + "!"], ["a b", "a  b"]])
def test_keys_are_compared_exactly(harbor: Harbor, keys: list[str]):
    jobs = [harbor.enqueue("t", idempotency_key=key) for key in keys]
    assert not any(job.existed for job in jobs)
    assert [harbor.enqueue("t", idempotency_key=key).id for key in keys] == [job.id for job in jobs]


def test_threads_that_race_for_a_key_get_one_job(harbor: Harbor):
    barrier = threading.Barrier(8)
    got: list[Any] = []

    def race() -> None:
        barrier.wait()
        got.extend(harbor.enqueue("t", idempotency_key="k") for _ in range(25))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 200
    assert len({job.id for job in got}) == 1
    assert sum(not job.existed for job in got) == 1
    assert sum(harbor.jobs.counts().values()) == 1


async def test_ten_thousand_callers_that_race_for_a_key_get_one_job(harbor: Harbor, url: str):
    """Also with other payloads, and on more than one connection, where a store can have that."""
    async with nullcontext(harbor) if url == "memory://" else Harbor(url) as other:
        racing = [
            (harbor, other)[n % 2].aenqueue("t", {"caller": n}, idempotency_key="k") for n in range(10_000)
        ]
        jobs = await asyncio.gather(*racing)
    [first] = [job for job in jobs if not job.existed]
    assert {job.id for job in jobs} == {first.id}
    assert {job.payload["caller"] for job in jobs} == {first.payload["caller"]}
    assert (await harbor.jobs.acounts())["ready"] == 1
