"""How an execution ended: from what a handler returned or raised to an outcome."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CoroutineType
from typing import Any

from taskharbor.codec import RESULT_LIMIT, clean_text, encode_result
from taskharbor.errors import AttemptTimedOut, PayloadError, RemoteError, StopRequested, Unrecoverable
from taskharbor.records import STOP_REASONS, Reason, StopReason
from taskharbor.rules import fingerprint
from taskharbor.rules.outcome import (
    CancelledOnRequest,
    Crashed,
    Disturbed,
    Failed,
    HandedBack,
    Interrupted,
    Outcome,
    Slept,
    Succeeded,
    Unrunnable,
)
from taskharbor.rules.retry import ErrorInfo, type_name
from taskharbor.sealing import Sealing
from taskharbor.telemetry.logs import masked
from taskharbor.worker.handlers import tracebacks
from taskharbor.worker.handlers.isolation.messages import Stopped
from taskharbor.worker.handlers.steps import FallAsleep
from taskharbor.worker.pipeline.execution import Execution

ERROR_MAX = 4_000  # characters of an error's text that are kept
TRACEBACK_MAX = 16_000
# What calls a handler: a worker, and an integration that puts a framework around it.
_CALLERS = tuple(str(Path(__file__).parents[2] / each) for each in ("worker", "integrations", "signature.py"))
_SUCCEEDED = Succeeded()


def outcome_of_return(value: Any) -> Succeeded | Failed:
    """What a handler that returned in time leaves behind."""
    if value is None:
        return _SUCCEEDED
    try:
        return Succeeded(encode_result(value))
    except PayloadError as error:
        if inspect.iscoroutine(value):
            return _of_coroutine(value)
        # The work is done; doing it again would not make its result fit.
        return of_failure(Unrecoverable(f"the result cannot be stored: {error}"))
    except BaseException as error:  # noqa: BLE001 - storing it runs the result's own code, which may exit
        return of_failure(Unrecoverable(f"the result cannot be stored: {error_text(error)}"))


def _of_coroutine(coroutine: CoroutineType[Any, Any, Any]) -> Failed:
    """The work is not even begun, and would not be another time."""
    coroutine.close()
    return of_failure(
        Unrecoverable(
            f"the handler is a plain function and returned the coroutine {coroutine.__name__}, which is never awaited; "
            "declare it with `async def` and await that in it"
        )
    )


def outcome_of_error(execution: Execution, error: BaseException) -> Outcome:
    """What a handler that raised leaves behind; if it was made to end, that is why it ended."""
    if (reason := stop_in(execution, error)) is not None:
        return of_stop(execution, reason, trace=traceback_of(error))
    if execution.interrupted is not None:
        text = None if isinstance(error, asyncio.CancelledError) else error_text(error)
        return of_stop(execution, execution.interrupted, text, traceback_of(error))
    if (slept := of_sleep(error)) is not None:
        return slept
    if execution.disturbed:
        return Disturbed()  # whatever the handler made of being cancelled
    if isinstance(error, RemoteError) and isinstance(
        error.outcome, Failed | Crashed | Unrunnable | HandedBack
    ):
        return error.outcome
    return of_failure(error)


def stop_in(execution: Execution, error: BaseException) -> StopReason | None:
    """Why the attempt stopped, if what its handler raised says no more than that it stopped.

    A group of errors counts if it holds nothing but the attempt's own `StopRequested`, and what the group
    cancelled because of it. One of another attempt is an error like any other, and so is one that was made up.
    """
    reasons = set()
    for each in _members(error):
        if isinstance(each, StopRequested) and execution.has_raised(each):
            reasons.add(each.reason)
        elif not (isinstance(each, asyncio.CancelledError) and each is not error):
            return None
    return next((reason for reason in STOP_REASONS if reason in reasons), None)


def _members(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in a group, of groups in it as well, however deep they are."""
    found = [error]
    while found:
        each = found.pop()
        if isinstance(each, BaseExceptionGroup):
            found += reversed(each.exceptions)
        else:
            yield each


def of_stop(
    execution: Execution, reason: StopReason, error: str | None = None, trace: str | None = None
) -> Outcome:
    """Decide the outcome of an attempt that stopped for this reason, by itself or because the worker made it stop.

    `error` and `trace` are what the handler raised when the worker interrupted it.
    """
    match reason:
        case "cancel":
            return CancelledOnRequest(error)
        case "timeout":
            return of_timeout(execution, trace)
        case "shutdown":
            return Interrupted()  # whatever the handler raised: nothing is counted
        case "lease_lost":
            return Interrupted()  # never settled: `Executor._ended` drops an attempt whose lease is lost


def of_sleep(error: BaseException) -> Slept | None:
    """What the signal of `ctx.sleep` means, also from within a task group, if nothing else went wrong there."""
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) > 1:
            return None
        error = error.exceptions[0]
    return Slept(error.name, error.seconds) if isinstance(error, FallAsleep) else None


def remote_error(ended: Failed | Crashed | Unrunnable | HandedBack) -> RemoteError:
    """What a middleware is given of how a handler's process ended; let through, it stands for just that."""
    match ended:
        case Failed(info, error):
            return RemoteError(error, type_name=info.type_name, outcome=ended)
        case Crashed(error) | Unrunnable(_, error):
            return RemoteError(error, type_name="", outcome=ended)
        case HandedBack():
            return RemoteError("its process ended before it could begin", type_name="", outcome=ended)


def of_remote(
    execution: Execution, ended: Succeeded | Failed | Crashed | Slept | Unrunnable | HandedBack | Stopped
) -> Outcome:
    """The same for what happened in a process of its own, without a middleware around it."""
    if isinstance(ended, Succeeded):
        return ended
    if isinstance(ended, Stopped):
        return of_stop(execution, ended.reason)
    if execution.interrupted is None:
        return ended
    if isinstance(ended, HandedBack) and execution.interrupted == "shutdown":
        return ended  # the handler never began
    if not isinstance(ended, Failed):
        return of_stop(execution, execution.interrupted)
    text = None if ended.info.type_name == asyncio.CancelledError.__name__ else ended.error
    return of_stop(execution, execution.interrupted, text, ended.traceback)


def of_abandoned(execution: Execution) -> Outcome:
    """A handler that does not end is left behind: what it was made to end for decides."""
    return of_stop(execution, execution.interrupted or "shutdown")


def of_failure(error: BaseException) -> Failed:
    info = ErrorInfo.of(error)
    timed_out = isinstance(error, AttemptTimedOut)
    is_mere_timeout = timed_out and fingerprint.cause_of(error) is None
    return Failed(
        info,
        error_text(error),
        traceback_of(error),
        timed_out=timed_out,
        fingerprint=None if is_mere_timeout else fingerprint.of_error(error, info.text),
    )


def sealed(outcome: Succeeded, sealing: Sealing) -> Succeeded | Failed:
    """Return the outcome with its result as the store keeps it; one that cannot be encoded ends the job."""
    if outcome.result is None:
        return outcome
    try:
        return Succeeded(sealing.seal(outcome.result, "the result", RESULT_LIMIT))
    except PayloadError as error:
        return of_failure(Unrecoverable(str(error)))


def outcome_of_unrunnable(reason: Reason, why: str) -> Unrunnable:
    return Unrunnable(reason, clean_text(why, ERROR_MAX))


def of_timeout(execution: Execution, trace: str | None = None) -> Failed:
    timeout = TimeoutError(f"the attempt took longer than its timeout of {execution.timeout:g} s")
    return Failed(ErrorInfo.of(timeout), error_text(timeout), trace, timed_out=True)


def error_text(error: BaseException) -> str:
    """The error's type and text. Its own code makes them: what that raises is an ending of nothing but this text."""
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - a SystemExit in here would end the worker
        text = f"(its text cannot be read: {type_name(broken)})"
    name = type_name(error)
    return masked(clean_text(f"{name}: {text}" if text else name, ERROR_MAX))


def traceback_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_CALLERS):
        trace = trace.tb_next  # what called the handler is of no interest to its author
    try:
        text = tracebacks.formatted(error, trace or error.__traceback__)
    except BaseException:  # noqa: BLE001 - formatting runs the error's own code
        text = "".join(traceback.format_tb(error.__traceback__))
    return masked(clean_text(text, TRACEBACK_MAX))
