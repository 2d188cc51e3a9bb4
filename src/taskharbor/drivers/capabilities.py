"""What a store may offer beyond the core: each capability is a small class of its own.

A driver offers a capability by inheriting its class. A caller that needs one asks with `Records.of(driver)`, which
refuses with `MissingCapability` where the store lacks it; a caller that can do without asks with
`Records.offered_by(driver)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.errors import MissingCapability


class Capability(ABC):
    CAPABILITY: ClassVar[str]  # its name in errors
    INSTEAD: ClassVar[str]  # what a user does on a store without it

    @classmethod
    def offered_by(cls, driver: object) -> Self | None:
        """Return the driver as one that offers this capability, or None."""
        return driver if isinstance(driver, cls) else None

    @classmethod
    def of(cls, driver: object) -> Self:
        """Return the driver as one that offers this capability, or raise `MissingCapability`."""
        if isinstance(driver, cls):
            return driver
        raise MissingCapability(
            f"this store ({type(driver).__name__}) has no {cls.CAPABILITY}: {cls.INSTEAD}", cls.CAPABILITY
        )


class Records(Capability):
    """Documents with an optional expiry, by kind and key. No job depends on them."""

    CAPABILITY = "records"
    INSTEAD = (
        "it keeps neither tokens nor the list of workers; use a store that does, or authorize=… for a server"
    )

    @abstractmethod
    async def put_records(
        self, kind: RecordKind, about: Mapping[str, str], lasts: int | None, *, now: int | None = None
    ) -> None:
        """Keep these documents, by key, durably, in place of those that had their keys.

        They expire `lasts` microseconds after the store's now; with None they never do. An expired record may be
        deleted by any later put of its kind.
        """

    @abstractmethod
    async def records(self, kind: RecordKind, *, now: int | None = None) -> list[Record]:
        """Return the records of this kind that have not expired, by key."""

    @abstractmethod
    async def drop_records(self, kind: RecordKind, keys: Sequence[str]) -> int:
        """Delete the records with these keys; return how many there were."""
