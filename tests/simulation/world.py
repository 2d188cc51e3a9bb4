"""One simulated world: a store, workers, producers, an operator, and what befalls them. All of it from one seed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

from msgspec import Struct

from taskharbor import Harbor, Worker
from taskharbor.clock import MICROS_PER_SECOND, from_micros
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigurationError, JobConflict, JobNotFound, StoreError
from taskharbor.records import State
from taskharbor.rules.retry import RetryPolicy
from tests.simulation import program
from tests.simulation.link import FAIR, Link, Rates
from tests.simulation.observer import Observer
from tests.simulation.universe import ProcessClock, SimulatedLoop, Universe

START = 1_767_225_600_000_001  # an odd microsecond
FAULTS_SECONDS = 12  # how long faults go on
LIVENESS_SECONDS = 180  # after they have stopped, everything has ended within this time
AFTERMATH_SECONDS = 3  # in which calls from before may still take effect
STEPS_MAX = 60_000
UNRUNNABLE_GRACE_SECONDS = 6.0


class Findings(Struct):
    """What one seed led to."""

    seed: int
    wrong: list[str]
    trace: str  # a digest of everything that happened
    steps: int = 0
    seconds: float = 0.0  # simulated ones
    executions: int = 0
    kills: int = 0


class Process:
    """A simulated process: its loop, its clock, its way to the store."""

    def __init__(self, world: World, name: str, rates: Rates, skew: int = 0) -> None:
        self.world = world
        self.name = name
        self.rates = rates
        self.clock = ProcessClock(world.universe, skew)
        self.loop = SimulatedLoop(world.universe, self)
        self.link = world.new_link(self)
        self.harbor = Harbor(driver=self.link)
        self.harbor.tasks.update(world.application.tasks)
        self.alive = True
        self.may_die = False  # by accident: workers do, and all that belongs to them
        self.dies_unanswered = False  # as soon as what it asks for has taken effect
        self.worker: Worker | None = None
        self.main: asyncio.Task[Any] | None = None
        self.troubles: list[tuple[int, str, float]] = []  # when, what, for how many seconds
        self.stopped_at: int | None = None
        self.ends_now = False  # it was told to stop a second time

    def trouble(self, what: str, verb: str, seconds: float = 0.0) -> None:
        self.troubles.append((self.world.universe.now, what, seconds))
        self.world.observer.note(what, self.name, verb)


class World:
    application = program.application  # that every process runs

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        self.universe = Universe(chance, START)
        self.store: Any = self._new_store()
        self.lease_seconds = chance.choice((1.5, 3.0, 6.0))
        self.grace_seconds = chance.choice((0.2, 2.0))
        self.max_losses = chance.choice((2, 3, 5))
        self.specs: Any = self._draw_specs()
        self.observer = self._new_observer()
        self.rates = self._draw_rates()
        self.kills = 0  # from outside: by chance
        self.cancels_requested = 0  # how often operators asked running jobs to end
        self.crashes_left = chance.choice((0, 1, 2, 4))
        self.set_clock_rate = chance.choice((0.0, 0.0, 0.6))  # of a handler: a clock is set while it runs
        self.faults = True
        self.workers: list[Process] = []
        self.graves: list[Process] = []
        self._named = 0
        self._accepted: set[str] = set()

    def _new_store(self) -> Any:
        store = MemoryDriver(ProcessClock(self.universe))
        store._changes._sleepers = Ordered()  # type: ignore[assignment]
        return store

    def _new_observer(self) -> Observer:
        return Observer(self)

    def _draw_specs(self) -> Any:
        return program.draw_specs(self.chance, START, self.seed)

    def new_link(self, process: Process) -> Link:
        return Link(self, process)

    def _draw_rates(self) -> Rates:
        chance = self.chance
        if chance.random() < 0.1:
            return FAIR

        def rate(most: float) -> float:
            return chance.random() * most if chance.random() < 0.5 else 0.0

        return Rates(
            lost_request=rate(0.15), lost_answer=rate(0.15), late=rate(0.04), slow=rate(0.1), crash=rate(0.04),
            freeze=rate(0.02), slow_seconds=chance.choice((0.5, 2.0, 8.0)), freeze_seconds=chance.choice((1.0, 10.0)),
            usual_seconds=chance.choice((0.001, 0.01, 0.05)),
        )  # fmt: skip

    # -- processes --

    def start_worker(self) -> None:
        self._named += 1
        skew = int(self.chance.choice((0, 0, 300, -300)) * MICROS_PER_SECOND)
        process = Process(self, f"w{self._named}", self.rates if self.faults else FAIR, skew)
        process.may_die = True
        process.worker = Worker(
            process.harbor,
            queues=self.chance.choice((None, None, program.QUEUES)),
            concurrency=self.chance.choice((1, 2, 10)),
            lease_seconds=self.lease_seconds,
            grace_seconds=self.grace_seconds,
            retry=RetryPolicy(max_attempts=25, jitter=None),
            max_losses=self.max_losses,
            unrunnable_grace_seconds=UNRUNNABLE_GRACE_SECONDS,
            poll_seconds=self.chance.choice((0.5, 5.0)),
            name=process.name,
        )
        self.workers.append(process)
        self._start(process, process.worker.run())

    def _start(self, process: Process, coroutine: Any) -> None:
        process.main = process.loop.create_task(coroutine)
        process.main.add_done_callback(lambda task: self._ended(process, task))

    def _ended(self, process: Process, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self.observer.process_ended(process, error)
        self._bury(process)

    def _bury(self, process: Process) -> None:
        process.alive = False
        process.loop.kill()
        self.graves.append(process)
        if process in self.workers:
            self.workers.remove(process)
            pause = int(self.chance.random() * 2 * MICROS_PER_SECOND)
            self.universe.at(self.universe.now + pause, self.start_worker)

    def may_crash(self, process: Process) -> bool:
        """Only some, and only so often: the rest of the story shall be told as well."""
        if not self.faults or not process.may_die or self.crashes_left <= 0:
            return False
        self.crashes_left -= 1
        return True

    def kill(self, process: Process, by_itself: bool = False) -> None:
        """As SIGKILL would: nothing of it runs again, not even a `finally`."""
        self.kills += not by_itself
        self.observer.note("kill", process.name, by_itself)
        self._bury(process)

    def freeze(self, process: Process, seconds: float) -> None:
        """As SIGSTOP would, and SIGCONT after a while."""
        process.trouble("freeze", "", seconds)
        process.loop.goes_on = False

        def thaw() -> None:
            if process.alive:
                process.loop.goes_on = True
                process.trouble("thaw", "")

        self.universe.at(self.universe.now + int(seconds * MICROS_PER_SECOND), thaw)

    # -- what befalls them --

    def _plan_accidents(self) -> None:
        for _ in range(self.chance.randint(0, 5)):
            at = START + int(self.chance.random() * FAULTS_SECONDS * MICROS_PER_SECOND)
            self.universe.at(at, self._accident)

    def handler_begins(self, process: Process, seconds: float) -> None:
        """Somebody may set the clock of the process while the handler runs."""
        if self.faults and self.chance.random() < self.set_clock_rate:
            at = self.universe.now + int(self.chance.random() * seconds * MICROS_PER_SECOND)
            self.universe.at(at, lambda: self._set_the_clock(process))

    def _set_the_clock(self, process: Process) -> None:
        process.clock.skew += int(self.chance.choice((-3600, -5, 5, 3600)) * MICROS_PER_SECOND)
        self.observer.note("set", process.name, process.clock.skew)

    def _accident(self) -> None:
        if not self.workers or not self.faults:
            return
        process = self.chance.choice(self.workers)
        match self.chance.choice(
            ("kill", "freeze", "stop", "stop", "set the clock", "set the clock", "stop twice")
        ):
            case "kill" if self.may_crash(process):
                self.kill(process)
            case "freeze" if self.may_crash(process):
                self.freeze(process, self.chance.random() * self.rates.freeze_seconds)
            case "stop":
                self._stop(process)
            case "stop twice" if self.may_crash(process):
                self._stop(process)
                at = self.universe.now + int(self.chance.random() * MICROS_PER_SECOND)
                self.universe.at(at, lambda: self._stop(process, again=True))
            case "set the clock":
                self._set_the_clock(process)

    def _stop(self, process: Process, again: bool = False) -> None:
        if process.alive and process.worker is not None:
            self.observer.note("stop", process.name, again)
            process.ends_now = process.stopped_at is not None
            process.stopped_at = process.stopped_at or self.universe.now
            process.worker.stop()

    # -- producers and operators --

    async def _produce(self, process: Process) -> None:
        for spec in sorted(self.specs, key=lambda spec: spec.at):
            await asyncio.sleep(max(0.0, (spec.at - self.universe.now) / MICROS_PER_SECOND))
            new = spec.new_job()
            if any(dependency not in self.store._store.jobs for dependency in spec.depends_on):
                continue  # deleted, or never enqueued
            while True:  # an enqueue whose answer was lost is repeated
                try:
                    [answer] = await process.link.enqueue([new])
                except ConfigurationError:
                    break  # what it depends on was deleted meanwhile
                except StoreError:
                    await asyncio.sleep(0.1)
                    continue
                self.observer.accepted(spec, answer)
                break

    async def _operate(self, process: Process) -> None:
        await asyncio.gather(self._use_verbs(process), self._hold_back(process))

    async def _hold_back(self, process: Process) -> None:
        """An operator keeps tasks or tags back for a while."""
        for _ in range(self.chance.choice((0, 2, 6))):
            await asyncio.sleep(self.chance.random())
            held = self.chance.choice(({"task": "act"}, {"task": "once"}, {"tag": program.TAG}))
            with contextlib.suppress(StoreError):
                await process.harbor.holds.ahold(**held)
                await asyncio.sleep(self.chance.random() * 2)
                await process.harbor.holds.arelease(**held)

    async def _use_verbs(self, process: Process) -> None:
        """Whatever an operator may do, at any moment, to any job."""
        harbor = process.harbor
        for _ in range(self.chance.choice((0, 0, 3, 8))):
            await asyncio.sleep(self.chance.random() * 3)
            spec = self.chance.choice(self.specs)
            verb = self.chance.choice(
                ("cancel", "cancel", "retry", "delete", "update", "run_now", "pause", "discard", "priority")
            )
            with contextlib.suppress(JobNotFound, JobConflict, StoreError):
                match verb:
                    case "cancel":
                        await harbor.jobs.acancel(spec.id)
                    case "retry":
                        await harbor.jobs.aretry(spec.id, force=True)
                    case "delete":
                        await harbor.jobs.adelete(spec.id)
                    case "update":
                        later = self.universe.now + int(self.chance.random() * 2 * MICROS_PER_SECOND)
                        await harbor.jobs.aupdate(spec.id, run_at=from_micros(later))
                    case "priority":
                        await harbor.jobs.aupdate(spec.id, priority=self.chance.randint(-9, 9))
                    case "run_now":
                        await harbor.jobs.arun_now(spec.id)
                    case "discard":
                        await harbor.dlq.adiscard(spec.id)
                    case "pause":
                        await harbor.queues.apause(spec.queue)
                        await asyncio.sleep(self.chance.random() * 2)
                        await harbor.queues.aresume(spec.queue)

    # -- the whole story --

    def run(self) -> Findings:
        producer = Process(self, "producer", self.rates)
        self._start(producer, self._produce(producer))
        operator = Process(self, "operator", self.rates)
        self._start(operator, self._operate(operator))
        self._start_work()
        self._plan_accidents()
        try:
            self.universe.run(lambda: False, START + FAULTS_SECONDS * MICROS_PER_SECOND, STEPS_MAX)
            self._calm()
            limit = self.universe.now + LIVENESS_SECONDS * MICROS_PER_SECOND
            if not self.universe.run(lambda: self._is_over(producer, operator), limit, STEPS_MAX):
                self.observer.wrong(f"not over {LIVENESS_SECONDS} s after the faults have stopped")
            self.observer.judge()
        except AssertionError as error:
            self.observer.wrong(f"{type(error).__name__}: {error}")
        trace = hashlib.sha256(repr(self.observer.trace).encode()).hexdigest()[:16]
        seconds = (self.universe.now - START) / MICROS_PER_SECOND
        return Findings(
            self.seed, self.observer.faults_found, trace, self.universe.steps, seconds,
            sum(len(each) for each in self.observer.begins.values()), self.kills,
        )  # fmt: skip

    def _start_work(self) -> None:
        for _ in range(self.chance.choice((1, 2, 2, 3))):
            self.start_worker()

    def _calm(self) -> None:
        """The faults stop: whoever stood still goes on, queues are open, nothing is held, calls arrive."""
        self.faults = False
        self.observer.note("calm")
        self._let_go()
        # A pause or a hold that nobody had an answer to may take effect only now.
        self.universe.at(self.universe.now + AFTERMATH_SECONDS * MICROS_PER_SECOND, self._let_go)
        for loop in self.universe.loops:
            loop.goes_on = True
            loop.process.rates = FAIR

    def _let_go(self) -> None:
        """No queue is paused, and nothing is held."""
        self.store._store.paused.clear()
        self.store._store.holds.clear()
        self.observer.in_force.clear()

    def _is_over(self, producer: Process, operator: Process) -> bool:
        if producer.alive or operator.alive:
            return False
        tally = self.store._store.tally.values()
        if any(each[State.READY] or each[State.RUNNING] for each in tally):
            return False
        return not any(each[State.WAITING] for each in tally) or self.observer.all_waiting_are_stuck()


class Ordered(dict[Any, None]):
    """A set that keeps its order: the same one in every run."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Chance in the code under test comes from the seed as well."""
    chance = random.Random(seed ^ 0x5EED)
    serial = itertools.count()

    def new_id() -> str:
        return f"00000000-0000-7000-9000-{next(serial):012d}"

    before = random.getstate()
    random.seed(seed)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.object(os, "urandom", chance.randbytes),
            mock.patch("taskharbor.client.options.new_id", new_id),
            mock.patch("taskharbor.worker.pipeline.recurring.new_id", new_id),
            mock.patch("taskharbor.rescue.uuid_utils.uuid7", new_id),
            mock.patch("taskharbor.own_tasks.serials", itertools.count(1)),
        ):
            yield
    finally:
        logging.disable(disabled)
        random.setstate(before)


def simulate(seed: int, kind: type[World] = World, look: Callable[[Any], object] | None = None) -> Findings:
    """What this seed leads to; the same, however often and wherever it is asked. `look` sees the world at its end."""
    gc.disable()
    _spare_what_is_there()
    try:
        with _seeded(seed):
            world = kind(seed)
            findings = world.run()
            if look is not None:
                look(world)
            _bury_all(world)
        return findings
    finally:
        gc.enable()


@cache
def _spare_what_is_there() -> None:
    """Keep the collector from looking through the program again with every seed."""
    gc.freeze()


def _bury_all(world: World) -> None:
    """Free the world; the interpreter closes what was killed, `finally` and all, and nothing observes it any more."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for process in [*world.graves, *(loop.process for loop in world.universe.loops)]:
                process.loop._closed = True
                # The collector does not see a `Job`, and a coroutine that holds one would keep the world by it.
                vars(process.harbor).clear()
            del process
            world.__dict__.clear()
            while gc.collect():  # closing some of it may leave more behind
                pass
    finally:
        sys.unraisablehook = hook
