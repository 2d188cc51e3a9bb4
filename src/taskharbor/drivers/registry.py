"""Which driver a URL means: the built-in ones, and those that other packages offer by entry point."""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

from taskharbor.clock import Clock
from taskharbor.codec import shorten
from taskharbor.drivers.base import Driver
from taskharbor.errors import ConfigurationError

ENTRY_POINTS = "taskharbor.drivers"  # name = URL scheme, object = callable (url, clock) -> Driver


def driver_for(url: str, clock: Clock | None = None) -> Driver:
    if not isinstance(url, str) or "://" not in url:
        raise ConfigurationError(
            f"a store's URL looks like sqlite:///harbor.db or memory://, not {shorten(url)}"
        )
    scheme = url.partition("://")[0].lower()
    make = _BUILT_IN.get(scheme) or _offered(scheme)
    if make is None:
        from importlib.metadata import entry_points  # costs more than the rest of this module

        known = ", ".join(
            f"{name}://" for name in sorted({*_BUILT_IN, *entry_points(group=ENTRY_POINTS).names})
        )
        raise ConfigurationError(f"no driver for {shorten(scheme + '://')}; the known stores are {known}")
    return make(url, clock)


def _offered(scheme: str) -> Callable[[str, Clock | None], Driver] | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS, name=scheme):
        offered: Callable[[str, Clock | None], Driver] = point.load()
        return offered
    return None


def _memory(url: str, clock: Clock | None) -> Driver:
    from taskharbor.drivers.memory import MemoryDriver

    if url.partition("://")[2]:
        raise ConfigurationError(f"memory:// takes nothing behind it, and {shorten(url)} has something")
    return MemoryDriver(clock)


def _sqlite(url: str, clock: Clock | None) -> Driver:
    """sqlite:///relative.db, sqlite:////absolute.db, ?synchronous=normal"""
    from taskharbor.drivers.sqlite import SQLiteDriver

    # Not urlsplit: it drops a `#…`, and silently removes tabs and newlines, so that another file would be opened.
    given, _, query = url.partition("://")[2].partition("?")
    path = unquote(given.removeprefix("/"), errors="surrogateescape")
    if not given.startswith("/") or not path:
        raise ConfigurationError(
            f"a SQLite URL has three slashes and a path, such as sqlite:///harbor.db (four for an absolute one: "
            f"sqlite:////var/lib/harbor.db), not {shorten(url)}"
        )
    if path == ":memory:":
        raise ConfigurationError("SQLite in memory is no store for jobs; use memory://")
    if "\0" in path:
        raise ConfigurationError(f"the path in {shorten(url)} holds a NUL character; no file has such a name")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(options.keys() - {"synchronous"})
    if unknown:
        raise ConfigurationError(
            f"unknown option {', '.join(unknown)} in {shorten(url)}; SQLite takes ?synchronous="
        )
    # The file is meant as seen from here, also when the program changes its folder before it first opens it.
    return SQLiteDriver(os.path.abspath(path), synchronous=options.get("synchronous", "FULL"), clock=clock)


def _postgres(url: str, clock: Clock | None) -> Driver:
    """postgresql://user@host:5432/database"""
    try:
        from taskharbor.drivers.postgres import PostgresDriver
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigurationError(
            "a store in PostgreSQL needs asyncpg: pip install 'taskharbor[postgres]'"
        ) from None
    return PostgresDriver.from_url(url, clock)


_BUILT_IN: dict[str, Callable[[str, Clock | None], Driver]] = {
    "memory": _memory,
    "postgres": _postgres,
    "postgresql": _postgres,
    "sqlite": _sqlite,
}
