"""Files that are not what they should be: one clear error, and not one byte changed."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, SchemaError, StoreError, StoreUnavailable, TaskHarborError
from taskharbor.drivers.sqlite import schema

Asking = Callable[[Harbor], Any]
ASKING: dict[str, Asking] = {
    "enqueue": lambda harbor: harbor.enqueue("t"),
    "get": lambda harbor: harbor.jobs.get("0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"),
    "counts": lambda harbor: harbor.jobs.counts(),
    "pause": lambda harbor: harbor.queues.pause("q"),
}


@pytest.fixture(params=ASKING)
def ask(request: pytest.FixtureRequest) -> Asking:
    return ASKING[request.param]


def bytes_of(folder: Path) -> dict[str, Any]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()
    }


def refused(file: Path, ask: Asking, kind: type[TaskHarborError], said: str) -> None:
    """Refused by whatever is asked, twice, with nothing changed and nothing left behind."""
    before = bytes_of(file.parent)
    with Harbor(f"sqlite:///{file}") as harbor:
        for _ in range(2):
            with pytest.raises(kind, match=said) as caught:
                ask(harbor)
            assert file.name in str(caught.value)
    assert bytes_of(file.parent) == before


def test_a_folder_that_does_not_exist(file: Path, ask: Asking):
    with Harbor(f"sqlite:///{file.parent}/no/such/harbor.db") as harbor:
        with pytest.raises(StoreError, match=r"the folder of .*harbor\.db does not exist .*make it first"):
            ask(harbor)
        with pytest.raises(StoreError, match="make it first"):
            harbor.migrate()
    assert list(file.parent.iterdir()) == []


def test_a_folder_that_is_a_file(file: Path, ask: Asking):
    file.write_text("x")
    with Harbor(f"sqlite:///{file}/harbor.db") as harbor, pytest.raises(StoreError, match="does not exist"):
        ask(harbor)
    assert file.read_text() == "x"


def test_a_path_that_is_a_folder(file: Path, ask: Asking):
    file.mkdir()
    refused(file, ask, StoreError, "is a folder; name a file in it")
    assert list(file.iterdir()) == []


@pytest.mark.parametrize("size", [2, 99, 100, 511, 512, 4096, 100_000])
def test_random_bytes(file: Path, ask: Asking, size: int):
    file.write_bytes(random.Random(size).randbytes(size))
    refused(file, ask, StoreError, "is not a SQLite database; nothing was changed|is damaged")


@pytest.mark.parametrize("text", ["hello\n", "id,name\n" * 1000, "SQLite format 3"])
def test_a_text_file(file: Path, ask: Asking, text: str):
    file.write_text(text)
    refused(file, ask, SchemaError, "is not a SQLite database; nothing was changed. Name another file")


def filled(file: Path, jobs: int = 400) -> None:
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.task(name="t")(lambda x: None).enqueue_many([{"x": "y" * 500}] * jobs)


def test_an_empty_file_becomes_a_store(file: Path):
    file.touch()
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.enqueue("t")
        assert harbor.jobs.counts()["ready"] == 1


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_truncated_database_is_refused_sooner_or_later_and_never_made_worse(file: Path, keep: float):
    filled(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep) // 4096 * 4096])
    before = file.read_bytes()
    with Harbor(f"sqlite:///{file}") as harbor:
        for ask in (
            lambda: harbor.jobs.list(limit=1000),
            lambda: harbor.enqueue("t"),
            harbor.jobs.counts,
        ):
            with pytest.raises(StoreError, match="is damaged .*Restore it from a backup"):
                ask()
    assert file.read_bytes() == before


def test_a_database_cut_within_its_first_page(file: Path, ask: Asking):
    filled(file, 5)
    file.write_bytes(file.read_bytes()[:2000])
    refused(file, ask, StoreError, "is damaged|is not a SQLite database")


def test_a_damaged_page_in_the_middle_is_told_by_whoever_meets_it(file: Path):
    filled(file, 2000)
    size = file.stat().st_size
    with file.open("r+b") as opened:
        for page in range(10, size // 4096 - 1):
            opened.seek(page * 4096)
            opened.write(b"\xaa" * 4096)
    before = file.read_bytes()
    with Harbor(f"sqlite:///{file}") as harbor:
        with pytest.raises(StoreError, match=r"harbor\.db is damaged \(database disk image is malformed\)"):
            harbor.jobs.list(limit=1000)
        with pytest.raises(StoreError, match="is damaged"):
            for _ in range(1000):
                harbor.enqueue("t")
    assert file.read_bytes()[4096 * 10 : 4096 * 20] == before[4096 * 10 : 4096 * 20]


def test_doctor_finds_a_damaged_page(file: Path):
    from taskharbor.sync import run_inline

    filled(file, 2000)
    middle = file.stat().st_size // 4096 // 2  # rows of jobs: the tables' definitions stand at the beginning
    with file.open("r+b") as opened:
        opened.seek(4096 * middle)
        opened.write(b"\xaa" * 4096 * 20)
    with Harbor(f"sqlite:///{file}") as harbor:
        checks = {check.name: check.ok for check in run_inline(harbor.driver.check())}
    assert not checks["file"]


@pytest.fixture
def foreign(file: Path) -> Path:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO orders VALUES (1, 'x')")
        connection.commit()
    return file


def test_a_database_of_another_application_is_left_exactly_as_it_is(foreign: Path, ask: Asking):
    refused(foreign, ask, SchemaError, "is a SQLite database of another application.*taskharbor migrate")


def test_migrate_adds_our_tables_beside_those_of_another_application(foreign: Path):
    with Harbor(f"sqlite:///{foreign}") as harbor:
        with pytest.raises(SchemaError):
            harbor.enqueue("t")
        assert harbor.migrate() != []
        assert harbor.migrate() == []
        harbor.enqueue("t")
        assert harbor.jobs.counts()["ready"] == 1
    with closing(sqlite3.connect(foreign)) as connection:
        assert connection.execute("SELECT * FROM orders").fetchall() == [(1, "x")]
        ours = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'taskharbor\\_%' ESCAPE '\\'"
        )
        assert ours.fetchone() == (1,)


def test_tables_that_only_look_like_ours_are_refused(file: Path, ask: Asking):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE taskharbor_jobs (id INTEGER)")
    refused(file, ask, SchemaError, "something else made them")
    with Harbor(f"sqlite:///{file}") as harbor, pytest.raises(SchemaError, match="something else made them"):
        harbor.migrate()


@pytest.fixture
def newer(file: Path) -> Path:
    filled(file, 1)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # so that reading it leaves every byte alone
        connection.execute("INSERT INTO taskharbor_schema (version, name, serves) VALUES (99, 'later', 99)")
        connection.commit()
    return file


def test_a_schema_that_is_newer_than_the_code_is_left_exactly_as_it_is(newer: Path, ask: Asking):
    refused(newer, ask, SchemaError, f"has schema version 99, newer than the {schema.latest_version()}")
    refused(newer, lambda harbor: harbor.migrate(), SchemaError, "Upgrade TaskHarbor, or use another file")


def test_a_schema_that_became_newer_is_noticed_by_a_callers_transaction(harbor: Harbor, file: Path):
    harbor.migrate()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO taskharbor_schema (version, name, serves) VALUES (99, 'later', 99)")
        connection.commit()
        with pytest.raises(SchemaError, match="schema version 99"), harbor.transaction(connection):
            raise AssertionError("never entered")


def test_the_file_may_be_put_right_while_the_harbor_lives(file: Path):
    file.write_text("not a database at all, but a text")
    with Harbor(f"sqlite:///{file}") as harbor:
        with pytest.raises(SchemaError):
            harbor.enqueue("t")
        file.unlink()
        harbor.enqueue("t")
        assert harbor.jobs.counts()["ready"] == 1


# -- without the right to write ------------------------------------------------------------------

NOBODY = 65534


def as_nobody(ask: Callable[[], Any]) -> str:
    """What this raises for a user who has no rights: root has all of them, so a child gives them up."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            ask()
            answer = "nothing was raised"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answered:
        answer = answered.read()
    os.waitpid(child, 0)
    return answer


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may enter (pytest's own are closed to them)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_to(open_folder: Path):
    file = open_folder / "harbor.db"
    open_folder.chmod(0o555)
    said = as_nobody(lambda: Harbor(f"sqlite:///{file}").enqueue("t"))
    assert said.startswith(f"StoreError: {file} cannot be opened")
    assert list(open_folder.iterdir()) == []


def test_a_file_that_may_not_be_written_to(open_folder: Path):
    file = open_folder / "harbor.db"
    filled(file, 1)
    file.chmod(0o444)
    before = file.read_bytes()
    for ask in ASKING.values():
        said = as_nobody(lambda ask=ask: ask(Harbor(f"sqlite:///{file}")))  # type: ignore[misc]
        assert said.startswith(f"StoreError: {file} cannot be"), said
    assert file.read_bytes() == before


def test_a_file_that_may_not_be_read(open_folder: Path):
    file = open_folder / "harbor.db"
    filled(file, 1)
    file.chmod(0)
    said = as_nobody(Harbor(f"sqlite:///{file}").jobs.counts)
    assert said.startswith(f"StoreError: {file} cannot be opened")


def test_a_file_that_became_read_only_while_it_was_open(open_folder: Path):
    """What was accepted stays; what comes after is refused, and reads go on."""
    file = open_folder / "harbor.db"
    with Harbor(f"sqlite:///{file}") as harbor:
        job = harbor.enqueue("t")
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            harbor.driver._engine._writer, ours = connection, harbor.driver._engine._writer  # type: ignore[attr-defined]
            with pytest.raises(StoreError, match="cannot be written to; nothing was changed"):
                harbor.enqueue("t")
            harbor.driver._engine._writer = ours  # type: ignore[attr-defined]
        assert harbor.jobs.get(job.id) == job


def test_a_file_that_was_removed_while_it_was_open_accepts_nothing(file: Path):
    """SQLite would write on into the file that nobody can open any more."""
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.enqueue("t")
        for path in file.parent.iterdir():
            path.unlink()
        with pytest.raises(StoreUnavailable, match="removed or replaced") as caught:
            harbor.enqueue("t")
        assert len(caught.value.job_ids) == 1
        assert not file.exists()
        harbor.enqueue("t")  # from here on it is in the new file
        assert harbor.jobs.counts()["ready"] == 1
        assert file.exists()


@pytest.mark.parametrize("linked", [False, True])
def test_a_log_that_was_removed_while_it_was_open_accepts_nothing_and_loses_nothing(
    file: Path, tmp_path: Path, linked: bool
):
    """What was committed into it is saved when it is closed; what came after it would only be there until a crash."""
    path = file
    if linked:  # the log lies beside the file itself
        path = tmp_path / "elsewhere" / "link.db"
        path.parent.mkdir()
        path.symlink_to(file)
    with Harbor(f"sqlite:///{path}") as harbor:
        first = harbor.enqueue("t")
        Path(f"{file}-wal").unlink()
        with pytest.raises(StoreUnavailable, match="-wal was removed") as caught:
            harbor.enqueue("t")
        assert len(caught.value.job_ids) == 1
        second = harbor.enqueue("t")
        with Harbor(f"sqlite:///{file}") as other:
            assert {job.id for job in other.jobs.list()} == {first.id, second.id}


def test_closing_does_not_wait_for_a_lock_as_long_as_a_write_does(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.drivers.sqlite.engine.CLOSING_PATIENCE_SECONDS", 0.05)

    async def story() -> None:
        harbor = Harbor(f"sqlite:///{file}")
        await harbor.aenqueue("t")
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.ensure_future(harbor.aenqueue("t"))
            await asyncio.sleep(0)
            await asyncio.wait_for(asyncio.to_thread(harbor.close), 60)
            with pytest.raises(StoreUnavailable, match="locked"):
                await waiting
            other.execute("ROLLBACK")

    asyncio.run(story())
