"""Rows that cannot be read: the schema keeps them out; where a hand has let them in, the other jobs go on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import asyncpg
import pytest
from click.testing import CliRunner

from taskharbor import Event, Harbor, Worker
from taskharbor.cli import cli
from taskharbor.drivers.base import ClaimRequest, SettleAnswer, Transition
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.roles import TABLES, Role
from taskharbor.records import AttemptStatus, State
from tests.postgres import store

# Values of each type that no code of ours writes.
GARBAGE: dict[str, list[str]] = {
    "integer": ["2147483647", "-2147483648", "-1"],
    "smallint": ["32767", "-32768"],
    "text": ["'garbage'", "''", "E'\\n\\u202e'", "repeat('x', 2000)"],
    "timestamp with time zone": ["'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294000-01-01'"],
    "boolean": ["true", "false"],
    "uuid": ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"],
}
PRODUCED = sorted(name for name, roles in TABLES.items() if "INSERT" in roles[Role.PRODUCER])
EPOCH = "'2026-01-01 00:00:00+00'"


@pytest.fixture
def driver() -> Iterator[PostgresDriver]:
    with store.fresh() as driver:
        yield driver


def columns(driver: PostgresDriver, table: str) -> list[tuple[str, str]]:
    rows = store.query(
        driver.dsn,
        "SELECT column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = $1 AND table_name = $2 ORDER BY ordinal_position",
        driver.schema,
        table,
    )
    return [(row["column_name"], row["data_type"]) for row in rows]


def drop_checks(driver: PostgresDriver) -> None:
    rows = store.query(
        driver.dsn,
        "SELECT CASE WHEN contypid = 0 THEN 'TABLE ' || conrelid::regclass "
        "ELSE 'DOMAIN ' || contypid::regtype END AS name, conname "
        "FROM pg_constraint WHERE connamespace = $1::regnamespace AND contype = 'c'",
        driver.schema,
    )
    assert rows
    store.execute(driver.dsn, *(f"ALTER {row['name']} DROP CONSTRAINT {row['conname']}" for row in rows))


# -- what the schema keeps out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("ready", "number", "2147483647"),
        ("ready", "number", "-1"),
        ("ready", "attempts", "-1"),
        ("ready", "first_number", "2147483647"),
        ("ready", "rank", "101"),
        ("ready", "delivery", "'garbage'"),
        ("ready", "run_at", "'infinity'"),
        ("ready", "due_at", "'-infinity'"),
        ("ready", "expires_at", "'infinity'"),
        ("jobs", "priority", "-32768"),
        ("jobs", "delivery", "''"),
        ("jobs", "version", "2147483647"),
        ("jobs", "enqueued_at", "'infinity'"),
        ("jobs", "run_at", "'4713-01-01 BC'"),
        ("waiting", "number", "2147483647"),
        ("waiting", "delivery", "'garbage'"),
        ("waiting", "expires_at", "'infinity'"),
        ("workflows", "total", "-1"),
        ("workflows", "enqueued_at", "'-infinity'"),
    ],
)
async def test_value_that_no_reader_understands_is_kept_out(
    driver: PostgresDriver, table: str, column: str, value: str
) -> None:
    harbor = Harbor(driver=driver)
    job = await harbor.aenqueue("t")
    connection = await asyncpg.connect(driver.dsn)
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute(row_like(driver, table, str(uuid.uuid4()), {column: value}))
    await connection.close()
    assert (await job.arefresh()).state == "ready"
    await harbor.aclose()


def row_like(driver: PostgresDriver, table: str, job_id: str, changed: dict[str, str]) -> str:
    """An INSERT of a row as enqueueing would make it, with some of its values changed."""
    usual: dict[str, dict[str, str]] = {
        "jobs": {
            "id": f"'{job_id}'", "queue": "'default'", "task": "'t'", "payload": "'{}'", "priority": "0",
            "run_at": EPOCH, "enqueued_at": EPOCH, "expires_at": "NULL", "idempotency_key": "NULL",
            "delivery": "NULL", "options": "NULL", "version": "1",
        },
        "ready": {
            "suspect": "false", "queue": "'default'", "rank": "0", "run_at": EPOCH, "id": f"'{job_id}'",
            "number": "0", "attempts": "0", "first_number": "1", "due_at": "NULL", "expires_at": "NULL",
            "delivery": "NULL",
        },
        "waiting": {
            "job_id": f"'{job_id}'", "number": "0", "attempts": "0", "first_number": "1", "expires_at": "NULL",
            "delivery": "NULL",
        },
        "dependencies": {
            "job_id": f"'{job_id}'", "position": "0", "member_id": f"'{job_id}'", "done": "false",
            "fatal": "false", "late": "false", "was_ended": "false",
        },
        "tags": {"tag": "'tag'", "job_id": f"'{job_id}'"},
        "workflows": {
            "id": f"'{job_id}'", "last_id": f"'{job_id}'", "total": "0", "enqueued_at": EPOCH,
            "idempotency_key": "NULL", "about": "'{}'",
        },
    }  # fmt: skip
    row = usual[table] | changed
    return (
        f"INSERT INTO {driver.schema}.{table} ({', '.join(row)}) VALUES ({', '.join(row.values())}) "
        "ON CONFLICT DO NOTHING"
    )


# -- what a hand has let in --------------------------------------------------------------------------


def test_garbage_in_any_column_that_a_producer_writes_stops_nobody(driver: PostgresDriver) -> None:
    """Every column, every kind of garbage, all at once: workers, lists, inspect, counts, prune go on."""
    url = f"{driver.dsn}?schema={driver.schema}"
    with Harbor(url) as harbor:
        done: list[int] = []

        @harbor.task(name="good")
        def good(n: int) -> None:
            done.append(n)

        harbor.task(name="t")(lambda: None)
        jobs = [good.enqueue(n=n) for n in range(5)]
        drop_checks(driver)
        planted: list[str] = []
        statements: list[str] = []
        for table in PRODUCED:
            for column, kind in columns(driver, table):
                for value in GARBAGE[kind]:
                    job_id = str(uuid.uuid4())
                    planted.append(job_id)
                    place = table if table in ("ready", "waiting") else "ready"
                    for each in dict.fromkeys(("jobs", place, table)):
                        changed = {column: value} if each == table else {}
                        statements.append(row_like(driver, each, job_id, changed))
        store.execute(driver.dsn, *statements)
        jobs += [good.enqueue(n=n) for n in range(5, 10)]

        look_at_everything(harbor, url, [job.id for job in jobs] + planted)
        Worker(harbor).drain_sync()
        look_at_everything(harbor, url, [job.id for job in jobs] + planted)
        assert sorted(done) == list(range(10))
        assert {job.refresh().state for job in jobs} == {"succeeded"}
        assert harbor.jobs.list(state="running") == []
        unreadable = [job for job in harbor.dlq.list(limit=1000) if job.reason == "unreadable"]
        assert len(unreadable) > 10
        harbor.prune()
        for job in unreadable:
            harbor.jobs.retry(job.id, force=True)
        Worker(harbor).drain_sync()
        look_at_everything(harbor, url, planted)
        harbor.jobs.delete_all(state="dead")


def look_at_everything(harbor: Harbor, url: str, ids: list[str]) -> None:
    found = harbor.jobs.list(limit=1000)
    assert {job.id for job in found} >= set(ids[:10])
    for state in ("ready", "scheduled", "waiting", "running", "succeeded", "dead", "cancelled"):
        harbor.jobs.list(state=state, limit=1000)
    harbor.jobs.counts()
    harbor.queues.list()
    harbor.workflows.list()
    for job in found:
        harbor.jobs.history(job.id)
    run = CliRunner().invoke
    for command in (
        ["list", "--limit", "500"],
        ["stats"],
        ["workflow", "list"],
        ["list", "--json", "--limit", "500"],
    ):
        answer = run(cli, [*command, "--url", url])
        assert answer.exit_code == 0, (command, answer.output)
    for job in found[:3] + [job for job in found if job.record.unreadable][:20]:
        answer = run(cli, ["inspect", job.id, "--url", url])
        assert answer.exit_code == 0, answer.output


async def running(driver: PostgresDriver) -> int:
    fresh = store.another(driver)
    try:
        return len(await fresh.leases())
    finally:
        await fresh.close()


def test_unreadable_job_is_dead_and_shows_the_row_as_it_was(driver: PostgresDriver) -> None:
    """Others of its queue go on; a retry brings it back with what can be read of it."""
    heard: list[Event] = []
    url = f"{driver.dsn}?schema={driver.schema}"
    with Harbor(url) as harbor:
        harbor.on("dead")(heard.append)
        done: list[str] = []
        task = harbor.task(name="t")(lambda: done.append("t"))
        first, second, third = task.enqueue(), task.enqueue(), task.enqueue()
        drop_checks(driver)
        where = f"WHERE id = '{second.id}'"
        store.execute(
            driver.dsn, f"UPDATE {driver.schema}.ready SET number = 2147483647, delivery = 'maybe' {where}"
        )
        assert second.refresh().record.unreadable is not None
        Worker(harbor).drain_sync()
        assert (first.refresh().state, third.refresh().state, len(done)) == ("succeeded", "succeeded", 2)
        dead = second.refresh()
        assert (dead.state, dead.reason) == ("dead", "unreadable")
        assert harbor.jobs.counts()["dead"] == 1
        shown = CliRunner().invoke(cli, ["inspect", second.id, "--url", url]).stdout
        assert '"number": 2147483647' in shown
        assert '"maybe"' in shown
        harbor.jobs.retry(second.id)
        Worker(harbor).drain_sync()
        assert (second.refresh().state, harbor.jobs.counts()["dead"]) == ("succeeded", 0)
    # Subscribers have a thread of their own, which a harbor that closes waits for.
    assert [(event.job_id, event.reason) for event in heard] == [(second.id, "unreadable")]


def test_dependants_that_end_with_an_unreadable_job_are_cancelled(driver: PostgresDriver) -> None:
    from taskharbor import chain

    with Harbor(driver=driver) as harbor:
        task = harbor.task(name="t")(lambda: None)
        workflow = chain(task.si(), task.si()).using(on_failure="cancel").enqueue()
        drop_checks(driver)
        store.execute(driver.dsn, f"UPDATE {driver.schema}.ready SET delivery = 'maybe'")
        Worker(harbor).drain_sync()
        assert [job.state for job in workflow.jobs] == ["dead", "cancelled"]


def test_job_in_no_place_is_shown_and_can_be_brought_back_or_deleted(driver: PostgresDriver) -> None:
    with Harbor(driver=driver) as harbor:
        harbor.task(name="t")(lambda: None)
        ids = [str(uuid.uuid4()) for _ in range(3)]
        harbor.migrate()
        store.execute(driver.dsn, *(row_like(driver, "jobs", each, {}) for each in ids))
        assert {job.id: (job.state, job.reason) for job in harbor.jobs.list()} == dict.fromkeys(
            ids, ("dead", "unreadable")
        )
        harbor.jobs.retry(ids[0])
        harbor.jobs.delete(ids[1])
        Worker(harbor).drain_sync()
        assert harbor.jobs.get(ids[0]).state == "succeeded"
        assert {job.id for job in harbor.jobs.list()} == {ids[0], ids[2]}
        assert all(count >= 0 for count in harbor.jobs.counts().values())


def test_row_of_a_job_that_does_not_exist_is_dropped(driver: PostgresDriver) -> None:
    """No lease covers it, so it is not collected again and again."""
    with Harbor(driver=driver) as harbor:
        task = harbor.task(name="t")(lambda: None)
        job = task.enqueue()
        store.execute(driver.dsn, *(row_like(driver, "ready", str(uuid.uuid4()), {}) for _ in range(3)))
        Worker(harbor).drain_sync()
        assert job.refresh().state == "succeeded"
        assert asyncio.run(running(driver)) == 0
        assert harbor.jobs.counts()["ready"] == 0


async def test_lease_under_which_nothing_is_left_is_dropped(driver: PostgresDriver) -> None:
    """A job that had succeeded was put back by hand: it is not collected without end."""
    harbor = Harbor(driver=driver)
    job = await harbor.aenqueue("t")
    now = await driver.now()
    [claimed] = (await driver.claim(ClaimRequest("w/1", 1000, 1), now=now)).jobs
    done = Transition("w/1", job.id, 1, AttemptStatus.SUCCEEDED, State.SUCCEEDED, started_at=claimed.run_at)
    assert [each.answer for each in await driver.settle([done], now=now)] == [SettleAnswer.DONE]
    connection = await asyncpg.connect(driver.dsn)
    await connection.execute(row_like(driver, "ready", job.id, {}))
    await connection.close()
    assert [each.id for each in (await driver.claim(ClaimRequest("w/2", 1000, 1), now=now)).jobs] == [job.id]
    expired = await driver.take_expired("c/1", 1000, now=now + 2000)
    assert expired is not None
    assert expired.jobs == []
    assert await driver.take_expired("c/2", 1000, now=now + 5000) is None
    assert await driver.leases() == []
    await harbor.aclose()
