"""Alembic: TaskHarbor's tables as a part of the application's migrations, and out of the way of autogenerate."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from alembic import op
from sqlalchemy import TextClause, text

from taskharbor.drivers.callers.sqlalchemy import SQLAlchemyOnSQLite
from taskharbor.drivers.sqlite import schema as versions
from taskharbor.drivers.sqlite import sql
from taskharbor.drivers.statements import Migration
from taskharbor.errors import ConfigurationError, SchemaError
from taskharbor.sync import run_inline

_WHERE = "the database of Alembic's connection"
_PLACEHOLDER = re.compile(r"\?|\$\d")


def apply_migration(number: int, *, schema: str = "taskharbor") -> None:
    """Apply one migration of TaskHarbor, in the transaction of the Alembic revision that calls this.

    A store that has the migration already, for example by `taskharbor migrate`, stays as it is. `schema` is
    PostgreSQL's, as in the harbor's URL; on SQLite the names of the tables begin with `taskharbor_`.
    """
    tables = _tables(schema)
    known = [each[0] for each in tables.migrations()]
    if number not in known:
        raise ConfigurationError(
            f"this version of TaskHarbor has no migration {number!r}, only {', '.join(map(str, known))}; name one of "
            "these, or install the version of TaskHarbor that the revision was written with"
        )
    migration = tables.migrations()[known.index(number)]
    if not op.get_context().as_sql:
        applied = tables.version()
        if applied >= number:
            return
        before = max((each for each in known if each < number), default=0)
        if applied < before:
            raise SchemaError(
                f"migration {number} of TaskHarbor follows {before}, and {_WHERE} has {applied or 'none'}; nothing was "
                f"changed. Call apply_migration({before}) in a revision before this one"
            )
    tables.apply(migration)


def drop_tables(*, schema: str = "taskharbor") -> None:
    """Remove TaskHarbor's tables with every job in them: what the first migration has as its downgrade.

    Later migrations have none. In PostgreSQL, what others keep in the schema stays, and the schema with it.
    """
    tables = _tables(schema)
    for statement in tables.removal():
        tables.execute(statement)


def include_name(
    name: str | None, type_: str, parent_names: Mapping[Any, str | None], *, schema: str = "taskharbor"
) -> bool:
    """Tell autogenerate to leave TaskHarbor's tables alone: `context.configure(…, include_name=include_name)`.

    For another schema of PostgreSQL, give `functools.partial(include_name, schema="…")`.
    """
    if type_ == "schema":
        return name != schema
    if type_ == "table":
        return parent_names.get("schema_name") != schema and not (name or "").startswith("taskharbor_")
    return True


class _Tables(ABC):
    """TaskHarbor's tables behind Alembic's connection, or in the script that `alembic --sql` writes."""

    @abstractmethod
    def migrations(self) -> list[Migration]: ...

    @abstractmethod
    def version(self) -> int:
        """Return the number of the last migration that was applied, 0 for none; others wait until the commit."""

    @abstractmethod
    def apply(self, migration: Migration) -> None: ...

    @abstractmethod
    def removal(self) -> Sequence[str]: ...

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Execute a statement of a driver, or write it; its `?` or `$1` stand for the values."""
        context = op.get_context()
        if context.as_sql:
            if values:
                compiled = _bound(statement, values).compile(
                    dialect=context.dialect, compile_kwargs={"literal_binds": True}
                )
                statement = str(compiled)
            context.impl.static_output(f"{statement.strip().removesuffix(';')};")
            return None
        if values:
            return op.get_bind().execute(_bound(statement, values))
        # Without parameters, no library looks for placeholders in it.
        return op.get_bind().exec_driver_sql(statement, execution_options={"no_parameters": True})


def _bound(statement: str, values: Sequence[object]) -> TextClause:
    names = [f"a{number}" for number in range(1, len(values) + 1)]
    left = iter(names)
    bound = text(_PLACEHOLDER.sub(lambda _: f"(:{next(left)})", statement))
    return bound.bindparams(**dict(zip(names, values, strict=True)))


class _SQLiteTables(_Tables):
    def migrations(self) -> list[Migration]:
        return sql.migrations()

    def _begin(self) -> None:
        """Make sure of a transaction: Python's sqlite3 begins none before the statements that make tables."""
        if not op.get_context().as_sql and not SQLAlchemyOnSQLite(op.get_bind()).raw.in_transaction:
            self.execute("BEGIN IMMEDIATE")

    def version(self) -> int:
        self._begin()
        connection = SQLAlchemyOnSQLite(op.get_bind())
        version = versions.version_of(connection) or versions.Version(0, 0)
        versions.refuse_unreleased(connection, version)
        return version.number

    def apply(self, migration: Migration) -> None:
        versions.apply([migration], self.execute)

    def removal(self) -> Sequence[str]:
        self._begin()
        return versions.removal()


class _PostgresTables(_Tables):
    """Its methods that are coroutines never suspend: they are what the driver's migrations ask of a connection."""

    def __init__(self, schema: str) -> None:
        # Here, because a project on SQLite need not have asyncpg.
        from taskharbor.drivers.postgres import schema as versions
        from taskharbor.drivers.postgres import sql

        self._versions = versions
        self._sql = sql
        self._schema = schema
        self._statements = sql.statements(schema)

    def migrations(self) -> list[Migration]:
        return self._sql.migrations(self._schema)

    def version(self) -> int:
        self.execute(self._statements["lock_migrations"], (self._schema,))
        number, _ = run_inline(self._versions.version_of(self))
        self._versions.refuse_unreleased(number, f"the schema {self._schema} of {_WHERE}")
        return number

    def apply(self, migration: Migration) -> None:
        run_inline(self._versions.apply([migration], self))

    def removal(self) -> Sequence[str]:
        return self._versions.removal(self._schema)

    async def value(self, name: str, *arguments: object) -> Any:
        if op.get_context().as_sql:
            return None  # there is no database to ask
        return self.execute(self._statements[name], arguments).scalar()

    async def row(self, name: str, *arguments: object) -> Any:
        return self.execute(self._statements[name], arguments).mappings().first()

    async def do(self, name: str, *arguments: object) -> None:
        self.execute(self._statements[name], arguments)

    async def run_script(self, script: str) -> None:
        for statement in self._sql.split(script):
            self.execute(statement)


def _tables(schema: str) -> _Tables:
    system = op.get_context().dialect.name
    if system == "sqlite":
        return _SQLiteTables()
    if system == "postgresql":
        return _PostgresTables(schema)
    raise ConfigurationError(
        f"TaskHarbor keeps its tables in SQLite or PostgreSQL, and {_WHERE} is of kind {system}; leave them out of its "
        "migrations, and give the harbor a database of its own"
    )
