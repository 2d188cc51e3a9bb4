"""Retry policies, and the failures and errors that they judge. What becomes of a job is in `retry_decision`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from sys import float_info
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import UNSET, Struct

from taskharbor.clock import check_seconds
from taskharbor.codec import clean_text, shorten
from taskharbor.errors import ConfigurationError, RetryAfter, Unrecoverable
from taskharbor.records import Reason

if TYPE_CHECKING:
    from taskharbor.client.handle import Job

__all__ = [
    "MAX_ATTEMPTS",
    "UNSET",
    "Decision",
    "ErrorInfo",
    "ErrorPattern",
    "Failure",
    "RetryPolicy",
    "TypeName",
    "Uniform",
    "resolve_max_attempts",
]

MAX_ATTEMPTS = 10_000

T = TypeVar("T")

Uniform = Callable[[], float]
"""A source of numbers uniform in [0, 1), such as `random.random`."""


def uniform() -> float:
    from random import random  # a program in which nothing fails starts without it

    return random()


# -- what a decision is made about ---------------------------------------------------------------


class TypeName(Struct, frozen=True):
    """An exception type known only by its name: what a type in a policy becomes when it is stored.

    It matches an error whose type, or one of that type's bases, has this name. `__main__` stands for any
    module, because the script that enqueued a job is not the script that works on it.
    """

    module: str
    name: str

    @classmethod
    def of(cls, exception_type: type[BaseException]) -> TypeName:
        return cls(exception_type.__module__, exception_type.__qualname__)

    @classmethod
    def parse(cls, text: str) -> TypeName:
        module, _, name = text.partition(":")
        return cls(module, name)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    def matches(self, other: TypeName) -> bool:
        return self.name == other.name and (
            self.module == other.module or "__main__" in (self.module, other.module)
        )


class ErrorInfo(Struct, frozen=True):
    """An error as a decision sees it: what is left of one that was raised in another process."""

    type_name: str
    text: str
    types: tuple[TypeName, ...] = ()  # the error's type and its bases
    unrecoverable: bool = False
    retry_after_seconds: float | None = None  # the delay that the handler asked for

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        """What can be said of the error, whatever its own code does: asking it must neither fail nor end the worker."""
        try:
            return cls._read(error)
        except BaseException:  # noqa: BLE001 - even its type may have no name that can be read
            return cls(type_name(error), text_of(error))

    @classmethod
    def _read(cls, error: BaseException) -> ErrorInfo:
        return cls(
            type_name=type(error).__name__,
            text=text_of(error),
            types=tuple(TypeName.of(base) for base in type(error).__mro__ if issubclass(base, BaseException)),
            unrecoverable=isinstance(error, Unrecoverable),
            retry_after_seconds=error.seconds if isinstance(error, RetryAfter) else None,
        )


def type_name(error: BaseException) -> str:
    try:
        return str(type(error).__name__)
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return BaseException.__name__


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - a __str__ that fails, or exits, does not stop the decision about its error
        return ""


ErrorPattern = str | type[BaseException] | TypeName


class Decision(Struct, frozen=True):
    """What becomes of a failed job: it runs again after `delay_seconds`, or it is dead for `reason`."""

    attempts: int  # failures in this run, this one included
    limit: int  # how many failures the run is allowed; 0 when nothing gave it a limit
    delay_seconds: float | None = None
    reason: Reason | None = None
    problems: tuple[str, ...] = ()  # what functions of the policy got wrong; its own rules stood in for them

    @classmethod
    def retry(cls, attempts: int, limit: int, delay_seconds: float) -> Decision:
        """Runnable again after `delay_seconds`."""
        return cls(attempts, limit, delay_seconds=delay_seconds)

    @classmethod
    def dead(cls, attempts: int, limit: int, reason: Reason) -> Decision:
        """Into the dead-letter queue."""
        return cls(attempts, limit, reason=reason)

    @property
    def is_dead(self) -> bool:
        return self.reason is not None


class Failure(Struct, frozen=True):
    """A failed attempt, as the functions of a `RetryPolicy` see it.

    The error is known by the names of its types and by its text, wherever the handler ran: `matches` takes what
    `retry_on` takes.
    """

    number: int  # which failure of the run it is, from 1
    limit: int  # how many failures the run is allowed; 0 when nothing gave it a limit
    info: ErrorInfo
    job: Job[Any] | None = None  # as it was claimed; None outside of a worker

    @property
    def error(self) -> str:
        """The text of the error."""
        return self.info.text

    @property
    def type_name(self) -> str:
        """The name of the error's class."""
        return self.info.type_name

    def matches(self, *patterns: ErrorPattern) -> bool:
        """Whether the error is of one of these types, or one of these texts is in its text or type name."""
        return any(_matches(pattern, self.info, self.info) for pattern in patterns)


DelayFunction = Callable[[Failure], "float | timedelta | None"]
ShouldRetryFunction = Callable[[Failure], "bool | None"]


# -- the policy ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """How often a failed job is tried again, after what delay, and after which errors.

        RetryPolicy(max_attempts=5, initial=1, maximum=60, never_retry_on=[PermissionError, "404"])

    The delay after failure n is `min(initial * multiplier ** (n - 1), maximum)` seconds, then jitter:
    none; a fraction j, which multiplies it by a uniform number in [1 - j, 1 + j], after the cap; or
    `"full"`, a uniform number between 0 and the delay. What is left out is as in `presets.DEFAULT`.

    `max_attempts=5` retries four failures; the fifth is final. `max_retries=4` is the same. 0 means that
    the policy sets no limit of its own.

    `retry_on` and `never_retry_on` take exception types and strings. A string matches when it is contained,
    ignoring case, in the error's text or type name. `never_retry_on` wins; a non-empty `retry_on` that
    does not match means that the job is not tried again.

    A task's policy follows the code of the worker that sees the failure; its jobs store only its limit. A policy
    given to one job is stored with it as JSON (`to_dict`). A type cannot be stored, so it becomes its name, and
    matches an error whose type or one of whose type's bases is called so.

    `delay` and `should_retry` are functions of a `Failure`, for a task's or a worker's policy: the first gives the
    seconds to wait, the second whether to retry; None from either leaves it to the rules above. Code is not stored, so
    one job cannot be given a policy that has them.

    `dataclasses.replace(policy, max_attempts=3)` gives a changed copy.
    """

    max_attempts: int
    initial: float
    maximum: float
    multiplier: float
    jitter: float | Literal["full"] | None
    retry_on: tuple[ErrorPattern, ...]
    never_retry_on: tuple[ErrorPattern, ...]
    delay_function: DelayFunction | None
    should_retry: ShouldRetryFunction | None

    def __init__(
        self,
        *,
        max_attempts: int | None = None,
        max_retries: int | None = None,
        initial: float = 0.2,
        maximum: float | None = None,
        multiplier: float = 2.0,
        jitter: float | Literal["full"] | None = 0.2,
        retry_on: Iterable[ErrorPattern] = (),
        never_retry_on: Iterable[ErrorPattern] = (),
        delay: DelayFunction | None = None,
        should_retry: ShouldRetryFunction | None = None,
        delay_function: DelayFunction | None = None,
    ) -> None:
        attempts = resolve_max_attempts(max_attempts, max_retries)
        first = check_seconds(initial, "initial")
        # The default cap must not silently shorten an `initial` that was asked for.
        cap = max(5.0, first) if maximum is None else check_seconds(maximum, "maximum")
        assign = object.__setattr__  # the class is frozen
        assign(self, "max_attempts", 25 if attempts is None else attempts)
        assign(self, "initial", first)
        assign(self, "maximum", cap)
        assign(self, "multiplier", _check_multiplier(multiplier))
        assign(self, "jitter", _check_jitter(jitter))
        assign(self, "retry_on", _check_patterns(retry_on, "retry_on"))
        assign(self, "never_retry_on", _check_patterns(never_retry_on, "never_retry_on"))
        # `delay_function` is the field's own name, which `dataclasses.replace` gives back.
        assign(
            self, "delay_function", _check_function(delay if delay is not None else delay_function, "delay")
        )
        assign(self, "should_retry", _check_function(should_retry, "should_retry"))

    @property
    def follows_code(self) -> bool:
        """Whether a part of it is code, which no job can store: functions, or a class of its own."""
        return (
            self.delay_function is not None or self.should_retry is not None or type(self) is not RetryPolicy
        )

    def delay(self, n: int, random: Uniform = uniform) -> float:
        """Seconds to wait after failure number `n` (from 1); finite for any n."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigurationError(
                f"delay takes the number of the failure, an integer from 1, not {shorten(n)}"
            )
        base = self._delay_before_jitter(n)
        if self.jitter is None:
            return base
        if self.jitter == "full":
            return base * random()
        low, high = base * (1 - self.jitter), base * (1 + self.jitter)
        return min(high, max(low, low + (high - low) * random()))  # rounding stays inside the bounds

    def _delay_before_jitter(self, n: int) -> float:
        if self.initial == 0 or self.multiplier == 1:
            return min(self.initial, self.maximum)
        try:
            return min(self.initial * self.multiplier ** (n - 1), self.maximum)
        except OverflowError:  # far beyond any cap
            return self.maximum

    def is_retryable(self, error: BaseException | ErrorInfo) -> bool:
        """Whether this policy's classification allows another attempt after `error`."""
        if not self.retry_on and not self.never_retry_on:
            return True
        info = error if isinstance(error, ErrorInfo) else ErrorInfo.of(error)
        if any(_matches(pattern, error, info) for pattern in self.never_retry_on):
            return False
        return not self.retry_on or any(_matches(pattern, error, info) for pattern in self.retry_on)

    def decide(
        self,
        error: BaseException | ErrorInfo,
        failures: int = 0,
        *,
        max_attempts: int | None = None,
        at_most_once: bool = False,
        random: Uniform = uniform,
    ) -> Decision:
        """What this policy alone makes of `error`, after `failures` earlier ones in the same run."""
        from taskharbor.rules.retry_decision import decide_failure  # a producer starts without it

        return decide_failure(
            error,
            failures=failures,
            job_max_attempts=max_attempts,
            job_policy=self,
            at_most_once=at_most_once,
            random=random,
        )

    def to_dict(self) -> dict[str, Any]:
        """The policy as a JSON object. Numbers are always written, so that a stored policy keeps its meaning
        when the defaults change."""
        stored: dict[str, Any] = {
            "max_attempts": self.max_attempts,
            "initial": self.initial,
            "maximum": self.maximum,
            "multiplier": self.multiplier,
        }
        if self.jitter is not None:
            stored["jitter"] = self.jitter
        for key in ("retry_on", "never_retry_on"):
            patterns: tuple[ErrorPattern, ...] = getattr(self, key)
            texts = [pattern for pattern in patterns if isinstance(pattern, str)]
            names = [str(_type_name(pattern)) for pattern in patterns if not isinstance(pattern, str)]
            if texts:
                stored[key] = texts
            if names:
                stored[f"{key}_types"] = names
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RetryPolicy:
        """The policy that `to_dict` wrote. Keys this version does not know are passed over: a newer one may
        have written them while both are at work."""
        if not isinstance(stored, Mapping):
            raise ConfigurationError(f"a stored retry policy must be a JSON object, not {shorten(stored)}")
        known = ("max_attempts", "initial", "maximum", "multiplier")
        given = {key: stored[key] for key in known if key in stored}
        for key in ("retry_on", "never_retry_on"):
            names = _check_patterns(stored.get(f"{key}_types", ()), f"{key}_types")
            given[key] = (
                *_check_patterns(stored.get(key, ()), key),
                *(TypeName.parse(str(name)) for name in names),
            )
        return cls(jitter=stored.get("jitter"), **given)


# -- which errors a pattern matches ---------------------------------------------------------------


def _matches(pattern: ErrorPattern, error: BaseException | ErrorInfo, info: ErrorInfo) -> bool:
    if isinstance(pattern, str):
        wanted = pattern.casefold()
        return wanted in info.text.casefold() or wanted in info.type_name.casefold()
    if isinstance(pattern, type) and isinstance(error, BaseException):
        return isinstance(error, pattern)
    name = _type_name(pattern)
    return any(name.matches(candidate) for candidate in info.types)


def _type_name(pattern: type[BaseException] | TypeName) -> TypeName:
    return pattern if isinstance(pattern, TypeName) else TypeName.of(pattern)


# -- what may be given ---------------------------------------------------------------------------


def resolve_max_attempts(max_attempts: int | None, max_retries: int | None) -> int | None:
    """The limit that either spelling gives: `max_retries=n` is `max_attempts=n + 1`. None for neither."""
    if max_attempts is not None and max_retries is not None:
        raise ConfigurationError(
            f"max_attempts={shorten(max_attempts)} and max_retries={shorten(max_retries)} were both given, "
            "but they say the same thing; give one of them"
        )
    if max_retries is not None:
        return _check_count(max_retries, "max_retries", MAX_ATTEMPTS - 1) + 1
    if max_attempts is not None:
        return _check_count(max_attempts, "max_attempts", MAX_ATTEMPTS)
    return None


def _check_count(value: int, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigurationError(f"{name} must be an integer from 0 to {most}, not {shorten(value)}")
    return value


def _check_multiplier(value: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1 <= value <= float_info.max:
        raise ConfigurationError(
            f"multiplier must be a finite number from 1 (the same delay every time), not {shorten(value)}"
        )
    return float(value)


def _check_jitter(value: float | str | None) -> float | Literal["full"] | None:
    if value is None:
        return None
    if value == "full":
        return "full"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, str) or not is_number or not 0 <= value <= 1:
        raise ConfigurationError(
            f'jitter must be None, "full", or a fraction from 0 to 1 (0.2: plus or minus 20 %), not {shorten(value)}'
        )
    return float(value) or None


def _check_function(function: Any, name: str) -> Any:
    """A plain function of one argument, or None."""
    if function is None:
        return None
    if not callable(function):
        raise ConfigurationError(
            f"{name} must be a function of a Failure, or left out, not {shorten(function)}"
        )
    call = getattr(function, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise ConfigurationError(
            f"{name} is asked between two jobs and cannot wait for anything; declare {shorten(function)} with `def`"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise ConfigurationError(
            f"{name} is called with one argument, a Failure, and {shorten(function)} cannot be; "
            f"for example {name}=lambda failure: …"
        ) from None
    except ValueError:  # a function in C that does not tell its parameters
        return function
    return function


def _check_patterns(patterns: Iterable[ErrorPattern], name: str) -> tuple[ErrorPattern, ...]:
    # A single string would be taken apart into letters, each of which matches nearly everything.
    if isinstance(patterns, str | bytes | type | TypeName) or not isinstance(patterns, Iterable):
        raise ConfigurationError(
            f"{name} must be a list of exception types and strings, not {shorten(patterns)}; "
            f"for one of them write {name}=[...]"
        )
    return tuple(_check_pattern(pattern, name) for pattern in patterns)


def _check_pattern(pattern: ErrorPattern, name: str) -> ErrorPattern:
    if isinstance(pattern, str):
        if not pattern.strip():
            raise ConfigurationError(
                f"{name} holds the blank string {shorten(pattern)}, which nearly every error contains; leave it out"
            )
        if clean_text(pattern, len(pattern)) != pattern:
            raise ConfigurationError(
                f"{name} holds {shorten(pattern)}, with a NUL or a lone surrogate, which no store keeps; remove it"
            )
        return pattern
    if isinstance(pattern, TypeName) or (isinstance(pattern, type) and issubclass(pattern, BaseException)):
        return pattern
    raise ConfigurationError(f"{name} takes exception types and strings, not {shorten(pattern)}")
