"""No statement is built from text that somebody gave: what is sent stands in the `.sql` files, or is a constant."""

from __future__ import annotations

import ast
import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import taskharbor
from taskharbor import Harbor, State, Worker
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres import sql as postgres
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.sqlite import engine, session
from taskharbor.drivers.sqlite import sql as sqlite
from taskharbor.drivers.stored import FIRST_NUMBER_MAX, INSTANT_MAX, INSTANT_MIN, NUMBER_MAX
from tests.postgres import store

SOURCE = Path(taskharbor.__file__).parent
_SQL = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|TRUNCATE|GRANT|REVOKE|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|"
    r"RELEASE|SET|LISTEN|NOTIFY|COPY|LOCK|PRAGMA|ATTACH|VACUUM|DECLARE|FETCH|CALL|DO|VALUES)\s"
)
# What is put together nevertheless, each of one thing that was checked or quoted before.
SANCTIONED = {
    ("drivers/sqlite/engine.py", 'f"PRAGMA synchronous = {self._synchronous}"'),  # one of three words
    ("drivers/postgres/connections.py", """f"SET {key} = '{value}';\""""),  # constants beside it
    # On a caller's connection: around one of the statements of the files.
    (
        "drivers/postgres/caller_session.py",
        """f"WITH answer AS ({statement}) SELECT coalesce(json_agg(answer), '[]')::text FROM answer\"""",
    ),
    # Printed for an operator, never executed: a checked schema, quoted roles, constants.
    ("drivers/postgres/roles.py", 'f"REVOKE ALL ON ALL TABLES IN SCHEMA {where} FROM {role}"'),
    ("drivers/postgres/roles.py", 'f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {where} FROM {role}"'),
    ("drivers/postgres/roles.py", 'f"REVOKE ALL ON SCHEMA {where} FROM {role}"'),
    ("drivers/postgres/roles.py", 'f"GRANT USAGE ON SCHEMA {where} TO {role}"'),
    ("drivers/postgres/roles.py", """f"GRANT {', '.join(rights)} ON {', '.join(tables)} TO {role}\""""),
    ("drivers/postgres/roles.py", """f"GRANT EXECUTE ON FUNCTION {', '.join(functions)} TO {role}\""""),
}

# Copying goes over the tables of a fixed list (`KINDS`): it puts the names of that list, placeholders, and the quoted
# schema into its statements. Every value is a parameter.
SANCTIONED |= {
    ("drivers/sqlite/copying.py", each)
    for each in (
        "f'SELECT {_selected(kind.name)} FROM {_source(kind)} {begin} ORDER BY {_key(kind)} LIMIT ?'",
        "f'SELECT {_selected(kind.name)} FROM {_source(kind)} WHERE ({_key(kind)}) IN (VALUES {wanted})'",
        "f'INSERT INTO taskharbor_{table} ({named}) VALUES ({values}) ON CONFLICT DO NOTHING'",
    )
} | {
    ("drivers/postgres/copying.py", each)
    for each in (
        "f'SELECT {_selected(kind)} FROM {_source(kind, schema)} AS t {begin} {order}'",
        (
            "f'SELECT {_selected(kind)} FROM unnest({given}) AS wanted ({names})"
            " JOIN {_source(kind, schema)} AS t ON {same}'"
        ),
        (
            "f'INSERT INTO {quoted(schema)}.{kind.name} ({names}) {own}"
            "SELECT * FROM unnest({given}) ON CONFLICT DO NOTHING'"
        ),
        "f'DELETE FROM {at}.tallies'",
        (
            'f"INSERT INTO {at}.tallies (queue, state, jobs) SELECT queue, state, count(*) FROM {at}.ended'
            " GROUP BY queue, state UNION ALL SELECT j.queue, 'succeeded', count(*) FROM {at}.history AS h"
            " JOIN {at}.jobs AS j ON j.id = h.job_id WHERE h.status = 'succeeded' AND h.next_at IS NULL"
            ' GROUP BY j.queue"'
        ),
        (
            "f\"SELECT setval(pg_get_serial_sequence('{at}.actions', 'number'), max(number)) FROM {at}.actions"
            ' HAVING max(number) IS NOT NULL"'
        ),
    )
}

# Removing the tables names what the migrations create, read from their files.
SANCTIONED |= {
    ("drivers/sqlite/schema.py", 'f"DROP VIEW IF EXISTS {name}"'),
    ("drivers/sqlite/schema.py", 'f"DROP TABLE IF EXISTS {name}"'),
    ("drivers/postgres/schema.py", 'f"DROP VIEW IF EXISTS {name}"'),
    ("drivers/postgres/schema.py", """f"DROP TABLE IF EXISTS {', '.join(tables)}\""""),
    ("drivers/postgres/schema.py", 'f"DROP FUNCTION IF EXISTS {name}"'),
    ("drivers/postgres/schema.py", 'f"DROP SEQUENCE IF EXISTS {name}"'),
    ("drivers/postgres/schema.py", 'f"DROP DOMAIN IF EXISTS {name}"'),
}


# -- in the code -----------------------------------------------------------------------------------


def _built(tree: ast.AST) -> Iterator[ast.expr]:
    """Every expression that puts a statement together from a constant beginning and something else."""
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), _, *_]) if _SQL.match(text):
                yield node
            case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Add() | ast.Mod()) if _SQL.match(text):
                yield node
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format" | "replace" | "join")
            ) if _SQL.match(text):
                yield node


def built_in(source: str) -> list[str]:
    return [ast.unparse(node) for node in _built(ast.parse(source))]


def test_no_statement_in_the_code_is_put_together_from_pieces() -> None:
    found = {
        (file.relative_to(SOURCE).as_posix(), expression)
        for file in SOURCE.rglob("*.py")
        for expression in built_in(file.read_text("utf-8"))
    }
    assert found == {(file, ast.unparse(ast.parse(text))) for file, text in SANCTIONED}


@pytest.mark.parametrize(
    "source",
    [
        "connection.execute(f\"SELECT * FROM jobs WHERE queue = '{queue}'\")",
        "connection.execute(\"DELETE FROM jobs WHERE id = '%s'\" % job_id)",
        "statement = 'UPDATE jobs SET task = ' + task",
        "rows('SELECT {} FROM jobs'.format(column))",
        'f"""\n  INSERT INTO jobs VALUES ({payload})"""',
    ],
)
def test_such_a_statement_would_be_found(source: str) -> None:
    assert built_in(source)


def test_only_checked_names_are_put_into_the_files_of_postgresql() -> None:
    """Two placeholders: the schema, whose name is checked, and the kind of a record, whose names are fixed."""
    texts = [file.read_text("utf-8") for file in (SOURCE / "drivers/postgres").rglob("*.sql")]
    assert {found for text in texts for found in re.findall(r"\{[a-z_]\w*\}", text)} == {"{schema}", "{kind}"}
    replacing = [
        ast.unparse(node)
        for file in (SOURCE / "drivers/postgres").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and "_PLACEHOLDER" in ast.unparse(node.args)  # type: ignore[arg-type]
    ]
    assert replacing
    assert all(text.endswith(".replace(_PLACEHOLDER, identifier)") for text in replacing)
    assert [str(kind) for kind in RecordKind] == ["workers", "tokens", "sessions"]


def test_only_limits_are_put_into_the_files_of_sqlite() -> None:
    texts = [file.read_text("utf-8") for file in (SOURCE / "drivers/sqlite").rglob("*.sql")]
    assert {found for text in texts for found in re.findall(r"\{[a-z_]\w*\}", text)} == sqlite._LIMITS.keys()
    assert all(type(limit) is int for limit in sqlite._LIMITS.values())


@pytest.mark.parametrize("script", [sqlite.migrations()[0][2], postgres.migrations("any")[0][2]])
def test_first_schema_has_the_limits_that_readers_have(script: str) -> None:
    """A migration stays as it is once it is released, so it has its limits as literals."""
    ranges = re.findall(r"(\w*(?:number|attempts|version)) BETWEEN 0 AND (\d+)", script)
    ranges += re.findall(r"CREATE DOMAIN \S+\.(\w+) AS integer CHECK \(VALUE BETWEEN 0 AND (\d+)\)", script)
    assert len(ranges) >= 5
    for name, most in ranges:
        is_first = name.endswith(("first_number", "next_number"))
        assert int(most) == (FIRST_NUMBER_MAX if is_first else NUMBER_MAX), name
    large = {int(found) for found in re.findall(r"-?\b(?:2\d{9}|\d{15,})\b", script)}
    assert large <= {NUMBER_MAX, FIRST_NUMBER_MAX, INSTANT_MIN, INSTANT_MAX}
    instants = set(re.findall(r"'(\d{4,5}-\d\d-\d\d \S+)'", script))
    assert instants <= {"0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "10000-01-01 00:00:00+00"}


# -- on the wire -----------------------------------------------------------------------------------

MARK = "m'\"\\%s$1{0}ärk"


async def _live(harbor: Harbor) -> None:
    """Jobs whose every text is the mark, through the whole of a life, and everything an operator asks."""

    @harbor.task(name=f"{MARK} echo")
    def echo(text: str) -> str:
        return text

    @harbor.task(name=f"{MARK} fail", max_attempts=1)
    def fail(text: str) -> None:
        raise RuntimeError(text)

    options: dict[str, Any] = {"queue": MARK, "tags": [MARK], "correlation_id": MARK}
    for own in ({"idempotency_key": MARK}, {"idempotency_key": MARK}, {}):
        await echo.using(**{**options, **own}).aenqueue(MARK)
    await echo.aenqueue_many([{"text": MARK}] * 100)
    died = await fail.using(**options).aenqueue(MARK)
    await Worker(harbor, name=MARK).drain()
    assert (await died.arefresh()).state is State.DEAD
    waiting = await echo.using(**options, delay=60).aenqueue(MARK)
    await harbor.jobs.aupdate(waiting.id, payload={"text": MARK}, tags=[MARK, f"{MARK}2"], priority=2)
    await harbor.queues.apause(MARK)
    await harbor.queues.alist()
    await harbor.queues.aresume(MARK)
    await harbor.jobs.alist(queue=MARK)
    await harbor.jobs.alist(tag=MARK)
    await harbor.jobs.alist(task=f"{MARK} echo")
    for state in State:
        await harbor.jobs.alist(state=state)
    await harbor.jobs.acounts(MARK)
    await harbor.dlq.arequeue(died.id)
    await harbor.jobs.acancel(died.id)
    await harbor.jobs.adelete(died.id)
    await harbor.aprune()


def test_postgresql_is_sent_nothing_but_what_stands_in_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: set[str] = set()
    original = Session.__init__

    def note(query: Any) -> None:
        sent.add(query.query)

    def listening(self: Session, connection: asyncpg.Connection, *rest: Any, **more: Any) -> None:
        original(self, connection, *rest, **more)
        connection.add_query_logger(note)  # the same one again is the same one

    async def live(driver: PostgresDriver) -> None:
        async with Harbor(driver=driver) as harbor:
            await harbor.amigrate()
            sent.clear()
            await _live(harbor)

    monkeypatch.setattr(Session, "__init__", listening)
    with store.fresh() as driver:
        asyncio.run(live(driver))
        known = set(postgres.statements(driver.schema).values())
    assert len(sent & known) > 30
    # asyncpg itself begins and ends transactions, and asks for types it does not know.
    own = re.compile(
        r"(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)[ \w]*;|(?s:.*(typeinfo_tree|current_setting\('jit'\)).*)"
    )
    assert [text for text in sent - known if not own.fullmatch(text)] == []
    assert not [text for text in sent if "ärk" in text]


async def test_sqlite_is_sent_nothing_but_what_stands_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: set[str] = set()

    class Noting(session.Session):
        """A session that remembers what it was asked to execute."""

        def __init__(
            self, connection: sqlite3.Connection, now: int, found: dict[str, Any] | None = None
        ) -> None:
            super().__init__(connection, now, found)
            self.execute = self._noting(connection.execute)
            self.executemany = self._noting(connection.executemany)

        def _noting(self, execute: Any) -> Any:
            def noting(statement: str, *parameters: Any) -> sqlite3.Cursor:
                sent.add(statement)
                cursor: sqlite3.Cursor = execute(statement, *parameters)
                return cursor

            return noting

    monkeypatch.setattr(engine, "Session", Noting)
    async with Harbor(f"sqlite:///{tmp_path}/jobs.db") as harbor:
        await _live(harbor)
    rooms = [file.stem for file in (SOURCE / "drivers/sqlite/queries").glob("*.sql")]
    known = {text for room in rooms for text in sqlite.statements(room).values()}
    known |= {
        session.many_rows(text, rows)
        for text in known
        if "VALUES (" in text
        for rows in session.ROWS_PER_STEP
    }
    assert len(sent & known) > 20
    assert {
        text for text in sent - known if not re.fullmatch(r"(SAVEPOINT|ROLLBACK TO|RELEASE) \w+", text)
    } == set()
