"""Holds: tasks and tags whose jobs no worker begins for now."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

LABELS_MAX = 200  # places aside that one claim's answer names


class HoldKind(StrEnum):
    TASK = "task"
    TAG = "tag"


class HoldRecord(Struct, frozen=True):
    """A hold, with the time since when it is in force and who asked for it, if that is known."""

    kind: HoldKind
    name: str  # of the task or the tag
    since: int
    by: str | None = None
