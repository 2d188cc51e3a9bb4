"""A worker tells the store that it is there, also while it is idle."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor import Harbor
from taskharbor.clock import ManualClock
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.errors import StoreUnavailable
from taskharbor.worker.upkeep.presence import FIRST_SECONDS, SIGN_ON_SECONDS
from taskharbor.worker.upkeep.vitals import LoopLag
from tests.worker.stage import FaultyDriver, soon, until, working


async def names(harbor: Harbor) -> list[str]:
    return [worker.name for worker in await WORKERS.all(harbor.driver)]


async def until_there(harbor: Harbor, name: str) -> None:
    while name not in await names(harbor):  # noqa: ASYNC110 - the store tells no event
        await asyncio.sleep(0.0005)


async def test_an_idle_worker_is_there_until_it_stops(memory: Harbor, clock: ManualClock):
    async with working(memory, name="idle", concurrency=3, queues=["mail"]):
        # At once, so that other workers know it before they meet a job of its tasks.
        await soon(until_there(memory, "idle"))
        [worker] = await WORKERS.all(memory.driver)
        assert (worker.name, worker.slots, worker.queues, worker.supervisor) == ("idle", 3, ("mail",), None)
        assert worker.started_at == clock.now()
        assert "http" in (worker.tasks or ())
        assert worker.version == memory.version
        assert worker.vitals is not None
        assert worker.vitals.memory_mib > 10
        assert worker.vitals.lag_ms >= 0
        for _ in range(10):
            await clock.jump(SIGN_ON_SECONDS)
            assert await names(memory) == ["idle"]
    assert await names(memory) == []


async def test_a_short_drain_signs_nothing(memory: Harbor, drained, monkeypatch: pytest.MonkeyPatch):
    await memory.aenqueue("t")
    signed: list[object] = []
    monkeypatch.setattr(MemoryDriver, "put_records", lambda *_: signed.append(_))
    monkeypatch.setattr(MemoryDriver, "drop_records", lambda *_: signed.append(_))
    await drained(memory)
    assert signed == []


async def test_a_store_that_does_not_listen_is_no_trouble(
    faulty: Harbor, store: FaultyDriver, clock: ManualClock
):
    async def away(*_: object, **__: object) -> None:
        tries.append(1)
        raise StoreUnavailable("away")

    tries: list[int] = []
    store.put_records = away  # type: ignore[method-assign]
    job = await faulty.aenqueue("t")
    async with working(faulty, name="w"):
        await clock.jump(FIRST_SECONDS)
        await clock.jump(SIGN_ON_SECONDS)
        await until(lambda: len(tries) >= 2)
        assert (await job.arefresh()).number >= 1  # it works meanwhile


async def test_vitals_have_the_worst_lag_since_they_were_asked_for(monkeypatch: pytest.MonkeyPatch):
    times = iter([0.0, 1.25, 2.0, 3.5, 4.0, 5.0])

    class Stub:
        @staticmethod
        def monotonic() -> float:
            return next(times)

        @staticmethod
        async def sleep(seconds: float) -> None:
            pass

    monkeypatch.setattr("taskharbor.worker.upkeep.vitals.time", Stub)
    monkeypatch.setattr("taskharbor.worker.upkeep.vitals.asyncio", Stub)
    lag = LoopLag()
    assert [await lag.look(1.0), await lag.look(1.0)] == [1.25, 1.5]
    assert lag.vitals().lag_ms == 500
    await lag.look(1.0)
    assert lag.vitals().lag_ms == 0
