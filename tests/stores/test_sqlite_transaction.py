"""Enqueueing inside the caller's own SQLite transaction: the job exists if and only if that commits."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import (
    ConfigurationError,
    Event,
    Harbor,
    JobNotFound,
    PayloadError,
    SchemaError,
    TaskHarborError,
)
from taskharbor.records import NewJob
from taskharbor.sync import run_inline


@pytest.fixture
def connection(harbor: Harbor, file: Path) -> Iterator[sqlite3.Connection]:
    harbor.migrate()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
        connection.commit()
        yield connection


def stored(harbor: Harbor) -> int:
    return sum(harbor.jobs.counts().values())


def test_a_job_exists_once_the_transaction_is_committed(harbor: Harbor, connection: sqlite3.Connection):
    with harbor.transaction(connection):
        connection.execute("INSERT INTO orders (name) VALUES ('x')")
        job = harbor.enqueue("t", {"order": 1}, tags=["a"], idempotency_key="k")
    assert stored(harbor) == 0
    with pytest.raises(JobNotFound):
        job.refresh()
    connection.commit()
    assert job.refresh() == job
    assert not job.existed


def test_a_job_never_existed_when_the_transaction_is_rolled_back(
    harbor: Harbor, connection: sqlite3.Connection
):
    with harbor.transaction(connection):
        connection.execute("INSERT INTO orders (name) VALUES ('x')")
        harbor.enqueue("t", idempotency_key="k")
        harbor.enqueue_many([])
    connection.rollback()
    assert stored(harbor) == 0
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    assert not harbor.enqueue("t", idempotency_key="k").existed


def test_the_connections_own_with_block_decides(harbor: Harbor, connection: sqlite3.Connection):
    with connection, harbor.transaction(connection):
        harbor.enqueue("t")
    assert stored(harbor) == 1
    with pytest.raises(ZeroDivisionError), connection, harbor.transaction(connection):
        harbor.enqueue("t")
        raise ZeroDivisionError
    assert stored(harbor) == 1


def test_an_error_in_the_block_commits_nothing_by_itself(harbor: Harbor, connection: sqlite3.Connection):
    with pytest.raises(ZeroDivisionError), harbor.transaction(connection):
        harbor.enqueue("t")
        raise ZeroDivisionError
    assert connection.in_transaction
    connection.rollback()
    assert stored(harbor) == 0
    harbor.enqueue("t")  # and the block is over
    assert stored(harbor) == 1


@pytest.mark.parametrize("number", [1, 2, 300])
def test_many_are_enqueued_in_it_too(harbor: Harbor, connection: sqlite3.Connection, number: int):
    @harbor.task(name="t")
    def t(x: int) -> None: ...

    with harbor.transaction(connection):
        t.enqueue_many({"x": n} for n in range(number))
        connection.rollback()
        t.enqueue_many({"x": n} for n in range(number))
    connection.commit()
    assert stored(harbor) == number


def test_the_same_key_twice_in_one_transaction_is_one_job(harbor: Harbor, connection: sqlite3.Connection):
    with harbor.transaction(connection):
        first = harbor.enqueue("t", {"x": 1}, idempotency_key="k")
        second = harbor.enqueue("t", {"x": 2}, idempotency_key="k")
    connection.commit()
    assert (second.id, second.existed) == (first.id, True)
    assert second.refresh().payload == {"x": 1}
    assert stored(harbor) == 1


def test_a_key_that_was_committed_before_is_met(harbor: Harbor, connection: sqlite3.Connection):
    first = harbor.enqueue("t", {"x": 1}, idempotency_key="k")
    with harbor.transaction(connection):
        second = harbor.enqueue("t", {"x": 2}, idempotency_key="k")
    connection.commit()
    assert (second.id, second.existed, second.payload) == (first.id, True, {"x": 1})


@pytest.mark.parametrize(
    "factory", [sqlite3.Row, lambda cursor, row: {"row": row}, lambda cursor, row: "nonsense"]
)
def test_the_connections_row_factory_is_used_by_nobody_but_the_caller(
    harbor: Harbor, connection: sqlite3.Connection, factory: Any
):
    connection.row_factory = factory
    with harbor.transaction(connection):
        harbor.enqueue("t", idempotency_key="k", tags=["a", "b"])
        assert harbor.enqueue("t", idempotency_key="k").existed
    connection.commit()
    assert connection.row_factory is factory
    assert stored(harbor) == 1


@pytest.mark.parametrize("isolation", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_isolation_level_of_the_connection_works(harbor: Harbor, file: Path, isolation: Any):
    harbor.migrate()
    with closing(sqlite3.connect(file, isolation_level=isolation)) as connection:
        with harbor.transaction(connection):
            harbor.enqueue("t")
        assert connection.in_transaction
        assert connection.isolation_level == isolation
        connection.rollback()
        with harbor.transaction(connection):
            harbor.enqueue("t")
        connection.commit()
    assert stored(harbor) == 1


def test_a_connection_in_autocommit_mode_takes_part_in_the_transaction_it_began(harbor: Harbor, file: Path):
    harbor.migrate()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for ending in ("ROLLBACK", "COMMIT"):
            connection.execute("BEGIN")
            with harbor.transaction(connection):
                harbor.enqueue("t")
            connection.execute(ending)
    assert stored(harbor) == 1


def test_a_connection_in_autocommit_mode_without_a_transaction_is_refused(harbor: Harbor, file: Path):
    harbor.migrate()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        with (
            harbor.transaction(connection),
            pytest.raises(ConfigurationError, match="autocommit.*begin one first"),
        ):
            harbor.enqueue("t")
        assert not connection.in_transaction
    assert stored(harbor) == 0


def test_a_refused_job_leaves_the_callers_transaction_as_it_was(
    harbor: Harbor, connection: sqlite3.Connection
):
    with harbor.transaction(connection):
        connection.execute("INSERT INTO orders (name) VALUES ('x')")
        for bad in ({"x": float("nan")}, {"x": object()}):
            with pytest.raises(PayloadError):
                harbor.enqueue("t", bad)
        with pytest.raises(ConfigurationError):
            harbor.enqueue("t", priority=1000)
    connection.commit()
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert stored(harbor) == 0


def test_a_connection_to_another_database_is_refused(harbor: Harbor, tmp_path: Path):
    harbor.migrate()
    for other in (":memory:", str(tmp_path / "other.db")):
        with closing(sqlite3.connect(other)) as connection:
            with (
                pytest.raises(TaskHarborError, match="both must be the same file"),
                harbor.transaction(connection),
            ):
                raise AssertionError("never entered")
            assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_a_connection_to_another_harbors_file_is_refused(harbor: Harbor, tmp_path: Path):
    harbor.migrate()
    with Harbor(f"sqlite:///{tmp_path}/other.db") as other:
        other.migrate()
        with (
            closing(sqlite3.connect(tmp_path / "other.db")) as connection,
            pytest.raises(ConfigurationError, match="both must be the same file"),
            harbor.transaction(connection),
        ):
            raise AssertionError("never entered")
        assert stored(other) == 0


def test_a_connection_to_the_same_file_by_another_path_is_fine(harbor: Harbor, file: Path, tmp_path: Path):
    harbor.migrate()
    (tmp_path / "link.db").symlink_to(file)
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        with harbor.transaction(connection):
            harbor.enqueue("t")
        connection.commit()
    assert stored(harbor) == 1


def test_an_application_may_keep_both_in_its_own_database_once_it_was_migrated(harbor: Harbor, file: Path):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.commit()
        with pytest.raises(SchemaError, match="without TaskHarbor's tables"), harbor.transaction(connection):
            raise AssertionError("never entered")
        harbor.migrate()
        with harbor.transaction(connection):
            connection.execute("INSERT INTO orders VALUES (1)")
            harbor.enqueue("t")
        connection.commit()
    assert stored(harbor) == 1


@pytest.mark.parametrize("thing", [None, "harbor.db", 5, object()])
def test_what_is_no_connection_is_refused(harbor: Harbor, thing: Any):
    with (
        pytest.raises(ConfigurationError, match=r"a sqlite3\.Connection, SQLAlchemy"),
        harbor.transaction(thing),
    ):
        raise AssertionError("never entered")


def test_a_connection_that_does_not_give_text_is_refused(harbor: Harbor, connection: sqlite3.Connection):
    connection.text_factory = bytes
    with pytest.raises(ConfigurationError, match="text_factory"), harbor.transaction(connection):
        raise AssertionError("never entered")


def test_a_store_in_memory_has_no_transactions():
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        Harbor("memory://") as harbor,
        pytest.raises(ConfigurationError, match="has no callers' transactions"),
        harbor.transaction(connection),
    ):
        raise AssertionError("never entered")


async def test_the_async_form_takes_part_on_the_callers_loop_and_thread(harbor: Harbor, file: Path):
    await harbor.amigrate()
    with closing(sqlite3.connect(file)) as connection:  # of this thread, and of no other
        with harbor.transaction(connection):
            one = await harbor.aenqueue("t")
            two, three = await asyncio.gather(harbor.aenqueue("t"), harbor.aenqueue("t"))
        assert (await harbor.jobs.acounts())["ready"] == 0
        connection.commit()
    assert {job.id for job in await harbor.jobs.alist()} == {one.id, two.id, three.id}


async def test_tasks_beside_the_block_do_not_take_part(harbor: Harbor, file: Path):
    await harbor.amigrate()
    inside, may_leave = asyncio.Event(), asyncio.Event()

    async def other() -> str:
        await inside.wait()
        counts = await harbor.jobs.acounts()  # it can read meanwhile
        assert counts["ready"] == 0
        may_leave.set()
        return (await harbor.aenqueue("other")).id  # and its own write waits for the lock

    beside = asyncio.create_task(other())
    with closing(sqlite3.connect(file)) as connection:
        with harbor.transaction(connection):
            await harbor.aenqueue("t")
            inside.set()
            await may_leave.wait()
        connection.rollback()
    other_id = await beside
    assert [job.id for job in await harbor.jobs.alist()] == [other_id]


async def test_a_task_that_outlives_its_block_is_told_so(harbor: Harbor, file: Path):
    await harbor.amigrate()
    left = asyncio.Event()

    async def late() -> None:
        await left.wait()
        await harbor.aenqueue("t")

    with closing(sqlite3.connect(file)) as connection:
        with harbor.transaction(connection):
            task = asyncio.create_task(late())
            await asyncio.sleep(0)
        left.set()
        with pytest.raises(
            ConfigurationError, match=r"started inside a transaction\(\) block that has ended"
        ):
            await task
        assert not connection.in_transaction


def test_threads_beside_the_block_do_not_take_part(harbor: Harbor, connection: sqlite3.Connection):
    with harbor.transaction(connection):
        thread = threading.Thread(target=harbor.enqueue, args=("beside",))
        thread.start()
        thread.join()
        harbor.enqueue("t")
    connection.rollback()
    assert [job.task for job in harbor.jobs.list()] == ["beside"]


def test_blocks_nest_and_belong_to_their_harbor(
    harbor: Harbor, connection: sqlite3.Connection, tmp_path: Path
):
    with Harbor(f"sqlite:///{tmp_path}/other.db") as other:
        with harbor.transaction(connection):
            harbor.enqueue("t")
            other.enqueue("t")  # its own, committed at once
            assert stored(other) == 1
            with harbor.transaction(connection):
                harbor.enqueue("t")
            harbor.enqueue("t")
        connection.commit()
    assert stored(harbor) == 3


def test_what_would_wait_for_the_caller_for_ever_is_refused_at_once(
    harbor: Harbor, connection: sqlite3.Connection
):
    job = harbor.enqueue("t")
    with harbor.transaction(connection):
        harbor.enqueue("t")
        for verb in (
            lambda: harbor.jobs.cancel(job.id),
            harbor.jobs.delete_all,
            lambda: harbor.dlq.requeue(job.id),
            harbor.dlq.requeue_all,
            harbor.dlq.discard_all,
            lambda: harbor.queues.pause("default"),
            harbor.prune,
        ):
            with pytest.raises(
                ConfigurationError, match="only enqueueing can; do it before or after the block"
            ):
                verb()
        assert harbor.jobs.counts()["ready"] == 1  # reading is free
    connection.commit()
    assert harbor.jobs.cancel(job.id).state == "cancelled"


def test_no_event_tells_of_what_may_never_be(harbor: Harbor, connection: sqlite3.Connection):
    heard: list[Event] = []
    harbor.on("enqueued")(heard.append)
    with harbor.transaction(connection):
        harbor.enqueue("t")
    connection.rollback()
    told = harbor.enqueue("t")
    harbor.events.close()
    assert [event.job_id for event in heard] == [told.id]


def test_a_lock_that_another_holds_is_the_callers_to_deal_with(harbor: Harbor, file: Path):
    harbor.migrate()
    with closing(sqlite3.connect(file)) as other, closing(sqlite3.connect(file, timeout=0)) as connection:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), harbor.transaction(connection):
            harbor.enqueue("t")
        other.rollback()
    assert stored(harbor) == 0


# -- all or nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [(None, None), ("a", "b")])
@pytest.mark.parametrize("fault", ["trigger", "too big", "unknown dependency", "function"])
def test_batch_that_fails_leaves_nothing_in_a_transaction_that_goes_on(
    harbor: Harbor, connection: sqlite3.Connection, fault: str, keys: tuple[str | None, str | None]
):
    good = NewJob(id="019b76da-a800-7000-8000-000000000001", task="t", idempotency_key=keys[0])
    bad = NewJob(id="019b76da-a800-7000-8000-000000000002", task="bad", idempotency_key=keys[1])
    connection.create_function("broken", 0, lambda: 1 // 0)
    if fault == "unknown dependency":
        bad = replace(bad, depends_on=("019b76da-a800-7000-8000-00000000000f",))
    elif fault == "too big":
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        bad = replace(bad, payload="x" * 20_000)
    else:
        what = "RAISE(ABORT, 'no')" if fault == "trigger" else "broken()"
        connection.execute(
            "CREATE TEMP TRIGGER refuse BEFORE INSERT ON taskharbor_jobs WHEN NEW.task = 'bad' "
            f"BEGIN SELECT {what}; END"
        )
    with harbor.transaction(connection):
        connection.execute("INSERT INTO orders (name) VALUES ('x')")
        with pytest.raises((sqlite3.Error, ConfigurationError)):
            run_inline(harbor.driver.enqueue([good, bad]))
    connection.commit()
    assert stored(harbor) == 0
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert connection.execute("SELECT count(*) FROM taskharbor_jobs").fetchone() == (0,)
