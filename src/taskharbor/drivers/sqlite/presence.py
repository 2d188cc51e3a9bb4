"""Who is there: workers as they have told the store, for onlookers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements

PRESENCE = statements("presence")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerRecord).decode


def sign_on(session: Session, workers: Sequence[WorkerRecord], lasts: int) -> None:
    session.execute(PRESENCE["forget_expired"], (session.now,))
    for worker in workers:
        session.execute(PRESENCE["sign_on"], (worker.name, _encode(worker).decode(), session.now + lasts))


def sign_off(session: Session, names: Sequence[str]) -> None:
    for name in names:
        session.execute(PRESENCE["sign_off"], (name,))


def workers(session: Session) -> list[WorkerRecord]:
    rows = session.execute(PRESENCE["workers"], (session.now,)).fetchall()
    return [replace(_decode(about), expires_at=expires_at) for about, expires_at in rows]
