"""`Task`: a function that can be called and enqueued. `Signature`: a task with arguments, not enqueued yet."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack

from msgspec import UnsetType

from taskharbor.client.handle import Job
from taskharbor.client.options import (
    EnqueueOptions,
    checked_options,
    job_maker,
    merged,
    new_ids,
    new_job,
    refuse_none_of_declared,
    refuse_stranger,
)
from taskharbor.client.sync_methods import sync_method
from taskharbor.codec import result_decoder, shorten
from taskharbor.drivers.base import AlikeJobs, Driver
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.function_refs import address_of
from taskharbor.records import Delivery, FailureTask, NewJob, Recurrence
from taskharbor.rules.display import shown_payload
from taskharbor.rules.retry import UNSET, RetryPolicy
from taskharbor.signature import CallPlan, at_index

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

C = ParamSpec("C")  # how the function itself is called
V = TypeVar("V")  # what that call returns: a coroutine, for an async function
P = ParamSpec("P")  # how it is enqueued: the same without the context
R = TypeVar("R")  # what a job of it results in

Isolation = Literal["thread", "process"]
"""Where a handler runs: a sync one in a thread, as by default, or any in a process of its own."""


class Signature(Generic[R]):
    """A task with arguments and options, not enqueued yet: `harbor.enqueue_many([send.s("a@b.c"), …])`."""

    __slots__ = ("arguments", "options", "payload", "takes_result", "task")

    def __init__(
        self,
        task: Task[Any, Any, Any, R],
        arguments: dict[str, Any],
        options: dict[str, Any],
        takes_result: bool = True,
    ) -> None:
        self.task = task
        self.arguments = arguments
        self.payload = task.plan.encoded(
            arguments, partial=takes_result
        )  # validates the given arguments, once
        self.options = options
        self.takes_result = takes_result  # of the job before it in a workflow

    def new_job(self, index: int | None = None) -> NewJob:
        """Build the job; refuse it if required arguments are missing, and say at which index among several."""
        try:
            self.task.plan.refuse_missing(self.arguments)
        except PayloadError as error:
            raise error if index is None else at_index(index, error) from None
        return self.task.new_job_of(self.payload, self.options)

    def __repr__(self) -> str:
        shown = shown_payload(self.task.name, self.arguments)
        arguments = ", ".join(f"{name}={shorten(value)}" for name, value in shown.items())
        return f"{self.task.name}.{'s' if self.takes_result else 'si'}({arguments})"


# Methods of other libraries that people reach for first, and what to write here.
HABITS = {
    **dict.fromkeys(("delay", "defer", "send", "call", "kiq", "queue"), "enqueue(…)"),
    **dict.fromkeys(("adelay", "defer_async", "asend"), "await aenqueue(…)"),
    **dict.fromkeys(
        ("apply_async", "configure", "schedule", "send_with_options"), "using(delay=60).enqueue(…)"
    ),
}


def missing_attribute(thing: object, name: str, instead: str | None) -> AttributeError:
    """Return the error for an attribute that does not exist; of another library's, it says what to write here."""
    hint = f"; to make a job here, write {instead}" if instead else ""
    return AttributeError(
        f"{type(thing).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=thing
    )


class Enqueueable(Generic[P, R]):
    """Something to enqueue: a task, or a task with the options of one enqueue."""

    _task: Task[Any, Any, P, R]
    _options: dict[str, Any]

    if not TYPE_CHECKING:  # so that type checkers still find the slip

        def __getattr__(self, name):
            raise missing_attribute(self, name, HABITS.get(name))

    @property
    def _driver(self) -> Driver:
        return self._task.harbor.driver

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job with these arguments, durably; its handler runs in a worker."""
        job = self._task.new_job(args, kwargs, self._options)
        [handle] = await self._task.harbor._store([job])
        return handle

    enqueue = sync_method(aenqueue)

    async def aenqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Job[R]]:
        """Store a job for each mapping of arguments: one commit, all or nothing."""
        given = list(payloads)  # as it is now: it is read while the store keeps the first of them
        if len(given) > 1:
            _refuse_one_name_for_many(self._options)
        make = job_maker(self._task.name, self._options)
        encode = self._task.plan.encode_each
        if len(given) <= 1:
            return await self._task.harbor._store([make(text) for text in encode(given)])

        def columns(start: int, stop: int) -> tuple[list[str], list[str]]:
            texts = encode(given[start:stop], start)
            return new_ids(stop - start), texts

        return await self._task.harbor._store(AlikeJobs(make("{}"), len(given), columns))

    enqueue_many = sync_method(aenqueue_many)

    def s(self, /, *args: Any, **kwargs: Any) -> Signature[R]:
        """Make a signature of this task. Given arguments are checked at once; the result of the job before it may
        fill those that are left out.
        """
        return Signature(self._task, self._task.plan.bind(args, kwargs, partial=True), self._options)

    def si(self, /, *args: P.args, **kwargs: P.kwargs) -> Signature[R]:
        """Make a signature with all of its arguments: in a workflow it ignores the result of the job before it."""
        return Signature(self._task, self._task.plan.bind(args, kwargs), self._options, takes_result=False)


class Task(Enqueueable[P, R], Generic[C, V, P, R]):
    """A named function that handles jobs. Calling it calls the function; `enqueue` makes a job."""

    def __init__(
        self,
        harbor: Harbor,
        function: Callable[C, V],
        *,
        name: str,
        aliases: tuple[str, ...] = (),
        parameter_aliases: Mapping[str, str] | None = None,
        raw: bool = False,
        isolation: Isolation | None = None,
        options: EnqueueOptions,
        check_arguments: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self.harbor = harbor
        self.function = function
        self.name = name
        self.aliases = aliases
        self.parameter_aliases = parameter_aliases
        self.is_raw = raw  # it takes its whole payload as one parameter
        self.plan = _plan_kind(raw).of(function, task=name, parameter_aliases=parameter_aliases)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
        )
        self.isolation = _checked_isolation(isolation, self.is_async)
        self.is_isolated = self.isolation == "process"  # its handler runs in a process of its own
        # For a handler in its own process; a function that cannot be imported is an error where it is declared.
        self.address = address_of(function, f"the handler of task {name!r}") if self.is_isolated else None
        self._check_arguments = check_arguments
        self._task = self
        self.recurrence: Recurrence | None = None  # the schedule that is declared with it
        refuse_stranger(harbor, options)
        self._options = checked_options(dict(options), declared=True)
        # The declared policy: a RetryPolicy, None if there is to be none, or UNSET.
        self.declared_policy: RetryPolicy | None | UnsetType = options.get("retry", UNSET)
        self.declared_timeout: float | None = self._options["options"].get("timeout")
        self.is_at_most_once = self._options.get("delivery") is Delivery.AT_MOST_ONCE
        self._decode_result = result_decoder(function)
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = getattr(function, "__doc__", None)
        self.__module__ = getattr(function, "__module__", None) or __name__
        self.__wrapped__ = function

    def __call__(self, /, *args: C.args, **kwargs: C.kwargs) -> V:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def using(self, **options: Unpack[EnqueueOptions]) -> UsingOptions[P, R]:
        """Return the same task with options for the jobs enqueued through it.

        Options left out are as the task declares them. None takes back what an earlier `using` gave of one job's
        own options (`run_at`, `delay`, `expires_at`, `expires_in`, `idempotency_key`, `correlation_id`, `id`), and
        `retry=None` means no retries; for the others None is refused where the task declares one.
        """
        refuse_none_of_declared(dict(options), self._options)
        refuse_stranger(self.harbor, options)
        return UsingOptions(self, merged(self._options, checked_options(dict(options))))

    @property
    def origin(self) -> str:
        """Where its function is defined; the same after the module is reloaded."""
        return f"{self.__module__}.{getattr(self.function, '__qualname__', None) or self.__name__}"

    # -- for the worker --

    @property
    def only_asked_to_end(self) -> bool:
        """Whether a cancelled handler has to check its context: nothing can stop a thread."""
        return not self.is_async and not self.is_isolated

    @property
    def declared_max_attempts(self) -> int | None:
        value: int | None = self._options["options"].get("max_attempts")
        return value

    @property
    def declared_failure_task(self) -> FailureTask | None:
        value: FailureTask | None = self._options["options"].get("failure_task")
        return value

    @property
    def declared_delivery(self) -> Delivery | None:
        return self._options.get("delivery")

    # -- for the client --

    def new_job(self, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]) -> NewJob:
        """Build a job of this task, with validated arguments."""
        return new_job(self.name, self.plan.encode(args, kwargs), options)

    def validate(self, payload: str) -> None:
        """Raise `PayloadError` for a payload that does not fit the function."""
        arguments = self.plan.decode(payload)
        if self._check_arguments is not None:
            self._check_arguments(arguments)

    def new_job_of(self, payload: str, options: dict[str, Any]) -> NewJob:
        """Build a job with an encoded payload."""
        return new_job(self.name, payload, options)

    def decode_result(self, text: str | None) -> Any:
        """Decode a stored result into the type of the function's annotation, where JSON can represent it."""
        return None if text is None else self._decode_result(text)


class UsingOptions(Enqueueable[P, R]):
    """A task together with the options of one enqueue."""

    def __init__(self, task: Task[Any, Any, P, R], options: dict[str, Any]) -> None:
        self._task = task
        self._options = options

    def using(self, **options: Unpack[EnqueueOptions]) -> UsingOptions[P, R]:
        """Return the same with further options; later ones replace earlier ones."""
        refuse_none_of_declared(dict(options), self._options)
        refuse_stranger(self._task.harbor, options)
        return UsingOptions(self._task, merged(self._options, checked_options(dict(options))))

    def __repr__(self) -> str:
        return f"<task {self._task.name} with options>"


def default_name(function: Callable[..., Any]) -> str:
    """Return `module.function`, the same whether the module is imported or run as a script."""
    name = getattr(function, "__qualname__", "<")
    if name.endswith("<lambda>") or name == "<":
        raise ConfigurationError(
            f"{shorten(function)} has no name of its own that its jobs could be stored under; "
            "give one: harbor.task(name=…)(…)"
        )
    module = function.__module__
    if module in ("__main__", "__mp_main__"):  # the latter in a child that multiprocessing spawned
        main = getattr(function, "__globals__", None) or vars(sys.modules[module])
        spec, file = main.get("__spec__"), main.get("__file__")
        module = (
            spec.name if spec is not None else os.path.splitext(os.path.basename(file))[0] if file else "main"
        )
    return f"{module}.{name}".replace(".<locals>", "")


def _plan_kind(raw: object) -> type[CallPlan]:
    if not isinstance(raw, bool):
        raise ConfigurationError(f"raw must be True or False, not {shorten(raw)}")
    if not raw:
        return CallPlan
    from taskharbor.raw_signature import RawPlan  # most programs have none

    return RawPlan


def _checked_isolation(isolation: object, is_async: bool) -> Isolation | None:
    if isolation == "thread" and is_async:
        raise ConfigurationError(
            'isolation="thread" is for `def` functions; an async one runs on the worker\'s loop: '
            'leave it out, or give isolation="process"'
        )
    if isolation == "process" and os.name != "posix":
        raise ConfigurationError(
            f'isolation="process" needs a POSIX system, such as Linux or macOS, not {os.name}; leave it out here'
        )
    match isolation:
        case "thread" | "process" | None:
            return isolation
    raise ConfigurationError(f'isolation must be "process", "thread" or left out, not {shorten(isolation)}')


def _refuse_one_name_for_many(options: dict[str, Any]) -> None:
    for option in ("id", "idempotency_key"):
        if options.get(option) is not None:
            raise ConfigurationError(
                f"{option} names one job, and enqueue_many was given several: all of them would be one. "
                f"Enqueue signatures instead: harbor.enqueue_many([task.using({option}=…).s(…), …])"
            )


__all__ = ["Enqueueable", "Signature", "Task", "UsingOptions", "default_name"]
