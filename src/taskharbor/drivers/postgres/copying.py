"""Copying: rows of every kind out of the tables and into them. Only the fixed names of kinds go into statements."""

from __future__ import annotations

from taskharbor.drivers.contract.copying import ColumnType, Kind, Row, conflict, missing_rows
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.sql import quoted

_TYPES: dict[ColumnType, str] = {
    "id": "uuid",
    "text": "text",
    "instant": "timestamptz",
    "integer": "bigint",
    "boolean": "boolean",
    "float": "double precision",
}
PREFETCHED = 50  # rows that are on their way at once: each may have a megabyte


async def export(
    session: Session, schema: str, kind: Kind, after: Row | None, limit: int, bytes_limit: int
) -> list[Row]:
    key = () if after is None else kind.key_of(after)
    rows: list[Row] = []
    size = 0
    statement = _select(kind, schema, with_begin=after is not None)
    async for found in session.connection.cursor(statement, *key, limit, prefetch=min(limit, PREFETCHED)):
        row = tuple(found)
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
        if size >= bytes_limit:
            break
    return rows


async def missing(session: Session, schema: str, kind: Kind, rows: list[Row]) -> list[Row]:
    existing = set(await _existing(session, schema, kind, rows))
    return [row for row in rows if row not in existing]


async def _existing(session: Session, schema: str, kind: Kind, rows: list[Row]) -> list[Row]:
    """Return the rows that are stored under the keys of these."""
    session.expect(len(rows))
    keys = [list(column) for column in zip(*map(kind.key_of, rows), strict=True)]
    return [tuple(row) for row in await session.connection.fetch(_find(kind, schema), *keys)]


async def insert(session: Session, schema: str, kind: Kind, rows: list[Row]) -> int:
    new = missing_rows(kind, rows, await _existing(session, schema, kind, rows))
    if not new:
        return 0
    columns = [list(column) for column in zip(*new, strict=True)]
    stored = [column for name, column in zip(kind.columns, columns, strict=True) if name != "twin"]
    answer = await session.connection.execute(_insert(kind, schema), *stored)
    if int(answer.rpartition(" ")[2]) != len(new):
        raise conflict(kind, new[0])
    return len(new)


async def finish(session: Session, schema: str) -> None:
    """Count what stands in each terminal state, and let new actions follow the copied ones."""
    at = quoted(schema)
    await session.connection.execute(f"DELETE FROM {at}.tallies")
    await session.connection.execute(
        f"INSERT INTO {at}.tallies (queue, state, jobs)"
        f" SELECT queue, state, count(*) FROM {at}.ended GROUP BY queue, state"
        " UNION ALL"
        f" SELECT j.queue, 'succeeded', count(*) FROM {at}.history AS h JOIN {at}.jobs AS j ON j.id = h.job_id"
        " WHERE h.status = 'succeeded' AND h.next_at IS NULL GROUP BY j.queue"
    )
    await session.connection.execute(
        f"SELECT setval(pg_get_serial_sequence('{at}.actions', 'number'), max(number)) FROM {at}.actions"
        " HAVING max(number) IS NOT NULL"
    )


def _source(kind: Kind, schema: str) -> str:
    at = quoted(schema)
    if kind.name == "rollups_appended":
        return (
            "(SELECT at, queue, task, figures, row_number() OVER (PARTITION BY at, queue, task, figures) AS twin"
            f" FROM {at}.rollups_appended)"
        )
    return f"{at}.{'history' if kind.name == 'attempts' else kind.name}"


def _selected(kind: Kind) -> str:
    return ", ".join(
        f't."{name}"::text' if column == "id" else f't."{name}"' for name, column in kind.columns.items()
    )


def _key(kind: Kind) -> str:
    return ", ".join(f't."{name}"' for name in kind.key)


def _given(place: int, column: ColumnType, array: str = "") -> str:
    cast = _TYPES[column] + array
    return f"${place}::text{array}::{cast}" if column == "id" else f"${place}::{cast}"


def _select(kind: Kind, schema: str, *, with_begin: bool) -> str:
    begin, places = "", 0
    if with_begin:
        places = len(kind.key)
        given = ", ".join(_given(place, kind.columns[name]) for place, name in enumerate(kind.key, 1))
        begin = f"WHERE ({_key(kind)}) > ({given})"
    order = f"ORDER BY {_key(kind)} LIMIT ${places + 1}"
    return f"SELECT {_selected(kind)} FROM {_source(kind, schema)} AS t {begin} {order}"


def _find(kind: Kind, schema: str) -> str:
    given = ", ".join(_given(place, kind.columns[name], "[]") for place, name in enumerate(kind.key, 1))
    names = ", ".join(f'"{name}"' for name in kind.key)
    same = " AND ".join(f't."{name}" = wanted."{name}"' for name in kind.key)
    return (
        f"SELECT {_selected(kind)} FROM unnest({given}) AS wanted ({names})"
        f" JOIN {_source(kind, schema)} AS t ON {same}"
    )


def _insert(kind: Kind, schema: str) -> str:
    columns = {name: column for name, column in kind.columns.items() if name != "twin"}
    names = ", ".join(f'"{name}"' for name in columns)
    given = ", ".join(_given(place, column, "[]") for place, column in enumerate(columns.values(), 1))
    own = "OVERRIDING SYSTEM VALUE " if kind.name == "actions" else ""
    return (
        f"INSERT INTO {quoted(schema)}.{kind.name} ({names}) {own}"
        f"SELECT * FROM unnest({given}) ON CONFLICT DO NOTHING"
    )
