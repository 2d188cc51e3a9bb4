"""Every job that ends with one that it depends on is told of, once, on every store, whatever ended that one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from taskharbor import Harbor, Worker, Workflow, chain, group
from taskharbor.clock import ManualClock, from_micros
from taskharbor.errors import StoreUnavailable
from taskharbor.records import State
from taskharbor.telemetry.events import Event
from tests.worker.stage import until
from tests.worker.test_delivery import vanish


@pytest.fixture
def told(harbor: Harbor) -> list[Event]:
    events: list[Event] = []

    @harbor.on("cancelled")
    async def hear(event: Event) -> None:
        events.append(event)

    return events


def dependants(told: list[Event]) -> list[str]:
    return [event.job_id for event in told if event.reason == "dependency"]


async def all_told(harbor: Harbor) -> None:
    await harbor.events.drain(30)


async def flow(harbor: Harbor, first: Any, count: int = 3) -> Workflow:
    """A chain that ends with its first job."""

    @harbor.task(name="later")
    async def later() -> None: ...

    rest = [later.using(correlation_id=f"c{n}", queue="q").si() for n in range(1, count)]
    return await chain(first, *rest).using(on_failure="cancel").aenqueue()


async def test_those_that_end_with_a_failed_job_emit_cancelled(
    harbor: Harbor,
    clock: ManualClock,
    drained: Callable[..., Any],
    told: list[Event],
    caplog: pytest.LogCaptureFixture,
):
    @harbor.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no luck")

    workflow = await flow(harbor, fail.si())
    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        await drained(harbor)
    await all_told(harbor)
    assert [
        (event.job_id, event.task, event.queue, event.reason, event.correlation_id) for event in told
    ] == [(workflow.jobs.ids[n], "later", "q", "dependency", f"c{n}") for n in (1, 2)]
    assert {event.at for event in told} == {from_micros(clock.now())}
    lines = [record.fields for record in caplog.records if " was cancelled, " in record.getMessage()]  # type: ignore[attr-defined]
    assert [(line["job"], line["reason"]) for line in lines] == [
        (job_id, "dependency") for job_id in workflow.jobs.ids[1:]
    ]


async def test_dependants_emit_cancelled_although_the_answer_of_the_settle_was_lost(
    harbor: Harbor,
    clock: ManualClock,
    drained: Callable[..., Any],
    told: list[Event],
    monkeypatch: pytest.MonkeyPatch,
):
    settle = harbor.driver.settle
    lost: list[Any] = []

    async def lose_the_first_answer(transitions: Any, **more: Any) -> Any:
        answers = await settle(transitions, **more)
        if not lost:
            lost.append(answers)
            raise StoreUnavailable("the connection was lost")
        return answers

    @harbor.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no luck")

    workflow = await flow(harbor, fail.si())
    monkeypatch.setattr(harbor.driver, "settle", lose_the_first_answer)
    draining = asyncio.ensure_future(drained(harbor))
    await until(lambda: lost)
    while not draining.done():
        clock.advance(0.1)  # until the worker repeats the settle
        await asyncio.sleep(0.01)
    await draining
    await all_told(harbor)
    assert len(lost) == 1
    assert dependants(told) == workflow.jobs.ids[1:]


async def test_each_of_many_is_told_of_once_though_several_that_it_depends_on_fail_at_once(
    harbor: Harbor, drained: Callable[..., Any], told: list[Event], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.telemetry.reports.READ_AT_ONCE", 3)

    @harbor.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no luck")

    @harbor.task(name="later")
    async def later(results: Any = None) -> None: ...

    parts = chain(group(fail.si() for _ in range(4)), later.si(), group(later.si() for _ in range(7)))
    workflow = await parts.using(on_failure="cancel").aenqueue()
    await drained(harbor)
    await all_told(harbor)
    assert sorted(dependants(told)) == workflow.jobs.ids[4:]
    await workflow.aretry()
    told.clear()
    await drained(harbor)  # and again, since they were restored
    await all_told(harbor)
    assert sorted(dependants(told)) == workflow.jobs.ids[4:]


async def test_those_that_end_with_a_lost_job_are_told_cancelled_by_whoever_collects_it(
    harbor: Harbor, clock: ManualClock, told: list[Event]
):
    begun = asyncio.Event()

    @harbor.task(name="hang", delivery="at_most_once")
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    for collect in (lambda: Worker(harbor).drain(), harbor._collect_all_expired):
        begun.clear()
        told.clear()
        workflow = await flow(harbor, hang.si())
        worker = Worker(harbor, lease_seconds=3)
        running = asyncio.ensure_future(worker.run())
        await until(begun.is_set)
        await vanish(worker, running)
        clock.advance(4)
        await collect()
        await all_told(harbor)
        assert dependants(told) == workflow.jobs.ids[1:]


@pytest.mark.parametrize("how", ["cancel", "cancel_all", "workflow", "expires"])
async def test_those_that_end_with_a_job_that_never_ran_are_told_cancelled(
    harbor: Harbor, clock: ManualClock, told: list[Event], monkeypatch: pytest.MonkeyPatch, how: str
):
    monkeypatch.setattr("taskharbor.client.workflows.CANCEL_PAGE", 2)  # the third one ends with the second

    @harbor.task(name="first")
    async def first() -> None: ...

    options = {"expires_at": from_micros(clock.now() + 1_000_000)} if how == "expires" else {"tags": ["x"]}
    workflow = await flow(harbor, first.using(delay=3600, **options).si())
    ids = workflow.jobs.ids
    match how:
        case "cancel":
            await harbor.jobs.acancel(ids[0])
        case "cancel_all":
            assert await harbor.jobs.acancel_all(tag="x") == 1
        case "workflow":
            await workflow.acancel()
        case "expires":
            clock.advance(2)
            await Worker(harbor).drain()
    await all_told(harbor)
    assert [event.job_id for event in told] == ids
    assert dependants(told) == (ids[2:] if how == "workflow" else ids[1:])
    assert {(await harbor.jobs.aget(job_id)).state for job_id in ids} == {State.CANCELLED}


async def test_nobody_is_told_of_those_that_wait(
    harbor: Harbor, drained: Callable[..., Any], told: list[Event]
):
    @harbor.task(name="fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no luck")

    await chain(fail.si(), fail.si()).aenqueue()
    await drained(harbor)
    await all_told(harbor)
    assert told == []
