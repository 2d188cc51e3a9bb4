"""A task in a module that nothing imports before a job of it is executed."""

from __future__ import annotations

from taskharbor.integrations.django.framework import PACKAGE

if PACKAGE == "django.tasks":
    from django.tasks import task
else:
    from django_tasks import task


@task
def hidden() -> str:
    return "found"
