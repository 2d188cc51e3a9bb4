"""Migrations: explicit, one process at a time, and never a half of one."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver, sql
from taskharbor.drivers.postgres.schema import latest_version
from taskharbor.errors import ConfigurationError, SchemaError
from taskharbor.records import NewJob, State

JOB = NewJob("019b76da-a800-7000-8000-000000000001", "task")


async def _tables(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT schemaname || '.' || tablename AS name FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
        )
        return [row["name"] for row in rows]
    finally:
        await connection.close()


async def test_opening_a_database_without_tables_says_what_to_do_and_makes_none(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    with pytest.raises(
        SchemaError, match="no TaskHarbor tables in the schema taskharbor; run `taskharbor migrate`"
    ):
        await driver.open()
    with pytest.raises(SchemaError, match="taskharbor migrate"):
        await driver.enqueue([JOB])
    await driver.close()
    assert await _tables(dsn) == []


async def test_migrate_applies_every_migration_once(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    assert await driver.migrate() == [name for _, name, _ in sql.migrations("taskharbor")]
    assert await driver.migrate() == []
    await driver.enqueue([JOB])
    await driver.close()


async def test_everything_lives_in_one_schema(dsn: str) -> None:
    """So that it can share a database with the application, and with another Harbor."""
    first, second = PostgresDriver(dsn), PostgresDriver(dsn, schema="Other_one")
    await first.migrate()
    await second.migrate()
    assert {name.partition(".")[0] for name in await _tables(dsn)} == {"taskharbor", "Other_one"}
    await first.enqueue([JOB])
    assert (await first.counts())[State.READY] == 1
    assert (await second.counts())[State.READY] == 0
    await first.close()
    await second.close()


async def test_processes_that_migrate_at_once_apply_it_once(dsn: str) -> None:
    drivers = [PostgresDriver(dsn) for _ in range(8)]
    applied = await asyncio.gather(*[driver.migrate() for driver in drivers])
    assert sorted(len(names) for names in applied) == [0] * 7 + [len(sql.migrations("any"))]
    await asyncio.gather(*[driver.close() for driver in drivers])


@pytest.mark.parametrize(("change", "complaint"), [
    ("UPDATE taskharbor.schema_versions SET version = 9, serves = 2",
     "has version 9, of a checkout from before the first release, .* Use a new database"),
    ("UPDATE taskharbor.schema_versions SET version = 1, serves = 1", "has version 1, of a checkout from before"),
    ("INSERT INTO taskharbor.schema_versions VALUES (1000, 'later', 1000)", "has version 1000, newer than the"),
])  # fmt: skip
async def test_schema_that_is_unreleased_or_too_new_is_refused(dsn: str, change: str, complaint: str) -> None:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    connection = await asyncpg.connect(dsn)
    await connection.execute(change)
    before = await connection.fetch("SELECT * FROM taskharbor.schema_versions ORDER BY version")
    for refused in (driver.open, driver.counts, driver.migrate):
        with pytest.raises(SchemaError, match=complaint):
            await refused()
    assert await connection.fetch("SELECT * FROM taskharbor.schema_versions ORDER BY version") == before
    await connection.close()
    await driver.close()


async def test_schema_that_lacks_a_migration_is_refused_until_migrated(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PostgresDriver(dsn)
    await first.migrate()
    await first.enqueue([JOB])
    await first.close()
    known = sql.migrations("taskharbor")
    number = known[-1][0] + 1
    more = [*known, (number, "novelty", "CREATE TABLE taskharbor.novelty ()")]
    monkeypatch.setattr(sql, "migrations", lambda _schema: more)
    driver = PostgresDriver(dsn)
    for refused in (driver.open, driver.counts):
        with pytest.raises(
            SchemaError, match=f"has version {number - 1}, older than the {number} .* migrate"
        ):
            await refused()
    assert await driver.migrate() == ["novelty"]
    assert (await driver.counts())[State.READY] == 1
    await driver.close()


async def test_newer_schema_that_still_serves_this_version_is_accepted(dsn: str) -> None:
    """Old workers go on while new ones roll in."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        f"INSERT INTO taskharbor.schema_versions VALUES (1000, 'later', {latest_version()})"
    )
    await connection.close()
    await driver.open()
    assert await driver.migrate() == []
    await driver.close()


async def test_failed_migration_leaves_nothing_behind(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sql.migrations("taskharbor")
    broken = [*whole, (whole[-1][0] + 1, "broken", "CREATE TABLE taskharbor.half (); SELECT 1 / 0")]
    monkeypatch.setattr(sql, "migrations", lambda _schema: broken)
    driver = PostgresDriver(dsn)
    with pytest.raises(Exception, match="division by zero"):
        await driver.migrate()
    await driver.close()
    assert await _tables(dsn) == []


@pytest.mark.parametrize("name", ["", "1st", "pg_temp", 'a"; DROP SCHEMA public; --', "ü", "a" * 64, "a-b"])
def test_schema_names_that_would_need_care_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a schema's name has"):
        PostgresDriver("postgresql://localhost/none", schema=name)


async def test_no_superuser_and_no_extension_is_needed(dsn: str) -> None:
    """An ordinary user who may create a schema in the database is enough."""
    admin = await asyncpg.connect(dsn)
    name = f"ordinary_{id(dsn)}"
    await admin.execute(f"CREATE ROLE {name} LOGIN")
    database = await admin.fetchval("SELECT current_database()")
    await admin.execute(f"GRANT CREATE ON DATABASE {database} TO {name}")
    driver = PostgresDriver(dsn.replace("harbor@", f"{name}@"))
    await driver.migrate()
    await driver.enqueue([JOB])
    await driver.close()
    extensions = await admin.fetch("SELECT extname FROM pg_extension")
    assert [row["extname"] for row in extensions] == ["plpgsql"]  # part of every database
    await admin.execute(f"DROP OWNED BY {name} CASCADE")
    await admin.execute(f"DROP ROLE {name}")
    await admin.close()
