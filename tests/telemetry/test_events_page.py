"""docs/events.md lists every event with its fields: what it says is what subscribers get."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import msgspec

from taskharbor import Event, Harbor, RetryPolicy, Worker
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import ClaimRequest
from taskharbor.telemetry.events import EVENT_NAMES, EVENTS, EVERY_EVENT
from tests.worker.stage import soon, working

META = {"tenant": "acme"}
STEADY = RetryPolicy(max_attempts=2, initial=1, jitter=None)


def test_every_event_is_listed_once_with_fields_that_events_have():
    assert tuple(kind.name for kind in EVENTS) == EVENT_NAMES
    listed = {*EVERY_EVENT, *(name for kind in EVENTS for name in (*kind.fields, *kind.sometimes))}
    assert listed == {field.name for field in msgspec.structs.fields(Event)}


async def test_events_have_the_fields_that_are_listed():
    clock = ManualClock()
    seen: dict[str, list[Event]] = defaultdict(list)
    begun = asyncio.Event()
    async with Harbor("memory://", clock=clock) as harbor:
        for name in EVENT_NAMES:

            async def hear(event: Event) -> None:
                seen[event.name].append(event)

            harbor.events.subscribe(name, hear)

        @harbor.task(name="send")
        async def send(fails: bool) -> None:
            if fails:
                raise ValueError("no luck")

        @harbor.task(name="hang")
        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        lost = await harbor.aenqueue("unknown", meta=META)
        await harbor.driver.claim(ClaimRequest("dead/1-1", 1_000_000, 1))
        clock.advance(5)
        await Worker(harbor, retry=STEADY).drain()
        await harbor.jobs.acancel(lost.id)
        await send.using(meta=META).aenqueue(fails=False)
        await send.using(meta=META).aenqueue(fails=True)
        for _ in range(2):
            await soon(Worker(harbor, retry=STEADY).drain())
            clock.advance(60)
        running = await hang.using(meta=META).aenqueue()
        async with working(harbor):
            await soon(begun.wait())
            await harbor.jobs.acancel(running.id)
            await clock.jump(60)
        await harbor.events.drain(30)
    assert set(seen) == set(EVENT_NAMES) - {"stuck"}  # that one is about a process, and has tests of its own
    for kind in EVENTS:
        for event in seen[kind.name]:
            there = {
                name for name, value in msgspec.structs.asdict(event).items() if value not in (None, (), {})
            }
            more = there - set(EVERY_EVENT)
            assert event.meta == META
            assert set(kind.fields) <= more <= {*kind.fields, *kind.sometimes}, event
