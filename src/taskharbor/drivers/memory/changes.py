"""The lock around the store, and the counter of changes that wakes waiters.

No waiter may miss a change that comes between looking and waiting: every change raises a counter, and a wait
that finds it further on than the caller saw it returns at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref

from taskharbor.clock import Clock


class Changes:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.count = 0
        self._sleepers: set[asyncio.Future[None]] = set()
        _fork.watch(self)

    def post(self) -> None:
        """Wake every waiter, in whatever thread or loop it waits. The caller holds the lock."""
        self.count += 1
        self._changed.notify_all()
        for sleeper in self._sleepers:
            _wake_from_any_thread(sleeper)
        self._sleepers.clear()

    def block(self, seen: int, seconds: float) -> None:
        """Wait in this thread."""
        with self.lock:
            self._changed.wait_for(lambda: self.count != seen, timeout=seconds)

    async def suspend(self, seen: int, seconds: float, clock: Clock) -> None:
        """Wait in this task."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self.lock:
            if self.count != seen:
                return
            self._sleepers.add(sleeper)
        timer = clock.call_later(seconds, lambda: _wake(sleeper))
        try:
            await sleeper
        finally:
            timer.cancel()
            with self.lock:
                self._sleepers.discard(sleeper)

    def start_afresh_in_child(self) -> None:
        """Forget the waiters: their threads and loops are not in this process."""
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._sleepers = set()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _wake_from_any_thread(sleeper: asyncio.Future[None]) -> None:
    try:
        sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)
    except RuntimeError:  # its loop has been closed: no caller waits there any more
        pass


# -- fork ----------------------------------------------------------------------------------------


class _Fork:
    """A child of fork has a copy of every store, as of every other object.

    Every lock is taken before the fork: one that another thread held would stay held in the
    child, without an owner, over a store half changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one fork at a time, and no new store during a fork
        self._watched: weakref.WeakSet[Changes] = weakref.WeakSet()
        self._held: list[Changes] = []

    def watch(self, changes: Changes) -> None:
        with self._lock:
            self._watched.add(changes)

    def before(self) -> None:
        self._lock.acquire()
        self._held = list(self._watched)
        for changes in self._held:
            changes.lock.acquire()

    def after_in_parent(self) -> None:
        for changes in self._held:
            changes.lock.release()
        self._held = []
        self._lock.release()

    def after_in_child(self) -> None:
        for changes in self._held:
            changes.start_afresh_in_child()
        self._held = []
        self._lock = threading.Lock()


_fork = _Fork()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork.before,
        after_in_parent=_fork.after_in_parent,
        after_in_child=_fork.after_in_child,
    )
