"""Who acts: the name that an action is recorded under."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from taskharbor.codec import NAME_LIMIT, checked_name

ACTOR_BYTES_MAX = NAME_LIMIT

_actor: contextvars.ContextVar[str | None] = contextvars.ContextVar("taskharbor_actor", default=None)


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Record the actions of this context under this name: of this thread or coroutine, and of what it starts."""
    reset = _actor.set(checked_actor(name))
    try:
        yield
    finally:
        _actor.reset(reset)


def checked_actor(name: object) -> str:
    return checked_name("actor", name, ACTOR_BYTES_MAX)


def current_actor() -> str:
    """Return who acts in this context: the innermost `acting_as`, or else the user and host of this process."""
    return _actor.get() or user_at_host()


@cache
def user_at_host() -> str:
    """Return `user@host` of this process; a user without a name is shown by its number."""
    import getpass  # a producer need not wait for them to load
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without an entry for its user
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    text = f"{user}@{socket.gethostname()}"
    printable = "".join(each if each.isprintable() and each != " " else "?" for each in text)
    return printable.encode(errors="replace")[:ACTOR_BYTES_MAX].decode(errors="ignore")
