"""Copying a store: everything arrives, nothing is copied twice, and a copy that is not whole is a failure."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from taskharbor import (
    ConfigurationError,
    Context,
    Harbor,
    MissingCapability,
    RetryPolicy,
    State,
    Worker,
    chain,
)
from taskharbor.cli import cli
from taskharbor.clock import ManualClock
from taskharbor.copying import copy_store
from taskharbor.drivers.base import ClaimRequest
from taskharbor.drivers.capabilities import HandOver, Ingest
from taskharbor.drivers.contract.copying import COLUMNS_NOT_COPIED, KINDS, NOT_COPIED
from taskharbor.drivers.contract.handing_over import BacklogPlace, HandedOver
from taskharbor.drivers.contract.ingesting import MessageBatch
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.records import JobFilter, NewJob
from taskharbor.server.tokens import create_token
from tests.postgres import store

POLICY = RetryPolicy(max_attempts=2, initial=60, multiplier=1, maximum=60, jitter=None)


def declare(harbor: Harbor) -> dict[str, Any]:
    @harbor.task(name="add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    @harbor.task(name="fails", retry=POLICY)
    def fails(x: int) -> None:
        raise ValueError(f"no {x}")

    @harbor.task(name="steps")
    def steps(ctx: Context) -> str:
        ctx.progress(0.5, "half", value={"rows": 7})
        number = ctx.step("charge", lambda: 41)
        ctx.sleep("a-day", 86_400)
        return f"paid {number}"

    @harbor.task(name="daily", schedule="0 9 * * *")
    def daily() -> None: ...

    return {"add": add, "fails": fails, "steps": steps}


def _id(number: int) -> str:
    return f"019b76da-a800-7000-8000-{number:012x}"


async def fill(harbor: Harbor, clock: ManualClock) -> None:
    """Something of every kind."""
    await harbor.amigrate()
    tasks = declare(harbor)
    add, fails = tasks["add"], tasks["fails"]
    for x in range(5):
        await add.using(tags=["red", f"n{x}"], idempotency_key=f"k{x}", meta={"tenant": "ä"}).aenqueue(x)
    dying = await fails.aenqueue(1)
    await tasks["steps"].aenqueue()
    await chain(add.s(1), add.s()).using(idempotency_key="flow").aenqueue()
    await Worker(harbor).drain()
    clock.advance(61)
    await fails.aenqueue(2)  # fails once, and waits for its retry
    await Worker(harbor).drain()
    assert str((await dying.arefresh()).state) == "dead"
    await chain(add.using(delay=3600).s(1), add.s()).aenqueue()
    gone = await add.using(delay=3600, correlation_id="c-1").aenqueue(9)
    await harbor.jobs.acancel(gone.id)
    await harbor.queues.apause("slow")
    await harbor.holds.ahold(task="held")
    await create_token(harbor.driver, "ops", "admin")
    await Ingest.of(harbor.driver).ingest([MessageBatch("log", 3, None, 2**40)])
    log = HandOver.of(harbor.driver)
    await log.own("log:1")
    first = NewJob(_id(1), "add", '{"x":3}', "stream:tasks", delay=3_600_000_000, idempotency_key="log:1:7")
    second = NewJob(_id(2), "add", '{"x":4}', "stream:tasks", idempotency_key="log:1:8")
    place = BacklogPlace("log:1:a", 7, opens=True)
    await log.hand_over(
        [HandedOver(first, backlog=place), HandedOver(second, backlog=replace(place, position=8))]
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stores(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[[str], Harbor]]:
    """Makes an empty store of the kind that is named."""
    with store.database() as dsn:

        def make(name: str) -> Harbor:
            if name.startswith("sqlite"):
                return Harbor(f"sqlite:///{tmp_path}/{name}.db?synchronous=normal", clock=clock)
            return Harbor(driver=PostgresDriver(dsn, schema=name, clock=clock))

        yield make


async def everything(harbor: Harbor) -> dict[str, Any]:
    """What a user reads of a store."""
    driver: Any = harbor.driver
    page = await driver.list(JobFilter(), limit=1_000)
    return {
        "jobs": page.jobs,
        "history": {job.id: await driver.history(job.id) for job in page.jobs},
        "steps": {job.id: await driver.steps(job.id) for job in page.jobs},
        "counts": await driver.counts(),
        "queues": await driver.queues(),
        "workflows": (await driver.list_workflows(limit=100)).workflows,
        "holds": await driver.holds(),
        "backlogs": await driver.backlogs("", "~", 10),
        "ingested": await driver.ingested("log", [3]),
        "groups": await harbor.dlq.agroups(),
        "actions": [(each.id, each.verb, each.at) for each in await harbor.audit.alist()],
        "tokens": await driver.records(RecordKind.TOKENS),
        "schedules": [(each.name, each.next_run_at) for each in await harbor.schedules.alist()],
        "tagged": [job.id for job in await harbor.jobs.alist(tag="red")],
        "correlated": [job.id for job in await harbor.jobs.alist(correlation_id="c-1")],
    }


@pytest.mark.parametrize(
    "way", [("sqlite_a", "postgres_a", "sqlite_b"), ("postgres_b", "sqlite_c", "postgres_c")], ids="-".join
)
async def test_everything_arrives_and_the_copy_works_on(
    way: tuple[str, ...], stores: Callable[[str], Harbor], clock: ManualClock
):
    async with stores(way[0]) as first, stores(way[1]) as second, stores(way[2]) as third:
        await fill(first, clock)
        before = await everything(first)
        report = await copy_store(first.driver, second.driver)
        again = await copy_store(first.driver, second.driver)
        back = await copy_store(second.driver, third.driver)

        assert {kind.kind for kind in report.kinds if kind.rows == 0} <= {"rollups_folded"}
        assert (again.new, again.rows) == (0, report.rows) == (0, report.new)
        assert [kind.checksum for kind in back.kinds] == [kind.checksum for kind in report.kinds]
        assert await everything(second) == before
        assert await everything(third) == before

        # The copies go on where the first store stopped: the retry is the second attempt, the sleeper wakes.
        declare(third)
        clock.advance(86_400)
        await Worker(third).drain()
        [failed] = [job for job in await third.jobs.alist(task="fails") if job.payload == {"x": 2}]
        assert [row.number for row in await failed.ahistory()] == [2, 1]
        [paid] = await third.jobs.alist(task="steps")
        assert await paid.aresult(timeout=0) == "paid 41"
        assert (await third.driver.counts()).items() >= {State.DEAD: 2, State.CANCELLED: 1}.items()
        existing = await third.tasks["add"].using(idempotency_key="k3").aenqueue(100)
        assert existing.existed
        await third.queues.aresume("slow")  # new actions follow the copied ones
        [latest] = await third.audit.alist(limit=1)
        assert latest.verb == "queue.resume"


async def test_a_copy_refuses_what_is_in_use_and_what_is_not_empty(
    stores: Callable[[str], Harbor], clock: ManualClock
):
    async with stores("sqlite_a") as source, stores("postgres_a") as target, Harbor("memory://") as memory:
        await target.amigrate()
        add = declare(source)["add"]
        await add.aenqueue(1)
        with pytest.raises(MissingCapability, match="SQLite and PostgreSQL"):
            await copy_store(source.driver, memory.driver)
        async with Worker(source), Worker(target):
            with pytest.raises(ConfigurationError, match="copied from has 1 worker"):
                await copy_store(source.driver, target.driver)
        await add.aenqueue(2)
        await source.driver.claim(ClaimRequest("w/1", lease=60_000_000, limit=1))
        with pytest.raises(ConfigurationError, match="1 lease .w."):
            await copy_store(source.driver, target.driver)
        clock.advance(61)
        await Worker(source).drain()
        for x in range(9):
            await declare(target)["add"].aenqueue(x)
        with pytest.raises(ConfigurationError, match="has been used: jobs"):
            await copy_store(source.driver, target.driver)


async def rows_of(harbor: Harbor) -> dict[str, Any]:
    """Every row that a copy could write, and what users read."""
    driver: Any = harbor.driver
    kinds = {kind: await driver.export_rows(kind, None, 10_000, 2**30) for kind in KINDS}
    return kinds | await everything(harbor)


@pytest.mark.parametrize("name", ["sqlite_b", "postgres_a"])
async def test_a_target_that_worked_on_is_refused_and_left_as_it_is(
    name: str, stores: Callable[[str], Harbor], clock: ManualClock
):
    """Jobs that it finished would be jobs to run again."""
    async with stores("sqlite_a") as source, stores(name) as target:
        await fill(source, clock)
        add = source.tasks["add"]
        jobs = [await add.aenqueue(x) for x in range(3)]
        await copy_store(source.driver, target.driver)
        declare(target)
        await Worker(target).drain()
        before = await rows_of(target)
        with pytest.raises(ConfigurationError, match=r"has been used: .* Nothing was copied"):
            await copy_store(source.driver, target.driver)
        assert await rows_of(target) == before

        # The same if the jobs are gone: what counted them is there.
        for job in jobs:
            await target.jobs.adelete(job.id)
        before = await rows_of(target)
        with pytest.raises(ConfigurationError, match="has been used"):
            await copy_store(source.driver, target.driver)
        assert await rows_of(target) == before


async def test_an_interrupted_copy_goes_on(stores: Callable[[str], Harbor], clock: ManualClock):
    async with stores("sqlite_a") as source, stores("postgres_a") as target:
        await fill(source, clock)

        def interrupt(kind: str, rows: int, new: int) -> None:
            if kind == "actions":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await copy_store(source.driver, target.driver, interrupt)
        report = await copy_store(source.driver, target.driver)
        assert 0 < report.new < report.rows
        assert await rows_of(target) == await rows_of(source)


async def test_a_change_during_the_copy_is_a_failure_that_a_repeat_mends(stores: Callable[[str], Harbor]):
    async with stores("sqlite_a") as source, stores("sqlite_b") as target:
        add = declare(source)["add"]
        await add.aenqueue(1)

        late = [2]

        def meddle(kind: str, rows: int, new: int) -> None:
            if kind == "ready" and late:
                with ThreadPoolExecutor() as other:  # another producer
                    other.submit(add.enqueue, late.pop()).result()

        with pytest.raises(ConfigurationError, match="changed while"):
            await copy_store(source.driver, target.driver, meddle)
        report = await copy_store(source.driver, target.driver)
        assert report.new > 0
        assert len(await target.jobs.alist()) == 2


# -- nothing is forgotten --


def tables_of_sqlite(path: Path) -> dict[str, set[str]]:
    with sqlite3.connect(path) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'taskharbor_%'"
            )
        ]
        return {
            name.removeprefix("taskharbor_"): {
                row[1] for row in connection.execute(f"PRAGMA table_info({name})")
            }
            for name in names
        }


def tables_of_postgres(dsn: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for table, column in store.query(
        dsn,
        "SELECT c.relname, a.attname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE n.nspname = 'taskharbor' AND c.relkind IN ('r', 'p')",
    ):
        found.setdefault(table, set()).update({column} - {None})
    return found


def test_every_table_and_column_is_copied_or_said_not_to_be(tmp_path: Path):
    """Whoever adds a table decides whether a copy takes it along."""
    with store.database() as dsn:
        for url in (f"sqlite:///{tmp_path}/a.db", dsn):
            with Harbor(url) as harbor:
                harbor.migrate()
        both = [tables_of_sqlite(tmp_path / "a.db"), tables_of_postgres(dsn)]
    for tables in both:
        assert set(tables) - set(NOT_COPIED) <= set(KINDS), "name new tables in drivers.contract.copying"
        for name, columns in tables.items():
            if name in KINDS:
                left_out = COLUMNS_NOT_COPIED.get(name, {}).keys()
                assert columns - left_out == KINDS[name].columns.keys() - {"twin"}, name
    assert {table for tables in both for table in tables} >= NOT_COPIED.keys()
    assert {str(kind) for kind in RecordKind} <= KINDS.keys() | NOT_COPIED.keys()


# -- the command --


def test_the_command_copies_and_says_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with Harbor("sqlite:///a.db") as harbor:
        declare(harbor)["add"].enqueue(1)
    runner = CliRunner()
    plain = runner.invoke(cli, ["copy", "--from", "sqlite:///a.db", "--to", "sqlite:///b.db"])
    assert plain.exit_code == 0, plain.output
    assert "jobs: 1 read, 1 new" in plain.output
    document = json.loads(
        runner.invoke(cli, ["copy", "--from", "sqlite:///a.db", "--to", "sqlite:///b.db", "--json"]).output
    )
    assert (document["new"], document["kinds"]["jobs"]["rows"]) == (0, 1)
    assert runner.invoke(cli, ["copy", "--from", "sqlite:///no.db", "--to", "sqlite:///b.db"]).exit_code == 1
    assert runner.invoke(cli, ["copy", "--from", "sqlite:///a.db", "--to", "sqlite:///a.db"]).exit_code == 2
    (tmp_path / "link.db").symlink_to("a.db")
    (tmp_path / "hard.db").hardlink_to(tmp_path / "a.db")
    for same in ("sqlite:///./a.db", f"sqlite:///{tmp_path}/a.db", "sqlite:///link.db", "sqlite:///hard.db"):
        refused = runner.invoke(cli, ["copy", "--from", "sqlite:///a.db", "--to", same])
        assert (refused.exit_code, "name the same store" in refused.output) == (2, True), same
