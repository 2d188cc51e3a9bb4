"""The "enqueued" event, and what subscribers may do without harm."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from taskharbor import ConfigurationError, Event, Harbor, PayloadError


def told(events: queue.Queue[Any], seconds: float = 60) -> Any:
    return events.get(timeout=seconds)


def test_enqueueing_tells_what_was_enqueued(harbor: Harbor):
    events: queue.Queue[Event] = queue.Queue()
    harbor.on("enqueued")(events.put)
    job = harbor.enqueue("t", queue="mail", correlation_id="c")
    event = told(events)
    assert (event.name, event.job_id, event.task, event.queue) == ("enqueued", job.id, "t", "mail")
    assert event.correlation_id == "c"
    assert event.at == job.enqueued_at
    assert event.at.tzinfo is UTC
    assert abs((datetime.now(UTC) - event.at).total_seconds()) < 60


def test_each_of_many_is_told_of(harbor: Harbor):
    events: queue.Queue[Event] = queue.Queue()
    harbor.on("enqueued")(events.put)

    @harbor.task
    def t(x: int) -> None: ...

    jobs = t.enqueue_many({"x": n} for n in range(30))
    assert [told(events).job_id for _ in jobs] == [job.id for job in jobs]


def test_what_existed_and_what_was_refused_is_not_told(harbor: Harbor):
    events: queue.Queue[Event] = queue.Queue()
    harbor.on("enqueued")(events.put)
    first = harbor.enqueue("t", idempotency_key="k")
    harbor.enqueue("t", idempotency_key="k")
    with pytest.raises(PayloadError):
        harbor.enqueue("t", {"x": float("nan")})
    last = harbor.enqueue("t")
    assert [told(events).job_id for _ in range(2)] == [first.id, last.id]
    assert events.empty()


async def test_an_async_subscriber_runs_on_the_loop_that_enqueued(harbor: Harbor):
    heard: asyncio.Queue[tuple[Event, Any]] = asyncio.Queue()

    @harbor.on("enqueued")
    async def hear(event: Event) -> None:
        heard.put_nowait((event, asyncio.get_running_loop()))

    job = await harbor.aenqueue("t")
    event, loop = await asyncio.wait_for(heard.get(), 60)
    assert event.job_id == job.id
    assert loop is asyncio.get_running_loop()


def test_an_async_subscriber_hears_of_synchronous_enqueues_too(harbor: Harbor):
    events: queue.Queue[Event] = queue.Queue()

    @harbor.on("enqueued")
    async def hear(event: Event) -> None:
        await asyncio.sleep(0)
        events.put(event)

    job = harbor.enqueue("t")
    assert told(events).job_id == job.id


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_subscriber_that_fails_neither_fails_the_job_nor_the_next_subscriber(
    harbor: Harbor, caplog: pytest.LogCaptureFixture, error: type[BaseException]
):
    events: queue.Queue[Event] = queue.Queue()

    @harbor.on("enqueued")
    def fail(event: Event) -> None:
        raise error("not today")

    harbor.on("enqueued")(events.put)
    with caplog.at_level(logging.ERROR, logger="taskharbor.events"):
        jobs = [harbor.enqueue("t") for _ in range(3)]
        assert [told(events).job_id for _ in jobs] == [job.id for job in jobs]
    assert "a subscriber failed" in caplog.text
    assert "not today" in caplog.text


def test_a_slow_subscriber_does_not_delay_an_enqueue(harbor: Harbor):
    may_go_on = threading.Event()
    events: queue.Queue[Event] = queue.Queue()

    @harbor.on("enqueued")
    def slow(event: Event) -> None:
        may_go_on.wait(60)
        events.put(event)

    jobs = [harbor.enqueue("t") for _ in range(5)]
    assert events.empty()
    may_go_on.set()
    assert [told(events).job_id for _ in jobs] == [job.id for job in jobs]


def test_a_subscriber_may_enqueue_and_may_close(harbor: Harbor):
    events: queue.Queue[Any] = queue.Queue()

    @harbor.on("enqueued")
    def follow(event: Event) -> None:
        if event.task == "first":
            events.put(harbor.enqueue("second").id)
            harbor.events.close()
        else:
            events.put(event.job_id)

    harbor.enqueue("first")
    assert told(events) == told(events)


def test_closing_lets_subscribers_finish_and_a_harbor_used_again_tells_again(tmp_path: Any):
    events: queue.Queue[Event] = queue.Queue()
    harbor = Harbor(f"sqlite:///{tmp_path}/h.db")
    harbor.on("enqueued")(events.put)
    for n in range(3):
        harbor.enqueue("t")
        harbor.close()
        assert events.qsize() == n + 1


async def test_closing_lets_async_subscribers_finish_and_the_loop_goes_on(harbor: Harbor):
    heard: list[str] = []
    turned = threading.Event()  # the loop has gone round while somebody closes

    @harbor.on("enqueued")
    async def hear(event: Event) -> None:
        assert await asyncio.to_thread(turned.wait, 30)
        heard.append((await harbor.jobs.aget(event.job_id)).id)

    @harbor.on("enqueued")
    def hear_slowly(event: Event) -> None:
        assert turned.wait(60)
        heard.append(event.job_id)

    async def turn() -> None:
        for _ in range(4):
            await asyncio.sleep(0.001)
        turned.set()

    job = await harbor.aenqueue("t")
    turning = asyncio.create_task(turn())
    await harbor.aclose()
    assert heard == [job.id, job.id]
    assert turning.done()


async def test_an_async_subscriber_may_close_the_harbor(harbor: Harbor):
    closed = asyncio.Event()

    @harbor.on("enqueued")
    async def close(event: Event) -> None:
        await harbor.aclose()
        closed.set()

    await harbor.aenqueue("t")
    await asyncio.wait_for(closed.wait(), 3)  # less than it would wait for itself


def test_a_child_process_tells_its_own_subscribers(harbor: Harbor):
    heard: list[str] = []
    harbor.on("enqueued")(lambda event: heard.append(event.job_id))
    harbor.enqueue("t")
    child = os.fork()
    if child == 0:
        heard.clear()
        job = harbor.enqueue("t")
        harbor.events.close()
        os._exit(0 if heard == [job.id] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("name", ["done", "", None, 5, print])
def test_an_event_that_does_not_exist_cannot_be_subscribed_to(harbor: Harbor, name: Any):
    with pytest.raises(ConfigurationError, match="no event is called .*; the events are enqueued, started"):
        harbor.on(name)


def test_a_subscriber_must_be_callable(harbor: Harbor):
    with pytest.raises(ConfigurationError, match="a subscriber is a function"):
        harbor.on("enqueued")("print")  # type: ignore[type-var]


def test_subscribing_gives_the_function_back(harbor: Harbor):
    def hear(event: Event) -> None: ...

    assert harbor.on("enqueued")(hear) is hear
