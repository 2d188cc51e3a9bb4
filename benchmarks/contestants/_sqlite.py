"""Reading from a live SQLite connection how durable it is, so that a statement in the table is checked."""

from __future__ import annotations

import sqlite3

from benchmarks.contestant import Durability

BY_SYNCHRONOUS = {0: Durability.OFF, 1: Durability.NORMAL, 2: Durability.FULL, 3: Durability.FULL}


def durability_of(connection: sqlite3.Connection) -> Durability:
    """In WAL mode: synchronous is a setting of the connection and cannot be read from the file."""
    (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal_mode != "wal":
        raise RuntimeError(f"the journal mode is {journal_mode}, expected wal")
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    return BY_SYNCHRONOUS[synchronous]
