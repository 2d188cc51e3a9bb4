"""`Stepped`: awaits a handler step by step, in its own context, and notices when it suspends.

The handler runs in the task of its slot, so that `asyncio.timeout` and everything else that asks for the
current task works. Its context variables are still its own: each step runs in a copy of the
worker's context. The executor arms a timer only when the handler suspends, since most handlers never do.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any


class Stepped:
    __slots__ = ("_context", "_coroutine", "_on_suspend")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], context: Context, on_suspend: Callable[[], None]
    ) -> None:
        self._coroutine = coroutine
        self._context = context
        self._on_suspend = on_suspend

    def __await__(self) -> Generator[Any, Any, Any]:
        run, coroutine = self._context.run, self._coroutine
        try:
            awaited = run(coroutine.send, None)
        except StopIteration as stop:
            return stop.value
        except GeneratorExit as error:
            raise _raised_by_the_handler() from error
        self._on_suspend()
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
                raise _raised_by_the_handler() from error


def _raised_by_the_handler() -> RuntimeError:
    """Return an error for a handler's own GeneratorExit, which would look as if the slot were being closed."""
    return RuntimeError("the handler raised GeneratorExit")
