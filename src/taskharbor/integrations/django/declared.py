"""The tasks of a project, by the path of their functions, and as tasks of a harbor."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from taskharbor.client.task import Task
from taskharbor.integrations.django import framework
from taskharbor.integrations.django.handling import handler_of
from taskharbor.integrations.django.settings import TASK_OPTIONS, BackendSettings

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

# What @task has declared in this process: Django itself keeps no list.
_declared: dict[str, Any] = {}


def declare(task: Any) -> None:
    """Remember a task where it is declared. Its copies, which `using()` makes, stand for the same function."""
    known = _declared.get(task.module_path)
    if known is None or known.func is not task.func:
        _declared[task.module_path] = task


def import_all() -> None:
    """Import the modules `tasks` of all installed apps, and what the URLs lead to: tasks may be anywhere."""
    from django.conf import settings

    autodiscover_modules("tasks")
    if getattr(settings, "ROOT_URLCONF", None):
        import_module(settings.ROOT_URLCONF)


def find(path: str) -> Any:
    """Return the task of this path, or None. A module that is not loaded is imported if an installed app holds it."""
    found = _declared.get(path)
    if found is not None:
        return found
    module_name, _, name = path.rpartition(".")
    module = sys.modules.get(module_name)
    if module is None and module_name and apps.get_containing_app_config(module_name) is not None:
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
    task = getattr(module, name, None)
    return task if isinstance(task, framework.Task) and task.module_path == path else None


class DeclaredTasks(dict[str, Task[Any, Any, Any, Any]]):
    """The tasks of a harbor: those that are declared on it, and those of Django, which are found by their paths."""

    def __init__(self, harbor: Harbor, settings: BackendSettings) -> None:
        super().__init__(harbor.tasks)
        self._harbor = harbor
        self._settings = settings

    def get(self, name: str, default: Any = None, /) -> Any:
        known = super().get(name)
        return known if known is not None else self._found(name) or default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and self._found(name) is not None)

    def add_all(self) -> None:
        """Take up every task that is declared so far, so that a worker can say which ones it knows."""
        for path in list(_declared):
            self.get(path)

    def _found(self, name: str) -> Task[Any, Any, Any, Any] | None:
        found = find(name)
        if found is None:
            return None
        settings = _settings_of(found, self._settings)
        task: Task[Any, Any, Any, Any] = Task(
            self._harbor,
            handler_of(found, settings.alias),
            name=name,
            raw=True,
            options=declared_options(found, settings),  # type: ignore[arg-type]
        )
        self[name] = task
        return task


def _settings_of(task: Any, settings: BackendSettings) -> BackendSettings:
    """Return those of the backend that the task names: backends on one database share their workers."""
    try:
        own = framework.task_backends[task.backend]
    except ImproperlyConfigured:  # a test has taken it away
        return settings
    found = getattr(own, "settings", None)
    return found if isinstance(found, BackendSettings) else settings


def declared_options(task: Any, settings: BackendSettings) -> dict[str, Any]:
    """What the task declares beyond Django's own fields, and the backend's defaults for the rest."""
    own = {name: getattr(task, name, UNSAID) for name in TASK_OPTIONS}
    return {
        "queue": task.queue_name,
        "priority": task.priority,
        **settings.task,
        **{name: value for name, value in own.items() if value is not UNSAID},
    }


class _Unsaid:
    """Not given: None means something else for `retry`."""

    def __repr__(self) -> str:
        return "not given"

    def __reduce__(self) -> str:
        return "UNSAID"  # the same one in another process


UNSAID = _Unsaid()
