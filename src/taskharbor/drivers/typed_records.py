"""The records of each kind as values of their own type. Nothing else encodes or decodes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.capabilities import Audit, Records
from taskharbor.drivers.contract.audit import Action
from taskharbor.drivers.contract.reading import WorkerRecord
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.records import SessionRecord, TokenRecord

R = TypeVar("R", bound=msgspec.Struct)


class RecordsOf(Generic[R]):
    """All records of one kind. Each method takes the store's driver, which must offer records."""

    def __init__(self, kind: RecordKind, model: type[R], key: str, order: Callable[[R], Any]) -> None:
        self._kind = kind
        self._key = attrgetter(key)
        self._order = order
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(model).decode

    async def put(
        self,
        driver: object,
        records: Iterable[R],
        lasts: int | None = None,
        action: Action | None = None,
    ) -> None:
        """Keep these, for `lasts` microseconds, or until they are dropped, recorded where the store has an audit."""
        about = {self._key(record): self._encode(record).decode() for record in records}
        store = Records.of(driver)
        if action is None or Audit.offered_by(driver) is None:
            await store.put_records(self._kind, about, lasts)
        else:
            await store.put_records(self._kind, about, lasts, action=action)

    async def all(self, driver: object) -> list[R]:
        """Return those that have not expired, in their order."""
        found = []
        for record in await Records.of(driver).records(self._kind):
            value = self._decode(record.about)
            found.append(value if record.expires_at is None else replace(value, expires_at=record.expires_at))
        return sorted(found, key=self._order)

    async def drop(self, driver: object, keys: Sequence[str], action: Action | None = None) -> int:
        """Delete those with these keys, recorded where the store has an audit; return how many there were."""
        store = Records.of(driver)
        if action is None or Audit.offered_by(driver) is None:
            return await store.drop_records(self._kind, keys)
        return await store.drop_records(self._kind, keys, action=action)


WORKERS = RecordsOf(RecordKind.WORKERS, WorkerRecord, "name", attrgetter("name"))
# The store does not let a token expire. The server decides that, and a store that forgot its last token would look
# like one that never had any, which a server on this machine opens to every caller.
TOKENS = RecordsOf(RecordKind.TOKENS, TokenRecord, "id", attrgetter("created_at", "id"))
SESSIONS = RecordsOf(RecordKind.SESSIONS, SessionRecord, "digest", attrgetter("created_at", "digest"))
