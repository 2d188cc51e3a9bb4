"""Records: small documents that a store keeps beside the jobs, by kind and key, some of them with an expiry."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class RecordKind(StrEnum):
    WORKERS = "workers"  # the workers that are alive
    TOKENS = "tokens"  # digests of the REST interface's tokens
    SESSIONS = "sessions"  # digests of the dashboard's sessions


class Record(Struct, frozen=True):
    key: str  # of its kind
    about: str  # JSON; `taskharbor.drivers.typed_records` reads and writes it
    expires_at: int | None = None  # the record exists until then; None: until it is dropped
