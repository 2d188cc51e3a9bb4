"""Upgrades: whoever comes first migrates, once; a newer schema that still serves older code is worked with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from taskharbor import Harbor, SchemaError, Worker
from taskharbor.drivers.sqlite import schema, sql
from taskharbor.sync import run_inline

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


def of_an_unreleased_checkout(file: Path, version: int) -> None:
    """A file as a checkout from before the first release made it; the first ones did not say whom they serve."""
    with harbor_on(file) as harbor:
        harbor.enqueue("t")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE taskharbor_schema SET version = ?, serves = ?", (version, version))
        if version == 1:
            connection.execute("ALTER TABLE taskharbor_schema DROP COLUMN serves")
        connection.commit()


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
        found = {check.name: check for check in run_inline(old.driver.check())}
    assert found["schema"].ok
    assert "newer, and it still serves this version" in found["schema"].detail
    assert "places" not in found  # it may know places that this code does not
    assert all(check.ok for check in found.values())


@pytest.mark.parametrize("version", [1, 5, schema.first_version() - 1])
def test_a_file_of_an_unreleased_checkout_is_refused_and_left_as_it_is(file: Path, version: int):
    of_an_unreleased_checkout(file, version)
    before = file.read_bytes()
    with harbor_on(file) as harbor:
        for ask in (lambda: harbor.enqueue("t"), harbor.jobs.counts, harbor.migrate):
            with pytest.raises(
                SchemaError,
                match=f"has schema version {version}, of a checkout from before .* Use another file",
            ):
                ask()
        with (
            closing(sqlite3.connect(file)) as connection,
            pytest.raises(SchemaError, match=f"schema version {version}, .* use another file"),
            harbor.transaction(connection),
        ):
            raise AssertionError("never entered")
    assert file.read_bytes() == before


def test_a_file_that_lacks_a_migration_is_upgraded_when_it_is_opened(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    with harbor_on(file) as old:
        old.enqueue("t")
    with harbor_on(file) as new, newer_code(monkeypatch, serves=schema.latest_version()):
        new.enqueue("t")
    assert versions(file) == [(ALL[-1][0], schema.SERVES), (NEXT, ALL[-1][0])]
    with harbor_on(file) as old:
        assert old.jobs.counts()["ready"] == 2


def test_a_failed_migration_leaves_nothing_behind(file: Path, monkeypatch: pytest.MonkeyPatch):
    with harbor_on(file) as old:
        old.enqueue("t")
    before = file.read_bytes()
    broken = "CREATE TABLE taskharbor_half (id INTEGER);\nINSERT INTO taskharbor_nowhere VALUES (1);"
    with (
        harbor_on(file) as new,
        newer_code(monkeypatch, NEXT, broken),
        pytest.raises(Exception, match="taskharbor_nowhere"),
    ):
        new.migrate()
    assert file.read_bytes() == before
