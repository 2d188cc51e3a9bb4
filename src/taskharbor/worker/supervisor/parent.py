"""The parent: it keeps the children running, and settles what they leave behind. It imports no user code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.client.losses import tell_lost
from taskharbor.clock import SystemClock, seconds_to_micros
from taskharbor.drivers.base import Driver, WorkerRecord
from taskharbor.drivers.registry import driver_for
from taskharbor.errors import StoreError, TaskHarborError
from taskharbor.worker.presence import Presence
from taskharbor.worker.supervisor.channel import Hello, Leaving, Orders, Ready, Refusal, SuspectsWaiting
from taskharbor.worker.supervisor.child import EXIT_REPLACE
from taskharbor.worker.supervisor.outside import OutsideHeart
from taskharbor.worker.supervisor.process import ChildProcess
from taskharbor.worker.supervisor.relay import Relay
from taskharbor.worker.supervisor.settling import Death, Estate, describe, settle_left_behind

logger = logging.getLogger("taskharbor.supervisor")

STUCK_SECONDS = 300.0  # without a sign of life, after which a child is ended and replaced
LOOK_SECONDS_MAX = 1.0  # between two looks at the children
STEADY_SECONDS = 10.0  # a child that lived for so long has not died quickly
BACKOFF_SECONDS = 0.1  # before the second restart in a row; doubled from one to the next
BACKOFF_SECONDS_MAX = 30.0
STOP_SECONDS = 1.5  # beyond the grace: how long children may take to end, before they are made to
SETTLE_SECONDS = 0.4  # at the end of a shutdown: for what they then leave behind
DUMP_SECONDS = 0.5  # for a stuck child to write its stacks
FAREWELL_SECONDS = 1.0  # for the last words of a child that has died
RETRY_SECONDS_MAX = 2.0
BUSY_SECONDS = 5.0  # a suspect that takes longer lets another process for suspects be started


class Settings(Struct, frozen=True):
    command: tuple[str, ...]  # that starts a child
    processes: int
    orders: Orders
    stuck_seconds: float = STUCK_SECONDS


class GaveUp(TaskHarborError):
    """No child could ever begin to work, and none would; the message is the child's."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.code = refusal.code


class Ending(Enum):
    """How a child ended."""

    DONE = "done"  # by itself, leaving nothing behind
    REPLACE = "replace"  # by itself, to be replaced
    DIED = "died"
    STILLBORN = "stillborn"  # died before it could begin


class Supervisor:
    def __init__(self, settings: Settings) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self._settings = settings
        life_seconds = min(LOOK_SECONDS_MAX, settings.stuck_seconds / 10)
        self._orders = replace(settings.orders, life_seconds=life_seconds)
        self.counts: dict[str, int] = {}  # of the store, at the end
        self._lease = seconds_to_micros(settings.orders.lease_seconds)
        self._children: dict[ChildProcess, None] = {}
        self._spares: set[asyncio.Task[None]] = set()
        self._ending_stuck: set[asyncio.Task[None]] = set()
        self._relay = Relay(self._living)
        self._driver: Driver | None = None
        self._heart: asyncio.Task[None] | None = None
        self._presence: Presence | None = None
        self._telling: asyncio.Task[None] | None = None
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
        logger.info("supervisor stops", extra={"fields": {"children": len(self._children)}})
        for child in self._living():
            child.terminate()

    async def run(self) -> None:
        """Until `stop()`; with orders to drain, until nothing is runnable."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        logger.info(
            "supervisor started",
            extra={"fields": {"supervisor": self.name, "processes": self._settings.processes}},
        )
        working = loop.create_task(self._work())
        others = [
            loop.create_task(part)
            for part in (self._look_after_children(), self._see_to_the_end(), self._ending_now.wait())
        ]
        try:
            done, _ = await asyncio.wait([working, *others], return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                _raise_first(part)
        finally:
            for child in self._living():
                child.kill()  # whatever is left now
            tasks = [working, *others, *self._spares, *filter(None, [self._heart, self._telling])]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
            for child in list(self._children):
                child.close()
            if self._driver is not None:
                with suppress(TimeoutError, StoreError):
                    await asyncio.wait_for(self._part_with(self._driver), SETTLE_SECONDS)
        logger.info("supervisor stopped", extra={"fields": {"supervisor": self.name}})

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

    async def _part_with(self, driver: Driver) -> None:
        if not self._ending_now.is_set():
            if self._presence is not None:
                await self._presence.sign_off()
            self.counts = {str(state): jobs for state, jobs in (await driver.counts()).items()}
        await driver.close()

    def _living(self) -> Iterator[ChildProcess]:
        return iter(list(self._children))

    def _tell_who_is_there(self) -> None:
        if self._presence is not None:
            self._presence.changed()

    def _who(self) -> list[WorkerRecord]:
        """Every child that the store does not hear of by itself."""
        now, clock = time.monotonic(), SystemClock()
        host, queues = socket.gethostname(), self._orders.queues
        return [
            WorkerRecord(
                child.hello.worker,
                host,
                child.pid,
                1 if child.suspects_only else self._orders.concurrency,
                clock.now() - seconds_to_micros(now - child.started),
                None if queues is None else tuple(queues),
                self.name,
            )
            for child in self._living()
            if child.is_ready and not child.is_over and child.hello and child.hello.address
        ]

    # -- one child after the other --

    async def _keep_one_running(self) -> None:
        quick_deaths = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            ending = await self._one_life(self._orders)
            if ending is Ending.DONE and self._orders.drain:
                return
            if ending in (Ending.DONE, Ending.REPLACE):
                continue
            quick_deaths = 1 if time.monotonic() - begun >= STEADY_SECONDS else quick_deaths + 1
            await self._pause(_backoff_seconds(quick_deaths))

    async def _pause(self, seconds: float) -> None:
        if seconds and not self._stopping.is_set():
            logger.warning("children die quickly", extra={"fields": {"restart_in": seconds}})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _one_life(self, orders: Orders) -> Ending:
        child = await ChildProcess.start(self._settings.command, orders)
        self._children[child] = None
        if self._stopping.is_set():  # while it was being started
            child.terminate()
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
        self._tell_who_is_there()
        if ending is Ending.STILLBORN:
            self._give_up_if_hopeless(child, status)
        return ending

    async def _listen(self, child: ChildProcess) -> None:
        try:
            await self._hear(child)
        except Exception:
            logger.exception("a worker process cannot be understood and is replaced")
            child.kill()

    async def _hear(self, child: ChildProcess) -> None:
        async for message in child.channel.messages():
            match message:
                case Hello():
                    child.hello = message
                    self._meet(child, message)
                case Ready():
                    child.is_ready = self._was_ready = True
                    self._relay.pass_on()
                    self._tell_who_is_there()
                case Refusal():
                    child.refusal = message
                case SuspectsWaiting():
                    self._see_to_suspects()
                case Leaving():
                    child.leave_by = time.monotonic() + self._orders.grace_seconds + STOP_SECONDS
                case _:
                    raise AssertionError(f"a child does not say {type(message).__name__}")

    def _meet(self, child: ChildProcess, hello: Hello) -> None:
        """The first child that says where the jobs are kept lets the heartbeat from outside begin."""
        if hello.address is None:
            logger.warning(
                "the store has no URL (Harbor(driver=…)): each worker extends its own leases, and what a dead one "
                "leaves behind waits for its lease to run out",
                extra={"fields": {"worker": hello.worker}},
            )
        elif self._driver is None:
            try:
                self._driver = driver_for(hello.address)
            except TaskHarborError as error:  # each worker goes on by itself, and extends its own leases
                logger.error("the supervisor cannot reach the store", extra={"fields": {"error": str(error)}})
                return
            heart = OutsideHeart(self._driver, lease=self._lease, children=self._living)
            self._heart = asyncio.create_task(heart.run())
            self._presence = Presence(self._driver, self._driver.clock, self._who)
            self._telling = asyncio.create_task(self._presence.run())

    def _give_up_if_hopeless(self, child: ChildProcess, status: int) -> None:
        """What no child could begin with will not get better; after one could, it may."""
        refusal = child.refusal
        if refusal is None and status >= 0:
            refusal = Refusal(f"a worker process {describe(status)} before it could begin", status or 1)
        if refusal is None:
            return  # killed: it may have been no fault of its own
        if not self._was_ready and not self._stopping.is_set():
            raise GaveUp(refusal)
        logger.error("a worker process could not begin", extra={"fields": {"error": refusal.message}})

    # -- what the dead leave behind --

    async def _take_leave(self, child: ChildProcess, status: int) -> Ending:
        left = child.page.left_behind() if child.hello is not None else []
        how = describe(status)
        if child.stuck_seconds is not None:
            how = f"showed no sign of life for {child.stuck_seconds:g} s and was ended"
        death = Death(child.name, how, interrupted=child.interrupted)
        estate = Estate()
        if left and self._driver is not None:
            tokens = [(child.token(held), held) for held in left]
            report = partial(tell_lost, self._relay, logger)
            settling = partial(
                settle_left_behind, self._driver, tokens, death, lease=self._lease, report=report
            )
            estate = await self._settle_surely(settling)
        if estate.suspects:
            self._see_to_suspects()
        was_asked = self._stopping.is_set() or child.leave_by is not None
        if status == 0 and not estate.jobs and (was_asked or child.is_ready):
            return Ending.DONE
        if status == EXIT_REPLACE and not estate.jobs:
            return Ending.REPLACE
        fields = {"worker": child.name, "how": how, "lost": estate.lost, "handed_back": estate.handed_back}
        if child.interrupted:
            logger.warning("a worker process did not stop in time and was ended", extra={"fields": fields})
        else:
            logger.error("a worker process died", extra={"fields": fields})
        return Ending.DIED if child.is_ready or was_asked else Ending.STILLBORN

    async def _settle_surely(self, settling: Callable[[], Coroutine[Any, Any, Estate]]) -> Estate:
        """Repeated while the store is away, until the leases have run out: then others collect them."""
        pause, give_up_at = 0.05, time.monotonic() + self._orders.lease_seconds
        while True:
            try:
                return await settling()
            except StoreError as error:
                fields = {"error": str(error)}
                if time.monotonic() + pause >= give_up_at:
                    logger.warning(
                        "the jobs of a dead worker are left to their leases", extra={"fields": fields}
                    )
                    return Estate()
                logger.warning("the jobs of a dead worker cannot be settled yet", extra={"fields": fields})
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

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
        if self._driver is None or time.monotonic() - child.started < BUSY_SECONDS:
            return False
        long_ago = self._driver.clock.now() - seconds_to_micros(BUSY_SECONDS)
        return any(at < long_ago for held in child.page.held() for at in held.running.values())

    async def _execute_suspects(self) -> None:
        """Poison ends one such process after the other: that is what they are for, and no reason to wait."""
        orders = replace(self._orders, suspects_only=True, max_jobs=None)
        stillborn = 0
        while not self._stopping.is_set():
            ending = await self._one_life(orders)
            if ending is Ending.DONE:
                return
            stillborn = stillborn + 1 if ending is Ending.STILLBORN else 0
            await self._pause(_backoff_seconds(stillborn))

    # -- looking after them --

    async def _look_after_children(self) -> None:
        stuck = self._settings.stuck_seconds
        interval = min(LOOK_SECONDS_MAX, stuck / 10)
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(interval)
            now = time.monotonic()
            # If we ourselves were held up, so were our eyes: nobody is silent for what we did not see.
            overslept = now - looked_at > 2 * interval + 1.0
            looked_at = now
            for child in self._living():
                silent = child.silent_seconds(now)
                if overslept:
                    child.seen_alive = now
                elif child.leave_by is not None and now >= child.leave_by:
                    child.interrupted = True
                    child.kill()
                elif silent >= stuck and child.stuck_seconds is None:
                    child.stuck_seconds = stuck
                    self._ending_stuck.add(ending := asyncio.create_task(self._end_stuck(child)))
                    ending.add_done_callback(self._ending_stuck.discard)

    async def _see_to_the_end(self) -> None:
        """Children that have not ended soon after the grace are made to, and their jobs released."""
        await self._stopping.wait()
        await asyncio.sleep(self._orders.grace_seconds + STOP_SECONDS)
        for child in self._living():
            child.interrupted = True
            child.kill()
        await asyncio.sleep(SETTLE_SECONDS)

    async def _end_stuck(self, child: ChildProcess) -> None:
        running = [job_id for held in child.page.held() for job_id in held.running]
        fields = {
            "worker": child.name,
            "pid": child.pid,
            "seconds": child.stuck_seconds,
            "jobs": running[:20],
        }
        logger.error("a worker process shows no sign of life and is replaced", extra={"fields": fields})
        if child.dump_stacks():
            await asyncio.sleep(DUMP_SECONDS)
        child.kill()


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
