"""Django's tasks: `django.tasks` of Django 6.0 and newer, or the package `django-tasks` for Django 5.2."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured


def _found() -> str:
    for name in ("django.tasks", "django_tasks"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        else:
            return name
    raise ImproperlyConfigured(
        "this version of Django has no django.tasks: pip install django-tasks, or use Django 6.0 or newer"
    )


PACKAGE = _found()
_base: Any = import_module(f"{PACKAGE}.base")
_backends: Any = import_module(f"{PACKAGE}.backends.base")
_exceptions: Any = import_module(f"{PACKAGE}.exceptions")
_signals: Any = import_module(f"{PACKAGE}.signals")
_package: Any = import_module(PACKAGE)

BaseTaskBackend: Any = _backends.BaseTaskBackend
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
TaskResultStatus: Any = _base.TaskResultStatus
normalize_json: Any = _base.normalize_json
task: Any = _package.task
task_backends: Any = _package.task_backends
task_enqueued: Any = _signals.task_enqueued
task_finished: Any = _signals.task_finished
task_started: Any = _signals.task_started
