"""Enqueue inside the caller's own transaction on SQLite, with every library: the job exists if and only if it commits.

The libraries on PostgreSQL pass the same cases in tests/postgres/test_transactions.py.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import django.db
import django.db.transaction
import pytest
import sqlalchemy
import sqlalchemy.exc
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from taskharbor import ConfigurationError, Event, Harbor, JobNotFound, PayloadError, Worker, chain
from tests.postgres.applications import (
    Application,
    AsyncSQLAlchemyConnection,
    Django,
    SQLAlchemyConnection,
    entered,
)

AUTOCOMMIT = "commits each statement by itself.*begin one first"


def use_in_django(file: str) -> None:
    """Make this its default database."""
    django.db.connections.databases["default"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": file}
    django.db.connections.configure_settings(django.db.connections.databases)
    if hasattr(django.db.connections._connections, "default"):
        del django.db.connections["default"]


class Sqlite3(Application):
    asynchronous = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        with closing(sqlite3.connect(self.dsn)) as self.connection:
            yield

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return entered(self.connection)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        self.connection.execute("SAVEPOINT mine")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK TO mine")
            self.connection.execute("RELEASE mine")
            raise
        self.connection.execute("RELEASE mine")

    async def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    async def value(self, statement: str) -> Any:
        return self.connection.execute(statement).fetchone()[0]


def _address(dsn: str, driver: str) -> str:
    return f"sqlite+{driver}:///{dsn}"


class Pysqlite(SQLAlchemyConnection):
    def engine(self) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(_address(self.dsn, "pysqlite"))


class PysqliteSession(Pysqlite):
    def opened(self, engine: sqlalchemy.Engine) -> Any:
        return Session(engine)


class PysqliteThatBegins(PysqliteSession):
    """SQLAlchemy's own recipe: it begins each transaction itself, and not Python's sqlite3."""

    def engine(self) -> sqlalchemy.Engine:
        engine = super().engine()

        @sqlalchemy.event.listens_for(engine, "connect")
        def begin_nothing(raw: Any, _record: Any) -> None:
            raw.isolation_level = None

        @sqlalchemy.event.listens_for(engine, "begin")
        def begin(connection: sqlalchemy.Connection) -> None:
            connection.exec_driver_sql("BEGIN")

        return engine


class Aiosqlite(AsyncSQLAlchemyConnection):
    def engine(self) -> Any:
        return create_async_engine(_address(self.dsn, "aiosqlite"))


class AiosqliteSession(Aiosqlite):
    def opened(self, engine: Any) -> Any:
        return AsyncSession(engine)


class DjangoOnSQLite(Django):
    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        use_in_django(self.dsn)
        self.connection = django.db.connection
        yield
        django.db.connection.close()


APPLICATIONS: list[type[Application]] = [
    Sqlite3,
    Pysqlite,
    PysqliteSession,
    PysqliteThatBegins,
    Aiosqlite,
    AiosqliteSession,
    DjangoOnSQLite,
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "harbor.db"


@pytest.fixture
def harbor(file: Path) -> Iterator[Harbor]:
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.migrate()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE orders (number INTEGER)")
        yield harbor


@pytest.fixture(params=APPLICATIONS, ids=lambda kind: kind.__name__)
def application(request: pytest.FixtureRequest, harbor: Harbor, file: Path) -> Application:
    kind: type[Application] = request.param
    return kind(str(file), harbor)


def stored(harbor: Harbor) -> int:
    return sum(harbor.jobs.counts().values())


def orders(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])


def test_job_exists_and_runs_once_the_transaction_is_committed(
    harbor: Harbor, application: Application, file: Path
) -> None:
    ran: list[int] = []

    @harbor.task(name="t")
    def handler(x: int) -> None:
        ran.append(x)

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                await app.execute("INSERT INTO orders VALUES (1)")
                job = await app.enqueue("t", {"x": 1}, tags=["a"], priority=3)
                assert not job.existed
                assert (await app.get(job.id)).payload == {"x": 1}  # the transaction sees its own job
            with pytest.raises(JobNotFound):
                await app.get(job.id)  # no other connection does
        again = await app.get(job.id)
        assert (again.state, again.tags, again.priority) == ("ready", ("a",), 3)

    application.tell(story)
    Worker(harbor).drain_sync()
    assert (ran, orders(file)) == ([1], 1)


@pytest.mark.parametrize("enqueues_first", [True, False])
def test_job_never_existed_when_the_transaction_is_rolled_back(
    harbor: Harbor, application: Application, file: Path, enqueues_first: bool
) -> None:
    async def story(app: Application) -> None:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction(), harbor.transaction(app.connection):
                if not enqueues_first:
                    await app.execute("INSERT INTO orders VALUES (1)")
                await app.enqueue("t", idempotency_key="k")
                await app.execute("INSERT INTO orders VALUES (1)")
                raise ZeroDivisionError

    application.tell(story)
    assert (stored(harbor), orders(file)) == (0, 0)
    assert not harbor.enqueue("t", idempotency_key="k").existed


def test_job_goes_with_the_savepoint_it_was_enqueued_in(harbor: Harbor, application: Application) -> None:
    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                await app.enqueue("kept")
                with pytest.raises(ZeroDivisionError):
                    async with app.savepoint():
                        await app.enqueue("gone")
                        async with app.savepoint():
                            await app.enqueue("gone")
                        raise ZeroDivisionError
                async with app.savepoint():
                    await app.enqueue("kept")

    application.tell(story)
    assert [job.task for job in harbor.jobs.list()] == ["kept", "kept"]


@pytest.mark.parametrize("kind", [Pysqlite, PysqliteSession, Aiosqlite, AiosqliteSession])
def test_first_job_of_a_transaction_is_refused_inside_a_savepoint_that_may_commit_it(
    harbor: Harbor, file: Path, kind: type[Application]
) -> None:
    """Python's sqlite3 begins late: for SQLite, a savepoint before the first write is a whole transaction."""

    async def story(app: Application) -> None:
        with pytest.raises(ConfigurationError, match=r"first job inside begin_nested\(\)"):
            async with app.transaction(), app.savepoint(), harbor.transaction(app.connection):
                await app.enqueue("t")

    kind(str(file), harbor).tell(story)
    assert stored(harbor) == 0


@pytest.mark.parametrize("kind", [PysqliteThatBegins, DjangoOnSQLite])
def test_savepoint_in_a_transaction_that_has_begun_commits_nothing(
    harbor: Harbor, file: Path, kind: type[Application]
) -> None:
    async def story(app: Application) -> None:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction():
                async with app.savepoint():
                    with harbor.transaction(app.connection):
                        await app.enqueue("t")
                raise ZeroDivisionError

    kind(str(file), harbor).tell(story)
    assert stored(harbor) == 0


def test_existing_job_is_answered_and_the_transaction_goes_on(
    harbor: Harbor, application: Application, file: Path
) -> None:
    first = harbor.enqueue("t", {"x": 1}, idempotency_key="k")

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                by_key = await app.enqueue("t", {"x": 2}, idempotency_key="k")
                by_id = await app.enqueue("t", {"x": 3}, id=first.id)
                for again in (by_key, by_id):
                    assert (again.id, again.existed, again.payload) == (first.id, True, {"x": 1})
                mine = await app.enqueue("t", {"x": 4}, idempotency_key="mine")
                same = await app.enqueue("t", {"x": 5}, idempotency_key="mine")
                assert (same.id, same.existed, same.payload) == (mine.id, True, {"x": 4})
            await app.execute("INSERT INTO orders VALUES (1)")

    application.tell(story)
    assert (stored(harbor), orders(file)) == (2, 1)


def test_refused_job_leaves_the_transaction_usable(harbor: Harbor, application: Application) -> None:
    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                with pytest.raises(PayloadError):
                    await app.enqueue("t", {"x": float("nan")})
                with pytest.raises(ConfigurationError):
                    await app.enqueue("t", priority=1000)
                await app.enqueue("good")

    application.tell(story)
    assert stored(harbor) == 1


def test_many_and_workflows_are_all_or_nothing(harbor: Harbor, application: Application) -> None:
    @harbor.task(name="t")
    def handler(x: int) -> int:
        return x

    composition = chain(handler.s(1), handler.s())

    async def story(app: Application) -> None:
        with harbor.transaction(app.connection):
            async with app.transaction():
                await app.enqueue_many([handler.s(n) for n in range(300)])
                workflow = await app.enqueue_workflow(composition)
                assert (await app.get_workflow(workflow.id)).progress.total == 2
            with pytest.raises(ZeroDivisionError):
                async with app.transaction():
                    await app.enqueue_many([handler.s(n) for n in range(300)])
                    await app.enqueue_workflow(composition)
                    raise ZeroDivisionError

    application.tell(story)
    assert stored(harbor) == 302


def test_block_outlives_the_transactions_in_it(harbor: Harbor, application: Application) -> None:
    async def story(app: Application) -> None:
        with harbor.transaction(app.connection):
            for _ in range(3):
                async with app.transaction():
                    await app.enqueue("t")

    application.tell(story)
    assert stored(harbor) == 3


def test_other_verbs_are_refused_while_the_transaction_is_open(
    harbor: Harbor, application: Application
) -> None:
    job = harbor.enqueue("t")

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                await app.enqueue("t")
                with pytest.raises(ConfigurationError, match="only enqueueing can; do it before or after"):
                    await harbor.jobs.acancel(job.id) if app.asynchronous else harbor.jobs.cancel(job.id)

    application.tell(story)
    assert stored(harbor) == 2


def test_connection_to_another_file_is_refused(
    harbor: Harbor, application: Application, tmp_path: Path
) -> None:
    application.dsn = str(tmp_path / "other.db")
    with Harbor(f"sqlite:///{application.dsn}") as other:
        other.migrate()

        async def story(app: Application) -> None:
            with pytest.raises(ConfigurationError, match="both must be the same file"):
                async with app.transaction():
                    with harbor.transaction(app.connection):
                        await app.enqueue("t")

        application.tell(story)
        assert (stored(harbor), stored(other)) == (0, 0)


def test_threads_beside_the_block_do_not_take_part(harbor: Harbor, application: Application) -> None:
    async def story(app: Application) -> None:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction(), harbor.transaction(app.connection):
                thread = threading.Thread(target=lambda: harbor.enqueue("beside"))
                thread.start()
                thread.join()
                await app.enqueue("t")
                raise ZeroDivisionError

    application.tell(story)
    assert [job.task for job in harbor.jobs.list()] == ["beside"]


def test_no_event_reports_a_job_that_may_never_exist(harbor: Harbor, application: Application) -> None:
    heard: list[Event] = []
    harbor.on("enqueued")(heard.append)

    async def story(app: Application) -> None:
        async with app.transaction(), harbor.transaction(app.connection):
            await app.enqueue("t")

    application.tell(story)
    harbor.events.close()
    assert heard == []


def test_waiting_worker_is_woken_by_the_commit(harbor: Harbor, application: Application) -> None:
    async def story(app: Application) -> None:
        token = harbor.driver.change_token()
        async with app.transaction(), harbor.transaction(app.connection):
            await app.enqueue("t")
            assert harbor.driver.change_token() == token
        assert harbor.driver.change_token() != token

    application.tell(story)


# -- no transaction --------------------------------------------------------------------------------


def test_sqlalchemy_begins_a_transaction_by_itself(harbor: Harbor, file: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    for given in (engine.connect(), Session(engine), scoped_session(sessionmaker(engine))):
        with harbor.transaction(given):
            harbor.enqueue("t")
            given.rollback()
            harbor.enqueue("t")
            given.commit()
        given.close()
    engine.dispose()
    assert stored(harbor) == 3


def test_sqlalchemy_with_autocommit_is_refused(harbor: Harbor, file: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{file}", isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        harbor.transaction(connection),
        pytest.raises(ConfigurationError, match=AUTOCOMMIT),
    ):
        harbor.enqueue("t")
    engine.dispose()
    assert stored(harbor) == 0


async def test_asynchronous_sqlalchemy_with_autocommit_is_refused(harbor: Harbor, file: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with harbor.transaction(connection), pytest.raises(ConfigurationError, match=AUTOCOMMIT):
            await harbor.aenqueue("t")
    await engine.dispose()
    assert sum((await harbor.jobs.acounts()).values()) == 0


def test_django_outside_of_atomic_is_refused(harbor: Harbor, file: Path) -> None:
    use_in_django(str(file))
    for connection in (django.db.connection, django.db.connections["default"]):
        with harbor.transaction(connection), pytest.raises(ConfigurationError, match=r"atomic\(\)"):
            harbor.enqueue("t")
    django.db.connection.close()
    assert stored(harbor) == 0


def test_django_without_autocommit_commits_the_job(harbor: Harbor, file: Path) -> None:
    use_in_django(str(file))
    django.db.transaction.set_autocommit(False)
    with harbor.transaction(django.db.connection):
        for end in (django.db.transaction.rollback, django.db.transaction.commit):
            harbor.enqueue("t")
            end()
    django.db.connection.close()
    assert stored(harbor) == 1


def test_django_transaction_that_must_roll_back_takes_no_job(harbor: Harbor, file: Path) -> None:
    use_in_django(str(file))
    with django.db.transaction.atomic(), harbor.transaction(django.db.connection):
        django.db.transaction.set_rollback(True)
        with pytest.raises(django.db.transaction.TransactionManagementError):
            harbor.enqueue("t")
    django.db.connection.close()
    assert stored(harbor) == 0


async def test_asynchronous_connection_needs_the_asynchronous_form(
    harbor: Harbor, file: Path, recwarn: pytest.WarningsRecorder
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    async with AsyncSession(engine) as session, session.begin():
        with harbor.transaction(session):
            with pytest.raises(ConfigurationError, match=r"is asynchronous.*await task\.aenqueue"):
                harbor.enqueue("t")
            await asyncio.gather(harbor.aenqueue("t"))  # and the transaction goes on
    await engine.dispose()
    assert (await harbor.jobs.acounts())["ready"] == 1


@pytest.mark.parametrize("locked", ["sqlalchemy", "django"])
def test_lock_that_another_holds_is_an_error_of_the_callers_library(
    harbor: Harbor, file: Path, locked: str
) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{file}", connect_args={"timeout": 0})
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        if locked == "sqlalchemy":
            with (
                Session(engine) as session,
                harbor.transaction(session),
                pytest.raises(sqlalchemy.exc.OperationalError, match="locked"),
            ):
                harbor.enqueue("t")
        else:
            use_in_django(str(file))
            django.db.connections.databases["default"]["OPTIONS"] = {"timeout": 0}
            with (
                django.db.transaction.atomic(),
                harbor.transaction(django.db.connection),
                pytest.raises(django.db.OperationalError, match="locked"),
            ):
                harbor.enqueue("t")
            django.db.connection.close()
    engine.dispose()
    assert stored(harbor) == 0


@pytest.mark.parametrize(
    ("thing", "complaint"),
    [
        (sqlalchemy.create_engine("sqlite://"), "give a connection or a session of it"),
        (sqlalchemy.create_engine("postgresql+psycopg://").connect, "takes a connection"),
        (Session(sqlalchemy.create_engine("postgresql+psycopg://")), "kind postgresql.*harbor is on SQLite"),
    ],
    ids=["engine", "function", "postgresql"],
)
def test_what_is_no_connection_to_sqlite_is_refused(harbor: Harbor, thing: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint), harbor.transaction(thing):
        raise AssertionError("never entered")
