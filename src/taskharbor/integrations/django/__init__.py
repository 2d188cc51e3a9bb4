"""Django: a backend for its tasks, whose jobs live in Django's own database.

    INSTALLED_APPS = [..., "taskharbor.integrations.django"]
    TASKS = {"default": {"BACKEND": "taskharbor.integrations.django.Backend"}}

Nothing of Django is imported before a name is used, because Django imports this module before it is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskharbor.integrations.django.backend import Backend
    from taskharbor.integrations.django.dashboard import dashboard_urls
    from taskharbor.integrations.django.framework import task
    from taskharbor.integrations.django.harbors import get_harbor

_NAMES = {
    "Backend": "taskharbor.integrations.django.backend",
    "dashboard_urls": "taskharbor.integrations.django.dashboard",
    "get_harbor": "taskharbor.integrations.django.harbors",
    "task": "taskharbor.integrations.django.framework",  # Django's own decorator, wherever it is
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)


__all__ = ["Backend", "dashboard_urls", "get_harbor", "task"]
