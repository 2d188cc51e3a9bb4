"""`Context`: the attempt that a handler runs in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from taskharbor.clock import from_micros
from taskharbor.codec import clean_text, encode_result
from taskharbor.errors import ConfigurationError
from taskharbor.records import Progress, StopReason

if TYPE_CHECKING:
    from taskharbor.client.handle import Job
    from taskharbor.client.task import Signature
    from taskharbor.worker.pipeline.execution import Execution

_logger = logging.getLogger("taskharbor.task")

PROGRESS_MESSAGE_MAX = 500
PROGRESS_VALUE_MAX = 4_096  # bytes of JSON

P = ParamSpec("P")
T = TypeVar("T")


class Context:
    """The attempt that a handler runs in. Declare it as the first parameter, or call `current_context()`."""

    __slots__ = ("_execution",)

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    @property
    def job(self) -> Job[Any]:
        """The job as it was claimed."""
        return self._execution.job

    @property
    def attempt(self) -> int:
        """The number of this execution in the run, from 1."""
        claimed = self._execution.claimed
        return claimed.number - claimed.first_number + 1

    @property
    def attempt_number(self) -> int:
        """The number of this attempt over all runs of the job, as history shows it."""
        return self._execution.claimed.number

    @property
    def retry_count(self) -> int:
        """Failures in this run so far: 0 the first time."""
        return self._execution.claimed.attempts

    @property
    def correlation_id(self) -> str | None:
        return self._execution.options.correlation_id

    @property
    def stop_requested(self) -> StopReason | None:
        """Why the handler should stop; None while it should go on. If several reasons apply, the first of these:

        `"lease_lost"`: the attempt can no longer commit anything. `"cancel"`: an operator cancels the job. `"timeout"`:
        the attempt's time is up. `"shutdown"`: the worker shuts down, and its grace period runs.
        """
        return self._execution.stop_requested

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop, for any reason: `stop_requested is not None`."""
        return self._execution.stop_requested is not None

    def raise_if_stopped(self) -> None:
        """End the attempt here if it should stop, by raising `StopRequested`, a `BaseException`.

        The job is then cancelled, or timed out, or released for another worker without counting anything. An
        `at_most_once` job goes on through the grace period of a shutdown, and is `dead`, reason `interrupted`, if it
        stops after it. A plain function, for every kind of handler. Call it where stopping does no harm; do not
        call it once the work is done: a handler that returns has succeeded.
        """
        self._execution.raise_if_stopped()

    @property
    def deadline(self) -> datetime | None:
        """When the attempt times out."""
        deadline = self._execution.deadline
        return None if deadline is None else from_micros(deadline)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the job, the task, the attempt and the correlation id."""
        return ContextLogger(_logger, {"fields": self._execution.fields()})

    def progress(self, fraction: float, message: str = "", *, value: Any = None) -> None:
        """Report how far the work is, from 0 to 1; the next batch stores it, and the job shows it.

        `value` is anything that JSON can hold, of at most 4,096 bytes: counts, the last line read, an address.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ConfigurationError(f"progress takes a fraction from 0 to 1, not {fraction!r}")
        text = None
        if value is not None:
            what = "the value of progress"
            text = encode_result(value, limit=PROGRESS_VALUE_MAX, what=what)
            text = self._execution.harbor.sealing.seal(text, what)
        self._execution.report(Progress(float(fraction), _message(message), text))

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function once for this job, and store what it returned: `await ctx.step("charge", charge, order)`.

        A later attempt gets the stored result instead, in the type that the function's annotation names. A step
        is known by its name, which an attempt uses once. In an `async` handler it is awaited; in one that runs
        in a thread it gives the value itself. If this attempt has lost its lease, it raises `LeaseLost`.
        """
        return self._execution.steps.step(name, function, args, kwargs)

    def sleep(self, name: str, seconds: float) -> Awaitable[None]:
        """Free the slot, and continue here after that many seconds: `await ctx.sleep("wait-a-day", 86400)`.

        The handler is ended by a `BaseException`, and executed again from its beginning when the time has come,
        with its steps remembered. In a handler that runs in a thread there is nothing to await.
        """
        slept: Awaitable[None] = self._execution.steps.sleep(name, seconds)
        return slept

    def enqueue(self, signature: Signature[Any]) -> str:
        """Enqueue a child and return its id. The child exists if and only if this attempt succeeds."""
        return self._execution.add_child(signature)


def _message(message: object) -> str:
    return clean_text(str(message)[:PROGRESS_MESSAGE_MAX], PROGRESS_MESSAGE_MAX)


class ContextLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the attempt's fields to a line's own fields."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        own = (self.extra or {}).get("fields", {})
        extra = dict(kwargs.get("extra") or {})
        extra["fields"] = {**own, **extra.get("fields", {})}  # type: ignore[dict-item]
        return msg, {**kwargs, "extra": extra}


current_execution: ContextVar[Execution | None] = ContextVar("taskharbor_execution", default=None)


def current_context() -> Context:
    """Return the context of the attempt that this code runs in."""
    execution = current_execution.get()
    if execution is None:
        raise ConfigurationError(
            "current_context() was called outside of a job; it works only inside a handler"
        )
    return execution.context
