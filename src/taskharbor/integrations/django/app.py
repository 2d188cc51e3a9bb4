"""The application for the command line: `-A taskharbor.integrations.django.app:harbor`.

Importing it sets Django up, in a child process of a worker as well. `backends.NAME` is the harbor of another backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

    harbor: Harbor

if not apps.ready:
    django.setup()


def _loaded(name: str | None) -> Harbor:
    """Return the harbor of a backend, with every task that the project declares."""
    from taskharbor.integrations.django import declared
    from taskharbor.integrations.django.harbors import get_harbor

    declared.import_all()
    try:
        found = get_harbor(name)
    except ImproperlyConfigured as error:
        raise ConfigurationError(str(error)) from error
    assert isinstance(found.tasks, declared.DeclaredTasks), "get_harbor() makes it so"
    found.tasks.add_all()
    _ = found.version  # the project's: from here on the command line says which module made the harbor
    return found


class _Backends:
    def __getattr__(self, name: str) -> Harbor:
        return _loaded(name)


backends = _Backends()


def __getattr__(name: str) -> Any:
    if name == "harbor":
        return _loaded(None)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
