"""What the settings of a project say: its backends, their options, and where their database is."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS
from msgspec import Struct

from taskharbor.client.harbor import Harbor
from taskharbor.codec import shorten

# Of OPTIONS. `database` and `store` say where the jobs are, `harbor` has keywords of Harbor; the others are defaults
# for the tasks, as @task takes them from Django 6.1 on.
TASK_OPTIONS = ("max_attempts", "retry", "timeout", "delivery")
KNOWN = ("database", "store", "harbor", *TASK_OPTIONS)
_DECIDED_HERE = {"url", "driver", "clock"}
_HARBOR_TAKES = [name for name in inspect.signature(Harbor).parameters if name not in _DECIDED_HERE]
VENDORS = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
# What libpq's names in DATABASES["…"]["OPTIONS"] are in a URL. The rest is psycopg's own business.
_LIBPQ = (
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "passfile", "service", "target_session_attrs"),
    *("krbsrvname", "gsslib", "application_name"),
)


class BackendSettings(Struct, frozen=True):
    """One of our backends, as its entry in TASKS has it."""

    alias: str
    queues: frozenset[str]  # empty: any
    database: str
    store: dict[str, str]  # what stands behind the ? of the store's URL
    harbor: dict[str, Any]  # keywords of Harbor
    task: dict[str, Any]  # defaults of its tasks

    @classmethod
    def of(cls, alias: str, params: Mapping[str, Any]) -> BackendSettings:
        options = params.get("OPTIONS") or {}
        where = f'TASKS["{alias}"]["OPTIONS"]'
        unknown = sorted(set(options) - set(KNOWN))
        if unknown:
            raise ImproperlyConfigured(
                f"{where} has {', '.join(map(shorten, unknown))}; TaskHarbor's backend takes {', '.join(KNOWN)}"
            )
        for name in ("store", "harbor"):
            if not isinstance(options.get(name, {}), Mapping):
                raise ImproperlyConfigured(f"{where}[{name!r}] is a dict, not {shorten(options[name])}")
        refused = sorted(_DECIDED_HERE & set(options.get("harbor", {})))
        if refused:
            raise ImproperlyConfigured(
                f"{where}['harbor'] cannot have {', '.join(refused)}: the jobs live in Django's database, which "
                "'database' names"
            )
        unknown = sorted(set(options.get("harbor", {})) - set(_HARBOR_TAKES))
        if unknown:
            raise ImproperlyConfigured(
                f"{where}['harbor'] has {', '.join(map(shorten, unknown))}, which Harbor does not take; "
                f"it takes {', '.join(_HARBOR_TAKES)}"
            )
        return cls(
            alias,
            frozenset(params.get("QUEUES", ["default"])),
            options.get("database", DEFAULT_DB_ALIAS),
            {str(name): str(value) for name, value in options.get("store", {}).items()},
            dict(options.get("harbor", {})),
            {name: options[name] for name in TASK_OPTIONS if name in options},
        )


def our_backends() -> Iterator[Any]:
    """The backends of the project that are TaskHarbor's, in the order of TASKS."""
    from taskharbor.integrations.django.backend import Backend
    from taskharbor.integrations.django.framework import task_backends

    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, Backend):
            yield backend


def postgres_schema(database: str) -> str:
    """The schema of the tables in this database: the one that a backend's options name, else the usual one."""
    names = {
        backend.settings.store.get("schema", "taskharbor")
        for backend in our_backends()
        if backend.settings.database == database
    }
    if len(names) > 1:
        raise ImproperlyConfigured(
            f"the backends on the database {database!r} name different schemas ({', '.join(sorted(names))}); give them "
            "the same one: a migration makes one set of tables in each database"
        )
    return names.pop() if names else "taskharbor"


def store_url(settings: BackendSettings, connection: Any) -> str:
    """The URL of the store that Django's connection is to, as its settings are now: tests change them."""
    if connection.vendor == "sqlite":
        return _sqlite_url(connection, settings.store)
    if connection.vendor == "postgresql":
        return _postgresql_url(connection, settings.store)
    raise ImproperlyConfigured(
        f"TaskHarbor keeps jobs in {' or '.join(VENDORS.values())}, and DATABASES[{connection.alias!r}] is "
        f"{connection.vendor}; name another one of DATABASES: "
        f'TASKS["{settings.alias}"]["OPTIONS"] = {{"database": …}}'
    )


def is_in_memory(connection: Any) -> bool:
    """Whether it is SQLite in memory, as Django's own tests use it."""
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _sqlite_url(connection: Any, options: Mapping[str, str]) -> str:
    if is_in_memory(connection):
        # Enqueueing and reading use Django's connection. Nothing else reaches it, and this folder exists nowhere.
        path = f"/a database in memory, which only Django's connection reaches/{connection.alias}"
    else:
        path = os.path.abspath(str(connection.settings_dict["NAME"]))
    return f"sqlite:///{quote(path)}{f'?{urlencode(options)}' if options else ''}"


def _postgresql_url(connection: Any, options: Mapping[str, str]) -> str:
    # As Django gives them to psycopg: the settings, and what OPTIONS adds to them.
    given = {name: str(value) for name, value in connection.get_connection_params().items() if value}
    further = {name: given[name] for name in _LIBPQ if name in given}
    host = given.get("host", "")
    if host.startswith("/"):  # the folder of a socket
        further["host"], host = host, ""
    elif ":" in host and "," not in host:
        host = f"[{host}]"
    user, password = (quote(given.get(name, ""), safe="") for name in ("user", "password"))
    login = f"{user}:{password}" if password else user
    port = given.get("port", "")
    if port and not host:  # without a host there is no place for it but the query
        further["port"], port = port, ""
    where = f"{f'{login}@' if login else ''}{host}{f':{port}' if port else ''}"
    query = urlencode({**further, **options}, quote_via=quote)
    return f"postgresql://{where}/{quote(given.get('dbname', ''), safe='')}{f'?{query}' if query else ''}"
