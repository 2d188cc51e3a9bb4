"""The view that one operation has of the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

ROWS_PER_STEP = (256, 32)  # the larger step while enough rows are left


class Session:
    """One operation's view of the database: a connection inside a transaction, and its time.

    `found` belongs to a session that only reads: what it has worked out stays true until the session ends.
    """

    __slots__ = ("connection", "execute", "executemany", "found", "now")

    def __init__(self, connection: sqlite3.Connection, now: int, found: dict[str, Any] | None = None) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.now = now
        self.found = found

    def one(self, statement: str, parameters: tuple[Any, ...] = ()) -> Any:
        return self.execute(statement, parameters).fetchone()

    def insert(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Insert many rows in few steps; return the number of inserted rows.

        Python's sqlite3 releases the interpreter's lock around every step. With one step for each row, a thread that
        computes would take the lock each time, and keep it for milliseconds.
        """
        return self.insert_alike(statement, (), rows)

    def insert_alike(self, statement: str, shared: tuple[Any, ...], rows: Sequence[tuple[Any, ...]]) -> int:
        """`insert` for rows that share values: binding a value costs as much as storing it."""
        inserted = start = 0
        for size in ROWS_PER_STEP:
            while len(rows) - start >= size:
                values = (*shared, *chain.from_iterable(rows[start : start + size]))
                inserted += self.execute(many_rows(statement, size), values).rowcount
                start += size
        if start < len(rows):
            inserted += self.executemany(statement, [shared + row for row in rows[start:]]).rowcount
        return inserted

    def insert_columns(
        self, statement: str, shared: tuple[Any, ...], columns: Sequence[Sequence[Any]]
    ) -> int:
        """`insert_alike` for rows that are given as columns: there is no tuple for each of them."""
        inserted = start = 0
        rows = len(columns[0])
        for size in ROWS_PER_STEP:
            while rows - start >= size:
                step = zip(*[column[start : start + size] for column in columns], strict=True)
                values = (*shared, *chain.from_iterable(step))
                inserted += self.execute(many_rows(statement, size), values).rowcount
                start += size
        if start < rows:
            rest = zip(*[column[start:] for column in columns], strict=True)
            inserted += self.executemany(statement, [shared + row for row in rest]).rowcount
        return inserted


@cache
def many_rows(statement: str, rows: int) -> str:
    """The same INSERT for this number of rows."""
    head, _, rest = statement.partition("VALUES (")
    placeholders, _, tail = rest.partition(")")
    return head + "VALUES " + ", ".join([f"({placeholders})"] * rows) + tail
