"""`@harbor.task(…)`: what a declaration of a task may say, and the task that it makes of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from taskharbor.client.options import (
    OWN_OPTIONS,
    TASK_OPTIONS,
    TaskOptions,
    checked_options,
    refuse_unknown,
)
from taskharbor.client.task import Task, default_name
from taskharbor.codec import agreeing, checked_name, shorten
from taskharbor.context import Context
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.records import Recurrence

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

P = ParamSpec("P")
R = TypeVar("R")


# What a declaration says of the task itself and of when it recurs, each with what holds if it is left out.
TASK_DEFAULTS: dict[str, Any] = {
    "name": None,
    "aliases": (),
    "parameter_aliases": None,
    "raw": False,
    "isolation": None,
}
RECURRENCE_DEFAULTS: dict[str, Any] = {
    "schedule": None,
    "timezone": "UTC",
    "misfire": "run_once",
    "misfire_grace": 60.0,
    "dead_letter": False,
}


class Declaration:
    """`@harbor.task(…)` before it meets its function."""

    def __init__(self, harbor: Harbor, /, **declared: Unpack[TaskOptions]) -> None:
        options: dict[str, Any] = {**declared}
        self._harbor = harbor
        self._task = {name: options.pop(name, default) for name, default in TASK_DEFAULTS.items()}
        self._task["aliases"] = _checked_aliases(self._task["aliases"])
        self._recurs = {name: options.pop(name, default) for name, default in RECURRENCE_DEFAULTS.items()}
        self._options = options
        refuse_unknown(options.keys() - OWN_OPTIONS, TASK_OPTIONS)
        unfit = OWN_OPTIONS & options.keys()
        if unfit:
            raise ConfigurationError(
                f"{', '.join(sorted(unfit))} {agreeing(len(unfit), 'belongs', 'belong')} to one job, not to a task; "
                f"give {agreeing(len(unfit), 'it', 'them')} with .using(…)"
            )
        checked_options(options.copy(), declared=True)  # a wrong one raises where it was written

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
        name = self._task["name"]
        checked = checked_name("task", default_name(function) if name is None else name)
        given = {**self._task, "name": checked, "options": self._options}
        task: Task[Any, Any, Any, Any] = Task(self._harbor, function, **given)
        task.recurrence = self._recurrence(task)
        self._harbor._register(task)
        return task

    def _recurrence(self, task: Task[Any, Any, Any, Any]) -> Recurrence | None:
        from taskharbor.schedule import EXAMPLES

        if self._recurs["schedule"] is None:
            if self._recurs != RECURRENCE_DEFAULTS:
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
