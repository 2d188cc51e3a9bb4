"""Who is there: workers as they have told the store, for onlookers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.postgres.connections import Session

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerRecord).decode


async def sign_on(session: Session, workers: Sequence[WorkerRecord], lasts: int) -> None:
    told = {worker.name: _encode(worker).decode() for worker in workers}
    await session.do("sign_on", list(told), list(told.values()), lasts, session.given_now)


async def workers(session: Session) -> list[WorkerRecord]:
    rows = await session.rows("workers", session.given_now)
    return [replace(_decode(row["about"]), expires_at=row["expires_at"]) for row in rows]
