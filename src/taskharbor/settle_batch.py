"""Settling a batch in which one member may be bad: the others do not suffer for it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from taskharbor.drivers.base import SettleResult, Transition
from taskharbor.errors import ConfigurationError, OperationRefused, PayloadError, StoreError
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.telemetry.logs import log_line, masked

T = TypeVar("T")

# What a store raises about what it was given: a value that it cannot keep, a child that depends on an unknown job.
REFUSALS = (PayloadError, ConfigurationError)

LEFT = "a job could not be settled, nor released, and is left to its lease"


def is_outage(error: Exception) -> bool:
    """Whether it is about the store itself. What is neither this nor a refusal is a bug of TaskHarbor's."""
    return isinstance(error, StoreError) and not isinstance(error, OperationRefused)


async def settle_apart(
    settle: Callable[[Sequence[T]], Awaitable[list[tuple[T, SettleResult | None]]]],
    endings: Sequence[T],
    mend: Callable[[T, Exception], Awaitable[tuple[T, SettleResult | None]]],
) -> list[tuple[T, SettleResult | None]]:
    """Settle them all, each with its answer; None for what is left to its lease.

    A batch that the store does not take is halved until the culprit is alone, and `mend` decides about that one.
    """
    try:
        return await settle(endings)
    except Exception as error:
        if is_outage(error):
            raise
        if len(endings) == 1:
            return [await mend(endings[0], error)]
    middle = len(endings) // 2
    return [
        *await settle_apart(settle, endings[:middle], mend),
        *await settle_apart(settle, endings[middle:], mend),
    ]


def log_refusal(logger: logging.Logger, error: Exception, fields: Mapping[str, object]) -> None:
    """Log that a store refused what an attempt left behind."""
    about = {**fields, "error": masked(str(error))}
    log_line(logger, logging.ERROR, "The store refused what job {job} left behind: {error}", about)


def log_bug(
    logger: logging.Logger, what: str, error: Exception, fields: Mapping[str, object] | None = None
) -> None:
    """Log an exception that nothing but a bug of TaskHarbor's explains, with its traceback."""
    about = {**(fields or {}), "what": what, "error": masked(repr(error))}
    trace = "".join(traceback.format_exception(error))
    log_line(
        logger,
        logging.ERROR,
        "TaskHarbor has a bug, please report it: {what}: {error}",
        about,
        traceback=trace,
    )


def without_content(transition: Transition) -> Transition:
    """The same ending with nothing in it that a store could refuse."""
    error = "the store refused what this attempt left behind (its result, error or children)"
    if transition.to is State.SUCCEEDED:
        return replace(
            transition, status=AttemptStatus.FAILED, to=State.DEAD, reason=Reason.UNRECOVERABLE,
            attempts=transition.attempts + 1, result=None, inserts=(), error=error, dead_letter=None,
        )  # fmt: skip
    return replace(
        transition, result=None, inserts=(), error=error, traceback=None, detail=None, dead_letter=None
    )
