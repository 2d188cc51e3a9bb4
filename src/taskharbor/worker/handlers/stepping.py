"""`Stepped`: awaits the rest of a handler that has suspended, step by step, in its own context.

The handler runs in the task of its slot, so that `asyncio.timeout` and everything else that asks for the
current task works. Its context variables are still its own: each step runs in a copy of the
worker's context. The executor takes the first step itself, since most handlers have no other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any


class Stepped:
    """A handler after its first step, which awaits `awaited`."""

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context, awaited: Any) -> None:
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine, awaited = self._context.run, self._coroutine, self._awaited
        while True:
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - passed on to the handler
                step: Callable[[Any], Any] = coroutine.throw
                value = error
            else:
                step = coroutine.send
            try:
                awaited = run(step, value)
            except StopIteration as stop:
                return stop.value
            except GeneratorExit as error:
                raise raised_by_the_handler(error) from error


def raised_by_the_handler(error: GeneratorExit) -> RuntimeError:
    """Return an error for a handler's own GeneratorExit, which would look as if the slot were being closed."""
    own = RuntimeError("the handler raised GeneratorExit")
    own.__cause__ = error
    return own
