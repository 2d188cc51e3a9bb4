"""The harbor of a backend: made from Django's settings, one for each store of the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings as project_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from taskharbor.client.harbor import Harbor
from taskharbor.client.transaction import Transaction
from taskharbor.errors import SchemaError
from taskharbor.integrations.django import signalling
from taskharbor.integrations.django.declared import DeclaredTasks
from taskharbor.integrations.django.settings import BackendSettings, our_backends, store_url

_made: dict[tuple[str, str, str], Harbor] = {}
_making = threading.Lock()


def get_harbor(backend: str | None = None) -> Harbor:
    """Return the harbor of a backend in TASKS, or of the first one that is TaskHarbor's.

    It is the one that `manage.py harbor` works with: `get_harbor().dlq.list()`.
    """
    found = [each for each in our_backends() if backend in (None, each.alias)]
    if not found:
        named = f"TASKS[{backend!r}]" if backend is not None else "no entry of TASKS"
        raise ImproperlyConfigured(
            f"{named} is {'not ' if backend is not None else ''}a backend of TaskHarbor; write "
            'TASKS = {"default": {"BACKEND": "taskharbor.integrations.django.Backend"}}'
        )
    return harbor_of(found[0].settings)


def harbor_of(settings: BackendSettings) -> Harbor:
    """Return the harbor on the database that the backend names now. A test may have replaced it since."""
    url = store_url(settings, connections[settings.database])
    key = (settings.alias, url, repr(settings))
    harbor = _made.get(key)
    if harbor is None:
        with _making:
            harbor = _made.get(key) or _made.setdefault(key, _new(settings, url))
    return harbor


def _new(settings: BackendSettings, url: str) -> Harbor:
    harbor = Harbor(url, **settings.harbor)
    # The version of the code is that of the project's distribution, not of ours.
    project = getattr(project_settings, "SETTINGS_MODULE", None)
    harbor.made_in[:] = [project] if project else []
    harbor.tasks = DeclaredTasks(harbor, settings)
    signalling.follow(harbor, settings.alias)
    return harbor


@contextmanager
def on_connection(settings: BackendSettings) -> Iterator[Harbor]:
    """Let enqueues and reads of the harbor use Django's connection, and so take part in `atomic()`."""
    connection = connections[settings.database]
    harbor = harbor_of(settings)
    try:
        with Transaction(harbor, connection, same_database=True):
            yield harbor
    except SchemaError as error:
        raise SchemaError(
            f"DATABASES[{settings.database!r}] has no tables of TaskHarbor that fit this version; run "
            f"`python manage.py migrate`, with 'taskharbor.integrations.django' in INSTALLED_APPS ({error})"
        ) from error


@contextmanager
def in_transaction(settings: BackendSettings) -> Iterator[None]:
    """Begin a transaction, where the caller has none, and commit it at the end."""
    from django.db import transaction

    connection = connections[settings.database]
    if not connection.get_autocommit():
        yield
    elif connection.vendor == "sqlite":
        with _immediately(connection):
            yield
    else:
        with transaction.atomic(using=settings.database):
            yield


@contextmanager
def _immediately(connection: Any) -> Iterator[None]:
    """A transaction that has the right to write from its beginning, whatever `transaction_mode` is.

    One that gets it later fails where another process has written in between.
    """
    raw = connection.connection
    with connection.wrap_database_errors:
        raw.execute("BEGIN IMMEDIATE")
    try:
        yield
        with connection.wrap_database_errors:
            raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
