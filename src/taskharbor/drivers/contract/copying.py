"""Copying: what a store keeps, as rows of named kinds, in a form that every store reads and writes.

A row is a tuple of the values of its kind's columns. An id is text, an instant is microseconds since the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from taskharbor.errors import ConfigurationError

ColumnType = Literal["id", "text", "instant", "integer", "boolean", "float"]
Row = tuple[Any, ...]


class Kind(Struct, frozen=True):
    """One kind of row: its columns, and those of them that name a row among the others, in the order of the copy."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, ColumnType]

    @property
    def key_places(self) -> tuple[int, ...]:
        names = list(self.columns)
        return tuple(names.index(name) for name in self.key)

    def key_of(self, row: Row) -> Row:
        return tuple(row[place] for place in self.key_places)


# In the order in which they are copied: what a worker would claim comes last.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "workflows",
            ("id",),
            {
                "id": "id",
                "last_id": "id",
                "total": "integer",
                "enqueued_at": "instant",
                "idempotency_key": "text",
                "about": "text",
            },
        ),
        Kind(
            "jobs",
            ("id",),
            {
                "id": "id",
                "queue": "text",
                "task": "text",
                "payload": "text",
                "priority": "integer",
                "run_at": "instant",
                "enqueued_at": "instant",
                "expires_at": "instant",
                "idempotency_key": "text",
                "delivery": "text",
                "options": "text",
                "meta": "text",
                "version": "integer",
                "action_id": "id",
            },
        ),
        Kind("tags", ("tag", "job_id"), {"tag": "text", "job_id": "id"}),
        Kind(
            "attempts",
            ("job_id", "number"),
            {
                "job_id": "id",
                "number": "integer",
                "started_at": "instant",
                "status": "text",
                "retry_count": "integer",
                "attempts": "integer",
                "token": "text",
                "worker": "text",
                "finished_at": "instant",
                "next_at": "instant",
                "aside": "text",
                "retry_delay": "integer",
                "result": "text",
                "error": "text",
                "traceback": "text",
                "detail": "text",
                "worker_survived": "boolean",
                "origin": "text",
                "fingerprint": "text",
                "code_version": "text",
            },
        ),
        Kind(
            "ended",
            ("job_id",),
            {
                "job_id": "id",
                "state": "text",
                "reason": "text",
                "finished_at": "instant",
                "number": "integer",
                "attempts": "integer",
                "delivery": "text",
                "raw": "text",
                "queue": "text",
                "task": "text",
                "fingerprint": "text",
                "error": "text",
                "code_version": "text",
            },
        ),
        Kind(
            "steps",
            ("job_id", "name"),
            {"job_id": "id", "name": "text", "result": "text", "number": "integer"},
        ),
        Kind(
            "progress", ("job_id",), {"job_id": "id", "fraction": "float", "message": "text", "value": "text"}
        ),
        Kind(
            "dependencies",
            ("job_id", "member_id"),
            {
                "job_id": "id",
                "member_id": "id",
                "position": "integer",
                "done": "boolean",
                "fatal": "boolean",
            },
        ),
        Kind(
            "actions",
            ("number",),
            {
                "number": "integer",
                "id": "id",
                "at": "instant",
                "verb": "text",
                "actor": "text",
                "job_id": "text",
                "subject": "text",
                "filter": "text",
                "details": "text",
                "count": "integer",
            },
        ),
        Kind("backlogs", ("key",), {"key": "text", "holds": "boolean"}),
        Kind("backlog_jobs", ("key", "position"), {"key": "text", "position": "integer", "job_id": "id"}),
        Kind("owners", ("partition",), {"partition": "text", "epoch": "integer"}),
        Kind("paused", ("queue",), {"queue": "text", "paused_by": "text", "paused_at": "instant"}),
        Kind(
            "ingested",
            ("log", "partition"),
            {"log": "text", "partition": "integer", "next": "integer", "moved_at": "instant"},
        ),
        Kind(
            "holds",
            ("kind", "name"),
            {"kind": "text", "name": "text", "since": "instant", "held_by": "text"},
        ),
        Kind("tokens", ("key",), {"key": "text", "about": "text", "expires_at": "instant"}),
        Kind(
            "rollups_folded",
            ("period", "at", "queue", "task"),
            {"period": "text", "at": "instant", "queue": "text", "task": "text", "figures": "text"},
        ),
        # The rows of a minute, queue and task may be equal: `twin` counts them, and is stored nowhere.
        Kind(
            "rollups_appended",
            ("at", "queue", "task", "figures", "twin"),
            {"at": "instant", "queue": "text", "task": "text", "figures": "text", "twin": "integer"},
        ),
        Kind(
            "waiting",
            ("job_id",),
            {
                "job_id": "id",
                "number": "integer",
                "attempts": "integer",
                "first_number": "integer",
                "expires_at": "instant",
                "delivery": "text",
            },
        ),
        Kind(
            "ready",
            ("suspect", "queue", "rank", "run_at", "id"),
            {
                "suspect": "boolean",
                "queue": "text",
                "rank": "integer",
                "run_at": "instant",
                "id": "id",
                "number": "integer",
                "attempts": "integer",
                "first_number": "integer",
                "due_at": "instant",
                "expires_at": "instant",
                "delivery": "text",
            },
        ),
    )
}

# The other tables of the stores, each with the reason.
NOT_COPIED: dict[str, str] = {
    "schema": "each store has the versions of its own",
    "schema_versions": "each store has the versions of its own",
    "leases": "a copy does not begin while there is one",
    "claims": "they belong to leases",
    "claiming": "a lock, without rows",
    "settles": "each attempt is copied with what it shares",
    "settled": "it belongs to settles",
    "tallies": "they are counted again at the end",
    "groups": "they are counted as the dead jobs arrive",
    "dead_groups": "they are counted as the dead jobs arrive",
    "workers": "a copy does not begin while there is one",
    "records": "its tokens are copied as a kind of their own",
    "sessions": "people sign in again",
}
# Columns of copied tables, by table.
COLUMNS_NOT_COPIED: dict[str, dict[str, str]] = {
    "attempts": {
        "settle_id": "each attempt is copied with what it shares",
        "ran": "each attempt is copied with its start and its end",
    },
    "dependencies": {
        "late": "the source catches up before the copy begins",
        "was_ended": "it means something only while the row is late",
    },
}


def kind_of(name: str) -> Kind:
    if name not in KINDS:
        raise ConfigurationError(f"no kind of row is called {name!r}; they are {', '.join(KINDS)}")
    return KINDS[name]


def missing_rows(kind: Kind, rows: list[Row], existing: list[Row]) -> list[Row]:
    """Return the rows that do not exist yet; refuse one that exists and differs."""
    known = {kind.key_of(row): row for row in existing}
    for row in rows:
        if known.get(kind.key_of(row), row) != row:
            raise conflict(kind, row)
    return [row for row in rows if kind.key_of(row) not in known]


def conflict(kind: Kind, row: Row) -> ConfigurationError:
    named = ", ".join(str(value) for value in kind.key_of(row))[:200]
    return ConfigurationError(
        f"the store that is copied to has another row of {kind.name} under {named}, so it is in use for something "
        "else; copy into an empty store"
    )
