"""Copying: rows of every kind out of the tables and into them. Only the fixed names of kinds go into statements."""

from __future__ import annotations

from functools import cache

from taskharbor.drivers.contract.copying import Kind, Row, conflict, missing_rows
from taskharbor.drivers.sqlite.session import Session

# What the rows of a kind are read from, where it is not the table of that name.
_SOURCES = {
    "attempts": "(SELECT h.*, a.origin FROM taskharbor_history AS h"
    " JOIN taskharbor_attempts AS a ON a.job_id = h.job_id AND a.number = h.number)",
    "tokens": "(SELECT key, about, expires_at FROM taskharbor_records WHERE kind = 'tokens')",
    "rollups_appended": "(SELECT at, queue, task, figures,"
    " row_number() OVER (PARTITION BY at, queue, task, figures) AS twin FROM taskharbor_rollups_appended)",
}
_FOUND_AT_ONCE = 100  # rows that one statement looks for


def export(session: Session, kind: Kind, after: Row | None, limit: int, bytes_limit: int) -> list[Row]:
    key = () if after is None else kind.key_of(after)
    rows: list[Row] = []
    size = 0
    for found in session.execute(_select(kind, with_begin=after is not None), (*_stored(kind, key), limit)):
        row = _read(kind, found)
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
        if size >= bytes_limit:
            break
    return rows


def missing(session: Session, kind: Kind, rows: list[Row]) -> list[Row]:
    existing = set(_existing(session, kind, rows))
    return [row for row in rows if row not in existing]


def _existing(session: Session, kind: Kind, rows: list[Row]) -> list[Row]:
    """Return the rows that are stored under the keys of these."""
    existing: list[Row] = []
    for start in range(0, len(rows), _FOUND_AT_ONCE):
        piece = rows[start : start + _FOUND_AT_ONCE]
        keys = [value for row in piece for value in kind.key_of(row)]
        existing += [_read(kind, found) for found in session.execute(_find(kind, len(piece)), keys)]
    return existing


def insert(session: Session, kind: Kind, rows: list[Row]) -> int:
    new = missing_rows(kind, rows, _existing(session, kind, rows))
    stored = [
        tuple(value for name, value in zip(kind.columns, row, strict=True) if name != "twin") for row in new
    ]
    if session.insert(_insert(kind), stored) != len(new):
        raise conflict(kind, new[0])
    return len(new)


def finish(session: Session) -> None:
    """Count what stands in each terminal state."""
    session.execute("DELETE FROM taskharbor_tallies")
    session.execute(
        "INSERT INTO taskharbor_tallies (queue, state, jobs)"
        " SELECT queue, state, count(*) FROM taskharbor_ended GROUP BY queue, state"
    )
    session.execute(
        "INSERT INTO taskharbor_tallies (queue, state, jobs)"
        " SELECT j.queue, 'succeeded', count(*) FROM taskharbor_history AS h"
        " JOIN taskharbor_jobs AS j ON j.id = h.job_id"
        " WHERE h.status = 'succeeded' AND h.next_at IS NULL GROUP BY j.queue"
    )


def _read(kind: Kind, found: Row) -> Row:
    return tuple(
        bool(value) if column == "boolean" and value is not None else value
        for column, value in zip(kind.columns.values(), found, strict=True)
    )


def _stored(kind: Kind, key: Row) -> Row:
    return tuple(int(value) if isinstance(value, bool) else value for value in key)


def _source(kind: Kind) -> str:
    return _SOURCES.get(kind.name, f"taskharbor_{kind.name}")


@cache
def _selected(name: str) -> str:
    from taskharbor.drivers.contract.copying import KINDS

    return ", ".join(f'"{column}"' for column in KINDS[name].columns)


def _key(kind: Kind) -> str:
    return ", ".join(f'"{name}"' for name in kind.key)


def _select(kind: Kind, *, with_begin: bool) -> str:
    begin = f"WHERE ({_key(kind)}) > ({_places(len(kind.key))})" if with_begin else ""
    return f"SELECT {_selected(kind.name)} FROM {_source(kind)} {begin} ORDER BY {_key(kind)} LIMIT ?"


def _find(kind: Kind, rows: int) -> str:
    wanted = ", ".join([f"({_places(len(kind.key))})"] * rows)
    return f"SELECT {_selected(kind.name)} FROM {_source(kind)} WHERE ({_key(kind)}) IN (VALUES {wanted})"


def _insert(kind: Kind) -> str:
    # Not INSERT OR IGNORE: that would decide over the conflicts inside triggers as well.
    columns = [name for name in kind.columns if name != "twin"]
    named, values, table = ", ".join(f'"{name}"' for name in columns), _places(len(columns)), kind.name
    if kind.name == "tokens":
        named, values, table = f"kind, {named}", f"'tokens', {values}", "records"
    return f"INSERT INTO taskharbor_{table} ({named}) VALUES ({values}) ON CONFLICT DO NOTHING"


def _places(count: int) -> str:
    return ", ".join("?" * count)
