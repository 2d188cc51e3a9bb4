"""Migrations: numbered, forward only, applied by an explicit `migrate`, one process at a time."""

from __future__ import annotations

import asyncpg

from taskharbor.drivers.base import Check
from taskharbor.drivers.postgres import sql
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.explain import address_of, missing_schema
from taskharbor.errors import SchemaError

OLDEST_SERVER = 130_000
# The oldest schema version whose code works with the latest one.
SERVES = 2
CLOCK_DIFFERENCE_MAX = 5_000_000  # microseconds
DEAD_ROWS_MAX = 500_000
OLD_TRANSACTION_SECONDS = 300.0


def latest_version() -> int:
    return sql.migrations("any")[-1][0]


async def ensure(session: Session, dsn: str, schema: str) -> None:
    """Refuse a schema that this version of the code does not work with; change nothing."""
    version, serves = await _version(session)
    if not version:
        raise missing_schema(dsn, schema)
    where = f"the schema {schema} of {address_of(dsn)}"
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
    applied: list[str] = []
    async with connection.transaction():
        await session.value("lock_migrations", schema)
        version, serves = await _version(session)
        _refuse_newer(version, serves, f"the schema {schema} of {address_of(dsn)}")
        missing = [migration for migration in sql.migrations(schema) if migration[0] > version]
        if missing and not version:
            # Asked for first: whoever may only use a schema that exists need not be allowed to make one.
            if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", sql.quoted(schema)):
                await session.do("create_schema")
            await session.do("create_versions")
        for number, name, script in missing:
            await connection.execute(script, timeout=3600)
            await session.do("record_version", number, name, min(number, SERVES))
            applied.append(name)
    return applied


async def _version(session: Session) -> tuple[int, int]:
    if not await session.value("schema_exists"):
        return 0, 0
    row = await session.row("schema_version")
    return (row["version"], row["serves"]) if row is not None else (0, 0)


def _refuse_newer(version: int, serves: int, where: str) -> None:
    if version > latest_version() and serves > latest_version():
        raise SchemaError(
            f"{where} has version {version}, newer than the {latest_version()} this version of TaskHarbor knows; "
            "nothing was changed. Upgrade TaskHarbor"
        )


async def checks(session: Session, dsn: str, schema: str, local_now: int) -> list[Check]:
    """What `doctor` wants to know."""
    settings = await session.row("settings")
    assert settings is not None
    version, _serves = await _version(session)
    found = [
        Check("reachable", True, address_of(dsn)),
        Check(
            "server",
            settings["version"] >= OLDEST_SERVER,
            f"PostgreSQL {settings['version'] // 10_000}, 13 or newer",
        ),
        Check("schema", version == latest_version(), f"{schema} has version {version} of {latest_version()}"),
        _durability(settings),
        Check("primary", not settings["standby"], "a standby" if settings["standby"] else "takes writes"),
        _clock(await session.now() - local_now),
    ]
    return found + await _health(session, schema) if version else found


def _durability(settings: asyncpg.Record) -> Check:
    loose = [name for name in ("fsync", "full_page_writes") if settings[name] == "off"]
    if settings["synchronous_commit"] == "off":
        loose.append("synchronous_commit")
    detail = (
        f"{', '.join(loose)} off: a crash may lose jobs that were accepted"
        if loose
        else "fsync and synchronous_commit are on"
    )
    return Check("durability", not loose, detail)


def _clock(difference: int) -> Check:
    return Check(
        "clock",
        abs(difference) <= CLOCK_DIFFERENCE_MAX,
        f"the server's clock is {difference / 1_000_000:+.3f} s from this machine's; the server's decides",
    )


async def _health(session: Session, schema: str) -> list[Check]:
    health = await session.row("health", schema)
    assert health is not None
    oldest = health["oldest_transaction"] or 0.0
    return [
        Check(
            "dead rows", health["dead_rows"] <= DEAD_ROWS_MAX, f"{health['dead_rows']:,} in the hot tables"
        ),
        Check(
            "transactions",
            oldest <= OLD_TRANSACTION_SECONDS,
            f"the oldest has been open for {oldest:.0f} s"
            + ("" if oldest <= OLD_TRANSACTION_SECONDS else ": vacuum waits for it, and claims slow down"),
        ),
        Check("depth", True, f"{health['depth']:,} jobs are ready"),
    ]
