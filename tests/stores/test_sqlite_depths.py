"""Depths of queues on SQLite: counted in slices, so that no other read waits for a scan of a million jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers.base import ClaimRequest
from taskharbor.drivers.sqlite import SQLiteDriver, depths, schema
from taskharbor.records import NewJob, State

MINUTE = 60_000_000


@pytest.fixture
async def driver(file: Path) -> AsyncIterator[SQLiteDriver]:
    driver = SQLiteDriver(str(file))
    await driver.open()
    yield driver
    await driver.close()


async def fill(driver: SQLiteDriver, jobs: int = 20) -> None:
    """Enqueue into three queues, every fourth for later, and let one run."""
    new = [
        NewJob(
            f"019b76da-a800-7000-8000-{number:012x}",
            "t",
            queue=f"q{number % 3}",
            priority=number % 2,
            delay=MINUTE if number % 4 == 0 else None,
        )
        for number in range(jobs)
    ]
    await driver.enqueue(new)
    await driver.claim(ClaimRequest("w/1", MINUTE, 1))


@pytest.mark.parametrize("rows", [1, 2, 7, 19, 20, 50_000])
async def test_slices_add_up_to_the_whole(driver: SQLiteDriver, monkeypatch: pytest.MonkeyPatch, rows: int):
    await fill(driver)
    whole = await driver.queues(), await driver.counts(), await driver.counts("q1")
    monkeypatch.setattr(depths, "SLICE_ROWS", rows)
    assert (await driver.queues(), await driver.counts(), await driver.counts("q1")) == whole
    assert [queue.ready + queue.scheduled + queue.running for queue in whole[0]] == [7, 7, 6]
    assert (whole[1][State.SCHEDULED], whole[1][State.RUNNING]) == (5, 1)


async def test_other_reads_have_their_turn_between_two_slices(
    driver: SQLiteDriver, monkeypatch: pytest.MonkeyPatch
):
    await fill(driver)
    monkeypatch.setattr(depths, "SLICE_ROWS", 1)
    order: list[str] = []

    async def noted(name: str, reading: Any) -> None:
        await reading
        order.append(name)

    await asyncio.gather(noted("depths", driver.queues()), noted("history", driver.history("x")))
    assert order == ["history", "depths"]


async def test_depths_of_many_slices_are_kept_for_a_second_and_lower_ones_are_exact(
    driver: SQLiteDriver, monkeypatch: pytest.MonkeyPatch
):
    async def ready() -> int:
        return (await driver.counts())[State.READY]

    await fill(driver)
    before = await ready()
    await driver.enqueue([NewJob("019b76da-a800-7000-8000-00000000ffff", "t")])
    assert await ready() == before + 1
    monkeypatch.setattr(depths, "SLICE_ROWS", 3)
    assert await ready() == before + 1
    await driver.enqueue([NewJob("019b76da-a800-7000-8000-00000000fffe", "t")])
    assert await ready() == before + 1
    monkeypatch.setattr(depths, "KEPT_SECONDS", 0.0)
    driver._depths.forget()
    assert await ready() == before + 2
    await driver.enqueue([NewJob("019b76da-a800-7000-8000-00000000fffd", "t")])
    assert await ready() == before + 3


async def test_checks_of_a_large_file_let_other_reads_pass(
    driver: SQLiteDriver, monkeypatch: pytest.MonkeyPatch
):
    """They read the whole file."""
    loop = asyncio.get_running_loop()
    begun, others_read = asyncio.Event(), asyncio.Event()

    def slow(*_: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(others_read.wait(), loop).result(60)

    monkeypatch.setattr(schema, "check_integrity", slow)
    checking = asyncio.ensure_future(driver.check())
    await asyncio.wait_for(begun.wait(), 60)
    assert await asyncio.wait_for(driver.queues(), 60) == []
    others_read.set()
    assert all(check.ok for check in await checking)
