"""The audit on PostgreSQL: what its function does, and what no role may do."""

from __future__ import annotations

import asyncpg
import pytest

from taskharbor.drivers.base import Action, ActionFilter, Update, Verb
from taskharbor.drivers.contract import audit
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.roles import Role
from taskharbor.records import NewJob
from tests.postgres.crew import SCHEMA, crew


def job_id(number: int) -> str:
    return f"019b76da-a800-7000-8000-{number:012x}"


def action(number: int, verb: Verb = Verb.CANCEL) -> Action:
    return Action(f"019b76da-a800-7000-9000-{number:012x}", verb, "ana")


async def test_newest_actions_are_kept(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond go in slices, the oldest first."""
    monkeypatch.setattr(audit, "ACTIONS_KEPT", 20)
    monkeypatch.setattr(audit, "TRIM_EVERY", 5)
    monkeypatch.setattr(audit, "TRIMMED_AT_ONCE", 3)
    driver = PostgresDriver(dsn)
    await driver.migrate()
    lengths = []
    for number in range(40):
        await driver.pause(f"q{number}", True, action=action(number, Verb.PAUSE_QUEUE))
        page = await driver.actions(ActionFilter(), limit=100)
        newest = [action(each).id for each in range(number, -1, -1)]
        assert [each.id for each in page.actions] == newest[: len(page.actions)]
        lengths.append(len(page.actions))
    assert min(lengths[19:]) >= 20
    assert lengths[24:40:5] == [22, 24, 26, 28], "at most three go with every fifth"
    await driver.close()


async def test_operation_that_fails_records_nothing(dsn: str) -> None:
    """The action is in the transaction of the change, so both are undone."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    await driver.enqueue([NewJob(job_id(1), "t")])
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER no BEFORE INSERT ON taskharbor.actions FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    with pytest.raises(Exception, match="no"):
        await driver.operate(Update(priority=7), [job_id(1)], action=action(1))
    [job] = await driver.get([job_id(1)])
    assert job is not None
    assert (job.priority, job.action_id) == (0, None)
    await connection.close()
    await driver.close()


def test_operator_adds_to_the_audit_and_cannot_rewrite_it() -> None:
    """An admin's role reads the table; only the function writes it, and a producer has neither."""

    async def whole(driver: PostgresDriver) -> None:
        await driver.pause("q", True, action=action(1, Verb.PAUSE_QUEUE))
        assert [each.id for each in (await driver.actions(ActionFilter())).actions] == [action(1).id]
        connection = await asyncpg.connect(driver.dsn)
        for statement in ("UPDATE {} SET actor = 'ben'", "DELETE FROM {}", "TRUNCATE {}"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement.format(f'"{SCHEMA}".actions'))
        await connection.close()

    with crew() as hands:
        hands.run(hands.names[Role.ADMIN], whole)
