"""`taskharbor doctor` on PostgreSQL: each finding, brought about for real where that can be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from taskharbor.cli import cli
from taskharbor.drivers.base import Check
from taskharbor.drivers.postgres import PostgresDriver, health
from taskharbor.drivers.postgres.roles import Role, quoted_role
from taskharbor.drivers.postgres.schema import latest_version
from taskharbor.records import NewJob
from tests.postgres.crew import SCHEMA, Crew, crew
from tests.postgres.server import DURABLE, running

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def hands() -> Iterator[Crew]:
    with crew() as hands:
        yield hands


async def findings(driver: PostgresDriver) -> dict[str, Check]:
    checks = await driver.check()
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def test_schema_of_an_unreleased_checkout_is_not_to_be_migrated() -> None:
    found = health.schema_version("taskharbor", 9, 2)
    assert not found.ok
    assert "use a new database" in found.detail
    assert "migrate" not in found.detail


async def test_every_check_has_its_finding_once(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    before = await findings(driver)
    assert before["reachable"].ok
    assert not before["schema"].ok
    assert before["schema"].severe
    assert "run `taskharbor migrate`" in before["schema"].detail
    await driver.migrate()
    found = await findings(driver)
    names = [
        "reachable",
        "server",
        "primary",
        "durability",
        "replication",
        "connections",
        "schema",
        "rights",
        "transactions",
    ]
    assert list(found) == [*names, "dead rows", "unreadable", "depth"]
    assert {name for name, check in found.items() if not check.ok} == {
        "durability"
    }  # the tests' server has no fsync
    assert (
        "fsync, full_page_writes off: a crash may lose jobs that were accepted" in found["durability"].detail
    )
    await driver.close()


def test_command_tells_the_clock_once(hands: Crew) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--url", hands.url(hands.owner)])
    assert [line.split()[0] for line in result.stdout.splitlines()].count("clock") == 1


def test_durable_server_is_called_durable_until_a_role_says_otherwise() -> None:
    async def durability(dsn: str) -> Check:
        driver = PostgresDriver(dsn)
        try:
            return (await findings(driver))["durability"]
        finally:
            await driver.close()

    with running(DURABLE) as server:
        assert asyncio.run(durability(server.dsn())).ok
        asyncio.run(_execute(server.dsn(), "ALTER ROLE harbor SET synchronous_commit = off"))
        loose = asyncio.run(durability(server.dsn()))
    assert (loose.ok, loose.severe) == (False, True)
    assert "synchronous_commit off: a crash may lose jobs that were accepted" in loose.detail


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


def test_schema_that_is_newer_is_found(hands: Crew) -> None:
    hands.as_superuser(
        f'UPDATE "{SCHEMA}".schema_versions SET version = version + 1000, serves = serves + 1000'
    )
    try:
        found = hands.run(hands.owner, findings)
        assert not found["schema"].ok
        assert f"{SCHEMA} has version {1000 + latest_version()} of" in found["schema"].detail
        assert "upgrade TaskHarbor" in found["schema"].detail
    finally:
        hands.as_superuser(
            f'UPDATE "{SCHEMA}".schema_versions SET version = version - 1000, serves = serves - 1000'
        )


def test_newer_schema_that_still_serves_this_version_is_no_failure(hands: Crew) -> None:
    """Or the health checks of old workers would fail while new ones roll in."""
    hands.as_superuser(
        f"INSERT INTO \"{SCHEMA}\".schema_versions (version, name, serves) VALUES (1000, 'later', {latest_version()})"
    )
    try:
        found = hands.run(hands.owner, findings)
        assert found["schema"].ok
        assert "newer, and it still serves this version" in found["schema"].detail
    finally:
        hands.as_superuser(f'DELETE FROM "{SCHEMA}".schema_versions WHERE version = 1000')


@pytest.mark.parametrize("role", Role)
def test_rights_say_what_the_user_can_be(hands: Crew, role: Role) -> None:
    """… also when it may not see much else."""
    found = hands.run(hands.names[role], findings)
    assert found["rights"].ok
    can_be = "producer, worker" if role is Role.WORKER else str(role)
    assert found["rights"].detail == f"{hands.names[role]} can be: {can_be}"


def test_user_without_rights_is_told_what_to_do(hands: Crew) -> None:
    hands.as_superuser("CREATE ROLE doctors_stranger LOGIN")
    try:
        found = hands.run("doctors_stranger", findings)
        assert not found["rights"].ok
        assert "`taskharbor roles` prints" in found["rights"].detail
    finally:
        hands.as_superuser("DROP ROLE doctors_stranger")


async def test_old_transaction_is_named_with_its_owner(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    sleeper = await asyncpg.connect(dsn, server_settings={"application_name": "forgotten psql"})
    transaction = sleeper.transaction()
    await transaction.start()
    pid = await sleeper.fetchval("SELECT pg_backend_pid()")
    fresh = (await findings(driver))["transactions"]
    assert (fresh.ok, fresh.detail) == (True, f"the oldest has been open for {_seconds(fresh.detail)} s")
    monkeypatch.setattr(health, "OLD_TRANSACTION_SECONDS", 0.0)  # this one is old already
    old = (await findings(driver))["transactions"]
    assert (old.ok, old.severe) == (False, False)
    assert (
        f"a transaction of harbor (pid {pid}, forgotten psql, idle in transaction) has been open for"
        in old.detail
    )
    assert f"End it, by its program or by SELECT pg_terminate_backend({pid})" in old.detail
    await transaction.rollback()
    assert (await findings(driver))["transactions"].ok
    await sleeper.close()
    await driver.close()


def _seconds(detail: str) -> str:
    return detail.split()[-2]


def test_connections_are_counted_by_whoever_asks(hands: Crew) -> None:
    """Also those of other users, and none of the server's own processes."""

    async def look(driver: PostgresDriver) -> None:
        superuser = await asyncpg.connect(hands.dsn)
        actual = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        # The connections of other tests may be on their way out.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while _used(await findings(driver)) != await superuser.fetchval(actual):  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.05)
        await superuser.close()

    hands.run(hands.names[Role.PRODUCER], look)


def _used(found: dict[str, Check]) -> int:
    assert found["connections"].ok
    used, rest = found["connections"].detail.split(" ", 1)
    assert rest == "of 297 are in use"  # of the tests' 300, three are superusers'
    return int(used)


@pytest.mark.parametrize(("used", "ok"), [(87, True), (88, False), (97, False)])
def test_connections_that_run_out_are_warned_of(used: int, ok: bool) -> None:
    found = health.connections({"connections": used, "max_connections": 97})
    assert (found.ok, found.severe) == (ok, ok)
    assert ok or "raise max_connections, or put a pooler" in found.detail


def test_autovacuum_that_is_off_is_warned_of_before_it_is_felt() -> None:
    found = health.dead_rows({"dead_rows": 0}, {"autovacuum": "off"})
    assert (found.ok, found.severe) == (False, False)
    assert "autovacuum is off" in found.detail
    assert health.dead_rows({"dead_rows": 0}, {"autovacuum": "on"}).ok


def test_transactions_that_cannot_be_seen_are_admitted(hands: Crew) -> None:
    """The statistics of other users' sessions take a right of their own."""
    name = hands.names[Role.ADMIN]

    async def look(driver: PostgresDriver) -> tuple[Check, Check]:
        superuser = await asyncpg.connect(hands.dsn)
        hidden = (await findings(driver))["transactions"]
        await superuser.execute(f"GRANT pg_read_all_stats TO {quoted_role(name)}")
        seen = (await findings(driver))["transactions"]
        await superuser.execute(f"REVOKE pg_read_all_stats FROM {quoted_role(name)}")
        await superuser.close()
        return hidden, seen

    hidden, seen = hands.run(name, look)
    assert "sessions that this user cannot see: 1 (GRANT pg_read_all_stats shows them)" in hidden.detail
    assert "cannot see" not in seen.detail


async def test_dead_rows_are_counted(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of every row leaves as many dead ones; the server tells of them a moment later."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    await driver.enqueue([NewJob(f"019b76da-a800-7000-8000-{n:012x}", "task") for n in range(300)])
    assert (await findings(driver))["dead rows"].ok
    monkeypatch.setattr(health, "DEAD_ROWS_MAX", 200)
    await _execute(dsn, "ALTER TABLE taskharbor.ready SET (autovacuum_enabled = off)")
    await _execute(dsn, "UPDATE taskharbor.ready SET attempts = 1")
    found = await _until(driver, lambda found: not found["dead rows"].ok)
    assert found["dead rows"].detail.startswith(
        "300 in the hot tables: autovacuum does not keep up, and claims slow down. If no old transaction"
    )
    assert not found["dead rows"].severe
    await _execute(dsn, "VACUUM taskharbor.ready")
    await _until(driver, lambda found: found["dead rows"].ok)
    await driver.close()


async def _until(driver: PostgresDriver, holds: Callable[[dict[str, Check]], Any]) -> dict[str, Check]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds(found := await findings(driver)):  # noqa: ASYNC110 - the server has no event of ours
            await asyncio.sleep(0.1)
    return found


async def test_depth_of_the_queues_is_told(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    assert (await findings(driver))["depth"].detail == "0 jobs are ready; 0 are scheduled"
    hour = 3_600_000_000
    now = await driver.now()
    ids = iter(range(10))
    for run_at in (None, now - hour, now + hour):
        await driver.enqueue([NewJob(f"019b76da-a800-7000-8000-{next(ids):012x}", "task", run_at=run_at)])
    depth = (await findings(driver))["depth"]
    assert depth.ok
    assert depth.detail.startswith("2 jobs are ready, the first one for 36")
    assert depth.detail.endswith(" s; 1 is scheduled")
    await driver.close()


def test_store_with_a_warning_is_no_failure(hands: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DEAD_ROWS_MAX", -1)
    monkeypatch.setattr(health, "durability", lambda _: Check("durability", True, "not this test's"))
    result = CliRunner().invoke(cli, ["doctor", "--url", hands.url(hands.owner)])
    assert result.exit_code == 0, result.output
    [line] = [line for line in result.stdout.splitlines() if line.startswith("dead rows")]
    assert line.split()[2] == "warning"


# -- what one server cannot show ---------------------------------------------------------------------

SETTINGS = {
    "version": 150_000,
    "standby": False,
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "replicas": 0,
}


def test_server_that_is_too_old_is_found() -> None:
    assert not health.server({**SETTINGS, "version": 120_018}).ok
    assert health.server({**SETTINGS, "version": 130_000}).ok


def test_standby_is_found() -> None:
    assert not health.primary({**SETTINGS, "standby": True}).ok


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
def test_each_loose_setting_is_named(setting: str) -> None:
    found = health.durability({**SETTINGS, setting: "off"})
    assert not found.ok
    assert found.detail.startswith(f"{setting} off:")


@pytest.mark.parametrize(
    ("names", "commit", "ok"),
    [("", "on", False), ("one", "local", False), ("one", "on", True), ("ANY 1 (*)", "remote_apply", True)],
)
def test_replica_that_no_commit_waits_for_is_a_warning(names: str, commit: str, ok: bool) -> None:
    settings = {**SETTINGS, "replicas": 1, "synchronous_standby_names": names, "synchronous_commit": commit}
    found = health.replication(settings)
    assert (found.ok, found.severe) == (ok, ok)
