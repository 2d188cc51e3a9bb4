"""System checks: what is wrong with the settings, and with the store that they lead to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings as project_settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from taskharbor.errors import TaskHarborError
from taskharbor.integrations.django.harbors import harbor_of
from taskharbor.integrations.django.schema import applied_version, needed_version
from taskharbor.integrations.django.settings import VENDORS, is_in_memory, our_backends

APP = "taskharbor.integrations.django"
IMMEDIATE = 'DATABASES["…"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}'


def check_backend(backend: Any) -> Iterator[Any]:
    """Check one backend without touching its database; Django asks each backend for this."""
    database = backend.settings.database
    if database not in connections:
        yield checks.Error(
            f"TASKS[{backend.alias!r}] keeps its jobs in the database {database!r}, which DATABASES does not have.",
            hint='Name one of DATABASES: "OPTIONS": {"database": "default"}.',
            id="taskharbor.E001",
        )
        return
    connection = connections[database]
    if connection.vendor not in VENDORS:
        yield checks.Error(
            f"TASKS[{backend.alias!r}] keeps its jobs in DATABASES[{database!r}], which is {connection.vendor}.",
            hint=f"TaskHarbor works with {' and '.join(VENDORS.values())}: name such a database.",
            id="taskharbor.E002",
        )
        return
    if not apps.is_installed(APP):
        yield checks.Error(
            f"TASKS[{backend.alias!r}] is TaskHarbor's, and INSTALLED_APPS has no {APP!r}, so no migration makes "
            "its tables.",
            hint=f"Add {APP!r} to INSTALLED_APPS and run `manage.py migrate`.",
            id="taskharbor.E003",
        )
    try:
        harbor_of(backend.settings)
    except (TaskHarborError, ImproperlyConfigured) as error:
        yield checks.Error(f"TASKS[{backend.alias!r}] cannot be used: {error}", id="taskharbor.E004")
        return
    if connection.vendor == "sqlite":
        yield from _check_sqlite(backend, connection)


def check_backends(app_configs: Any = None, **kwargs: Any) -> list[Any]:
    """Check every backend of the project that is TaskHarbor's."""
    return [found for backend in our_backends() for found in backend.check()]


def _check_sqlite(backend: Any, connection: Any) -> Iterator[Any]:
    mode = connection.settings_dict.get("OPTIONS", {}).get("transaction_mode")
    if str(mode).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield checks.Warning(
            f"DATABASES[{connection.alias!r}] is SQLite with transaction_mode {mode!r}: a transaction that reads "
            'before it writes fails with "database is locked" when a worker has written in between.',
            hint=f"Set {IMMEDIATE}.",
            id="taskharbor.W001",
        )
    if not project_settings.DEBUG and not is_in_memory(connection):
        yield checks.Warning(
            f"TASKS[{backend.alias!r}] keeps its jobs in SQLite, and DEBUG is off.",
            hint=(
                "SQLite serves the processes of one machine, one writer at a time. Use PostgreSQL for more, or silence "
                "this with SILENCED_SYSTEM_CHECKS."
            ),
            id="taskharbor.W002",
        )


def check_store(app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[Any]:
    """Check the tables and the queues in the databases that were named: `manage.py check --database default`."""
    found: list[Any] = []
    if sys.argv[1:2] == ["migrate"]:  # Django checks before it migrates, and would advise what is under way
        return found
    for backend in our_backends():
        if databases and backend.settings.database in databases:
            found += _check_tables(backend)
    return found


def _check_tables(backend: Any) -> list[Any]:
    connection = connections[backend.settings.database]
    if connection.vendor not in VENDORS or is_in_memory(connection):
        return []
    # Asked on Django's connection: a connection of ours would make the tables in an empty file.
    (version, serves), needed = applied_version(connection), needed_version(connection)
    if version < needed or serves > needed:
        found = f"version {version}" if version else "none"
        return [
            checks.Warning(
                f"TASKS[{backend.alias!r}] needs TaskHarbor's tables of version {needed} in "
                f"DATABASES[{connection.alias!r}], which has {found}.",
                hint="Upgrade TaskHarbor." if version > needed else "Run `manage.py migrate`.",
                id="taskharbor.W003",
            )
        ]
    harbor = harbor_of(backend.settings)
    try:
        stored = harbor.queues.list()
    finally:
        harbor.close()
    unknown = sorted({queue.name for queue in stored} - backend.queues) if backend.queues else []
    if not unknown:
        return []
    return [
        checks.Warning(
            f"jobs wait in queues that TASKS[{backend.alias!r}] does not name: {', '.join(unknown)}.",
            hint='Add them to "QUEUES", or see what they are: `manage.py harbor queue list`.',
            id="taskharbor.W004",
        )
    ]
