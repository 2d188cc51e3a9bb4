"""Suspects: jobs lost twice in a row with others, executed alone, so that neighbours are never condemned."""

from __future__ import annotations

import asyncio
import threading

from taskharbor import Worker
from taskharbor.records import Reason, State
from tests.worker.stage import soon, statuses, the_job, until, until_state, working
from tests.worker.test_delivery import vanish


class Crashing:
    """A harbor whose worker vanishes whenever a poisonous job runs: as a crash of its process would do."""

    def __init__(self, harbor, clock):
        self.harbor = harbor
        self.clock = clock
        self.struck = asyncio.Event()
        self.executed: list[int] = []
        self.together: list[set[int]] = []
        self.now_running: set[int] = set()
        self.everybody = asyncio.Event()
        self.expected = 0

        @harbor.task(name="poison")
        async def poison(n: int = -1) -> None:
            self.begin(n)
            self.struck.set()
            await asyncio.Event().wait()

        @harbor.task(name="good")
        async def good(n: int) -> int:
            self.begin(n)
            await asyncio.sleep(0.01)  # still running when the poisonous one strikes
            self.executed.append(n)
            self.now_running.discard(n)
            return n

        self.poison, self.good = poison, good

    def begin(self, n: int) -> None:
        self.now_running.add(n)
        self.together.append(set(self.now_running))

    async def life_of_a_worker(self) -> bool:
        """Run one until it crashes or has nothing left to do; whether it crashed."""
        self.struck.clear()
        self.now_running.clear()
        worker = Worker(self.harbor, lease_seconds=3)
        running = asyncio.ensure_future(worker.drain())
        striking = asyncio.ensure_future(self.struck.wait())
        await asyncio.wait([running, striking], return_when=asyncio.FIRST_COMPLETED)
        striking.cancel()
        crashed = not running.done()
        await vanish(worker, running)
        self.clock.advance(4)  # the lease runs out
        return crashed


async def test_a_poisonous_job_is_dead_in_the_end_and_all_its_neighbours_succeed(memory, clock):
    scene = Crashing(memory, clock)
    jobs = await scene.good.aenqueue_many([{"n": n} for n in range(15)])
    poison = await scene.poison.aenqueue()
    jobs += await scene.good.aenqueue_many([{"n": n} for n in range(15, 30)])
    crashes = 0
    while await soon(scene.life_of_a_worker()):
        crashes += 1
        assert crashes < 20
    found = await the_job(memory, poison)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, Reason.POISON, 0)
    assert await statuses(poison) == ["lost"] * 7  # normally twice, alone five times
    assert crashes == 7
    for n, job in enumerate(jobs):
        assert await job.aresult() == n
        assert (await the_job(memory, job)).attempts == 0


async def test_a_suspect_is_executed_alone(memory, clock):
    scene = Crashing(memory, clock)
    poison = await scene.poison.aenqueue()
    for _ in range(2):
        assert await soon(scene.life_of_a_worker())
    scene.together.clear()
    await scene.good.aenqueue_many([{"n": n} for n in range(5)])
    while (await the_job(memory, poison)).state is not State.DEAD:
        await soon(scene.life_of_a_worker())
    assert [each for each in scene.together if -1 in each] == [{-1}] * 5


async def test_an_innocent_suspect_succeeds_and_is_one_no_longer(memory, clock):
    calls = []

    @memory.task
    async def innocent() -> str:
        calls.append(1)
        if len(calls) <= 2:
            await asyncio.Event().wait()
        return "done"

    job = await innocent.aenqueue()
    for n in (1, 2):
        worker = Worker(memory, lease_seconds=3)
        running = asyncio.ensure_future(worker.run())
        await until(lambda: len(calls) == n)  # noqa: B023
        await vanish(worker, running)
        clock.advance(4)
    await soon(Worker(memory).drain())
    assert await job.aresult() == "done"
    assert await statuses(job) == ["lost", "lost", "succeeded"]


async def make_suspect(memory, clock, task) -> None:
    """Lose everything that is runnable twice."""
    for _ in range(2):
        worker = Worker(memory, lease_seconds=3)
        running = asyncio.ensure_future(worker.run())
        await until(lambda: memory.driver._store.leases)
        await clock.settle()
        await vanish(worker, running)
        clock.advance(4)
    await memory._collect_expired(task.id)


async def test_suspects_do_not_block_the_rest_and_are_not_starved_by_it(memory, clock):
    hold = True
    done: list[int | str] = []

    @memory.task(name="suspect")
    async def suspect() -> None:
        if hold:
            await asyncio.Event().wait()
        done.append("suspect")

    @memory.task(name="other")
    async def other(n: int) -> None:
        await asyncio.sleep(0)
        done.append(n)

    job = await suspect.aenqueue()
    await make_suspect(memory, clock, job)
    hold = False
    async with working(memory, concurrency=2):
        n = 0
        while (await the_job(memory, job)).state is not State.SUCCEEDED:
            n += 1
            assert n < 500, "the suspect starved"
            await other.aenqueue(n)  # there is always something else to do
            await clock.jump(0.1)
        await until(lambda: len(done) == n + 1)
    assert sorted(each for each in done if isinstance(each, int)) == list(range(1, n + 1))


async def test_a_suspect_waits_until_what_runs_has_ended(memory, clock):
    hold = True
    release = threading.Event()
    begun = []

    @memory.task(name="suspect")
    async def suspect() -> str:
        if hold:
            await asyncio.Event().wait()
        begun.append("suspect")
        return "done"

    @memory.task(name="long")
    async def long() -> None:
        begun.append("long")
        await until(release.is_set)
        begun.append("long ended")

    job = await suspect.aenqueue()
    await make_suspect(memory, clock, job)
    hold = False
    async with working(memory):
        await clock.jump(2)
        await until_state(job, State.SUCCEEDED)
    assert begun == ["suspect"]

    begun.clear()
    hold = True
    again = await suspect.aenqueue()
    await make_suspect(memory, clock, again)
    hold = False
    await long.aenqueue()
    async with working(memory):
        await until(lambda: begun)
        await clock.jump(5)
        assert begun == ["long"]
        release.set()
        await clock.jump(1)
        assert await soon(again.aresult()) == "done"
    assert begun == ["long", "long ended", "suspect"]


async def test_draining_executes_suspects_too(memory, clock):
    hold = True

    @memory.task
    async def suspect() -> str:
        if hold:
            await asyncio.Event().wait()
        return "done"

    jobs = await suspect.aenqueue_many([{}] * 3)
    await make_suspect(memory, clock, jobs[0])
    hold = False
    await soon(Worker(memory).drain())
    assert [await job.aresult() for job in jobs] == ["done"] * 3


async def test_a_suspect_that_cannot_be_claimed_ends_neither_its_worker_nor_the_turn_of_the_others(
    faulty, store, clock
):
    hold = True

    @faulty.task
    async def work() -> str:
        if hold:
            await asyncio.Event().wait()
        return "done"

    suspect = await work.aenqueue()
    await make_suspect(faulty, clock, suspect)
    hold = False
    store.fail["claim"] = lambda request: TypeError("a bug") if request.suspects else None
    async with working(faulty, concurrency=4):
        for _ in range(3):
            job = await work.aenqueue()
            await clock.jump(5)
            assert await soon(job.aresult()) == "done"
        store.fail.clear()
        await clock.jump(5)
        assert await soon(suspect.aresult()) == "done"


async def test_many_suspects_are_executed_one_after_the_other_without_pauses(memory, clock):
    hold = True
    at_once = most = 0

    @memory.task
    async def suspect() -> str:
        nonlocal at_once, most
        if hold:
            await asyncio.Event().wait()
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return "done"

    jobs = await suspect.aenqueue_many([{}] * 50)
    await make_suspect(memory, clock, jobs[0])
    hold = False
    async with working(memory):
        await clock.jump(2)  # the first may have to wait for a poll, the others for nothing
        for job in jobs:
            assert await soon(job.aresult()) == "done"
    assert most == 1


async def test_a_suspect_that_waits_for_a_long_job_does_not_block_the_rest(memory, clock):
    """And in the end it has its turn, although something always runs."""
    hold = True
    releases: list[asyncio.Event] = []
    done = []

    @memory.task(name="suspect")
    async def suspect() -> None:
        if hold:
            await asyncio.Event().wait()
        done.append("suspect")

    @memory.task(name="long")
    async def long() -> None:
        releases.append(release := asyncio.Event())
        await release.wait()

    @memory.task(name="short")
    async def short() -> None:
        done.append("short")

    job = await suspect.aenqueue()
    await make_suspect(memory, clock, job)
    hold = False
    await long.aenqueue()
    async with working(memory):
        await until(lambda: releases)
        shorts = []
        for _ in range(60):  # an hour
            shorts.append(await short.aenqueue())
            await clock.jump(60)
        assert done.count("short") >= 35  # it stands still for a quarter of the time
        assert "suspect" not in done
        releases[0].set()
        await clock.jump(3600)
        await until(lambda: done.count("short") == 60)
        assert "suspect" in done
