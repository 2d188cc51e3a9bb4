"""A simulated world with supervisors: the real parent and the real children, in processes that are simulated.

A child has a body that can be killed, a session in which something of it may be left, a page and a channel. What
befalls workers befalls it too; and the parent may die, stand still, lose answers and be told to stop.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any
from unittest import mock

from taskharbor import Worker
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.rules.retry import RetryPolicy
from taskharbor.worker.supervisor import shared_memory
from taskharbor.worker.supervisor.channel import StartupError, WorkerConfig
from taskharbor.worker.supervisor.child_main import Child
from taskharbor.worker.supervisor.child_process import ChildProcess
from taskharbor.worker.supervisor.parent import Settings, Supervisor
from tests.simulation import program
from tests.simulation.fleet_observer import FleetObserver
from tests.simulation.link import FAIR
from tests.simulation.wire import Pair
from tests.simulation.world import FAULTS_SECONDS, START, UNRUNNABLE_GRACE_SECONDS, Findings, Process, World

ADDRESS = "simulated://store"
LOADING_SECONDS = 0.1  # at most: an application is loaded, start hooks run
DYING_SECONDS = 0.02  # from a signal to the end, at most
ROOM_AHEAD = 64  # jobs on a page: few enough that it may be full


class ParentProcess(Process):
    """A supervisor, and what it has started."""

    supervisor: Supervisor

    def __init__(self, world: FleetWorld, name: str, settings: Settings) -> None:
        super().__init__(world, name, world.rates if world.faults else FAIR, world.draw_skew())
        self.may_die = True
        self.settings = settings
        self.children: list[ChildBody] = []

    async def live(self) -> None:
        self.supervisor = Supervisor(
            self.settings, clock=self.clock, start_child=self._start_child, open_store=lambda _: self.link
        )
        await self.supervisor.run()

    async def _start_child(self, config: WorkerConfig) -> ChildProcess:
        world: Any = self.world
        await asyncio.sleep(world.chance.random() * 0.01)
        if world.faults and world.chance.random() < world.no_process_rate:
            self.trouble("no process", "")
            raise OSError("simulated: no memory for another process")
        body = ChildBody(world, self, config)
        self.children.append(body)
        return body.begin()


class ObservedChild(Child):
    """One of which is known when it retires."""

    body: ChildBody

    def retires(self, why: str, *, idle: bool) -> None:
        super().retires(why, idle=idle)
        self.body.world.observer.child_retires(self.body)


class ChildBody(Process):
    """A child: the process, and for its parent the body."""

    world: FleetWorld

    def __init__(self, world: FleetWorld, parent: ParentProcess, config: WorkerConfig) -> None:
        self.pid = world.next_pid()
        super().__init__(world, f"c{self.pid}", world.rates if world.faults else FAIR, world.draw_skew())
        self.may_die = True
        self.parent = parent
        self.config = config
        self.child: Child | None = None  # once it is loaded
        self.begun = 0  # jobs
        self.first_began_at = 0
        self.retired_at: int | None = None
        self.died_at: int | None = None
        self.ended_by_itself = False
        self.is_session_gone = False
        self.wires = Pair(world, parent, self)
        self.is_stillborn = world.is_bad_start()
        self._exit: asyncio.Future[int] = parent.loop.create_future()

    def begin(self) -> ChildProcess:
        blocks = shared_memory.blocks_for(1 if self.config.suspects_only else self.config.concurrency)
        descriptor = shared_memory.create(blocks)
        try:
            reader, publisher = shared_memory.Reader(descriptor), shared_memory.Publisher(descriptor)
        finally:
            os.close(descriptor)
        self.wires.parents.send(self.config)
        self.world.observer.child_started(self)
        self.world._start(self, self._live(publisher))
        return ChildProcess(self, reader, self.wires.parents, self.config, self.parent.clock)

    # -- inside --

    async def _live(self, publisher: shared_memory.Publisher) -> int:
        """As `taskharbor.cli.child` does; the status to exit with."""
        channel = self.wires.childs
        config = await anext(channel.messages())
        assert isinstance(config, WorkerConfig)
        await asyncio.sleep(self.world.chance.random() * LOADING_SECONDS)
        if self.is_stillborn:
            self.world.kill(self, by_itself=True, status=self.world.chance.choice((-signal.SIGKILL, 1)))
            await asyncio.get_running_loop().create_future()
        self.worker = self._worker(config)
        self.child = ObservedChild(self.worker, publisher, config, ADDRESS)
        self.child.body = self
        try:
            await self.child.work(self._connect)
        except Exception as error:
            self.world.observer.note("failed", self.name, repr(error))
            if not self.child.is_ready:
                channel.send(StartupError(str(error), 1))
            return 1
        return self.child.status

    async def _connect(self) -> Any:
        await asyncio.sleep(0)
        return self.wires.childs

    def _worker(self, config: WorkerConfig) -> Worker:
        return Worker(
            self.harbor,
            queues=config.queues,
            concurrency=1 if config.suspects_only else config.concurrency,
            lease_seconds=config.lease_seconds,
            grace_seconds=config.grace_seconds,
            retry=RetryPolicy(max_attempts=25, jitter=None),
            max_losses=self.world.max_losses,
            max_jobs=config.max_jobs,
            unrunnable_grace_seconds=UNRUNNABLE_GRACE_SECONDS,
            poll_seconds=self.world.chance.choice((0.5, 5.0)),
            name=self.name,
        )

    # -- from outside: as `ProcessHandle` --

    async def wait(self) -> int:
        return await self._exit

    def terminate(self) -> None:
        self._soon(self._be_told_to_stop)

    def dump_stacks(self) -> bool:
        return True

    def kill(self) -> None:
        self._soon(self._be_killed)

    async def wait_until_gone(self) -> None:
        while not self.is_session_gone:
            self.kill()
            await asyncio.sleep(0.005)

    def _soon(self, what: Any) -> None:
        delay = int(self.world.chance.random() * DYING_SECONDS * MICROS_PER_SECOND)
        self.world.universe.at(self.world.universe.now + delay, what)

    def _be_told_to_stop(self) -> None:
        if not self.alive:
            return
        if self.child is None:  # nobody has yet said what the signal means
            self.world.kill(self, by_itself=True, status=-signal.SIGTERM)
        else:
            self.world._stop(self)

    def _be_killed(self) -> None:
        if self.alive:
            self.world.kill(self, by_itself=True)
        self.is_session_gone = True

    def has_died(self, status: int) -> None:
        """What it has started may be left for a while; its parent hears of it in a moment."""
        self.is_session_gone = self.is_session_gone or self.world.chance.random() < 0.7
        self.wires.close()

        def tell() -> None:
            if self.parent.alive and not self._exit.done():
                self._exit.set_result(status)

        self._soon(tell)


class FleetWorld(World):
    observer: FleetObserver

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self.chance
        self.processes = chance.choice((1, 2, 2, 3))
        self.stuck_seconds = chance.choice((2.0, 6.0, 60.0))
        self.concurrency = chance.choice((1, 2, 10))
        self.max_jobs = chance.choice((None, None, None, 2, 5))
        self.no_process_rate = chance.choice((0.0, 0.0, 0.1))
        bad_from = START + int(chance.random() * FAULTS_SECONDS * MICROS_PER_SECOND)
        bad_for = int(chance.choice((0.0, 0.0, 0.0, 1.0, 4.0)) * MICROS_PER_SECOND)
        self._bad_starts = (bad_from, bad_from + bad_for)
        self.parents: list[ParentProcess] = []
        self.dies_at_a_claim = False  # the next child that claims something, before it is answered
        self._pids = 0

    def _new_observer(self) -> FleetObserver:
        return FleetObserver(self)

    def draw_skew(self) -> int:
        return int(self.chance.choice((0, 0, 300, -300)) * MICROS_PER_SECOND)

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def is_bad_start(self) -> bool:
        """For a while, whatever is started dies before it can begin."""
        first, last = self._bad_starts
        return first <= self.universe.now < last

    # -- processes --

    def _start_work(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2))):
            self.start_parent()
        for _ in range(self.chance.choice((0, 0, 0, 1))):
            self.start_worker()

    def start_parent(self) -> None:
        self._named += 1
        config = WorkerConfig(
            None, None, self.chance.choice((None, None, list(program.QUEUES))), self.concurrency,
            self.lease_seconds, self.grace_seconds, "text", "error", max_jobs=self.max_jobs,
        )  # fmt: skip
        settings = Settings((), self.processes, config, self.stuck_seconds)
        parent = ParentProcess(self, f"p{self._named}", settings)
        self.parents.append(parent)
        self._start(parent, parent.live())

    def _ended(self, process: Process, task: asyncio.Task[Any]) -> None:
        super()._ended(process, task)
        if isinstance(process, ChildBody):
            process.ended_by_itself = True
            process.has_died(task.result())

    def kill(self, process: Process, by_itself: bool = False, status: int = -signal.SIGKILL) -> None:
        super().kill(process, by_itself)
        if isinstance(process, ChildBody):
            process.has_died(status)

    def _bury(self, process: Process) -> None:
        super()._bury(process)
        if isinstance(process, ChildBody):
            self.observer.child_died(process)
        elif isinstance(process, ParentProcess):
            self.parents.remove(process)
            for child in process.children:
                if child.alive:
                    child.wires.close()
                    child.stopped_at = child.stopped_at or self.universe.now
            pause = int(self.chance.random() * 2 * MICROS_PER_SECOND)
            self.universe.at(self.universe.now + pause, self.start_parent)

    # -- what befalls them --

    def _plan_accidents(self) -> None:
        super()._plan_accidents()
        for _ in range(self.chance.randint(0, 3)):
            at = START + int(self.chance.random() * FAULTS_SECONDS * MICROS_PER_SECOND)
            self.universe.at(at, self._accident_of_a_fleet)

    def _accident(self) -> None:
        """What befalls a worker, befalls a child."""
        children = [
            child for parent in self.parents for child in parent.children if child.alive and child.child
        ]
        before, self.workers = self.workers, [*self.workers, *children]
        try:
            super()._accident()
        finally:
            self.workers = [process for process in before if process.alive]

    def _accident_of_a_fleet(self) -> None:
        if not self.parents or not self.faults:
            return
        parent = self.chance.choice(self.parents)
        children = [child for child in parent.children if child.alive]
        match self.chance.choice(
            ("kill parent", "kill all", "stop", "stop", "stop", "stop twice", "freeze parent", "freeze", "freeze",
             "exit", "kill at a claim", "kill at a claim", "set the clock")
        ):  # fmt: skip
            case "kill parent" if self.may_crash(parent):
                self.kill(parent)
            case "kill all" if self.may_crash(parent):
                for child in children:
                    self.kill(child)
                self.kill(parent)
            case "stop":
                if children and self.chance.random() < 0.7:  # one has a handler that nothing interrupts
                    self.freeze(self.chance.choice(children), self.grace_seconds + 12.0)
                self._stop(parent)
            case "stop twice" if self.may_crash(parent):
                self._stop(parent)
                at = self.universe.now + int(self.chance.random() * MICROS_PER_SECOND)
                self.universe.at(at, lambda: self._stop(parent, again=True))
            case "freeze parent" if self.may_crash(parent):
                self.freeze(parent, self.lease_seconds * (0.5 + 2 * self.chance.random()))
            case "freeze" if children and self.may_crash(parent):
                past_the_lease = self.lease_seconds + self.chance.random() * 2 * min(self.stuck_seconds, 6.0)
                self.freeze(self.chance.choice(children), past_the_lease)
            case "kill at a claim" if self.may_crash(parent):
                self.dies_at_a_claim = True
            case "exit" if children and self.may_crash(parent):
                self.kill(self.chance.choice(children), status=self.chance.choice((0, 3)))
            case "set the clock":
                parent.clock.skew += int(self.chance.choice((-3600, -5, 5, 3600)) * MICROS_PER_SECOND)

    def _stop(self, process: Process, again: bool = False) -> None:
        """By the handlers that it has installed, as a signal would."""
        if not isinstance(process, ParentProcess):
            super()._stop(process, again)
        elif process.alive and signal.SIGTERM in process.loop.signals:
            self.observer.note("stop", process.name, again)
            process.ends_now = process.stopped_at is not None
            process.stopped_at = process.stopped_at or self.universe.now
            process.loop.call_soon(process.loop.signals[signal.SIGTERM])

    def run(self) -> Findings:
        with mock.patch.object(shared_memory, "ROOM_AHEAD", ROOM_AHEAD):
            return super().run()
