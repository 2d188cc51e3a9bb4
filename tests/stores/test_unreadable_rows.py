"""Rows that cannot be read: the file keeps them out; where a hand has let them in, the other jobs go on.

On PostgreSQL: `tests/postgres/test_unreadable_rows.py`.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from taskharbor import Event, Harbor, Worker, chain
from taskharbor.cli import cli
from taskharbor.drivers.base import ClaimRequest, SettleAnswer, Transition
from taskharbor.drivers.sqlite import claim, unreadable
from taskharbor.drivers.stored import FIRST_NUMBER_MAX, INSTANT_MAX, INSTANT_MIN, NUMBER_MAX
from taskharbor.records import AttemptStatus, State
from taskharbor.server.app import application
from taskharbor.sync import run_inline

API = "/api/v1"
NOW = 1_767_225_600_000_000
NO_TEXT = b"\xc3\x28\xff"
# A value, and how a statement writes it: text of any bytes has to be cast.
GARBAGE: list[tuple[Any, str]] = [
    (b"\xff\x00", "?"),
    (NO_TEXT, "CAST(? AS TEXT)"),
    ("garbage", "?"),
    ("", "?"),
    (-1, "?"),
    (2**63 - 1, "?"),
    (-(2**63), "?"),
    (1.5, "?"),
]
TABLES = ("jobs", "ready", "waiting", "dependencies", "tags", "workflows")


def row_like(table: str, job_id: str) -> dict[str, Any]:
    """A row as enqueueing would make it."""
    rows: dict[str, dict[str, Any]] = {
        "jobs": {
            "id": job_id, "queue": "default", "task": "t", "payload": "{}", "priority": 0, "run_at": NOW,
            "enqueued_at": NOW, "expires_at": None, "idempotency_key": None, "delivery": None, "options": None,
            "version": 1,
        },
        "ready": {
            "suspect": 0, "queue": "default", "rank": 0, "run_at": NOW, "id": job_id, "number": 0, "attempts": 0,
            "first_number": 1, "due_at": None, "expires_at": None, "delivery": None,
        },
        "waiting": {
            "job_id": job_id, "number": 0, "attempts": 0, "first_number": 1, "expires_at": None, "delivery": None,
        },
        "dependencies": {"job_id": job_id, "member_id": job_id, "position": 0, "done": 0, "fatal": 0},
        "tags": {"tag": "tag", "job_id": job_id},
        "workflows": {
            "id": job_id, "last_id": job_id, "total": 0, "enqueued_at": NOW, "idempotency_key": None, "about": "{}",
        },
    }  # fmt: skip
    return rows[table]


def insert(
    connection: sqlite3.Connection, table: str, row: dict[str, Any], as_text: str | None = None
) -> None:
    values = ", ".join("CAST(? AS TEXT)" if name == as_text else "?" for name in row)
    statement = f"INSERT OR IGNORE INTO taskharbor_{table} ({', '.join(row)}) VALUES ({values})"
    connection.execute(statement, tuple(row.values()))


def by_hand(file: Path, work: Callable[[sqlite3.Connection], object]) -> None:
    """Write into the tables, past every check."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        work(connection)


def plant(connection: sqlite3.Connection) -> list[str]:
    """Every kind of garbage in every column; each in a job of its own."""
    planted = []
    for table in TABLES:
        for column in row_like(table, ""):
            for value, how in GARBAGE:
                job_id = str(uuid.uuid4())
                planted.append(job_id)
                place = "waiting" if table == "waiting" else "ready"
                for each in dict.fromkeys(("jobs", place, table)):
                    row = row_like(each, job_id)
                    if each == table:
                        row[column] = value
                    as_text = column if each == table and how != "?" else None
                    insert(connection, each, row, as_text)
    return planted


# -- what the file keeps out -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("jobs", "payload", b"{}"),
        ("jobs", "priority", 101),
        ("jobs", "priority", "high"),
        ("jobs", "delivery", "garbage"),
        ("jobs", "run_at", 2**62),
        ("jobs", "version", -1),
        ("ready", "suspect", 2),
        ("ready", "queue", b"default"),
        ("ready", "rank", "0x"),
        ("ready", "run_at", "soon"),
        ("ready", "number", 2**31 - 1),
        ("ready", "number", "one"),
        ("ready", "attempts", -1),
        ("ready", "due_at", -(2**62)),
        ("ready", "delivery", ""),
        ("waiting", "number", -1),
        ("waiting", "delivery", "maybe"),
        ("dependencies", "done", 7),
        ("tags", "tag", b"tag"),
        ("workflows", "total", -1),
        ("workflows", "about", b"{}"),
    ],
)
def test_value_that_no_reader_understands_is_kept_out(
    file: Path, table: str, column: str, value: Any
) -> None:
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.migrate()
        with (
            closing(sqlite3.connect(file)) as connection,
            pytest.raises(sqlite3.IntegrityError, match="CHECK"),
        ):
            row = row_like(table, str(uuid.uuid4())) | {column: value}
            connection.execute(
                f"INSERT INTO taskharbor_{table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                tuple(row.values()),
            )


LIMITS = [
    ("number", 0, NUMBER_MAX),
    ("attempts", 0, NUMBER_MAX),
    ("first_number", 0, FIRST_NUMBER_MAX),
    ("run_at", INSTANT_MIN, None),  # a claim meets no later one
    ("due_at", INSTANT_MIN, INSTANT_MAX),
    ("expires_at", INSTANT_MIN, INSTANT_MAX),
]


@pytest.mark.parametrize(
    ("column", "value", "is_possible"),
    [(column, least + by, by == 0) for column, least, _ in LIMITS for by in (-1, 0)]
    + [(column, most + by, by == 0) for column, _, most in LIMITS if most is not None for by in (0, 1)],
)
def test_table_claim_and_reader_agree_on_every_limit(
    file: Path, column: str, value: int, is_possible: bool
) -> None:
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.migrate()
    row = row_like("ready", str(uuid.uuid4())) | {column: value}
    first = (row["suspect"], row["queue"], row["rank"], NOW, *claim.FIRST_PLACE, 1)
    with closing(sqlite3.connect(file)) as connection:
        insert(connection, "jobs", row_like("jobs", row["id"]))
        insert(connection, "ready", row)
        (is_accepted,) = connection.execute("SELECT count(*) FROM taskharbor_ready").fetchone()
        connection.execute("PRAGMA ignore_check_constraints = ON")
        insert(connection, "ready", row)
        (_, is_claimable) = connection.execute(claim.CLAIM["due_rows"], first).fetchone()
        values = connection.execute(claim.CLAIM["due_values"], first).fetchone()
    is_readable = unreadable.is_readable(values[:5], values[5:11], values[11:])
    assert [bool(is_accepted), bool(is_claimable), is_readable] == [is_possible] * 3


# -- what a hand has let in --------------------------------------------------------------------------


def test_garbage_in_any_column_stops_no_reader(file: Path) -> None:
    """Every column, every kind of garbage, all at once: workers, lists, inspect, counts, operators, prune go on."""
    url = f"sqlite:///{file}"
    with Harbor(url) as harbor:
        done: list[int] = []

        @harbor.task(name="good")
        def good(n: int) -> None:
            done.append(n)

        harbor.task(name="t")(lambda: None)
        jobs = [good.enqueue(n=n) for n in range(5)]
        planted: list[str] = []
        by_hand(file, lambda connection: planted.extend(plant(connection)))
        jobs += [good.enqueue(n=n) for n in range(5, 10)]
        look_at_everything(harbor, url, [job.id for job in jobs])
        Worker(harbor).drain_sync()
        look_at_everything(harbor, url, [job.id for job in jobs])
        assert sorted(done) == list(range(10))
        assert {job.refresh().state for job in jobs} == {"succeeded"}
        assert harbor.jobs.list(state="running") == []
        dead = [job for job in harbor.dlq.list(limit=1000) if len(job.id) == 36]
        unreadable = [job for job in dead if job.reason == "unreadable"]
        assert len(unreadable) > 50
        harbor.prune()
        for job in unreadable:
            harbor.jobs.retry(job.id, force=True)
        Worker(harbor).drain_sync()
        look_at_everything(harbor, url, [])
        harbor.jobs.cancel_all(state="ready")
        harbor.jobs.delete_all(state="dead")


def look_at_everything(harbor: Harbor, url: str, ids: list[str]) -> None:
    listed = harbor.jobs.list(limit=1000)
    assert {job.id for job in listed} >= set(ids)
    for state in State:
        harbor.jobs.list(state=state, limit=1000)
    harbor.jobs.counts()
    harbor.queues.list()
    harbor.workflows.list()
    found = [job for job in listed if len(job.id) == 36]  # a job cannot be asked for by any other id
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


@pytest.mark.parametrize(
    ("statement", "value", "told"),
    [
        ("UPDATE taskharbor_ready SET number = ? WHERE id = ?", 2**63 - 1, "9223372036854775807"),
        ("UPDATE taskharbor_ready SET delivery = ? WHERE id = ?", "maybe", "maybe"),
        ("UPDATE taskharbor_ready SET number = ? WHERE id = ?", b"\x01", "x'01'"),
        ("UPDATE taskharbor_jobs SET payload = ? WHERE id = ?", b"{}", "x'7b7d'"),
        ("UPDATE taskharbor_jobs SET payload = CAST(? AS TEXT) WHERE id = ?", NO_TEXT, "x'c328ff'"),
        ("UPDATE taskharbor_jobs SET task = CAST(? AS TEXT) WHERE id = ?", NO_TEXT, "x'c328ff'"),
    ],
)
def test_unreadable_job_is_dead_and_shows_what_is_stored(
    file: Path, statement: str, value: Any, told: str
) -> None:
    """The others of its queue go on."""
    heard: list[Event] = []
    url = f"sqlite:///{file}"
    with Harbor(url) as harbor:
        harbor.on("dead")(heard.append)
        done: list[str] = []
        task = harbor.task(name="t")(lambda: done.append("t"))
        first, second, third = task.enqueue(), task.enqueue(), task.enqueue()
        by_hand(file, lambda connection: connection.execute(statement, (value, second.id)))
        assert second.refresh().record.unreadable is not None
        Worker(harbor).drain_sync()
        assert (first.refresh().state, third.refresh().state, len(done)) == ("succeeded", "succeeded", 2)
        dead = second.refresh()
        assert (dead.state, dead.reason) == ("dead", "unreadable")
        assert harbor.jobs.counts()["dead"] == 1
        shown = CliRunner().invoke(cli, ["inspect", second.id, "--url", url]).stdout
        assert told in shown
        if "ready" in statement:
            harbor.jobs.retry(second.id)
            Worker(harbor).drain_sync()
            assert (second.refresh().state, harbor.jobs.counts()["dead"]) == ("succeeded", 0)
    # Subscribers have a thread of their own, which a harbor that closes waits for.
    assert [(event.job_id, event.reason) for event in heard] == [(second.id, "unreadable")]


def test_dependants_that_end_with_an_unreadable_job_are_cancelled(file: Path) -> None:
    with Harbor(f"sqlite:///{file}") as harbor:
        task = harbor.task(name="t")(lambda: None)
        workflow = chain(task.si(), task.si()).using(on_failure="cancel").enqueue()
        by_hand(file, lambda connection: connection.execute("UPDATE taskharbor_ready SET delivery = 'maybe'"))
        Worker(harbor).drain_sync()
        assert [job.state for job in workflow.jobs] == ["dead", "cancelled"]


def test_lease_under_which_nothing_is_left_is_dropped(file: Path) -> None:
    """A job that had succeeded was put back by hand: it is not collected without end."""
    with Harbor(f"sqlite:///{file}") as harbor:
        driver, job = harbor.driver, harbor.enqueue("t")
        now = run_inline(driver.now())
        [_] = run_inline(driver.claim(ClaimRequest("w/1", 1000, 1), now=now)).jobs
        done = Transition("w/1", job.id, 1, AttemptStatus.SUCCEEDED, State.SUCCEEDED, started_at=now)
        assert [each.answer for each in run_inline(driver.settle([done], now=now))] == [SettleAnswer.DONE]
        by_hand(file, lambda connection: insert(connection, "ready", row_like("ready", job.id)))
        assert len(run_inline(driver.claim(ClaimRequest("w/2", 1000, 1), now=now)).jobs) == 1
        expired = run_inline(driver.take_expired("c/1", 1000, now=now + 2000))
        assert expired is not None
        assert expired.jobs == []
        assert run_inline(driver.take_expired("c/2", 1000, now=now + 5000)) is None


async def test_unreadable_jobs_are_in_rest_answers(file: Path) -> None:
    """A list with them is answered like any other; each says what is stored of it."""
    async with Harbor(f"sqlite:///{file}") as harbor:
        await harbor.amigrate()
        job = await harbor.aenqueue("t")
        no_json = await harbor.aenqueue("t")
        by_hand(file, plant)
        by_hand(
            file,
            lambda connection: connection.executemany(
                "UPDATE taskharbor_jobs SET payload = ? WHERE id = ?",
                [(b"{}", job.id), ("no json", no_json.id)],
            ),
        )
        transport = httpx.ASGITransport(application(harbor, open_on_loopback=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path in (
                "/jobs?limit=200",
                "/queues",
                "/stats",
                f"/jobs/{job.id}",
                f"/jobs/{job.id}/history",
            ):
                assert (await client.get(API + path)).status_code == 200, path
            assert (await client.get(f"{API}/jobs/{job.id}")).json()["unreadable"] == {"payload": "x'7b7d'"}
            shown = (await client.get(f"{API}/jobs/{no_json.id}")).json()
            assert (shown["payload"], shown["unreadable"]) == ({}, {"payload": "no json"})


def test_doctor_counts_what_could_not_be_read(file: Path) -> None:
    with Harbor(f"sqlite:///{file}") as harbor:
        task = harbor.task(name="t")(lambda: None)
        task.enqueue()
        by_hand(file, lambda connection: connection.execute("UPDATE taskharbor_ready SET delivery = 'maybe'"))

        def unreadable() -> tuple[bool, bool, str]:
            [found] = [check for check in run_inline(harbor.driver.check()) if check.name == "unreadable"]
            return found.ok, found.severe, found.detail

        assert unreadable()[0]
        Worker(harbor).drain_sync()
        ok, severe, detail = unreadable()
        assert (ok, severe) == (False, False)
        assert "1 job could not be read" in detail
