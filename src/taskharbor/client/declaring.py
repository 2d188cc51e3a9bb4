"""`@harbor.task(…)`: what a declaration of a task may say, and the task that it makes of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from taskharbor.client.options import (
    OWN_OPTIONS,
    TASK_OPTIONS,
    EnqueueOptions,
    checked_options,
    refuse_unknown,
)
from taskharbor.client.task import Isolation, Task, default_name
from taskharbor.codec import agreeing, checked_name, shorten
from taskharbor.context import Context
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.records import Misfire, MisfireName, Recurrence

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.schedule import Schedule as Recurring

P = ParamSpec("P")
R = TypeVar("R")


class Declaration:
    """`@harbor.task(…)` before it meets its function."""

    def __init__(
        self,
        harbor: Harbor,
        name: str | None = None,
        aliases: Iterable[str] = (),
        parameter_aliases: Mapping[str, str] | None = None,
        raw: bool = False,
        isolation: Isolation | None = None,
        schedule: str | Recurring | None = None,
        timezone: str = "UTC",
        misfire: Misfire | MisfireName = "run_once",
        misfire_grace: float = 60.0,
        dead_letter: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> None:
        self._harbor = harbor
        self._recurs = {
            "schedule": schedule,
            "timezone": timezone,
            "misfire": misfire,
            "misfire_grace": misfire_grace,
            "dead_letter": dead_letter,
        }
        self._name = name
        self._aliases = _checked_aliases(aliases)
        self._parameter_aliases = parameter_aliases
        self._raw = raw
        self._isolation = isolation
        self._options = options
        refuse_unknown(options.keys() - OWN_OPTIONS, TASK_OPTIONS)
        unfit = OWN_OPTIONS & options.keys()
        if unfit:
            raise ConfigurationError(
                f"{', '.join(sorted(unfit))} {agreeing(len(unfit), 'belongs', 'belong')} to one job, not to a task; "
                f"give {agreeing(len(unfit), 'it', 'them')} with .using(…)"
            )
        checked_options(dict(options), declared=True)  # a wrong one raises where it was written

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[Concatenate[Context, P], Coroutine[Any, Any, R], P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Task[Concatenate[Context, P], R, P, R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        _refuse_unfit(function)
        task: Task[Any, Any, Any, Any] = Task(
            self._harbor,
            function,
            name=checked_name("task", self._name if self._name is not None else default_name(function)),
            aliases=self._aliases,
            parameter_aliases=self._parameter_aliases,
            raw=self._raw,
            isolation=self._isolation,
            options=self._options,
        )
        task.recurrence = self._recurrence(task)
        self._harbor._register(task)
        return task

    def _recurrence(self, task: Task[Any, Any, Any, Any]) -> Recurrence | None:
        from taskharbor.schedule import EXAMPLES

        if self._recurs["schedule"] is None:
            defaults = ("UTC", "run_once", 60.0, False)
            if tuple(self._recurs.values())[1:] != defaults:
                raise ConfigurationError(
                    f"{task.name} says how it recurs, but not when; give it a schedule, for example {EXAMPLES}"
                )
            return None
        from taskharbor.client.schedule import checked_recurrence

        try:
            task.plan.decode("{}")
        except PayloadError as error:
            raise ConfigurationError(
                f"{task.name} has a schedule, so it is called without arguments, but {error}; "
                "give its parameters defaults, or use harbor.schedules.add(name, task, payload, schedule=…)"
            ) from None
        return checked_recurrence(task.name, self._harbor.application, self._recurs, declared=True)


def _checked_aliases(aliases: Iterable[str]) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Iterable):
        raise ConfigurationError(f"aliases must be a list of names, not {shorten(aliases)}")
    return tuple(checked_name("task", alias) for alias in aliases)


def _refuse_unfit(function: object) -> None:
    if not callable(function):
        raise ConfigurationError(
            f"a task is a function, not {shorten(function)}; to give it a name: @harbor.task(name=…)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{shorten(function)} is a generator, which has no result of its own; let the task return a value"
        )
