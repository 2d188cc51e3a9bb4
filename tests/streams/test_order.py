"""The orders `key` and `partition`, on a real broker: what may run at once, and what a failed message delays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskharbor import Context, Harbor
from taskharbor.drivers.capabilities import HandOver
from taskharbor.records import State
from taskharbor.streams import StreamWorker
from tests.streams.log import Log, until
from tests.streams.test_worker import working


def put(log: Log, key: str, *numbers: int, task: str = "note", partition: int = 0) -> None:
    log.put(*({"task": task, "payload": {"n": n}} for n in numbers), key=key, partition=partition)


async def states(harbor: Harbor) -> dict[int, State]:
    return {job.payload["n"]: job.state for job in await harbor.jobs.alist(limit=1_000, task="note")}


async def test_messages_of_a_key_run_in_order_and_keys_run_at_once(memory: Harbor, log: Log):
    release = asyncio.Event()
    begun: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        begun.append(n)
        if n == 0:
            await release.wait()

    put(log, "slow", 0, 1, 2)
    put(log, "quick", 10, 11, 12)
    log.put({"task": "note", "payload": {"n": 20}}, partition=0)
    async with working(memory, log, order="key"):
        await until(lambda: {10, 11, 12, 20} <= set(begun))
        assert begun.count(0) == 1
        assert not {1, 2} & set(begun)
        release.set()
        await until(log.is_committed)
    assert [n for n in begun if n < 10] == [0, 1, 2]
    assert [n for n in begun if 10 <= n < 20] == [10, 11, 12]
    assert set((await memory.jobs.acounts()).values()) == {0}


async def test_failed_message_takes_those_behind_it_into_the_store(harbor: Harbor, log: Log):
    """They run there in the order of the log; no other key waits; and later the key is on the fast path again."""
    release = asyncio.Event()
    done: list[int] = []

    @harbor.task(name="note")
    async def note(ctx: Context, n: int) -> None:
        if n == 0 and ctx.retry_count == 0:
            raise TimeoutError("timeout")
        if n == 0:
            await release.wait()
        done.append(n)

    put(log, "a", 0, 1, 2)
    async with working(harbor, log, order="key"):
        await until(lambda: _states_are(harbor, {0: State.RUNNING, 1: State.WAITING, 2: State.WAITING}))
        put(log, "b", 10, 11)
        await until(lambda: {10, 11} <= set(done))
        put(log, "a", 3)  # joins the backlog
        await until(
            lambda: _states_are(harbor, {0: State.RUNNING, **dict.fromkeys((1, 2, 3), State.WAITING)})
        )
        await until(log.is_committed)  # although the first of them still runs
        [waiting] = [job for job in await harbor.jobs.alist(task="note") if job.payload["n"] == 1]
        why = await harbor.jobs.awhy(waiting.id)
        assert "waits for the message before it of its key" in why.sentence
        release.set()
        await until(lambda: 3 in done)
        await until(lambda: _has_no_backlog(harbor))
        stored = len(await harbor.jobs.alist(task="note"))
        put(log, "a", 4, 5)
        await until(lambda: 5 in done)
        await until(log.is_committed)
        assert (
            len(await harbor.jobs.alist(task="note")) <= stored + 1
        )  # at most what met the end of the backlog
    assert [n for n in done if n < 10] == [0, 1, 2, 3, 4, 5]


async def _states_are(harbor: Harbor, expected: dict[int, State]) -> bool:
    return await states(harbor) == expected


async def _has_no_backlog(harbor: Harbor) -> bool:
    return not await HandOver.of(harbor.driver).backlogs("", "~", 10)


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_dead_message_lets_the_next_one_run_or_holds_it(harbor: Harbor, log: Log, order: Any):
    done: list[int] = []

    @harbor.task(name="note")
    async def note(n: int) -> None:
        if n in (0, 10):
            raise ValueError("validation error")
        done.append(n)

    put(log, "a", 0, 1, 2)
    async with working(harbor, log, order=order):
        await until(lambda: done == [1, 2])
        await until(log.is_committed)
    put(log, "a", 10, 11)
    async with working(harbor, log, order=order, on_dead="hold"):
        await until(lambda: _dead(harbor, 2))
        await until(lambda: _blocks(harbor))
    put(log, "a", 12)
    async with working(harbor, log, order=order, on_dead="hold") as worker:  # after a restart too
        await until(lambda: worker._source is not None and worker._source.figures()["blocked"] == 1)
        await asyncio.sleep(0.1)
        assert done == [1, 2]
        [dead] = [job for job in await harbor.dlq.alist() if job.payload["n"] == 10]
        await harbor.dlq.adiscard(dead.id)
        await until(lambda: done == [1, 2, 11, 12])
        await until(log.is_committed)


async def _dead(harbor: Harbor, count: int) -> bool:
    return (await harbor.jobs.acounts())["dead"] == count


async def _blocks(harbor: Harbor) -> bool:
    return not await _has_no_backlog(harbor)


async def test_partition_waits_in_the_log_until_the_job_of_its_failed_message_has_ended(
    harbor: Harbor, log: Log
):
    release = asyncio.Event()
    done: list[int] = []
    at_once: set[int] = set()
    most = 0

    @harbor.task(name="note")
    async def note(ctx: Context, n: int) -> None:
        nonlocal most
        at_once.add(n)
        most = max(most, len([each for each in at_once if each < 10]))
        try:
            if n == 1 and ctx.retry_count == 0:
                raise TimeoutError("timeout")
            if n == 1:
                await release.wait()
            done.append(n)
        finally:
            at_once.discard(n)

    for n in range(5):
        put(log, f"key-{n}", n)
    async with working(harbor, log, order="partition"):
        put(log, "x", 10, 11, partition=1)
        await until(lambda: {0, 10, 11} <= set(done))
        await until(lambda: _states_are(harbor, {1: State.RUNNING}))
    async with working(harbor, log, order="partition"):  # after a restart too
        await until(lambda: _states_are(harbor, {1: State.RUNNING}))
        assert sorted(done) == [0, 10, 11]
        release.set()
        await until(log.is_committed)
        await until(lambda: 4 in done)
    assert [n for n in done if n < 10] == [0, 1, 2, 3, 4]
    assert most == 1
    assert await states(harbor) == {1: State.SUCCEEDED}


async def test_at_most_once_message_keeps_its_place_in_the_order(harbor: Harbor, log: Log):
    done: list[int] = []

    @harbor.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    @harbor.task(name="once", delivery="at_most_once")
    async def once(n: int) -> None:
        await asyncio.sleep(0.05)
        done.append(n)

    put(log, "a", 0)
    put(log, "a", 1, task="once")
    put(log, "a", 2)
    async with working(harbor, log, order="key"):
        await until(lambda: 2 in done)
        await until(log.is_committed)
    assert done == [0, 1, 2]


async def test_worker_whose_partition_was_taken_over_hands_nothing_over_and_begins_again(
    memory: Harbor, log: Log
):
    """The store knows a later owner: what the worker has begun comes again, in order."""
    go_on = asyncio.Event()
    begun: list[int] = []

    @memory.task(name="note")
    async def note(ctx: Context, n: int) -> None:
        begun.append(n)
        if n == 0 and ctx.retry_count == 0 and begun.count(0) == 1:
            await go_on.wait()
            raise TimeoutError("timeout")

    put(log, "a", 0, 1)
    async with working(memory, log, order="key") as worker:
        await until(lambda: begun == [0])
        assert worker._source is not None
        partition = worker._source._jobs.keys.partition(0)
        await HandOver.of(memory.driver).own(
            partition
        )  # as another worker does when the partition comes to it
        go_on.set()
        await until(log.is_committed)
    assert begun == [0, 0, 1]
    assert await states(memory) == {}  # the failed attempt of the first owner was refused


async def test_on_dead_needs_an_order(memory: Harbor, log: Log):
    with pytest.raises(ValueError, match="order='key'"):
        StreamWorker(memory, brokers="x:1", group="g", on_dead="hold")
    with pytest.raises(ValueError, match="order is one of none, key, partition"):
        StreamWorker(memory, brokers="x:1", group="g", order="keys")  # type: ignore[arg-type]
