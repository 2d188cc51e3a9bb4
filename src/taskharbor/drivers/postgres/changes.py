"""Learning of other processes' doings: LISTEN and NOTIFY, coalesced, with polling as the net.

A notification in every transaction would make every commit wait for a lock that the whole server shares. So
no transaction of ours notifies: after a commit a task of the loop does, at most every few milliseconds
for all that happened meanwhile. A notification may be lost with its sender; a waiter looks by itself from
time to time. Two commits do notify, both up to a rate that the schema bounds for the whole server: that of a single job
by a producer that has been quiet, which saves a worker the wait for a second round trip, and that of a caller's
transaction, which we cannot see.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import logging
import os
import random
import threading
import weakref
from concurrent.futures import CancelledError
from typing import Any

import asyncpg

from taskharbor.clock import Clock
from taskharbor.drivers.postgres.connections import Connections, Lane
from taskharbor.errors import TaskHarborError
from taskharbor.own_tasks import OwnTask, own_task

logger = logging.getLogger("taskharbor.postgres")

URGENT_SECONDS = 0.005  # new work is announced at most so often …
USUAL_SECONDS = 0.05  # … and everything else so often
QUIET_SECONDS = 0.02  # a producer that announced nothing for this time may do it by the commit of a job
TICK_SECONDS = 0.001
NET_SECONDS = 5.0  # who listens looks by itself at least so often, in case a notification was lost
POLL_SECONDS = 2.0  # who does not listen, so often
PROBE_SECONDS = 5.0  # a listener asks so often whether its connection still leads anywhere …
PROBE_ANSWER_SECONDS = 3.0  # … and gives it up without an answer within this time
RECONNECT_SECONDS_MAX = 2.0
STOP_SECONDS = 1.0
LISTENER = "taskharbor listener"  # what the server calls its connection
CANCEL = "cancel"  # a notification that begins with it says that running jobs were asked to end
MORE = "more"  # a notification that says so stands for others that were not sent …
MORE_SECONDS = (0.25, 1.0)  # … and may have been committed only this long after it


def channel_of(schema: str) -> str:
    """A channel's name has at most 63 bytes, a schema's too."""
    name = f"taskharbor_{schema}"
    return name if len(name) <= 63 else f"taskharbor_{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


class Changes:
    """A number that rises with everything that is heard, and those who wait for it to."""

    def __init__(self, connections: Connections, *, listen: bool, clock: Clock) -> None:
        self._connections = connections
        self._listen = listen
        self._clock = clock
        self.channel = channel_of(connections.schema)
        self._reset()
        atexit.register(_tell_the_rest, weakref.ref(self))

    def _reset(self) -> None:
        self._pid = os.getpid()
        self.name = f"{self._pid}-{os.urandom(6).hex()}"  # so that no process listens to itself
        self._lock = threading.Lock()
        self._count = 0
        self._cancel_count = 0
        self._sleepers: set[asyncio.Future[None]] = set()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = (
            weakref.WeakKeyDictionary()
        )

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            count, cancel_count = self._count, self._cancel_count
            self._reset()
            self._count, self._cancel_count = count + 1, cancel_count + 1

    # -- what is heard --

    def count(self) -> int:
        self._check_fork()
        return self._count

    def cancel_count(self) -> int:
        """Give a number that rises with every notification of requests to cancel, and have a listener for them.

        A worker whose slots are all taken waits for nothing else that would start one.
        """
        self._check_fork()
        if self._listen:
            self._of_loop(asyncio.get_running_loop()).listen()
        return self._cancel_count

    def post(self, *, cancels: bool = False, here: asyncio.AbstractEventLoop | None = None) -> None:
        """The store has changed: wake every waiter of this process, whatever its loop. `here` is the running one."""
        with self._lock:
            self._count += 1
            self._cancel_count += cancels
            sleepers, self._sleepers = self._sleepers, set()
        for sleeper in sleepers:
            if sleeper.get_loop() is here:
                _wake(sleeper)  # with no detour by the pipe that wakes a loop from outside
                continue
            try:
                sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)
            except RuntimeError:  # its loop has been closed: no caller waits there any more
                continue

    async def wait(self, seen: int, seconds: float) -> None:
        self._check_fork()
        loop = asyncio.get_running_loop()
        hears = self._listen and self._of_loop(loop).listen()
        sleeper: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._count != seen:
                return
            self._sleepers.add(sleeper)
        # The caller's time is by the clock that was injected, the net in real time: others live in real time.
        timer = self._clock.call_later(seconds, lambda: _wake(sleeper))
        net_seconds = (NET_SECONDS if hears else POLL_SECONDS) * random.uniform(0.75, 1.25)
        net = loop.call_later(net_seconds, self.post)
        try:
            await sleeper
        finally:
            timer.cancel()
            net.cancel()
            with self._lock:
                self._sleepers.discard(sleeper)

    # -- notifying --

    def tell(self, *, urgent: bool, cancels: bool = False) -> None:
        """Something was committed: this process knows at once, the others in a moment."""
        self._check_fork()
        loop = asyncio.get_running_loop()
        self.post(cancels=cancels, here=loop)
        every_seconds = URGENT_SECONDS if urgent else USUAL_SECONDS
        self._of_loop(loop).announce(every_seconds, loop.time(), cancels=cancels)

    def sender_if_quiet(self) -> str | None:
        """The name to announce with, if the caller's next commit may announce itself; None if it is to call `tell`.

        A caller that gets a name and does not announce still calls `tell`.
        """
        self._check_fork()
        loop = asyncio.get_running_loop()
        return self.name if self._of_loop(loop).is_quiet(loop.time()) else None

    def _of_loop(self, loop: asyncio.AbstractEventLoop) -> _OfLoop:
        mine = self._loops.get(loop)
        if mine is None:
            mine = _OfLoop(self, self._connections, loop)
            with self._lock:
                self._loops[loop] = mine
        return mine

    def tell_the_rest(self) -> None:
        """This process ends without closing anything, as scripts do: what is still to be announced is, first."""
        if self._pid != os.getpid():
            return
        for loop, mine in list(self._loops.items()):
            if loop.is_running():
                telling = asyncio.run_coroutine_threadsafe(mine.tell_the_rest(), loop)
                try:
                    telling.result(STOP_SECONDS)
                except (TimeoutError, CancelledError):  # waiters poll
                    telling.cancel()

    async def close(self) -> None:
        """No waiter is left, and no task is left behind on this loop or another one that runs."""
        self._check_fork()
        with self._lock:
            loops = list(self._loops.items())
            self._loops = weakref.WeakKeyDictionary()
        here = asyncio.get_running_loop()
        for loop, mine in loops:
            if loop is here:
                await mine.stop()
            elif loop.is_running():
                stopping = asyncio.run_coroutine_threadsafe(mine.stop(), loop)
                await asyncio.wait([asyncio.wrap_future(stopping)], timeout=3)
        self.post()


class _OfLoop:
    """The listener and the announcer of one loop."""

    def __init__(self, changes: Changes, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._changes = changes
        self._connections = connections
        self._loop = weakref.ref(loop)  # the loop's entry in a table that holds it weakly
        self._channel = changes.channel
        self._name = changes.name
        self._listener: OwnTask[None] | None = None
        self._listening = False
        self._announcer: OwnTask[None] | None = None
        self._announce_at: float | None = None
        self._announce_cancels = False
        self._announced_at = float("-inf")
        self._looks: list[asyncio.TimerHandle] = []

    # -- telling --

    def is_quiet(self, now: float) -> bool:
        """Whether nothing was announced for a while; from here on, something is."""
        if self._announce_at is not None or now < self._announced_at + QUIET_SECONDS:
            return False
        self._announced_at = now
        return True

    def announce(self, every_seconds: float, now: float, *, cancels: bool) -> None:
        """Notify the others, not sooner after the last time than `every_seconds`."""
        self._announce_cancels |= cancels
        due = max(now, self._announced_at + every_seconds)
        if self._announce_at is not None and self._announce_at <= due:
            return
        self._announce_at = due
        if self._announcer is None or self._announcer.done():
            self._announcer = own_task(self._announce())

    async def _announce(self) -> None:
        loop = asyncio.get_running_loop()
        while self._announce_at is not None:
            pause = self._announce_at - loop.time()
            if pause > 0:
                # Not less than a timer's resolution: a loop that rounds down would come back at once, again and again.
                await asyncio.sleep(max(pause, TICK_SECONDS))
            else:
                await self._notify()

    async def tell_the_rest(self) -> None:
        """Until nothing is left to be announced."""
        if self._announcer is not None:
            await asyncio.wait([self._announcer])

    async def _notify(self) -> None:
        self._announced_at = asyncio.get_running_loop().time()
        payload = f"{CANCEL} {self._name}" if self._announce_cancels else self._name
        # From here on, what is committed needs another one.
        self._announce_at, self._announce_cancels = None, False
        try:
            await self._connections.run(
                Lane.REST, lambda s: s.row("notify", self._channel, payload), prompt=True
            )
        except TaskHarborError as error:
            # The store is away: waiters look by themselves.
            logger.debug("a notification was not sent: %s", error)

    # -- hearing --

    def listen(self) -> bool:
        """Have a listener; whether it hears already."""
        if self._listener is None or self._listener.done():
            self._listener = own_task(self._keep_listening())
        return self._listening

    async def _keep_listening(self) -> None:
        pause = 0.05
        while True:
            try:
                async with self._connections.dedicated(PROBE_ANSWER_SECONDS, LISTENER) as connection:
                    await self._listen_on(connection)
            except TaskHarborError as error:
                logger.debug("the listener was lost: %s", error)
            if self._listening:
                self._listening = False
                pause = 0.05
                await self._connections.distrust()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, RECONNECT_SECONDS_MAX)

    async def _listen_on(self, connection: asyncpg.Connection) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(self._channel, self._hear)
        self._listening = True
        self._changes.post(cancels=True)  # whatever happened before this moment has not been heard
        while not lost.is_set():
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await lost.wait()
            except TimeoutError:
                await connection.execute("SELECT 1")

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        kind, _, sender = str(payload).rpartition(" ")
        if sender != self._name:
            self._changes.post(cancels=kind == CANCEL, here=self._loop())
        if sender == MORE:
            self._look_again()

    def _look_again(self) -> None:
        """After the last of them: while more are heard, each of them is a look already."""
        for timer in self._looks:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._looks = [loop.call_later(seconds, self._changes.post) for seconds in MORE_SECONDS]

    async def stop(self) -> None:
        announcer, self._announcer = self._announcer, None
        listener, self._listener = self._listener, None
        unsent = self._announce_at is not None
        for timer in self._looks:
            timer.cancel()
        if announcer is not None and not unsent:
            await asyncio.wait([announcer], timeout=STOP_SECONDS)  # it is sending the last one
        tasks = [task for task in (listener, announcer) if task is not None]
        for task in tasks:
            task.end()
        if tasks:
            await asyncio.wait(tasks)
        if unsent:
            # A producer that enqueues and ends at once: the workers shall not have to find it by polling.
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._notify()
            except TimeoutError:
                logger.debug("a notification was not sent before closing")


def _tell_the_rest(changes: weakref.ref[Changes]) -> None:
    if (alive := changes()) is not None:
        alive.tell_the_rest()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
