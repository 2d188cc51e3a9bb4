"""Opening a database file: is it ours, is it whole, is it of a version we know?

TaskHarbor's tables carry its name, so that an application can keep them in its own database. It never
adds them to the file of another application by itself: that takes an explicit `migrate`.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import Check
from taskharbor.drivers.callers import SQLiteConnection
from taskharbor.drivers.sqlite import files, sql
from taskharbor.drivers.statements import Migration, made_by
from taskharbor.drivers.stored import unreadable_check
from taskharbor.errors import SchemaError, StoreError

# The oldest schema version whose code works with the latest one. A migration that older code cannot work with raises
# it to its own number; one that only adds something leaves it, so that older workers go on while new ones roll in.
SERVES = 16

VERSION_TABLE = """
CREATE TABLE taskharbor_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    serves     INTEGER NOT NULL
)
"""
RECORD_VERSION = "INSERT INTO taskharbor_schema (version, name, serves) VALUES (?, ?, ?)"


class Version(NamedTuple):
    number: int  # 0: there is no schema yet
    serves: int  # the oldest one whose code works with it


def first_version() -> int:
    """The version of the initial schema. Lower numbers belong to checkouts from before the first release."""
    return sql.migrations()[0][0]


def latest_version() -> int:
    return sql.migrations()[-1][0]


def version_of(connection: sqlite3.Connection | SQLiteConnection) -> Version | None:
    """The schema's version; 0 for a database with nothing in it; None for one of another application."""
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if "taskharbor_schema" in tables:
        return applied_version(connection)
    if any(name.startswith("taskharbor_") for name in tables):
        raise SchemaError(
            f"{_file_of(connection)} has tables named taskharbor_… but no taskharbor_schema table: "
            "something else made them. Use another file, or rename those tables"
        )
    return None if tables else Version(0, 0)


def applied_version(connection: sqlite3.Connection | SQLiteConnection) -> Version:
    """What the table of versions says."""
    (number,) = connection.execute("SELECT coalesce(max(version), 0) FROM taskharbor_schema").fetchone()
    if is_unreleased(number):
        return Version(number, number)  # its table of versions may lack the column
    row = connection.execute("SELECT serves FROM taskharbor_schema WHERE version = ?", (number,)).fetchone()
    return Version(number, row[0]) if row else Version(0, 0)


def is_unreleased(number: int) -> bool:
    """Whether a checkout from before the first release made this schema: no upgrade leads from there to here."""
    return 0 < number < first_version()


def is_served(version: Version) -> bool:
    """Whether this version of the code works with that schema: its own, or a newer one that still serves it."""
    return version.number == latest_version() or version.serves <= latest_version() < version.number


def ensure(connection: sqlite3.Connection) -> None:
    """Check the schema of an open database; make it where there is nothing yet."""
    version = version_of(connection)
    if version is None:
        raise SchemaError(
            f"{_file_of(connection)} is a SQLite database of another application. To keep TaskHarbor's tables "
            "in it, run `taskharbor migrate --url sqlite:///…` once (or Harbor(…).migrate()); otherwise name "
            "another file"
        )
    refuse_unreleased(connection, version)
    _refuse_newer(connection, version)
    if version.number < latest_version():
        migrate(connection)


def migrate(connection: sqlite3.Connection) -> list[str]:
    """Apply what is missing, in one transaction: several processes may start at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = version_of(connection) or Version(0, 0)
        refuse_unreleased(connection, version)
        _refuse_newer(connection, version)
        applied = apply([each for each in sql.migrations() if each[0] > version.number], connection.execute)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return applied


def apply(missing: Sequence[Migration], execute: Callable[..., object]) -> list[str]:
    """Execute these migrations, of which the first may be the initial one; return their names."""
    for number, name, script in missing:
        if number == first_version():
            execute(VERSION_TABLE)
        for statement in _split(script):
            execute(statement)
        execute(RECORD_VERSION, (number, name, min(number, SERVES)))
    return [name for _, name, _ in missing]


def removal() -> list[str]:
    """Return the statements that remove what the migrations have made, and every job with it."""
    made = made_by(*(script for _, _, script in sql.migrations()))
    return [
        *(f"DROP VIEW IF EXISTS {name}" for name in made["VIEW"]),
        *(f"DROP TABLE IF EXISTS {name}" for name in (*made["TABLE"], "taskharbor_schema")),
    ]


def refuse_unreleased(connection: sqlite3.Connection | SQLiteConnection, version: Version) -> None:
    if is_unreleased(version.number):
        raise SchemaError(
            f"{_file_of(connection)} has schema version {version.number}, of a checkout from before the first release, "
            f"and no upgrade leads from there to the {latest_version()} this version of TaskHarbor works with; nothing "
            "was changed. Use another file"
        )


def _refuse_newer(connection: sqlite3.Connection, version: Version) -> None:
    if version.number > latest_version() and not is_served(version):
        raise SchemaError(
            f"{_file_of(connection)} has schema version {version.number}, newer than the {latest_version()} this "
            "version of TaskHarbor knows; nothing was changed. Upgrade TaskHarbor, or use another file"
        )


def checks(connection: sqlite3.Connection, path: str) -> list[Check]:
    """What `doctor` wants to know of the file."""
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    damage = check_integrity(connection)
    version = version_of(connection) or Version(0, 0)
    counted: list[Check] = []
    # A damaged file cannot be counted, and a newer schema may know places that this code does not.
    if damage is None and version.number == latest_version():
        try:
            counted = [_places_check(connection), unreadable_check(_unreadable(connection))]
        except sqlite3.DatabaseError as error:  # what looked like a hand in the tables is damage
            damage = str(error)
    free_bytes = shutil.disk_usage(Path(path).resolve().parent).free
    return [
        Check("file", damage is None, damage or f"{Path(path).resolve()} is whole"),
        files.permissions_check(path),
        _schema_check(version),
        *counted,
        Check("journal", journal == "wal", f"journal_mode is {journal}"),
        Check(
            "durability",
            level >= 2,
            f"synchronous is {('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"
            + ("" if level >= 2 else ": a power cut may lose jobs that were accepted"),
        ),
        Check("disk", free_bytes > 100 * 2**20, f"{free_bytes // 2**20:,} MiB free"),
    ]


def _schema_check(version: Version) -> Check:
    detail = f"version {version.number} of {latest_version()}"
    if version.number > latest_version():
        detail += ": newer, and it still serves this version of TaskHarbor"
    return Check("schema", is_served(version), detail)


def _places_check(connection: sqlite3.Connection) -> Check:
    misplaced = _misplaced(connection)
    if misplaced == 0:
        return Check("places", True, "every job is in one place")
    jobs = f"{counted(abs(misplaced), 'job')} {agreeing(abs(misplaced), 'is', 'are')}"
    return Check(
        "places",
        False,
        f"{jobs} in {'no place' if misplaced > 0 else 'more than one'}: something else has changed TaskHarbor's "
        "tables. Restore the file from a backup",
    )


def _misplaced(connection: sqlite3.Connection) -> int:
    """How many more jobs there are than places for them. Counting is quick beside the check of the whole file."""
    (jobs,) = connection.execute(
        """
        SELECT (SELECT count(*) FROM taskharbor_jobs)
             - (SELECT count(*) FROM taskharbor_ready)
             - (SELECT count(*) FROM taskharbor_waiting)
             - (SELECT count(*) FROM taskharbor_ended)
             - (SELECT count(*) FROM taskharbor_history WHERE status = 'succeeded' AND next_at IS NULL)
             - (SELECT coalesce(sum(open), 0) FROM taskharbor_leases)
        """
    ).fetchone()
    return int(jobs)


def _unreadable(connection: sqlite3.Connection) -> int:
    (jobs,) = connection.execute(
        "SELECT count(*) FROM taskharbor_ended WHERE state = 'dead' AND reason = 'unreadable'"
    ).fetchone()
    return int(jobs)


def check_integrity(connection: sqlite3.Connection) -> str | None:
    """None for a whole file, else what SQLite found wrong with it."""
    try:
        row = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    # What a hand has put into the tables against their rules damages no file.
    return None if row[0] == "ok" or str(row[0]).startswith("CHECK constraint failed") else str(row[0])


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


def _file_of(connection: sqlite3.Connection | SQLiteConnection) -> str:
    return str(connection.execute("PRAGMA database_list").fetchone()[2]) or "the database"
