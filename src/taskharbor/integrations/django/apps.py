"""The Django app. Its label is `taskharbor`: `manage.py migrate taskharbor` makes the tables."""

from __future__ import annotations

from django.apps import AppConfig


class TaskHarborConfig(AppConfig):  # type: ignore[misc]
    name = "taskharbor.integrations.django"
    label = "taskharbor"
    verbose_name = "TaskHarbor"

    def ready(self) -> None:
        from django.apps import apps
        from django.core import checks

        from taskharbor.integrations.django.checks import check_backends, check_store
        from taskharbor.integrations.django.framework import PACKAGE

        checks.register(check_store, checks.Tags.database)
        if PACKAGE == "django_tasks" and not apps.is_installed(
            PACKAGE
        ):  # else that checks all backends itself
            checks.register(check_backends)
