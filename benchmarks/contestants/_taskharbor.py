"""TaskHarbor through its public interface; a store differs from another by its URL only."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import handlers
from benchmarks.asynchronous import new_loop
from benchmarks.contestant import Durability, Role, Started, check_all_ran
from benchmarks.growth import GrowthContestant
from benchmarks.work import PLAIN, PLAIN_SYNC, Kind, Work
from taskharbor import Harbor, Task, Worker, Workflow, chord

CONCURRENCY = 100
CHUNK = 10_000
"""Jobs in one enqueue_many when a large store is filled; the timed bulk enqueue is one call."""


class TaskHarbor(GrowthContestant):
    role: ClassVar[Role] = "taskharbor"
    durability = Durability.FULL
    distribution = "taskharbor"
    kinds: ClassVar[tuple[Kind, ...]] = ("async", "sync", "process")
    workflow: Workflow
    work_tasks: dict[str, Task[..., Any, ..., Any]]
    probe_tasks: dict[str, Task[..., Any, ..., Any]]

    def url(self, directory: Path) -> str:
        raise NotImplementedError

    def setup(self, directory: Path) -> None:
        self.declare(Harbor(self.url(directory)))

    def declare(self, harbor: Harbor) -> None:
        self.harbor = harbor
        self.ran = 0
        self.ran_in_threads = itertools.count()

        @harbor.task(name="noop")
        async def noop() -> None:
            self.ran += 1

        @harbor.task(name="noop_sync")
        def noop_sync() -> None:
            next(self.ran_in_threads)

        @harbor.task(name="work")
        async def work(milliseconds: float) -> None:
            await asyncio.sleep(milliseconds / 1_000)
            self.ran += 1

        @harbor.task(name="work_sync")
        def work_sync(milliseconds: float) -> None:
            handlers.sleep(milliseconds)
            next(self.ran_in_threads)

        @harbor.task(name="probe_sync")
        def probe_sync(number: int) -> None:
            self.started(number)

        work_process = harbor.task(name="work_process", isolation="process")(handlers.sleep)
        probe_process = harbor.task(name="probe_process", isolation="process")(handlers.report_start)
        self.work_tasks = {"async": work, "sync": work_sync, "process": work_process}

        @harbor.task(name="racer")
        async def racer() -> None:
            self.raced()

        @harbor.task(name="probe")
        async def probe(number: int) -> None:
            self.started(number)

        @harbor.task(name="finalizer")
        async def finalizer(results: list[None]) -> int:
            return len(results)

        self.noop, self.racer, self.probe_task, self.finalizer = noop, racer, probe, finalizer
        self.noop_sync = noop_sync
        self.probe_tasks = {"async": probe, "sync": probe_sync, "process": probe_process}

    def close(self) -> None:
        self.harbor.close()

    def enqueue(self) -> None:
        self.noop.enqueue()

    def enqueue_concurrent(self, count: int, callers: int) -> float:
        return asyncio.run(self.enqueue_by_callers(count, callers))

    async def enqueue_by_callers(self, count: int, callers: int) -> float:
        async def caller(share: int) -> None:
            for _ in range(share):
                await self.noop.aenqueue()

        await (
            self.noop.aenqueue()
        )  # opens this loop's connections, as the peers' are open before the clock starts
        shares = [count // callers + (index < count % callers) for index in range(callers)]
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as callers_group:
            for share in shares:
                callers_group.create_task(caller(share))
        seconds = time.perf_counter() - begun
        await self.harbor.aclose()
        return seconds

    def enqueue_bulk(self, count: int) -> float:
        arguments: list[dict[str, object]] = [{}] * count
        begun = time.perf_counter()
        self.noop.enqueue_many(arguments)
        return time.perf_counter() - begun

    def fill(self, count: int) -> None:
        for size in chunks(count):
            self.noop.enqueue_many([{}] * size)

    def fill_work(self, work: Work, count: int) -> None:
        plain: dict[Work, Task[..., Any, ..., Any]] = {PLAIN: self.noop, PLAIN_SYNC: self.noop_sync}
        for size in chunks(count):
            if work in plain:
                plain[work].enqueue_many([{}] * size)
            else:
                self.work_tasks[work.kind].enqueue_many([{"milliseconds": work.milliseconds}] * size)

    def drain(self, count: int) -> float:
        worker = self.worker()
        begun = time.perf_counter()
        worker.drain_sync()
        seconds = time.perf_counter() - begun
        ran = self.ran + next(self.ran_in_threads)
        check_all_ran(
            ran or self.harbor.jobs.counts()["succeeded"], count
        )  # those of processes ran elsewhere
        return seconds

    def worker(self) -> Worker:
        return Worker(self.harbor, concurrency=self.slots or CONCURRENCY)

    def drain_share(self, told: Callable[[int], None]) -> None:
        Worker(self.harbor, concurrency=CONCURRENCY).drain_sync()
        told(self.ran)

    def store_chord(self, count: int) -> float:
        begun = time.perf_counter()
        self.workflow = chord([self.noop.s() for _ in range(count)], self.finalizer.s()).enqueue()
        return time.perf_counter() - begun

    def drain_chord(self, count: int) -> float:
        seconds = self.drain(count)
        check_all_ran(self.workflow.result(timeout=0), count)
        return seconds

    def probe(self, number: int) -> None:
        self.probe_task.enqueue(number)

    def probe_work(self, work: Work, number: int) -> None:
        self.probe_tasks[work.kind].enqueue(number)

    def serve(self, started: Started) -> None:
        self.started = started
        self.worker().run_sync()

    def enqueue_with(self, count: int, *, priority: int, delay_seconds: float) -> None:
        task = self.noop.using(priority=priority, delay=delay_seconds)
        for size in chunks(count):
            task.enqueue_many([{}] * size)

    def race(self, count: int) -> float:
        for size in chunks(count):
            self.racer.enqueue_many([{}] * size)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(self.run_racers(count))

    async def run_racers(self, count: int) -> float:
        finished = asyncio.Event()
        times: list[float] = []

        def raced() -> None:
            times.append(time.perf_counter())
            if len(times) == count:
                finished.set()

        self.raced = raced
        worker = Worker(self.harbor, concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.run())
        waiting = asyncio.create_task(finished.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await self.harbor.aclose()
        check_all_ran(len(times), count)
        return times[-1] - times[0]


def chunks(count: int) -> Iterator[int]:
    for begin in range(0, count, CHUNK):
        yield min(CHUNK, count - begin)
