"""How a worker starts: it waits for a store that is away, and a stop ends the waiting."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from taskharbor import ConfigurationError, Harbor, Worker
from taskharbor.errors import SchemaError, StoreUnavailable
from tests.worker.stage import soon, until


def away(*_: object) -> Exception:
    return StoreUnavailable("nobody answers")


@pytest.mark.parametrize("verb", ["open_for_work", "take_expired"])
async def test_a_worker_waits_for_a_store_that_is_away(faulty, store, clock, caplog, verb):
    @faulty.task
    async def work() -> int:
        return 1

    store.fail[verb] = away
    job = await work.aenqueue()
    with caplog.at_level(logging.WARNING, "taskharbor.worker"):
        working = asyncio.create_task(Worker(faulty).run())
        await until(lambda: store.calls[verb])
        await clock.jump(20)
        assert 3 < store.calls[verb] < 50
        del store.fail[verb]
        await clock.jump(3)
        assert await soon(job.aresult()) == 1
    first, *_, last = caplog.messages
    assert first == "waiting for the store: nobody answers"
    assert last.startswith("the store is back after ")
    assert len(caplog.messages) < 8  # not a line for each try
    working.cancel()
    await asyncio.wait([working])


@pytest.mark.parametrize("verb", ["open_for_work", "take_expired"])
async def test_a_stop_ends_the_wait_for_the_store(faulty, store, verb):
    store.fail[verb] = away
    worker = Worker(faulty)
    working = asyncio.create_task(worker.run())
    await until(lambda: store.calls[verb])
    worker.stop()
    await soon(working)


async def test_a_stop_ends_an_attempt_to_open_that_hangs(faulty, store):
    store.before["open_for_work"] = lambda: asyncio.sleep(3600)
    worker = Worker(faulty)
    working = asyncio.create_task(worker.run())
    await until(lambda: store.calls["open_for_work"])
    worker.stop()
    await soon(working)


async def test_hooks_are_not_called_for_a_worker_that_never_had_its_store(faulty, store):
    called = []
    faulty.on_worker_start(lambda: called.append("start"))
    faulty.on_worker_stop(lambda: called.append("stop"))
    store.fail["open_for_work"] = away
    worker = Worker(faulty)
    working = asyncio.create_task(worker.run())
    await until(lambda: store.calls["open_for_work"])
    worker.stop()
    await soon(working)
    assert called == []


async def test_a_block_that_is_cancelled_while_it_waits_leaves_no_worker_behind(faulty, store):
    store.fail["open_for_work"] = away

    async def inside() -> None:
        async with Worker(faulty):
            raise AssertionError("the store is away")

    entering = asyncio.create_task(inside())
    await until(lambda: store.calls["open_for_work"])
    entering.cancel()
    await asyncio.wait([entering])
    assert entering.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_waiting_does_not_mend_is_raised(faulty, store):
    store.fail["open_for_work"] = lambda *_: SchemaError("version 1, older than 2")
    with pytest.raises(SchemaError, match="older than 2"):
        await soon(Worker(faulty).run())


async def test_an_outage_is_told_when_it_begins_and_when_it_ends(faulty, store, clock, caplog):
    """Every part of a worker finds out by itself; that the store is back is one line."""
    release = asyncio.Event()
    begun = asyncio.Event()

    @faulty.task
    async def work() -> None:
        begun.set()
        await release.wait()

    with caplog.at_level(logging.WARNING, "taskharbor.worker"):
        async with Worker(faulty, lease_seconds=90):
            await work.aenqueue()
            await soon(begun.wait())
            for verb in ("claim", "settle", "extend", "take_expired"):
                store.fail[verb] = away
            release.set()
            await clock.jump(60)
            store.fail.clear()
            await clock.jump(30)
            await until(lambda: any("is back" in message for message in caplog.messages))
    back = [message for message in caplog.messages if "is back" in message]
    assert len(back) == 1
    assert caplog.messages[-1] == back[0]
    assert 60 <= float(back[0].split()[-2]) <= 90


# -- tasks in several modules ----------------------------------------------------------------------


async def test_a_worker_of_a_program_imports_what_its_harbor_includes(tmp_path, monkeypatch, clock):
    (tmp_path / "included_by_a_test.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with Harbor("memory://", clock=clock, include=["included_by_a_test"]) as harbor:
        assert "included_by_a_test" not in sys.modules  # it may need the harbor, which is being made
        await soon(Worker(harbor).drain())
    assert sys.modules.pop("included_by_a_test").loaded


@pytest.mark.parametrize("include", ["shop.orders", 5, [5], ["shop/orders.py"], [""], ["shop..orders"]])
def test_include_is_a_list_of_names_of_modules(include):
    with pytest.raises(ConfigurationError, match="include"):
        Harbor("memory://", include=include)
