"""The parent: it keeps the children running, and sees to what they leave behind. It imports no user code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import Clock, SystemClock, seconds_to_micros
from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import Driver
from taskharbor.drivers.registry import driver_for
from taskharbor.errors import TaskHarborError
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.supervisor import os_process
from taskharbor.worker.supervisor.channel import (
    Drained,
    Hello,
    Ready,
    Retiring,
    StartupError,
    SuspectsWaiting,
    Waiting,
    WorkerConfig,
)
from taskharbor.worker.supervisor.child_main import EXIT_REPLACE
from taskharbor.worker.supervisor.child_process import ChildProcess, StartChild
from taskharbor.worker.supervisor.crash_recovery import ProcessExit, describe
from taskharbor.worker.supervisor.event_forwarder import Relay
from taskharbor.worker.supervisor.health import Health, Signs
from taskharbor.worker.supervisor.liveness import Watch
from taskharbor.worker.supervisor.slot import ExitKind, WorkerSlot
from taskharbor.worker.supervisor.store_duties import StoreDuties

logger = logging.getLogger("taskharbor.supervisor")

STUCK_SECONDS = 300.0  # without a sign of life, after which a child is ended and replaced
STEADY_SECONDS = 10.0  # a child that lived for so long has not died quickly
BACKOFF_SECONDS = 0.1  # before the second restart in a row; doubled from one to the next
BACKOFF_SECONDS_MAX = 30.0
STOP_SECONDS = 1.5  # beyond the grace: how long children may take to end, before they are made to
SETTLE_SECONDS = 0.4  # at the end of a shutdown: for what they then leave behind
FAREWELL_SECONDS = 1.0  # for the last words of a child that has died
BUSY_SECONDS = 5.0  # a suspect that takes longer lets another process for suspects be started


class Settings(Struct, frozen=True):
    command: tuple[str, ...]  # that starts a child
    processes: int
    orders: WorkerConfig
    stuck_seconds: float = STUCK_SECONDS
    health_file: Path | None = None
    health_address: tuple[str, int] | None = None


class GaveUp(TaskHarborError):
    """No child could ever begin to work, and none would; the message is the child's."""

    def __init__(self, refusal: StartupError) -> None:
        super().__init__(refusal.message)
        self.code = refusal.code


class Supervisor:
    """What it does to the machine and to the store goes through `start_child` and `open_store`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        start_child: StartChild | None = None,
        open_store: Callable[[str], Driver] = driver_for,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.counts: dict[str, int] = {}  # of the store, at the end
        self._settings = settings
        self._children: dict[ChildProcess, None] = {}
        self._spares: set[asyncio.Task[None]] = set()
        self._clock = clock = clock or SystemClock()
        self._start_child = start_child or partial(os_process.start, settings.command, clock)
        self._relay = Relay(self._living)
        self._watch = Watch(settings.stuck_seconds, self._living, self._relay.emit, clock)
        self._orders = replace(settings.orders, life_seconds=self._watch.interval)
        self._bookkeeper = StoreDuties(
            self.name, self._orders, self._living, self._relay, clock=clock, open_store=open_store
        )
        self._signs = Signs(self.health, settings.health_file, settings.health_address)
        self._stopping = asyncio.Event()
        self._ending_now = asyncio.Event()
        self._was_ready = False  # any child, ever

    # -- its life --

    def stop(self) -> None:
        """Shut all children down gracefully; called again, end now and leave the rest to the leases."""
        if self._stopping.is_set():
            self._ending_now.set()
            return
        self._stopping.set()
        self._signs.stopping()
        children = counted(len(self._children), "worker process", "worker processes")
        log_line(
            logger,
            logging.INFO,
            "supervisor stops; it waits up to {seconds} s for {children}. A second signal ends it at once",
            {"children": children, "seconds": self._orders.grace_seconds + STOP_SECONDS + SETTLE_SECONDS},
        )
        for child in self._living():
            child.terminate()

    async def run(self) -> None:
        """Until `stop()`; with orders to drain, until nothing is runnable."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        fields = {"supervisor": self.name, "processes": self._settings.processes}
        log_line(logger, logging.INFO, "supervisor {supervisor} started", fields)
        others = [self._watch.run(), self._see_to_the_end(), self._ending_now.wait(), *self._signs.runs()]
        parts = [loop.create_task(part) for part in (self._work(), *others)]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                _raise_first(part)
        finally:
            for child in self._living():
                child.kill()  # whatever is left now
            for part in (*parts, *self._spares):
                part.cancel()
            await asyncio.wait([*parts, *self._spares], timeout=SETTLE_SECONDS)
            for child in self._living():
                child.close()
            self.counts = await self._bookkeeper.close(at_once=self._ending_now.is_set())
        log_line(logger, logging.INFO, "supervisor {supervisor} stopped", {"supervisor": self.name})

    async def _work(self) -> None:
        while True:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._settings.processes):
                    group.create_task(self._keep_one_running())
            if not self._spares:
                return
            # Suspects that fail, or succeed and leave children, are work for the others again.
            await asyncio.wait(self._spares)
            if self._stopping.is_set():
                return

    async def _see_to_the_end(self) -> None:
        """Children that have not ended soon after the grace are made to, and their jobs released."""
        await self._stopping.wait()
        await asyncio.sleep(self._orders.grace_seconds + STOP_SECONDS)
        for child in self._living():
            child.interrupted = True
            child.kill()
        await asyncio.sleep(SETTLE_SECONDS)

    def _living(self) -> Iterator[ChildProcess]:
        return iter(list(self._children))

    # -- health --

    def health(self) -> Health:
        """Well is who has a child at work, or one that waits for the store: a restart would not bring that back."""
        if self._stopping.is_set():
            return Health(False, "stopping")
        at_work = [
            child
            for child in self._living()
            if child.is_ready
            and not child.is_over
            and not child.suspects_only
            and not child.retiring.is_set()
            and child.stuck_seconds is None
        ]
        asked = counted(self._settings.processes, "worker process", "worker processes")
        detail = f"{len(at_work)} of {asked} {agreeing(len(at_work), 'is', 'are')} at work"
        waits = any(child.waits_for_store and not child.is_over for child in self._living())
        return Health(bool(at_work) or waits, detail + ("; waiting for the store" if waits else ""))

    # -- one child after the other --

    async def _keep_one_running(self) -> None:
        async with asyncio.TaskGroup() as group:  # who retires is waited for, also in the end
            await self._keep_occupied(WorkerSlot(group, self._start, self._live))

    async def _keep_occupied(self, seat: WorkerSlot) -> None:
        quick_deaths = 0
        while not self._stopping.is_set():
            begun = self._clock.monotonic()
            was_shared = seat.is_shared
            ending = await seat.one_life(self._orders)
            if ending is ExitKind.DONE and self._orders.drain:
                if not was_shared:
                    return
                # What came of its predecessor's last jobs may have been nobody's to see.
                await seat.predecessor_gone()
            if ending in (ExitKind.DONE, ExitKind.REPLACE):
                continue
            quick_deaths = 1 if self._clock.monotonic() - begun >= STEADY_SECONDS else quick_deaths + 1
            await self._pause(_backoff_seconds(quick_deaths))

    async def _pause(self, seconds: float) -> None:
        if seconds and not self._stopping.is_set():
            log_line(
                logger,
                logging.WARNING,
                "worker processes end quickly; the next starts in {restart_in} s",
                {"restart_in": seconds},
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _start(self, orders: WorkerConfig) -> ChildProcess | None:
        try:
            child = await self._start_child(orders)
        except OSError as error:  # no memory, too many processes: it may be better in a while
            log_line(
                logger, logging.ERROR, "a worker process cannot be started: {error}", {"error": str(error)}
            )
            return None
        self._children[child] = None
        if self._stopping.is_set():  # while it was being started
            child.terminate()
        return child

    async def _live(self, child: ChildProcess) -> ExitKind:
        """From its first word until nothing of it is left."""
        listening = asyncio.create_task(self._listen(child))
        status = await child.wait()
        # Its leases are extended until they are settled: nobody may have its jobs while something of it is left.
        child.kill()
        await child.gone()
        await asyncio.wait([listening], timeout=FAREWELL_SECONDS)
        listening.cancel()
        ending = await self._take_leave(child, status)
        del self._children[child]
        child.close()
        self._bookkeeper.tell_who_is_there()
        if ending is ExitKind.FAILED_TO_START:
            self._give_up_if_hopeless(child, status)
        return ending

    async def _listen(self, child: ChildProcess) -> None:
        try:
            async for message in child.channel.messages():
                self._hear(child, message)
        except Exception:
            logger.exception("a worker process cannot be understood and is replaced")
            child.kill()

    def _hear(self, child: ChildProcess, message: object) -> None:
        match message:
            case Hello():
                child.hello = message
                self._bookkeeper.meet(message)
            case Waiting():
                child.waits_for_store = True
            case Ready():
                child.is_ready = self._was_ready = True
                child.waits_for_store = False
                self._relay.pass_on()
                self._bookkeeper.tell_who_is_there()
            case StartupError():
                child.refusal = message
            case SuspectsWaiting():
                self._see_to_suspects()
            case Retiring():
                child.left_idle = message.idle
                child.retiring.set()
            case Drained():
                child.leave_by = self._clock.monotonic() + self._orders.grace_seconds + STOP_SECONDS
            case _:
                raise AssertionError(f"a child does not say {type(message).__name__}")

    async def _take_leave(self, child: ChildProcess, status: int) -> ExitKind:
        how = describe(status)
        if child.stuck_seconds is not None:
            how = f"showed no sign of life for {child.stuck_seconds:g} s and was ended"
        estate = await self._bookkeeper.settle(
            child, ProcessExit(child.name, how, interrupted=child.interrupted)
        )
        if estate.suspects:
            self._see_to_suspects()
        was_asked = self._stopping.is_set() or child.retiring.is_set()
        if status == 0 and not estate.jobs and (was_asked or child.is_ready):
            return ExitKind.DONE
        if self._stopping.is_set() and not child.interrupted and not estate.jobs:
            return ExitKind.DONE  # our signal met it before it could hear it
        if status == EXIT_REPLACE and not estate.jobs:
            return ExitKind.IDLE if child.left_idle else ExitKind.REPLACE
        fields = {"worker": child.name, "how": how, "lost": estate.lost, "handed_back": estate.handed_back}
        if child.interrupted:
            log_line(
                logger, logging.WARNING, "worker process {worker} did not stop in time and was ended", fields
            )
        else:
            log_line(logger, logging.ERROR, "a worker process died: {worker} {how}", fields)
        return ExitKind.DIED if child.is_ready or was_asked else ExitKind.FAILED_TO_START

    def _give_up_if_hopeless(self, child: ChildProcess, status: int) -> None:
        """What no child could begin with will not get better; after one could, it may."""
        refusal = child.refusal
        if refusal is None and status >= 0:
            refusal = StartupError(f"a worker process {describe(status)} before it could begin", status or 1)
        if refusal is None:
            return  # killed: it may have been no fault of its own
        if not self._was_ready and not self._stopping.is_set():
            raise GaveUp(refusal)
        log_line(
            logger, logging.ERROR, "a worker process could not begin: {error}", {"error": refusal.message}
        )

    # -- suspects --

    def _see_to_suspects(self) -> None:
        """Suspects are executed in a process of their own; in another one, if a suspect there takes long."""
        if self._stopping.is_set() or len(self._spares) >= self._settings.processes:
            return
        busy = [child for child in self._living() if child.suspects_only and self._is_busy(child)]
        if len(busy) == len(self._spares):
            spare = asyncio.create_task(self._execute_suspects())
            self._spares.add(spare)
            spare.add_done_callback(self._spares.discard)

    def _is_busy(self, child: ChildProcess) -> bool:
        long_ago = self._bookkeeper.store_now() - seconds_to_micros(BUSY_SECONDS)
        return any(at < long_ago for held in child.shared_memory.held() for at in held.running.values())

    async def _execute_suspects(self) -> None:
        """Poison ends one such process after the other: that is what they are for, and no reason to wait."""
        orders = replace(self._orders, suspects_only=True, max_jobs=None)
        fruitless = 0
        while not self._stopping.is_set():
            child = await self._start(orders)
            ending = ExitKind.IDLE if child is None else await self._live(child)
            if ending is ExitKind.DONE:
                return
            fruitless = fruitless + 1 if ending in (ExitKind.FAILED_TO_START, ExitKind.IDLE) else 0
            await self._pause(_backoff_seconds(fruitless))


def _raise_first(part: asyncio.Task[Any]) -> None:
    error = part.exception()
    while isinstance(error, BaseExceptionGroup):  # several children found the same
        error = error.exceptions[0]
    if error is not None:
        raise error


def _backoff_seconds(quick_deaths: int) -> float:
    """None after the first: a job of a child that was killed starts again at once."""
    if quick_deaths <= 1:
        return 0.0
    return min(BACKOFF_SECONDS * 2.0 ** min(quick_deaths - 2, 20), BACKOFF_SECONDS_MAX)
