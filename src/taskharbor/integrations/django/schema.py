"""The tables as a Django migration, by the drivers' own statements.

A later version of the schema is one more migration with an `UpgradeSchema`. A test compares the last one with the
versions that the drivers need.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.db.migrations.operations.base import Operation
from django.db.utils import NotSupportedError

from taskharbor.integrations.django.settings import postgres_schema
from taskharbor.sync import run_inline


class UpgradeSchema(Operation):  # type: ignore[misc]
    """Bring TaskHarbor's tables to a version; a database that has it already stays as it is.

    A database that is neither PostgreSQL nor SQLite gets no tables: it may be another one of the same project.
    """

    reduces_to_sql = True
    reversible = False

    def __init__(self, postgresql: int, sqlite: int) -> None:
        self.postgresql = postgresql
        self.sqlite = sqlite

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: the tables have no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if not _allows(connection.alias, app_label):
            return
        if connection.vendor == "postgresql":
            self._upgrade_postgresql(schema_editor)
        elif connection.vendor == "sqlite":
            self._upgrade_sqlite(schema_editor)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        raise NotSupportedError("no migration of TaskHarbor leads back: its tables hold the jobs")

    def describe(self) -> str:
        return (
            f"Bring TaskHarbor's tables to version {self.postgresql} (PostgreSQL) or {self.sqlite} (SQLite)"
        )

    @property
    def migration_name_fragment(self) -> str:
        return f"upgrade_{self.postgresql}_{self.sqlite}"

    def _upgrade_postgresql(self, editor: Any) -> None:
        from taskharbor.drivers.postgres import schema, sql

        name = postgres_schema(editor.connection.alias)
        session = _EditorSession(editor, name)
        version = 0
        if not editor.collect_sql:  # `sqlmigrate` shows the statements for an empty database
            run_inline(session.value("lock_migrations", name))
            version, _ = applied_version(editor.connection)
        missing = [each for each in sql.migrations(name) if version < each[0] <= self.postgresql]
        run_inline(schema.apply(missing, session))

    def _upgrade_sqlite(self, editor: Any) -> None:
        from taskharbor.drivers.sqlite import schema, sql

        def execute(statement: str, parameters: Sequence[object] = ()) -> None:
            editor.execute(statement.replace("?", "%s") if parameters else statement, parameters or None)

        version = 0 if editor.collect_sql else applied_version(editor.connection)[0]
        schema.apply([each for each in sql.migrations() if version < each[0] <= self.sqlite], execute)


class _EditorSession:
    """What the driver's migrations ask of a connection, by Django's. Its coroutines never suspend."""

    def __init__(self, editor: Any, schema: str) -> None:
        from taskharbor.drivers.postgres import sql

        self._editor = editor
        self._statements = sql.statements(schema)

    async def value(self, name: str, *arguments: object) -> Any:
        row = await self.row(name, *arguments)
        return None if row is None else row[0]

    async def row(self, name: str, *arguments: object) -> Any:
        if self._editor.collect_sql:
            return None  # there is no database to ask
        with self._editor.connection.cursor() as cursor:
            cursor.execute(_placed(self._statements[name]), arguments or None)
            return cursor.fetchone()

    async def do(self, name: str, *arguments: object) -> None:
        statement = self._statements[name]
        self._editor.execute(_placed(statement) if arguments else statement, arguments or None)

    async def run_script(self, script: str) -> None:
        self._editor.execute(script, None)


def applied_version(connection: Any) -> tuple[int, int]:
    """Return the version of the tables, and the oldest one whose code they still serve; 0 where there are none."""
    if connection.vendor == "sqlite":
        from taskharbor.drivers.sqlite.schema import version_of

        connection.ensure_connection()
        return version_of(connection.connection) or (0, 0)
    from taskharbor.drivers.postgres import sql

    statements = sql.statements(postgres_schema(connection.alias))
    with connection.cursor() as cursor:
        cursor.execute(statements["schema_exists"])
        if not cursor.fetchone()[0]:
            return 0, 0
        cursor.execute(statements["schema_version"])
        return cursor.fetchone() or (0, 0)


def needed_version(connection: Any) -> int:
    """Return the version of the tables that this code works with."""
    if connection.vendor == "sqlite":
        from taskharbor.drivers.sqlite.schema import latest_version
    else:
        from taskharbor.drivers.postgres.schema import latest_version
    return latest_version()


def _placed(statement: str) -> str:
    """The statement with its arguments as Django writes them; they come in their order."""
    return re.sub(r"\$\d+", "%s", statement)


def _allows(alias: str, app_label: str) -> bool:
    from django.db import router

    return bool(router.allow_migrate(alias, app_label))
