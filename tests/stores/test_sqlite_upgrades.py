"""Upgrades: whoever comes first migrates, once; a newer schema that still serves older code is worked with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from taskharbor import Harbor, SchemaError, Worker
from taskharbor.calling import step_to_end
from taskharbor.drivers.sqlite import schema, sql

ALL = sql.migrations()
NEXT = ALL[-1][0] + 1


@contextmanager
def newer_code(
    monkeypatch: pytest.MonkeyPatch,
    serves: int,
    script: str = "CREATE TABLE taskharbor_novelty (id INTEGER);",
) -> Iterator[None]:
    """Code that knows one migration more, and which older code goes on with that."""
    with monkeypatch.context() as patch:
        patch.setattr(sql, "migrations", lambda: [*ALL, (NEXT, f"{NEXT:04}_novelty", script)])
        patch.setattr(schema, "SERVES", serves)
        yield


def harbor_on(file: Path) -> Harbor:
    harbor = Harbor(f"sqlite:///{file}")
    harbor.task(name="t")(lambda: None)
    return harbor


def versions(file: Path) -> list[tuple[int, int | None]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT version, serves FROM taskharbor_schema ORDER BY version").fetchall()


def before_the_rule(file: Path) -> None:
    """A file as it was made before files said whom they serve."""
    with harbor_on(file) as harbor:
        harbor.migrate()
        harbor.enqueue("t")
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            """
            BEGIN;
            ALTER TABLE taskharbor_schema RENAME TO former;
            CREATE TABLE taskharbor_schema (
                version    INTEGER PRIMARY KEY,
                name       TEXT NOT NULL,
                applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
            );
            INSERT INTO taskharbor_schema SELECT version, name, applied_at FROM former;
            DROP TABLE former;
            COMMIT;
            """
        )


def test_a_schema_serves_code_that_exists():
    """A migration without which older code works leaves SERVES alone; another one raises it to its own number."""
    assert 1 <= schema.SERVES <= schema.latest_version()


def test_a_newer_schema_that_still_serves_this_version_is_worked_with(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    """Old workers go on while new ones roll in, those that begin only now as well."""
    with harbor_on(file) as old, harbor_on(file) as new:
        old.enqueue("t")
        with newer_code(monkeypatch, serves=schema.latest_version()):
            assert new.migrate() == [f"{NEXT:04}_novelty"]
            new.enqueue("t")
        old.enqueue("t")
    with harbor_on(file) as late:
        late.enqueue("t")
        assert late.migrate() == []
        Worker(late).drain_sync()
        assert late.jobs.counts()["succeeded"] == 4
        with closing(sqlite3.connect(file)) as connection, late.transaction(connection):
            late.enqueue("t")
            connection.commit()
        assert late.jobs.counts()["ready"] == 1
    assert versions(file)[-1] == (NEXT, schema.latest_version())


def test_a_newer_schema_that_serves_this_version_no_more_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    with harbor_on(file) as new, newer_code(monkeypatch, serves=NEXT):
        new.migrate()
    before = file.read_bytes()
    with harbor_on(file) as old:
        for ask in (lambda: old.enqueue("t"), old.jobs.counts, old.migrate):
            with pytest.raises(SchemaError, match=f"has schema version {NEXT}, newer than the {NEXT - 1}"):
                ask()
        with (
            closing(sqlite3.connect(file)) as connection,
            pytest.raises(SchemaError, match=f"schema version {NEXT}, .* upgrade TaskHarbor"),
            old.transaction(connection),
        ):
            raise AssertionError("never entered")
    assert file.read_bytes() == before


def test_doctor_does_not_mind_a_newer_schema_that_still_serves_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    """Or the health checks of old workers would fail while new ones roll in."""
    with harbor_on(file) as new, newer_code(monkeypatch, serves=schema.latest_version()):
        new.migrate()
    with harbor_on(file) as old:
        found = {check.name: check for check in step_to_end(old.driver.check())}
    assert found["schema"].ok
    assert "newer, and it still serves this version" in found["schema"].detail
    assert "places" not in found  # it may know places that this code does not
    assert all(check.ok for check in found.values())


def test_a_file_from_before_the_rule_is_opened_as_it_is(file: Path):
    before_the_rule(file)
    with harbor_on(file) as harbor:
        harbor.enqueue("t")
        assert harbor.migrate() == []
        assert harbor.jobs.counts()["ready"] == 2
    with (
        closing(sqlite3.connect(file)) as connection,
        pytest.raises(sqlite3.OperationalError, match="serves"),
    ):
        connection.execute("SELECT serves FROM taskharbor_schema")


def test_a_file_from_before_the_rule_says_whom_it_serves_from_its_next_migration_on(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    before_the_rule(file)
    with harbor_on(file) as new, newer_code(monkeypatch, serves=schema.latest_version()):
        new.enqueue("t")
    assert versions(file) == [*((number, None) for number, _, _ in ALL), (NEXT, schema.latest_version())]
    with harbor_on(file) as old:
        assert old.jobs.counts()["ready"] == 2


def test_a_newer_schema_that_says_nothing_of_whom_it_serves_is_refused(file: Path):
    before_the_rule(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO taskharbor_schema (version, name) VALUES (?, 'later')", (NEXT,))
        connection.commit()
    with harbor_on(file) as old, pytest.raises(SchemaError, match=f"has schema version {NEXT}, newer"):
        old.enqueue("t")


def test_a_failed_migration_leaves_nothing_behind(file: Path, monkeypatch: pytest.MonkeyPatch):
    before_the_rule(file)
    before = file.read_bytes()
    broken = "CREATE TABLE taskharbor_half (id INTEGER);\nINSERT INTO taskharbor_nowhere VALUES (1);"
    with (
        harbor_on(file) as new,
        newer_code(monkeypatch, NEXT, broken),
        pytest.raises(Exception, match="taskharbor_nowhere"),
    ):
        new.migrate()
    assert file.read_bytes() == before
