"""What is recorded of an action: its filter, and what was asked for, without values that belong to a payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from taskharbor.acting import current_actor
from taskharbor.client.options import new_id
from taskharbor.clock import from_micros
from taskharbor.drivers.base import Action, Operation, Requeue, Update, Verb
from taskharbor.records import JobFilter

IDS_MAX = 100  # ids that a filter names; every job that was changed knows the action anyway
HIDDEN = "***"

# Fields of an update whose new values are recorded. They say when, where and how often a job runs, and nothing of what
# it carries. Of any other field only the name is recorded.
SHOWN = frozenset(
    {
        "priority",
        "run_at",
        "expires_at",
        "max_attempts",
        "timeout",
        "retry",
        "queue",
        "task",
        "delivery",
        "due_at",
    }
)
_INSTANTS = frozenset({"run_at", "expires_at", "due_at"})
_CONDITIONS = frozenset({"at_due", "while_running", "version", "seen"})  # of an update: not what it changes

_encode = msgspec.json.Encoder().encode


def new_action(
    verb: Verb,
    *,
    job_id: str | None = None,
    subject: str | None = None,
    where: JobFilter | None = None,
    ids: Sequence[str] = (),
    details: Mapping[str, Any] | None = None,
) -> Action:
    """Begin an action of the current actor. Give all parts of a bulk action the same one."""
    if len(ids) == 1:
        [job_id] = ids
    return Action(
        new_id(),
        str(verb),
        current_actor(),
        job_id,
        subject,
        filter_text(where, ids),
        as_json(details or None),
    )


def filter_text(where: JobFilter | None, ids: Sequence[str] = ()) -> str | None:
    """Return what selected the jobs of a bulk action: the parts of the filter that are set, and the ids if several."""
    if where is None and len(ids) < 2:
        return None
    parts: dict[str, Any] = {}
    for name in () if where is None else where.__struct_fields__:
        value = getattr(where, name)
        if value is not None:
            parts[name] = _instant(value) if name.endswith(("_after", "_before")) else value
    if "payload" in parts:
        parts["payload"] = dict.fromkeys(parts["payload"], HIDDEN)
    if "ids" in parts:
        parts["ids"] = parts["ids"][:IDS_MAX]
    if len(ids) > 1:
        parts["ids"] = list(ids[:IDS_MAX])
    return as_json(parts)


def details_of(operation: Operation) -> dict[str, Any]:
    """Return what an operation asks for, for the audit."""
    match operation:
        case Update():
            changed = [name for name in operation.__struct_fields__ if name not in _CONDITIONS]
            return changes_of({name: getattr(operation, name) for name in changed})
        case Requeue(run_at=run_at, reset_attempts=reset):
            asked = {} if run_at is None else changes_of({"run_at": run_at})
            return asked if reset else asked | {"reset_attempts": False}
        case _:
            return {}


def changes_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that change, each with its new value where that is harmless, else hidden."""
    return {
        name: (_instant(value) if name in _INSTANTS else value) if name in SHOWN else HIDDEN
        for name, value in changes.items()
        if value is not UNSET
    }


def as_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else _encode(value).decode()


def _instant(micros: int | None) -> str | None:
    return None if micros is None else from_micros(micros).isoformat()
