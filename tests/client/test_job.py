"""A Job: a frozen record, and what can be asked of it."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

from taskharbor import (
    ConfigurationError,
    Harbor,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    RetryPolicy,
    State,
    Unrecoverable,
    Worker,
)

Work = Callable[[Harbor], None]


def test_a_job_is_frozen(harbor: Harbor):
    job = harbor.enqueue("t", {"x": [1]})
    for name in ("state", "existed", "priority", "nonsense", "_record"):
        with pytest.raises(AttributeError):
            setattr(job, name, 1)
        with pytest.raises(AttributeError):
            delattr(job, name)
    job.payload["x"].append(2)
    assert job.payload == {"x": [1]}
    assert job.state is State.READY


def test_changing_a_job_says_how_it_is_done(harbor: Harbor):
    with pytest.raises(AttributeError, match=r"harbor\.jobs\.update\(job\.id, priority=…\)"):
        harbor.enqueue("t").priority = 5  # type: ignore[misc]


def test_a_job_does_not_change_by_itself_and_refresh_gives_a_newer_one(harbor: Harbor):
    job = harbor.enqueue("t")
    harbor.jobs.cancel(job.id)
    assert job.state is State.READY
    newer = job.refresh()
    assert newer.state is State.CANCELLED
    assert job != newer
    assert {job, newer, newer.refresh()} == {job, newer}


def test_refreshing_a_job_that_is_gone_says_so(harbor: Harbor):
    job = harbor.enqueue("t")
    harbor.jobs.delete(job.id)
    with pytest.raises(JobNotFound, match=job.id) as caught:
        job.refresh()
    assert caught.value.job_id == job.id
    with pytest.raises(JobNotFound):
        job.history()
    with pytest.raises(JobNotFound, match="deleted or pruned"):
        job.result(timeout=60)


def test_a_job_may_be_copied_and_is_not_pickled(harbor: Harbor):
    job = harbor.enqueue("t")
    assert copy.copy(job) is copy.deepcopy({"job": job})["job"] is job
    with pytest.raises(TypeError, match=r"pass job\.id on instead"):
        pickle.dumps(job)


def test_a_job_shows_itself_briefly(harbor: Harbor):
    job = harbor.enqueue("t", {"secret": "x"})
    assert repr(job) == f"Job(id={job.id!r}, task='t', state='ready', attempts=0)"


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Person(pydantic.BaseModel):
    name: str
    born: datetime


def a_point() -> Point:
    return Point(1, 2)


async def points() -> list[Point]:
    return [Point(1, 2), Point(3, 4)]


def a_person() -> Person:
    return Person(name="Ada", born=datetime(1815, 12, 10, tzinfo=UTC))


def a_pair() -> tuple[int, datetime]:
    return (1, datetime(2026, 1, 1, tzinfo=UTC))


def nothing() -> None:
    return None


def unannotated():
    return {"a": [1, (2, 3)]}


def mistaken() -> Point:
    return {"not": "a point"}  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (a_point, Point(1, 2)),
        (points, [Point(1, 2), Point(3, 4)]),
        (a_person, a_person()),
        (a_pair, a_pair()),
        (nothing, None),
        (unannotated, {"a": [1, [2, 3]]}),
        (mistaken, {"not": "a point"}),
    ],
)
def test_a_result_comes_back_in_the_annotated_type(harbor: Harbor, work: Work, function: Any, result: Any):
    job = harbor.task(name="t")(function).enqueue()
    work(harbor)
    assert job.result(timeout=60) == result
    assert type(job.result(timeout=60)) is type(result)
    assert harbor.jobs.get(job.id).result(timeout=60) == result


def test_a_result_of_a_task_that_is_not_known_here_is_plain(harbor: Harbor, work: Work):
    job: Job[Any] = harbor.task(name="t")(a_point).enqueue()
    work(harbor)
    del harbor.tasks["t"]
    assert job.result(timeout=60) == {"x": 1, "y": 2}


async def test_a_result_by_the_async_form(harbor: Harbor):
    job = await harbor.task(name="t")(a_point).aenqueue()
    await Worker(harbor).drain()
    assert await job.aresult(timeout=60) == Point(1, 2)


def test_the_result_of_a_dead_job_is_why(harbor: Harbor, work: Work):
    @harbor.task(retry=RetryPolicy(max_attempts=3, initial=0, jitter=None))
    def fail() -> None:
        raise ValueError("no such luck")

    @harbor.task
    def give_up() -> None:
        raise Unrecoverable("never")

    failed, hopeless = fail.enqueue(), give_up.enqueue()
    work(harbor)
    with pytest.raises(JobFailed, match="no such luck") as caught:
        failed.result(timeout=60)
    assert (caught.value.job_id, caught.value.reason) == (failed.id, "exhausted")
    assert caught.value.error is not None
    assert "ValueError" in caught.value.error
    with pytest.raises(JobFailed) as caught:
        hopeless.result(timeout=60)
    assert caught.value.reason == "unrecoverable"


def test_the_result_of_a_cancelled_job_is_that(harbor: Harbor):
    job = harbor.enqueue("t", delay=60)
    harbor.jobs.cancel(job.id)
    with pytest.raises(JobCancelled, match="was cancelled") as caught:
        job.result(timeout=60)
    assert caught.value.job_id == job.id


async def test_endings_by_the_async_form(harbor: Harbor):
    job = await harbor.aenqueue("t")
    with pytest.raises(TimeoutError):
        await job.aresult(timeout=0.01)
    await harbor.jobs.acancel(job.id)
    with pytest.raises(JobCancelled):
        await job.aresult()
    await harbor.jobs.adelete(job.id)
    with pytest.raises(JobNotFound):
        await job.aresult()


def test_waiting_for_a_result_ends_when_its_time_is_over(harbor: Harbor):
    job = harbor.enqueue("t")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=rf"job {job.id} is still ready after 0\.05 s"):
        job.result(timeout=0.05)
    assert 0.05 <= time.monotonic() - began < 60
    with pytest.raises(TimeoutError):
        job.result(timeout=0)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), True, "5", 10**400])
def test_a_timeout_for_a_result_is_a_number_of_seconds(harbor: Harbor, timeout: Any):
    with pytest.raises(ConfigurationError, match="timeout must be a number of seconds"):
        harbor.enqueue("t").result(timeout=timeout)


def test_who_waits_for_a_result_hears_of_it_at_once(harbor: Harbor, work: Work):
    job = harbor.task(name="t")(a_point).enqueue()
    heard: list[Any] = []
    waiting = threading.Thread(target=lambda: heard.append(job.result(timeout=60)))
    waiting.start()
    work(harbor)
    waiting.join(60)
    assert heard == [Point(1, 2)]


async def test_many_may_wait_for_one_result(harbor: Harbor):
    job = await harbor.task(name="t")(a_point).aenqueue()
    waiting = [asyncio.create_task(job.aresult(timeout=60)) for _ in range(10)]
    await asyncio.sleep(0)
    await Worker(harbor).drain()
    assert await asyncio.gather(*waiting) == [Point(1, 2)] * 10


def test_history_tells_every_attempt_newest_first(harbor: Harbor, work: Work):
    @harbor.task(retry=RetryPolicy(max_attempts=3, initial=0, jitter=None))
    def fail(x: int) -> None:
        raise ValueError(f"no luck with {x}")

    job = fail.enqueue(7)
    assert job.history() == []
    work(harbor)
    attempts = job.history()
    assert [(a.number, str(a.status), a.retry_count) for a in attempts] == [
        (3, "failed", 2),
        (2, "failed", 1),
        (1, "failed", 0),
    ]
    latest = attempts[0]
    assert latest.job_id == job.id
    assert latest.error is not None
    assert "no luck with 7" in latest.error
    assert latest.traceback is not None
    assert "raise ValueError" in latest.traceback
    assert latest.worker
    assert latest.started_at is not None
    assert latest.started_at <= latest.finished_at
    assert [a.number for a in job.history(limit=2)] == [3, 2]
    assert "Attempt(number=3, status='failed'" in repr(latest)


def test_number_is_an_alias_of_attempt_number(harbor: Harbor, work: Work):
    job = harbor.task(name="t")(a_point).enqueue()
    assert (job.attempt_number, job.number) == (0, 0)
    work(harbor)
    [attempt] = job.history()
    job = job.refresh()
    assert job.attempt_number == job.number == attempt.number == 1


async def test_history_by_the_async_form(harbor: Harbor):
    job = await harbor.task(name="t")(a_point).aenqueue()
    await Worker(harbor).drain()
    [attempt] = await job.ahistory()
    assert attempt.status == "succeeded"
