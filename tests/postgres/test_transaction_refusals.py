"""What a caller's transaction cannot be, and what concerns nobody but the caller."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import asyncpg
import django.db
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from taskharbor import ConfigurationError, Event, Harbor, SchemaError, StoreError
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.records import NewJob, Options
from taskharbor.sync import run_inline
from tests.postgres import store
from tests.postgres.applications import address, use_in_django

HOSTILE = "'; -- \" \\ {a,NULL} %s :a1 $1 ü"


@pytest.fixture(scope="module")
def harbor() -> Iterator[Harbor]:
    with store.fresh() as driver, Harbor(driver=driver) as harbor:
        harbor.migrate()
        yield harbor


@pytest.fixture
def dsn() -> str:
    return store.shared_database()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def stored(harbor: Harbor, queue: str) -> int:
    return sum(harbor.jobs.counts(queue).values())


# -- no transaction ------------------------------------------------------------------------------

AUTOCOMMIT = "commits each statement by itself.*begin one first"


async def test_asyncpg_outside_of_a_transaction_is_refused(harbor: Harbor, dsn: str, queue: str) -> None:
    connection = await asyncpg.connect(dsn)
    with harbor.transaction(connection), pytest.raises(ConfigurationError, match=AUTOCOMMIT):
        await harbor.aenqueue("t", queue=queue)
    await connection.close()
    assert (await harbor.jobs.acounts(queue))["ready"] == 0


def test_psycopg_with_autocommit_outside_of_a_transaction_is_refused(
    harbor: Harbor, dsn: str, queue: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, harbor.transaction(connection):
        with pytest.raises(ConfigurationError, match=AUTOCOMMIT):
            harbor.enqueue("t", queue=queue)
        with connection.transaction():
            harbor.enqueue("t", queue=queue)
    assert stored(harbor, queue) == 1


async def test_asynchronous_psycopg_with_autocommit_is_refused(harbor: Harbor, dsn: str, queue: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        with harbor.transaction(connection), pytest.raises(ConfigurationError, match=AUTOCOMMIT):
            await harbor.aenqueue("t", queue=queue)


def test_psycopg_begins_a_transaction_by_itself(harbor: Harbor, dsn: str, queue: str) -> None:
    for ending, expected in (("rollback", 0), ("commit", 1)):
        with psycopg.connect(dsn) as connection:
            with harbor.transaction(connection):
                harbor.enqueue("t", queue=queue)
            assert stored(harbor, queue) == 0
            getattr(connection, ending)()
        assert stored(harbor, queue) == expected


@pytest.mark.parametrize("where", ["engine", "connection"])
def test_sqlalchemy_with_autocommit_is_refused(harbor: Harbor, dsn: str, queue: str, where: str) -> None:
    engine = sqlalchemy.create_engine(
        address(dsn, "psycopg"), **({"isolation_level": "AUTOCOMMIT"} if where == "engine" else {})
    )
    with engine.connect() as connection:
        if where == "connection":
            connection.execution_options(isolation_level="AUTOCOMMIT")
        with harbor.transaction(connection), pytest.raises(ConfigurationError, match=AUTOCOMMIT):
            harbor.enqueue("t", queue=queue)
    engine.dispose()
    assert stored(harbor, queue) == 0


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_asynchronous_sqlalchemy_with_autocommit_is_refused(
    harbor: Harbor, dsn: str, queue: str, driver: str
) -> None:
    engine = create_async_engine(address(dsn, driver), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with harbor.transaction(connection), pytest.raises(ConfigurationError, match=AUTOCOMMIT):
            await harbor.aenqueue("t", queue=queue)
    await engine.dispose()


def test_sqlalchemy_begins_a_transaction_by_itself(harbor: Harbor, dsn: str, queue: str) -> None:
    engine = sqlalchemy.create_engine(address(dsn, "psycopg"))
    scoped = scoped_session(sessionmaker(engine))
    for given in (engine.connect(), Session(engine), scoped):
        with harbor.transaction(given):
            harbor.enqueue("t", queue=queue)
            given.rollback()
            harbor.enqueue("t", queue=queue)
            given.commit()
        given.close()
    engine.dispose()
    assert stored(harbor, queue) == 3


def test_django_outside_of_atomic_is_refused(harbor: Harbor, dsn: str, queue: str) -> None:
    use_in_django(dsn)
    for connection in (django.db.connection, django.db.connections["default"]):
        with harbor.transaction(connection), pytest.raises(ConfigurationError, match=r"atomic\(\)"):
            harbor.enqueue("t", queue=queue)
    django.db.connection.close()
    assert stored(harbor, queue) == 0


# -- no such connection --------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [None, 5, "postgresql://localhost", object()])
def test_what_is_no_connection_is_refused(harbor: Harbor, thing: Any) -> None:
    complaint = "takes a connection to the harbor's database"
    with pytest.raises(ConfigurationError, match=complaint), harbor.transaction(thing):
        raise AssertionError("never entered")


def test_an_engine_or_a_pool_is_no_connection(harbor: Harbor, dsn: str) -> None:
    for thing in (
        sqlalchemy.create_engine(address(dsn, "psycopg")),
        create_async_engine(address(dsn, "asyncpg")),
    ):
        complaint = "give a connection or a session of it"
        with pytest.raises(ConfigurationError, match=complaint), harbor.transaction(thing):
            raise AssertionError("never entered")


def _sqlalchemy_on_sqlite() -> Any:
    return Session(sqlalchemy.create_engine("sqlite://"))


def _django_on_sqlite() -> Any:
    django.db.connections.databases["other"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    django.db.connections.configure_settings(django.db.connections.databases)
    return django.db.connections["other"]


@pytest.mark.parametrize(
    "connect", [lambda: sqlite3.connect(":memory:"), _sqlalchemy_on_sqlite, _django_on_sqlite]
)
def test_connection_to_another_kind_of_database_is_refused(
    harbor: Harbor, connect: Callable[[], Any]
) -> None:
    with (
        closing(connect()) as connection,
        pytest.raises(ConfigurationError, match="kind sqlite, and the harbor is on PostgreSQL"),
        harbor.transaction(connection),
    ):
        raise AssertionError("never entered")


def test_connection_to_another_database_is_refused_and_nothing_stored(harbor: Harbor) -> None:
    """Also where that one has a schema of the same name: the harbor's workers would never see the job."""
    assert isinstance(harbor.driver, PostgresDriver)
    with (
        store.database() as other,
        Harbor(driver=PostgresDriver(other, schema=harbor.driver.schema)) as others,
    ):
        with psycopg.connect(other) as connection:
            with (
                harbor.transaction(connection),
                pytest.raises(SchemaError, match="without TaskHarbor's tables"),
            ):
                harbor.enqueue("t")
            connection.rollback()
            others.migrate()
            with harbor.transaction(connection), pytest.raises(ConfigurationError, match="another database"):
                harbor.enqueue("t")
            connection.commit()
        assert sum(others.jobs.counts().values()) == 0


def test_harbor_without_its_schema_says_so_and_leaves_the_transaction_usable(dsn: str) -> None:
    with (
        Harbor(driver=PostgresDriver(dsn, schema="nobody_made_it")) as harbor,
        psycopg.connect(dsn) as connection,
    ):
        connection.execute("SELECT 1")
        with harbor.transaction(connection), pytest.raises(SchemaError, match="taskharbor migrate"):
            harbor.enqueue("t")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_user_without_privileges_is_told_so(harbor: Harbor, dsn: str) -> None:
    store.execute(dsn, "CREATE ROLE stranger LOGIN")
    try:
        with (
            psycopg.connect(dsn.replace("harbor@", "stranger@")) as connection,
            harbor.transaction(connection),
            pytest.raises(StoreError, match="lacks a privilege in the schema"),
        ):
            harbor.enqueue("t")
    finally:
        store.execute(dsn, "DROP ROLE stranger")


# -- threads and loops ---------------------------------------------------------------------------


async def test_asynchronous_connection_needs_the_asynchronous_form(
    harbor: Harbor, dsn: str, queue: str, recwarn: pytest.WarningsRecorder
) -> None:
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        with harbor.transaction(connection):
            with pytest.raises(ConfigurationError, match=r"is asynchronous.*await task\.aenqueue"):
                harbor.enqueue("t", queue=queue)
            await harbor.aenqueue("t", queue=queue)  # and the transaction goes on
    await connection.close()
    assert (await harbor.jobs.acounts(queue))["ready"] == 1


async def test_synchronous_connection_takes_the_asynchronous_form_too(
    harbor: Harbor, dsn: str, queue: str
) -> None:
    """As everything else that is done with it there, it holds up the loop for a moment."""
    with psycopg.connect(dsn) as connection, harbor.transaction(connection):
        job = await harbor.aenqueue("t", queue=queue, idempotency_key="k")
        again = await harbor.aenqueue("t", queue=queue, idempotency_key="k")
        assert (again.id, again.existed) == (job.id, True)
        assert (await harbor.jobs.acounts(queue))["ready"] == 0
    assert (await harbor.jobs.acounts(queue))["ready"] == 1


def test_synchronous_connection_is_used_in_the_callers_thread(harbor: Harbor, dsn: str, queue: str) -> None:
    threads: set[int] = set()

    class Observed(psycopg.Connection[Any]):
        def wait(self, *args: Any, **kwargs: Any) -> Any:
            threads.add(threading.get_ident())
            return super().wait(*args, **kwargs)

    with Observed.connect(dsn) as connection, harbor.transaction(connection):
        harbor.enqueue("t", queue=queue)
        harbor.enqueue_many([])
        harbor.jobs.counts()  # on a connection of ours
    assert threads == {threading.get_ident()}


def test_threads_beside_the_block_do_not_take_part(harbor: Harbor, dsn: str, queue: str) -> None:
    with psycopg.connect(dsn) as connection:
        with harbor.transaction(connection):
            thread = threading.Thread(target=lambda: harbor.enqueue("beside", queue=queue))
            thread.start()
            thread.join()
            harbor.enqueue("t", queue=queue)
        connection.rollback()
    assert [job.task for job in harbor.jobs.list(queue=queue)] == ["beside"]


async def test_tasks_beside_the_block_do_not_take_part(harbor: Harbor, dsn: str, queue: str) -> None:
    inside, done = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await inside.wait()
        await harbor.aenqueue("beside", queue=queue)
        done.set()

    beside = asyncio.create_task(other())
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()
    with harbor.transaction(connection):
        await harbor.aenqueue("t", queue=queue)
        inside.set()
        await done.wait()
    await transaction.rollback()
    await beside
    await connection.close()
    assert [job.task for job in await harbor.jobs.alist(queue=queue)] == ["beside"]


def test_no_event_tells_of_what_may_never_be(dsn: str) -> None:
    heard: list[Event] = []
    with store.fresh() as driver, Harbor(driver=driver) as harbor:
        harbor.migrate()
        harbor.on("enqueued")(heard.append)
        with psycopg.connect(driver.dsn) as connection, harbor.transaction(connection):
            harbor.enqueue("t")
        told = harbor.enqueue("t")
    assert [event.job_id for event in heard] == [told.id]


# -- what concerns nobody but the caller ---------------------------------------------------------


def test_transaction_that_has_failed_already_is_the_callers_to_roll_back(
    harbor: Harbor, dsn: str, queue: str
) -> None:
    with psycopg.connect(dsn) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with harbor.transaction(connection), pytest.raises(psycopg.errors.InFailedSqlTransaction):
            harbor.enqueue("t", queue=queue)
        connection.rollback()


def test_serialization_failure_is_the_callers_and_not_repeated(harbor: Harbor, dsn: str, queue: str) -> None:
    """Its snapshot is older than the job with that key: only a new transaction can see it."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1 FROM pg_class LIMIT 1")  # it has its snapshot from here on
        first = harbor.enqueue("t", queue=queue, idempotency_key="k")
        with harbor.transaction(connection):
            with pytest.raises(psycopg.errors.SerializationFailure):
                harbor.enqueue("t", queue=queue, idempotency_key="k")
            connection.rollback()
            again = harbor.enqueue("t", queue=queue, idempotency_key="k")
    assert (again.id, again.existed) == (first.id, True)


async def test_key_that_another_transaction_is_storing_is_waited_for(
    harbor: Harbor, dsn: str, queue: str
) -> None:
    for ending in ("commit", "rollback"):
        one, two = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        first = one.transaction()
        await first.start()
        with harbor.transaction(one):
            theirs = await harbor.aenqueue("t", queue=queue, idempotency_key=ending)
        async with two.transaction():
            pid = two.get_server_pid()
            with harbor.transaction(two):
                waiting = asyncio.create_task(harbor.aenqueue("t", queue=queue, idempotency_key=ending))
                async with asyncio.timeout(60):
                    while not await _waits(dsn, pid):  # noqa: ASYNC110 - the server tells nobody
                        await asyncio.sleep(0.01)
                await getattr(first, ending)()
                mine = await waiting
        assert mine.existed == (ending == "commit")
        assert (mine.id == theirs.id) == mine.existed
        await one.close()
        await two.close()
    assert (await harbor.jobs.acounts(queue))["ready"] == 2


async def _waits(dsn: str, pid: int) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        return bool(await connection.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", pid))
    finally:
        await connection.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_job_may_depend_on_others_in_a_transaction(harbor: Harbor, dsn: str, asynchronous: bool) -> None:
    """Members that exist are kept where they are until the caller has committed; unknown ones are refused first."""
    member = harbor.enqueue("member")
    unknown = "019b76da-a800-7000-8000-00000000ffff"

    async def story(connection: Any) -> None:
        with harbor.transaction(connection):
            with pytest.raises(ConfigurationError, match="neither stored nor enqueued with it"):
                await harbor.driver.enqueue([_job(1, unknown)])
            answers = await harbor.driver.enqueue([_job(2, member.id), _job(3, _job(2).id)])
            assert [answer.state for answer in answers] == ["waiting", "waiting"]
            [again] = await harbor.driver.enqueue([_job(2, member.id)])
            assert (again.existed, again.state) == (True, "waiting")

    async def on_a_loop() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await story(connection)

    if asynchronous:
        asyncio.run(on_a_loop())
    else:
        with psycopg.connect(dsn) as connection:
            run_inline(story(connection))
    stored = harbor.jobs.get(_job(2).id)
    assert (stored.state, stored.queue, stored.tags) == ("waiting", HOSTILE, (HOSTILE,))
    for number in (3, 2):
        harbor.jobs.cancel(_job(number).id)
        harbor.jobs.delete(_job(number).id)


def _job(number: int, *depends_on: str) -> NewJob:
    return NewJob(
        f"019b76da-a800-7000-8000-{number:012x}",
        "t",
        queue=HOSTILE,
        options=Options(tags=(HOSTILE,)),
        depends_on=depends_on,
    )
