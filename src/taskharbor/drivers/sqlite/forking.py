"""Call every engine before and after a fork of this process: no SQLite connection survives one."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    def hold_for_fork(self) -> None:
        """Before a fork, in the parent."""

    def release_after_fork(self) -> None:
        """After it, in the parent."""

    def forget_after_fork(self) -> None:
        """After it, in the child."""


_told: weakref.WeakSet[Forked] = weakref.WeakSet()
_forking = threading.RLock()  # one fork at a time
_held: list[Forked] = []


def register(engine: Forked) -> None:
    """Call the engine around every fork while it exists."""
    _told.add(engine)


def _before_fork() -> None:
    _forking.acquire()
    for engine in list(_told):
        _held.append(engine)
        engine.hold_for_fork()


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release_after_fork()
    _forking.release()


def _after_fork_in_child() -> None:
    _held.clear()
    _forking.release()  # the thread that forked holds it, and is the one that goes on here
    for engine in list(_told):
        engine.forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
