"""One implementation for both surfaces: how a coroutine is run for a caller who is not asynchronous.

A driver whose verbs never have to suspend (memory, SQLite) is stepped in the caller's own thread: no
loop, no second thread, no hop. `in_sync_call` tells such a driver that it must not suspend.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Calling(threading.local):
    depth = 0


_calling = _Calling()


def in_sync_call() -> bool:
    return _calling.depth > 0


def step_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend, here and now."""
    _calling.depth += 1
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    else:
        coroutine.close()
        raise RuntimeError("a verb of an inline driver suspended inside a synchronous call")
    finally:
        _calling.depth -= 1
