"""Opening a database file: is it ours, is it whole, is it of a version we know?

TaskHarbor's tables carry its name, so that an application can keep them in its own database. It never
adds them to somebody else's file by itself, though: that takes an explicit `migrate`.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from taskharbor.drivers.base import Check
from taskharbor.drivers.sqlite import sql
from taskharbor.errors import SchemaError, StoreError

VERSION_TABLE = """
CREATE TABLE taskharbor_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
)
"""


def latest_version() -> int:
    return sql.migrations()[-1][0]


def version_of(connection: sqlite3.Connection) -> int | None:
    """The schema's version; 0 for a database with nothing in it; None for one of another application."""
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if "taskharbor_schema" in tables:
        row = connection.execute("SELECT max(version) FROM taskharbor_schema").fetchone()
        return int(row[0] or 0)
    if any(name.startswith("taskharbor_") for name in tables):
        raise SchemaError(
            f"{_file_of(connection)} has tables named taskharbor_… but no taskharbor_schema table: "
            "something else made them. Use another file, or rename those tables"
        )
    return None if tables else 0


def ensure(connection: sqlite3.Connection) -> None:
    """Check the schema of an open database; make it where there is nothing yet."""
    version = version_of(connection)
    if version is None:
        raise SchemaError(
            f"{_file_of(connection)} is a SQLite database of another application. To keep TaskHarbor's tables "
            "in it, run `taskharbor migrate --url sqlite:///…` once (or Harbor(…).migrate()); otherwise name "
            "another file"
        )
    _refuse_newer(connection, version)
    if version < latest_version():
        migrate(connection)


def migrate(connection: sqlite3.Connection) -> list[str]:
    """Apply what is missing, in one transaction: several processes may start at once."""
    applied: list[str] = []
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection)
        _refuse_newer(connection, version or 0)
        if not version:
            connection.execute(VERSION_TABLE)
        for number, name, script in sql.migrations():
            if number > (version or 0):
                for statement in _split(script):
                    connection.execute(statement)
                connection.execute(
                    "INSERT INTO taskharbor_schema (version, name) VALUES (?, ?)", (number, name)
                )
                applied.append(name)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return applied


def _refuse_newer(connection: sqlite3.Connection, version: int) -> None:
    if version > latest_version():
        raise SchemaError(
            f"{_file_of(connection)} has schema version {version}, newer than the {latest_version()} this "
            "version of TaskHarbor knows; nothing was changed. Upgrade TaskHarbor, or use another file"
        )


def checks(connection: sqlite3.Connection, path: str) -> list[Check]:
    """What `doctor` wants to know of the file."""
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    damage = check_integrity(connection)
    version = version_of(connection)
    misplaced = _misplaced(connection) if damage is None and version == latest_version() else 0
    free_bytes = shutil.disk_usage(Path(path).resolve().parent).free
    return [
        Check("file", damage is None, damage or f"{Path(path).resolve()} is whole"),
        Check("schema", version == latest_version(), f"version {version} of {latest_version()}"),
        Check(
            "places",
            misplaced == 0,
            "every job is in one place"
            if misplaced == 0
            else f"{abs(misplaced):,} jobs are in {'no place' if misplaced > 0 else 'more than one'}: "
            "something else has changed TaskHarbor's tables. Restore the file from a backup",
        ),
        Check("journal", journal == "wal", f"journal_mode is {journal}"),
        Check(
            "durability",
            level >= 2,
            f"synchronous is {('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"
            + ("" if level >= 2 else ": a power cut may lose jobs that were accepted"),
        ),
        Check("disk", free_bytes > 100 * 2**20, f"{free_bytes // 2**20:,} MiB free"),
    ]


def _misplaced(connection: sqlite3.Connection) -> int:
    """How many more jobs there are than places for them. Counting is quick beside the check of the whole file."""
    (jobs,) = connection.execute(
        """
        SELECT (SELECT count(*) FROM taskharbor_jobs)
             - (SELECT count(*) FROM taskharbor_ready)
             - (SELECT count(*) FROM taskharbor_waiting)
             - (SELECT count(*) FROM taskharbor_ended)
             - (SELECT count(*) FROM taskharbor_attempts WHERE status = 'succeeded' AND next_at IS NULL)
             - (SELECT coalesce(sum(open), 0) FROM taskharbor_leases)
        """
    ).fetchone()
    return int(jobs)


def check_integrity(connection: sqlite3.Connection) -> str | None:
    """None for a whole file, else what SQLite found wrong with it."""
    try:
        row = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if row[0] == "ok" else str(row[0])


def explain(error: sqlite3.Error, path: str) -> StoreError | None:
    """What a person should know about an error that speaks of the file itself."""
    text = str(error)
    if "file is not a database" in text:
        return SchemaError(f"{path} is not a SQLite database; nothing was changed. Name another file")
    if "malformed" in text:
        return StoreError(
            f"{path} is damaged ({text}); nothing was changed. Restore it from a backup, or try sqlite3's .recover"
        )
    if "unable to open" in text:
        if Path(path).is_dir():
            return StoreError(f"{path} is a folder; name a file in it")
        folder = Path(path).resolve().parent
        what = "cannot be opened" if folder.is_dir() else f"is in a folder that does not exist ({folder})"
        return StoreError(f"{path} {what}. Make the folder, or check its permissions")
    if "readonly" in text:
        return StoreError(
            f"{path} cannot be written to; nothing was changed. Check its and its folder's permissions"
        )
    return None


def _split(script: str) -> list[str]:
    """Single statements: executescript() would commit the transaction they belong in."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


def _file_of(connection: sqlite3.Connection) -> str:
    return str(connection.execute("PRAGMA database_list").fetchone()[2]) or "the database"
