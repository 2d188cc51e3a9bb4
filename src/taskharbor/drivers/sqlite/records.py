"""Records: documents with an optional expiry, by kind and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskharbor.drivers.contract.audit import Action
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.drivers.sqlite import audit
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements

RECORDS = statements("records")


def put(
    session: Session, kind: RecordKind, about: Mapping[str, str], lasts: int | None, action: Action | None
) -> None:
    session.execute(RECORDS["delete_expired"], (kind, session.now))
    expires_at = None if lasts is None else session.now + lasts
    for key, text in about.items():
        session.execute(RECORDS["put"], (kind, key, text, expires_at))
    if action is not None:
        audit.record(session, action, 0)


def read(session: Session, kind: RecordKind) -> list[Record]:
    return [Record(*row) for row in session.execute(RECORDS["read"], (kind, session.now))]


def drop(session: Session, kind: RecordKind, keys: Sequence[str], action: Action | None) -> int:
    dropped = sum(session.execute(RECORDS["drop"], (kind, key)).rowcount for key in set(keys))
    if action is not None and dropped:
        audit.record(session, action, 0)
    return dropped
