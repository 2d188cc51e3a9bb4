"""Telling what library a connection comes from, without importing any: whoever has one has imported its library."""

from __future__ import annotations

import sys
from typing import Any

_SQLALCHEMY = {
    ("sqlalchemy.engine.base", "Connection"): False,
    ("sqlalchemy.orm.session", "Session"): False,
    ("sqlalchemy.orm.scoping", "scoped_session"): False,
    ("sqlalchemy.ext.asyncio.engine", "AsyncConnection"): True,
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"): True,
    ("sqlalchemy.ext.asyncio.scoping", "async_scoped_session"): True,
}


def is_of(value: object, module: str, name: str) -> bool:
    """Whether it is an instance of that class, which nobody can have who has not loaded its module."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def is_sqlalchemy(value: object) -> bool:
    return any(is_of(value, *kind) for kind in _SQLALCHEMY)


def is_asynchronous_sqlalchemy(value: object) -> bool:
    return any(is_of(value, *kind) for kind, asynchronous in _SQLALCHEMY.items() if asynchronous)


def is_django(value: object) -> bool:
    return is_django_proxy(value) or is_of(value, "django.db.backends.base.base", "BaseDatabaseWrapper")


def is_django_proxy(value: object) -> bool:
    """Whether it is `django.db.connection`. (Its cache is such a proxy, too.)"""
    return is_of(value, "django.utils.connection", "ConnectionProxy") and hasattr(value, "vendor")


def system_of(value: Any) -> str | None:
    """What kind of database such a connection or session is for: "postgresql", "sqlite", …; None if unknown."""
    if is_django(value):
        return str(value.vendor)
    if is_sqlalchemy(value):
        bind = value if hasattr(value, "dialect") else value.get_bind()
        return str(bind.dialect.name)
    if is_of(value, "sqlite3", "Connection"):
        return "sqlite"
    return None


def described(value: object) -> str:
    """The class of a thing, for an error's text."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
