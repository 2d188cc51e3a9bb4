"""Migrations: numbered, forward only, applied by an explicit `migrate`, one process at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import asyncpg

from taskharbor.drivers.postgres import sql
from taskharbor.drivers.postgres.address import address_of
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.explain import missing_schema
from taskharbor.drivers.statements import Migration, made_by
from taskharbor.errors import SchemaError

# The oldest schema version whose code works with the latest one. A migration that older code cannot work with raises
# it to its own number; one that only adds something leaves it, so that older workers go on while new ones roll in.
SERVES = 16


class MigratingSession(Protocol):
    """What migrations use of a connection: the driver's own, or one that belongs to another library."""

    async def value(self, name: str, *arguments: Any) -> Any: ...

    async def row(self, name: str, *arguments: Any) -> Any: ...

    async def do(self, name: str, *arguments: Any) -> None: ...

    async def run_script(self, script: str) -> None: ...


def first_version() -> int:
    """The version of the initial schema. Lower numbers belong to checkouts from before the first release."""
    return sql.migrations("any")[0][0]


def latest_version() -> int:
    return sql.migrations("any")[-1][0]


async def ensure(session: Session, dsn: str, schema: str) -> None:
    """Refuse a schema that this version of the code does not work with; change nothing."""
    version, serves = await version_of(session)
    if not version:
        raise missing_schema(dsn, schema)
    where = f"the schema {schema} of {address_of(dsn)}"
    refuse_unreleased(version, where)
    if version < latest_version():
        raise SchemaError(
            f"{where} has version {version}, older than the {latest_version()} this version of TaskHarbor works "
            "with; nothing was changed. Run `taskharbor migrate` (or Harbor(…).migrate())"
        )
    _refuse_newer(version, serves, where)


async def migrate(
    connection: asyncpg.Connection, statements: dict[str, str], dsn: str, schema: str
) -> list[str]:
    """Apply what is missing, in one transaction."""
    session = Session(connection, statements, None)
    async with connection.transaction():
        await session.value("lock_migrations", schema)
        version, serves = await version_of(session)
        where = f"the schema {schema} of {address_of(dsn)}"
        refuse_unreleased(version, where)
        _refuse_newer(version, serves, where)
        missing = [migration for migration in sql.migrations(schema) if migration[0] > version]
        return await apply(missing, session)


async def apply(missing: Sequence[Migration], session: MigratingSession) -> list[str]:
    """Execute these migrations, of which the first may be the initial one; return their names."""
    for number, name, script in missing:
        if number == first_version():
            # A user who may only use a schema that exists needs no right to create one: look first.
            if not await session.value("namespace_exists"):
                await session.do("create_schema")
            await session.do("create_versions")
        await session.run_script(script)
        await session.do("record_version", number, name, min(number, SERVES))
    return [name for _, name, _ in missing]


def removal(schema: str) -> list[str]:
    """Return the statements that remove what the migrations have made, and every job with it.

    They leave what others keep in the schema, and the schema with it.
    """
    made = made_by(*(script for _, _, script in sql.migrations(schema)))
    tables = [*made["TABLE"], f"{sql.quoted(schema)}.schema_versions"]
    return [
        # A view stands on tables; indexes and triggers of tables, which go with them, on functions.
        *(f"DROP VIEW IF EXISTS {name}" for name in made["VIEW"]),
        f"DROP TABLE IF EXISTS {', '.join(tables)}",
        *(f"DROP FUNCTION IF EXISTS {name}" for name in made["FUNCTION"]),
        *(f"DROP SEQUENCE IF EXISTS {name}" for name in made["SEQUENCE"]),
        *(f"DROP DOMAIN IF EXISTS {name}" for name in made["DOMAIN"]),
        *([] if schema == "public" else [sql.statements(schema)["drop_empty_schema"]]),
    ]


async def version_of(session: MigratingSession) -> tuple[int, int]:
    """(the schema's version, the oldest one whose code it still serves), both 0 where there is none."""
    if not await session.value("schema_exists"):
        return 0, 0
    row = await session.row("schema_version")
    return (row["version"], row["serves"]) if row is not None else (0, 0)


def refuse_unreleased(version: int, where: str) -> None:
    if 0 < version < first_version():
        raise SchemaError(
            f"{where} has version {version}, of a checkout from before the first release, and no upgrade leads from "
            f"there to the {latest_version()} this version of TaskHarbor works with; nothing was changed. "
            "Use a new database, or another schema (`?schema=…` in the URL)"
        )


def _refuse_newer(version: int, serves: int, where: str) -> None:
    if version > latest_version() and serves > latest_version():
        raise SchemaError(
            f"{where} has version {version}, newer than the {latest_version()} this version of TaskHarbor knows; "
            "nothing was changed. Upgrade TaskHarbor"
        )
