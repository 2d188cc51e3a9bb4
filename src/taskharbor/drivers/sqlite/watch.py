"""Learning of other processes' commits.

SQLite's data_version is another one after anybody has committed; looking at it costs a few microseconds.
When to look is the question. On Linux the kernel tells when the write-ahead log is written to, so that an
idle worker sleeps; the write comes a little before the commit, so it is then looked for closely. Elsewhere
it is looked for every few milliseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from taskharbor.calling import in_sync_call
from taskharbor.drivers.sqlite.engine import Engine

POLL_SECONDS = 0.002  # without the kernel's help
NET_SECONDS = 0.05  # with it: under it, in case it misses something
CLOSE_SECONDS = 0.002  # after a write: about as long as a commit takes, look again at once …
BLINK_SECONDS = 0.0001
ALERT_SECONDS = 0.05  # … and for a while every millisecond

IN_MODIFY = 0x2


async def wait(engine: Engine, watchers: LogWatchers, news: int, seconds: float) -> None:
    """Return once the data version is another one than `news`, at the latest after `seconds`."""
    clock = engine.clock
    give_up_at = clock.monotonic() + seconds
    stirred_at = float("-inf")
    with watchers.one() as log:
        # Pauses are in real time also under a test's clock: other processes commit in real time.
        while engine.data_version() == news and (left := give_up_at - clock.monotonic()) > 0:
            since = time.monotonic() - stirred_at
            if since < CLOSE_SECONDS:
                await _blink()
            elif since < ALERT_SECONDS:
                await _pause(0.001)
            elif log is None:
                await _pause(min(POLL_SECONDS, left))
            elif await _readable(log, min(NET_SECONDS, left)):
                os.read(log, 4096)
                stirred_at = time.monotonic()


async def _blink() -> None:
    """A pause shorter than a loop's timers can make. It lets go of the interpreter's lock, as a pause of
    nothing would not: the thread that writes for us may be waiting for it."""
    time.sleep(BLINK_SECONDS)  # noqa: ASYNC251 - too short to matter to anybody else on the loop
    if not in_sync_call():
        await asyncio.sleep(0)


async def _pause(seconds: float) -> None:
    if in_sync_call():
        time.sleep(seconds)  # noqa: ASYNC251 - a synchronous call has no loop to hold up
    else:
        await asyncio.sleep(seconds)


async def _readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read."""
    if in_sync_call():
        poll = select.poll()  # not select(), which knows only the first 1,024 descriptors
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    loop = asyncio.get_running_loop()
    stirred: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_later(seconds, _answer, stirred, False)
    loop.add_reader(descriptor, _answer, stirred, True)
    try:
        return await stirred
    finally:
        loop.remove_reader(descriptor)
        timer.cancel()


def _answer(future: asyncio.Future[bool], answer: bool) -> None:
    if not future.done():
        future.set_result(answer)


class LogWatchers:
    """Descriptors that become readable when the write-ahead log is written to, one for each who waits.

    They are kept: to close one, the kernel takes its time, ten milliseconds and more.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._free: list[tuple[int, int]] = []  # (descriptor, inode it watches)

    @contextmanager
    def one(self) -> Iterator[int | None]:
        """A descriptor for one wait; None where the system has no such thing."""
        inode = self._inode()
        descriptor = self._kept(inode)
        if descriptor is None and inode is not None:
            descriptor = _inotify(self._path)
        try:
            yield descriptor
        finally:
            if descriptor is not None and inode is not None:
                self._free.append((descriptor, inode))

    def _kept(self, inode: int | None) -> int | None:
        if self._pid != os.getpid():  # a parent's: what we read from it, it would miss
            self.close()
            self._pid = os.getpid()
        while self._free:
            descriptor, watched = self._free.pop()
            if watched == inode:
                return descriptor
            os.close(
                descriptor
            )  # the log it watched is gone: SQLite makes a new one after the last has closed
        return None

    def _inode(self) -> int | None:
        try:
            return os.stat(self._path).st_ino
        except OSError:
            return None

    def close(self) -> None:
        while self._free:
            os.close(self._free.pop()[0])


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
