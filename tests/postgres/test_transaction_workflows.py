"""A workflow enqueued inside the caller's own transaction, with every library: all of it exists, if and only if that
commits."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from taskharbor import (
    ConfigurationError,
    Event,
    Harbor,
    JobNotFound,
    StoreError,
    Task,
    Worker,
    WorkflowNotFound,
    chain,
    chord,
)
from taskharbor.drivers.postgres import PostgresDriver
from tests.postgres import store
from tests.postgres.applications import APPLICATIONS, Application

AnyTask = Task[Any, Any, Any, Any]

_serial = itertools.count(1)


@pytest.fixture(scope="module")
def harbor() -> Iterator[Harbor]:
    """One for all of them: each test has a queue of its own."""
    with store.fresh() as driver, Harbor(driver=driver) as harbor:
        harbor.migrate()
        yield harbor


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_serial)}"


@pytest.fixture
def double(harbor: Harbor, queue: str) -> AnyTask:
    @harbor.task(name=f"double-{queue}", queue=queue, tags=("a",))
    def double(x: int) -> int:
        return 2 * x

    return double


@pytest.fixture
def total(harbor: Harbor, queue: str) -> AnyTask:
    @harbor.task(name=f"total-{queue}", queue=queue)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return total


@pytest.fixture(params=APPLICATIONS, ids=lambda kind: kind.__name__)
def application(request: pytest.FixtureRequest, harbor: Harbor) -> Application:
    kind: type[Application] = request.param
    return kind(store.shared_database(), harbor)


@pytest.fixture
def dsn() -> str:
    return store.shared_database()


def stored(harbor: Harbor, queue: str) -> int:
    return sum(harbor.jobs.counts(queue).values())


# -- if and only if it commits ---------------------------------------------------------------------


@pytest.mark.parametrize("members", [3, 150])  # a few, and so many that they are stored together
def test_workflow_exists_and_runs_once_the_transaction_is_committed(
    harbor: Harbor, application: Application, queue: str, double: AnyTask, total: AnyTask, members: int
) -> None:
    composition = chain(chord([double.s(n) for n in range(members)], total.s()), double.s())
    ids: list[str] = []

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                workflow = await app.enqueue_workflow(composition)
                assert (workflow.existed, workflow.progress.total) == (False, members + 2)
                seen = await app.get_workflow(workflow.id)  # whoever stored it sees it
                assert (seen.state, seen.progress, seen.counts["waiting"]) == (
                    "running",
                    workflow.progress,
                    2,
                )
            with pytest.raises(WorkflowNotFound):
                await app.get_workflow(workflow.id)  # and nobody else
            with pytest.raises(JobNotFound):
                await app.get(workflow.jobs.ids[0])
        ids.append(workflow.id)

    application.tell(story)
    assert {job.tags for job in harbor.jobs.list(queue=queue, task=double.name)} == {("a",)}
    Worker(harbor, queues=[queue]).drain_sync()
    assert harbor.workflows.get(ids[0]).result() == 2 * sum(2 * n for n in range(members))


def test_workflow_never_existed_when_the_transaction_is_rolled_back(
    harbor: Harbor, application: Application, queue: str, double: AnyTask
) -> None:
    composition = chain(double.s(1), double.s()).using(idempotency_key=queue)
    ids: list[str] = []

    async def story(app: Application) -> None:
        with pytest.raises(ZeroDivisionError):
            async with app.transaction():
                with harbor.transaction(app.connection):
                    ids.append((await app.enqueue_workflow(composition)).id)
                raise ZeroDivisionError

    application.tell(story)
    assert stored(harbor, queue) == 0
    with pytest.raises(WorkflowNotFound):
        harbor.workflows.get(ids[0])
    assert not composition.enqueue().existed


def test_workflow_goes_with_the_savepoint_it_was_enqueued_in(
    harbor: Harbor, application: Application, queue: str, double: AnyTask
) -> None:
    composition = chain(double.s(1), double.s())

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                await app.enqueue_workflow(composition)
                with pytest.raises(ZeroDivisionError):
                    async with app.savepoint():
                        await app.enqueue_workflow(composition)
                        raise ZeroDivisionError
                async with app.savepoint():
                    await app.enqueue_workflow(composition)

    application.tell(story)
    assert stored(harbor, queue) == 4


# -- what exists already ---------------------------------------------------------------------------


def test_existing_workflow_is_answered_and_the_transaction_goes_on(
    harbor: Harbor, application: Application, queue: str, double: AnyTask
) -> None:
    two, three = chain(double.s(1), double.s()), chain(double.s(1), double.s(), double.s())
    first = two.using(idempotency_key=f"{queue} theirs").enqueue()

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                by_key = await app.enqueue_workflow(three.using(idempotency_key=f"{queue} theirs"))
                by_id = await app.enqueue_workflow(three.using(id=first.id))
                assert {(again.id, again.existed, again.progress.total) for again in (by_key, by_id)} == {
                    (first.id, True, 2)
                }
                mine = await app.enqueue_workflow(three.using(idempotency_key=f"{queue} mine"))
                same = await app.enqueue_workflow(two.using(idempotency_key=f"{queue} mine"))
                assert (same.id, same.existed, same.progress.total) == (mine.id, True, 3)

    application.tell(story)
    assert stored(harbor, queue) == 5


@pytest.mark.parametrize("members", [2, 150])
def test_workflow_whose_members_exist_is_refused_and_the_transaction_goes_on(
    harbor: Harbor, application: Application, queue: str, double: AnyTask, total: AnyTask, members: int
) -> None:
    """Nothing of it is left, also where it was noticed in the middle of storing it."""
    workflow_id = uuid.uuid4()
    in_the_way = harbor.enqueue("other", queue=queue, id=uuid.UUID(int=workflow_id.int + members))
    composition = chord([double.s(n) for n in range(members)], total.s()).using(id=workflow_id)

    async def story(app: Application) -> None:
        async with app.transaction():
            with harbor.transaction(app.connection):
                with pytest.raises(ConfigurationError, match="a job has the id .* already"):
                    await app.enqueue_workflow(composition)
                await app.enqueue_workflow(chain(double.s(1), double.s()))
                await app.enqueue("t", queue=queue)

    application.tell(story)
    assert stored(harbor, queue) == 4
    with pytest.raises(WorkflowNotFound):
        harbor.workflows.get(workflow_id)
    harbor.jobs.delete(in_the_way.id)
    assert not composition.enqueue().existed


async def test_key_that_another_transaction_is_storing_is_waited_for(
    harbor: Harbor, dsn: str, queue: str, double: AnyTask
) -> None:
    for ending in ("commit", "rollback"):
        composition = chain(double.s(1), double.s()).using(idempotency_key=f"{queue} {ending}")
        one, two = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        first = one.transaction()
        await first.start()
        with harbor.transaction(one):
            theirs = await composition.aenqueue()
        async with two.transaction():
            with harbor.transaction(two):
                waiting = asyncio.create_task(composition.aenqueue())
                await until_it_waits(dsn, two)
                await getattr(first, ending)()
                mine = await waiting
        assert mine.existed == (ending == "commit")
        assert (mine.id == theirs.id) == mine.existed
        await one.close()
        await two.close()
    assert sum((await harbor.jobs.acounts(queue)).values()) == 4


# -- all or nothing --------------------------------------------------------------------------------


async def test_caller_who_gave_up_in_the_middle_has_nothing_of_it(
    harbor: Harbor, dsn: str, queue: str, double: AnyTask
) -> None:
    """Its jobs are there and who depends on whom is not, when it is interrupted; and the caller commits."""
    assert isinstance(harbor.driver, PostgresDriver)
    one, two = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    holding = two.transaction()
    await holding.start()
    await two.execute(f"LOCK TABLE {harbor.driver.schema}.dependencies")
    async with one.transaction():
        with harbor.transaction(one):
            storing = asyncio.create_task(chain(double.s(1), double.s()).aenqueue())
            await until_it_waits(dsn, one)
            storing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await storing
            await holding.rollback()
            kept = await harbor.aenqueue("t", queue=queue)
    await one.close()
    await two.close()
    assert [job.id for job in await harbor.jobs.alist(queue=queue)] == [kept.id]


async def until_it_waits(dsn: str, connection: asyncpg.Connection) -> None:
    """For somebody else's locks."""
    observer = await asyncpg.connect(dsn)
    blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0"
    async with asyncio.timeout(60):
        while not await observer.fetchval(blocked, connection.get_server_pid()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    await observer.close()


# -- what cannot be --------------------------------------------------------------------------------


async def test_workflow_outside_of_a_transaction_is_refused(
    harbor: Harbor, dsn: str, queue: str, double: AnyTask
) -> None:
    connection = await asyncpg.connect(dsn)
    with harbor.transaction(connection), pytest.raises(ConfigurationError, match="begin one first"):
        await chain(double.s(1), double.s()).aenqueue()
    await connection.close()
    assert sum((await harbor.jobs.acounts(queue)).values()) == 0


async def test_asynchronous_connection_needs_the_asynchronous_form_of_a_workflow(
    harbor: Harbor, dsn: str, queue: str, double: AnyTask, recwarn: pytest.WarningsRecorder
) -> None:
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        with harbor.transaction(connection):
            with pytest.raises(ConfigurationError, match="is asynchronous.*use the asynchronous form"):
                chain(double.s(1), double.s()).enqueue()
            await chain(double.s(1), double.s()).aenqueue()  # and the transaction goes on
    await connection.close()
    assert sum((await harbor.jobs.acounts(queue)).values()) == 2


def test_workflow_in_another_database_is_refused_and_the_transaction_goes_on(
    harbor: Harbor, double: AnyTask
) -> None:
    with store.database() as other, psycopg.connect(other) as connection:
        with harbor.transaction(connection), pytest.raises(ConfigurationError, match="another database"):
            chain(double.s(1), double.s()).enqueue()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_user_who_may_not_store_a_workflow_is_told_so(harbor: Harbor, dsn: str, double: AnyTask) -> None:
    store.execute(dsn, "CREATE ROLE passer_by LOGIN")
    try:
        with psycopg.connect(dsn.replace("harbor@", "passer_by@")) as connection:
            with (
                harbor.transaction(connection),
                pytest.raises(StoreError, match="lacks a privilege in the schema"),
            ):
                chain(double.s(1), double.s()).enqueue()
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        store.execute(dsn, "DROP ROLE passer_by")


def test_no_event_tells_of_a_workflow_that_may_never_be() -> None:
    heard: list[Event] = []
    with store.fresh() as driver, Harbor(driver=driver) as harbor:
        harbor.migrate()
        harbor.on("enqueued")(heard.append)

        @harbor.task
        def task() -> None: ...

        composition = chain(task.si(), task.si())
        with psycopg.connect(driver.dsn) as connection, harbor.transaction(connection):
            composition.enqueue()
        told = composition.enqueue()
    assert [event.job_id for event in heard] == told.jobs.ids
