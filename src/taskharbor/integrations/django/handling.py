"""What a worker calls for a task of Django: its function, with Django's context, connections and signals around it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries

from taskharbor.context import Context
from taskharbor.errors import Unrecoverable
from taskharbor.integrations.django import framework, results, signalling


def handler_of(task: Any, backend: str) -> Callable[..., Any]:
    """Return the handler of a task, for its harbor. It takes the envelope `{"args": […], "kwargs": {…}}`."""
    return _asynchronous(task, backend) if iscoroutinefunction(task.func) else _synchronous(task, backend)


def _synchronous(task: Any, backend: str) -> Callable[..., Any]:
    def handler(context: Context, payload: dict[str, Any]) -> Any:
        _fresh_connections()
        try:
            if context.attempt_number == 1:
                result = results.begun(task, context, payload, backend)
            else:
                read = framework.task_backends[backend].get_result(context.job.id)
                result = results.begun_again(read, context)
            framework.task_started.send_robust(signalling.sender(), task_result=result)
            value = _checked(task.func(*_arguments(task, result), **result.kwargs))
            signalling.keep(result, value)
            return value
        finally:
            close_old_connections()

    return _named(handler, task)


def _asynchronous(task: Any, backend: str) -> Callable[..., Any]:
    async def handler(context: Context, payload: dict[str, Any]) -> Any:
        # Django's connections belong to threads: asynchronous code reaches them in this one.
        await sync_to_async(_fresh_connections)()
        try:
            if context.attempt_number == 1:
                result = results.begun(task, context, payload, backend)
            else:
                read = await framework.task_backends[backend].aget_result(context.job.id)
                result = results.begun_again(read, context)
            await framework.task_started.asend_robust(signalling.sender(), task_result=result)
            value = _checked(await task.func(*_arguments(task, result), **result.kwargs))
            signalling.keep(result, value)
            return value
        finally:
            await sync_to_async(close_old_connections)()

    return _named(handler, task)


def _fresh_connections() -> None:
    """What Django does when a request begins: the log of statements is emptied, a broken connection is closed."""
    reset_queries()
    close_old_connections()


def _arguments(task: Any, result: Any) -> list[Any]:
    context = [framework.TaskContext(task_result=result)] if task.takes_context else []
    return [*context, *result.args]


def _checked(value: Any) -> Any:
    try:
        return framework.normalize_json(value)
    except TypeError as error:
        # The work is done; doing it again would not make its result fit.
        raise Unrecoverable(f"a task returns what JSON can hold, and nothing else: {error}") from error


def _named(handler: Callable[..., Any], task: Any) -> Callable[..., Any]:
    """Give it the names of the function, by which logs and error messages call it."""
    handler.__name__, handler.__qualname__ = task.func.__name__, task.func.__qualname__
    handler.__module__, handler.__doc__ = task.func.__module__, task.func.__doc__
    return handler
