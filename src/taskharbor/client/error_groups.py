"""Dead jobs by cause, and the replay of them, as `harbor.dlq` gives them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from taskharbor.clock import from_micros
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError
from taskharbor.records import GroupRecord, JobFilter


class ErrorGroup(Struct, frozen=True):
    """Dead jobs whose latest attempts failed with the same fingerprint."""

    fingerprint: str
    count: int
    first_seen: datetime  # when the first of these jobs died, and the last
    last_seen: datetime
    tasks: tuple[str, ...]  # at most 20, as are the versions
    versions: tuple[str, ...]  # of the code that they failed in, as far as it is known
    sample_id: str  # the newest of these jobs
    error: str | None  # the sample's, its first 200 characters

    @classmethod
    def of(cls, record: GroupRecord) -> ErrorGroup:
        return cls(
            record.fingerprint,
            record.count,
            from_micros(record.first_seen),
            from_micros(record.last_seen),
            record.tasks,
            record.versions,
            record.sample_id,
            record.error,
        )


def checked_brake(brake: object) -> float:
    """Check the share of a slice that may fail again before a replay stops."""
    if isinstance(brake, bool) or not isinstance(brake, int | float) or not 0 <= brake <= 1:
        raise ConfigurationError(
            f"brake is a share from 0 to 1, such as 0.2 for 20 %, of a slice that may fail again, not {shorten(brake)}"
        )
    return float(brake)


def filter_payload(where: JobFilter) -> dict[str, Any]:
    """Return a filter as the payload of a replay holds it."""
    given = {name: getattr(where, name) for name in where.__struct_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not None
    }
