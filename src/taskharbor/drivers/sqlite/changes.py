"""Notice commits of other processes.

SQLite's data_version changes with every commit, and reading it costs a few microseconds. The question is when to read
it. On Linux the kernel reports a write to the write-ahead log, so that an idle worker sleeps. The write comes a little
before the commit, so the watch then reads at short intervals. On other systems it reads every few milliseconds.

One watch reads for all waiters of an event loop. A synchronous caller reads for itself. A waiter never opens the store:
a store that was closed may have changed, and its next user opens it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from taskharbor.drivers.sqlite.engine import Engine
from taskharbor.sync import in_sync_call

POLL_SECONDS = 0.002  # without the kernel's help
NET_SECONDS = 0.05  # with it: under it, in case it misses something
CLOSE_SECONDS = 0.002  # after a write: about as long as a commit takes, look again at once …
BLINK_SECONDS = 0.0001
ALERT_PAUSE_SECONDS = 0.001
ALERT_SECONDS = 0.05  # … and for a while every millisecond
# The kernel gives each user few of them, 128 as a rule; a loop without one reads every few milliseconds.
DESCRIPTORS_MAX = 8

IN_MODIFY = 0x2


class Watch:
    """Waiting for one store's token, from any thread and any loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._logs = LogWatchers(f"{engine.path}-wal")
        self._pid = os.getpid()
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopWatch] = {}
        self._closings = 0

    async def wait(self, token: int, seconds: float) -> None:
        """Return once the data version is another one than `token`, at the latest after `seconds`."""
        closings = self._closings
        if in_sync_call():
            self._block(token, seconds)
        elif self._engine.data_version_if_open() == token and seconds > 0:
            watch = self._of_this_loop()
            if closings == self._closings:  # or it comes too late to be dismissed
                await watch.wait(token, seconds)

    def close(self) -> None:
        """Wake all waiters, and close all descriptors."""
        self._closings += 1
        while self._by_loop:
            self._by_loop.popitem()[1].dismiss()
        self._logs.close()

    def _of_this_loop(self) -> _LoopWatch:
        if self._pid != os.getpid():  # a parent's loops do not run here
            self._by_loop = {}
            self._pid = os.getpid()
        loop = asyncio.get_running_loop()
        watch = self._by_loop.get(loop)
        if watch is None:
            for other in [other for other in list(self._by_loop) if other.is_closed()]:
                self._by_loop.pop(other).abandon()
            watch = self._by_loop[loop] = _LoopWatch(loop, self._engine, self._logs)
        return watch

    def _block(self, token: int, seconds: float) -> None:
        clock, closings = self._engine.clock, self._closings
        give_up_at = clock.monotonic() + seconds
        stirred_at = float("-inf")
        with self._logs.one() as log:
            # Pauses are in real time also under a test's clock: other processes commit in real time.
            while (
                closings == self._closings
                and self._engine.data_version_if_open() == token
                and (left := give_up_at - clock.monotonic()) > 0
            ):
                since = time.monotonic() - stirred_at
                if since < CLOSE_SECONDS:
                    time.sleep(BLINK_SECONDS)
                elif since < ALERT_SECONDS:
                    time.sleep(ALERT_PAUSE_SECONDS)
                elif log is None:
                    time.sleep(min(POLL_SECONDS, left))
                elif _readable(log, min(NET_SECONDS, left)):
                    _drain(log)
                    stirred_at = time.monotonic()
            if closings != self._closings:
                self._logs.close()  # this one may have been lent since


class _LoopWatch:
    """All waiters of one loop, and the one read of the store for all of them.

    There is no task that could be left over: while there are waiters, there is a timer and the descriptor's callback.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine, logs: LogWatchers) -> None:
        self._loop = loop
        self._engine = engine
        self._logs = logs
        self._waiting: dict[asyncio.Future[None], int] = {}  # → the token that it has seen
        self._next_look: asyncio.Handle | None = None
        self._log: int | None = None
        self._listening = False
        self._stirred_at = float("-inf")
        self._dismissed = False

    async def wait(self, token: int, seconds: float) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        timer = self._engine.clock.call_later(seconds, lambda: _wake(woken))
        self._waiting[woken] = token
        try:
            if self._next_look is None:
                self._look_later()
            await woken
        finally:
            timer.cancel()
            self._waiting.pop(woken, None)
            if not self._waiting:
                self._rest()

    def dismiss(self) -> None:
        """Wake all waiters, from any thread, and stop watching."""
        self._dismissed = True
        with suppress(RuntimeError):  # the loop is closed: it has no waiters any more
            self._loop.call_soon_threadsafe(self._wake_all)

    def abandon(self) -> None:
        """Forget the waiters of a loop that was closed."""
        self._waiting.clear()
        self._logs.give_back(self._log)
        self._log = None

    # -- looking --

    def _look(self) -> None:
        self._next_look = None  # a waiter that comes before the woken ones have gone begins anew
        self._stop_listening()
        if self._dismissed:
            return self._wake_all()
        try:
            version = self._engine.data_version_if_open()
        except Exception as error:  # noqa: BLE001 - it belongs to the waiters
            for woken in self._waiting:
                if not woken.done():
                    woken.set_exception(error)
            return None
        for woken, token in self._waiting.items():
            if version != token:
                _wake(woken)
                self._stirred_at = float("-inf")  # that was the change; the kernel reports the next write
        if not all(woken.done() for woken in self._waiting):
            self._look_later()
        return None

    def _look_later(self) -> None:
        loop = self._loop
        since = time.monotonic() - self._stirred_at
        if since < CLOSE_SECONDS:
            # Shorter than a loop's timers can be. It lets go of the interpreter's lock, as a pause of nothing
            # would not: the thread that writes for us may be waiting for it.
            time.sleep(BLINK_SECONDS)
            self._next_look = loop.call_soon(self._look)
        elif since < ALERT_SECONDS:
            self._next_look = loop.call_later(ALERT_PAUSE_SECONDS, self._look)
        elif self._listen():
            self._next_look = loop.call_later(NET_SECONDS, self._look)
        else:
            self._next_look = loop.call_later(POLL_SECONDS, self._look)

    def _listen(self) -> bool:
        """Let the kernel report the next write; False where it cannot."""
        self._log = self._logs.current(self._log)
        if self._log is None:
            return False
        self._loop.add_reader(self._log, self._stir)
        self._listening = True
        return True

    def _stop_listening(self) -> None:
        if self._listening and self._log is not None:
            self._loop.remove_reader(self._log)
        self._listening = False

    def _stir(self) -> None:
        if self._log is not None:
            _drain(self._log)
        self._stirred_at = time.monotonic()
        if self._next_look is not None:
            self._next_look.cancel()
        self._look()

    def _rest(self) -> None:
        """Leave nothing that wakes a loop without waiters."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self._stop_listening()
        if self._dismissed:
            self._logs.close()  # this one may have been lent since
        self._logs.give_back(self._log)
        self._log = None

    def _wake_all(self) -> None:
        for woken in self._waiting:
            _wake(woken)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read."""
    poll = select.poll()  # not select(), which knows only the first 1,024 descriptors
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        os.read(descriptor, 4096)


class LogWatchers:
    """Descriptors that become readable when the write-ahead log is written to: one for each loop and for each
    synchronous caller that waits, and no more than a few.

    They are kept: to close one, the kernel takes its time, ten milliseconds and more.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = []  # (descriptor, inode it watches)
        self._lent: dict[int, int] = {}
        self._kept_open = True

    @contextmanager
    def one(self) -> Iterator[int | None]:
        """A descriptor for one wait; None where there is none to be had."""
        descriptor = self.current(None)
        try:
            yield descriptor
        finally:
            self.give_back(descriptor)

    def current(self, lent: int | None) -> int | None:
        """The one that was lent, if it watches the log that is there now, or another that does."""
        inode = self._inode()
        if lent is not None and self._lent.get(lent) == inode:
            return lent
        self.give_back(lent)
        if inode is None:
            return None
        if self._pid != os.getpid():  # a parent's: what we read from them, it would miss
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._lent.clear()
            self.close()
        with self._lock:
            descriptor = self._kept(inode)
            if descriptor is None and len(self._lent) < DESCRIPTORS_MAX:
                descriptor = _inotify(self._path)
            if descriptor is not None:
                self._kept_open = True
                self._lent[descriptor] = inode
        return descriptor

    def give_back(self, descriptor: int | None) -> None:
        inode = None if descriptor is None else self._lent.pop(descriptor, None)
        if descriptor is None or inode is None:
            return
        if self._kept_open:
            self._free.append((descriptor, inode))
        else:
            os.close(descriptor)

    def _kept(self, inode: int) -> int | None:
        while (kept := self._one_free()) is not None:
            descriptor, watched = kept
            if watched == inode:
                return descriptor
            # The log it watched is gone: SQLite makes a new one after the last connection has closed.
            os.close(descriptor)
        return None

    def _one_free(self) -> tuple[int, int] | None:
        try:
            return self._free.pop()
        except IndexError:  # another thread may have taken the last one since anybody looked
            return None

    def _inode(self) -> int | None:
        try:
            return os.stat(self._path).st_ino
        except OSError:
            return None

    def close(self) -> None:
        """Those that are lent are closed when they are given back."""
        self._kept_open = False
        while (kept := self._one_free()) is not None:
            os.close(kept[0])


def _inotify(path: str) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
