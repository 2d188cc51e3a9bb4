"""Enqueueing inside the caller's own transaction, with every library: the job exists if and only if that commits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from taskharbor import ConfigurationError, Harbor, JobNotFound, PayloadError, Worker
from tests.postgres import store
from tests.postgres.applications import APPLICATIONS, Application

_serial = itertools.count(1)

# What a session has that is not its defaults.
SESSION = """
SELECT json_build_object(
    'settings', (SELECT json_object_agg(name, setting ORDER BY name) FROM pg_settings
                 WHERE name NOT LIKE 'plpgsql.%'),  -- which are there once the language has been used
    'isolation', current_setting('transaction_isolation'),
    'channels', (SELECT count(*) FROM pg_listening_channels()),
    'locks', (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
    'tables', (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema())
)::text
"""
PREPARED = "SELECT count(*) > 0 FROM pg_prepared_statements WHERE statement LIKE 'SELECT CASE WHEN%'"


@pytest.fixture(scope="module")
def harbor() -> Iterator[Harbor]:
    """One for all of them: each test has a queue of its own."""
    with store.fresh() as driver, Harbor(driver=driver) as harbor:
        harbor.migrate()
        store.execute(driver.dsn, "CREATE TABLE IF NOT EXISTS orders (number integer)")
        yield harbor


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_serial)}"


@pytest.fixture(params=APPLICATIONS, ids=lambda kind: kind.__name__)
def application(request: pytest.FixtureRequest, harbor: Harbor) -> Application:
    kind: type[Application] = request.param
    return kind(store.shared_database(), harbor)


def stored(harbor: Harbor, queue: str) -> int:
    return sum(harbor.jobs.counts(queue).values())


def test_job_exists_and_runs_once_the_transaction_is_committed(
    harbor: Harbor, application: Application, queue: str
) -> None:
    ran: list[int] = []

    @harbor.task(name=queue)
    def handler(x: int) -> int:
        ran.append(x)
        return x

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                job = await app.enqueue(queue, {"x": 1}, queue=queue, tags=["a"], priority=3, delay=0)
                assert not job.existed
                assert (await app.get(job.id)).payload == {"x": 1}  # whoever stored it sees it
            with pytest.raises(JobNotFound):
                await app.get(job.id)  # and nobody else
        again = await app.get(job.id)
        assert (again.state, again.tags, again.priority) == ("ready", ("a",), 3)

    application.tell(story)
    Worker(harbor, queues=[queue]).drain_sync()
    assert ran == [1]


def test_transaction_is_entered_by_async_with_as_well(
    harbor: Harbor, application: Application, queue: str
) -> None:
    async def story(app: Application) -> None:
        async with app.transaction(), harbor.transaction(app.connection):
            await app.enqueue("t", queue=queue)
        with pytest.raises(ZeroDivisionError):
            async with app.transaction(), harbor.transaction(app.connection):
                await app.enqueue("t", queue=queue)
                raise ZeroDivisionError

    application.tell(story)
    assert stored(harbor, queue) == 1


def test_job_never_existed_when_the_transaction_is_rolled_back(
    harbor: Harbor, application: Application, queue: str
) -> None:
    async def story(app: Application) -> None:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction():
                with harbor.transaction(app.connection):
                    await app.enqueue("t", queue=queue, idempotency_key="k")
                raise ZeroDivisionError

    application.tell(story)
    assert stored(harbor, queue) == 0
    assert not harbor.enqueue("t", queue=queue, idempotency_key="k").existed


def test_job_goes_with_the_savepoint_it_was_enqueued_in(
    harbor: Harbor, application: Application, queue: str
) -> None:
    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                await app.enqueue("kept", queue=queue)
                with pytest.raises(ZeroDivisionError):
                    async with app.savepoint():
                        await app.enqueue("gone", queue=queue)
                        raise ZeroDivisionError
                async with app.savepoint():
                    await app.enqueue("kept", queue=queue)

    application.tell(story)
    assert [job.task for job in harbor.jobs.list(queue=queue)] == ["kept", "kept"]


def test_existing_job_is_answered_and_the_transaction_goes_on(
    harbor: Harbor, application: Application, queue: str
) -> None:
    first = harbor.enqueue("t", {"x": 1}, queue=queue, idempotency_key="k")

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                by_key = await app.enqueue("t", {"x": 2}, queue=queue, idempotency_key="k")
                by_id = await app.enqueue("t", {"x": 3}, queue=queue, id=first.id)
                for again in (by_key, by_id):
                    assert (again.id, again.existed, again.payload) == (first.id, True, {"x": 1})
                mine = await app.enqueue("t", {"x": 4}, queue=queue, idempotency_key="mine")
                same = await app.enqueue("t", {"x": 5}, queue=queue, idempotency_key="mine")
                assert (same.id, same.existed, same.payload) == (mine.id, True, {"x": 4})
            await app.execute("INSERT INTO orders VALUES (1)")

    application.tell(story)
    assert stored(harbor, queue) == 2


def test_refused_job_leaves_the_transaction_usable(
    harbor: Harbor, application: Application, queue: str
) -> None:
    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                for bad in ({"x": float("nan")}, {"x": "\0"}, {"x": "\ud800"}):
                    with pytest.raises(PayloadError):
                        await app.enqueue("t", bad, queue=queue)
                with pytest.raises(ConfigurationError):
                    await app.enqueue("t", queue=queue, priority=1000)
                await app.enqueue("good", queue=queue)

    application.tell(story)
    assert stored(harbor, queue) == 1


def test_many_are_all_or_nothing(harbor: Harbor, application: Application, queue: str) -> None:
    @harbor.task(name=queue, queue=queue)
    def handler(x: int) -> None: ...

    async def story(app: Application) -> None:
        with harbor.transaction(app.connection):
            async with app.transaction():
                jobs = await app.enqueue_many([handler.s(n) for n in range(100)])
                assert await app.enqueue_many([]) == []
            assert len({job.id for job in jobs}) == 100
            with pytest.raises(ZeroDivisionError):
                async with app.transaction():
                    await app.enqueue_many([handler.s(n) for n in range(100)])
                    raise ZeroDivisionError

    application.tell(story)
    assert stored(harbor, queue) == 100


def test_nothing_is_left_behind_in_the_session(harbor: Harbor, application: Application, queue: str) -> None:
    async def story(app: Application) -> None:
        await app.execute("SET search_path = pg_temp, public")
        await app.execute("SET timezone = 'Pacific/Kiritimati'")
        if getattr(app.connection, "commit", None) is not None:  # it has begun a transaction by itself
            committed = app.connection.commit()
            if app.asynchronous:
                await committed
        async with app.transaction():
            before = await app.value(SESSION)
            with harbor.transaction(app.connection):
                job = await app.enqueue("t", queue=queue, idempotency_key="k")
                for _ in range(10):  # psycopg would prepare a statement at its fifth time
                    assert (await app.enqueue("t", queue=queue, idempotency_key="k")).existed
            assert await app.value(SESSION) == before
            assert await app.value(PREPARED) == app.prepares
        assert (await app.get(job.id)).enqueued_at == job.enqueued_at

    application.tell(story)
    assert stored(harbor, queue) == 1


def test_isolation_level_of_the_transaction_is_left_alone(
    harbor: Harbor, application: Application, queue: str
) -> None:
    harbor.enqueue("t", queue=queue, idempotency_key="k")

    async def story(app: Application) -> None:
        async with app.transaction():
            await app.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            with harbor.transaction(app.connection):
                assert (await app.enqueue("t", queue=queue, idempotency_key="k")).existed
                await app.enqueue("t", queue=queue)
            assert await app.value("SHOW transaction_isolation") == "serializable"

    application.tell(story)
    assert stored(harbor, queue) == 2


def test_block_outlives_the_transactions_in_it(harbor: Harbor, application: Application, queue: str) -> None:
    """The blocks may stand in either order: the connection's transaction decides, whenever it ends."""

    async def story(app: Application) -> None:
        with harbor.transaction(app.connection):
            for _ in range(3):
                async with app.transaction():
                    await app.enqueue("t", queue=queue)

    application.tell(story)
    assert stored(harbor, queue) == 3


def test_other_verbs_are_refused_while_the_transaction_is_open(
    harbor: Harbor, application: Application, queue: str
) -> None:
    job = harbor.enqueue("t", queue=queue)

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                await app.enqueue("t", queue=queue)
                with pytest.raises(ConfigurationError, match="only enqueueing can; do it before or after"):
                    await harbor.jobs.acancel(job.id) if app.asynchronous else harbor.jobs.cancel(job.id)

    application.tell(story)
    assert stored(harbor, queue) == 2
