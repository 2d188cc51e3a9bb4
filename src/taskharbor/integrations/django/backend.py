"""`Backend`: TaskHarbor behind Django's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from taskharbor.client.options import checked_options
from taskharbor.errors import ConfigurationError
from taskharbor.integrations.django import declared, framework, results
from taskharbor.integrations.django.declared import UNSAID
from taskharbor.integrations.django.harbors import in_transaction, on_connection
from taskharbor.integrations.django.settings import TASK_OPTIONS, BackendSettings
from taskharbor.sync import run_inline


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask(framework.Task):  # type: ignore[misc]
    """A task with the options of TaskHarbor: `@task(max_attempts=5, timeout=60)`, from Django 6.1 on.

    They mean the same as with `@harbor.task`. What is left out is as the backend's OPTIONS have it.
    """

    max_attempts: Any = UNSAID
    retry: Any = UNSAID
    timeout: Any = UNSAID
    delivery: Any = UNSAID


class Backend(framework.BaseTaskBackend):  # type: ignore[misc]
    """Keeps tasks as jobs in Django's own database; `manage.py harbor worker` executes them.

    Enqueueing inside `atomic()` takes part in that transaction: the job exists if and only if it commits.
    """

    task_class = HarborTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.settings = BackendSettings.of(alias, params)

    def validate_task(self, task: Any) -> None:
        """Refuse a task that cannot be executed; remember one that can, because workers look for it here."""
        super().validate_task(task)
        try:
            checked_options(declared.declared_options(task, self.settings), declared=True)
        except ConfigurationError as error:
            raise framework.InvalidTask(f"{task.module_path}: {error}") from error
        declared.declare(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store a job. Inside `atomic()` it exists once that commits; outside, it exists when this returns."""
        self.validate_task(task)
        result = results.new(task, args, kwargs, self.alias)  # makes JSON of the arguments, or refuses them
        with in_transaction(self.settings), on_connection(self.settings) as harbor:
            job = harbor.enqueue(
                task.module_path,
                {"args": result.args, "kwargs": result.kwargs},
                **self._options(task),
            )
        object.__setattr__(result, "id", job.id)
        object.__setattr__(result, "enqueued_at", results.instant(job.record.enqueued_at))
        framework.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return what became of a task, as Django's connection sees it."""

        async def read() -> Any:
            [record] = await harbor.driver.get([result_id])
            attempts = [] if record is None else await harbor.driver.history(result_id, results.ATTEMPTS_MAX)
            return record, attempts

        with on_connection(self.settings) as harbor:
            record, attempts = run_inline(read())
        task = None if record is None else declared.find(record.task)
        if task is None:
            what = (
                "does not exist"
                if record is None
                else f"is of {record.task}, which is no task of this project"
            )
            raise framework.TaskResultDoesNotExist(f"{result_id} {what}")
        return results.of(task, record, attempts, self.alias, harbor)

    def check(self, **kwargs: Any) -> Iterable[Any]:
        from taskharbor.integrations.django.checks import check_backend

        return [*super().check(**kwargs), *check_backend(self)]

    def _options(self, task: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"queue": task.queue_name, "priority": int(task.priority)}
        if task.run_after is not None:
            options["run_at"] = _aware(task.run_after)
        # A copy of the task may have other values than the declaration, which the worker reads from the code.
        known = declared.find(task.module_path)
        if known is not None and known is not task:
            mine, declared_ones = (declared.declared_options(each, self.settings) for each in (task, known))
            options |= {
                name: mine[name]
                for name in TASK_OPTIONS
                if name in mine and mine[name] != declared_ones.get(name)
            }
        return options


def _aware(moment: datetime) -> datetime:
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)
