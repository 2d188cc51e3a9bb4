"""What JSON would silently change: where a value differs from what comes back for it."""

from __future__ import annotations

import datetime
from typing import Any

from taskharbor.codec.problems import at, children, has_fields, problem_in
from taskharbor.codec.text import counted, shorten
from taskharbor.errors import PayloadError


def ensure_unchanged(given: Any, decoded: Any, what: str) -> None:
    """Refuse what JSON changed: `decoded` is what came back for `given`."""
    if equal(given, decoded):
        return
    # Unequal values may still be unchanged: a class without __eq__, a datetime in an hour that its zone repeats.
    found = problem_in(given) or change(given, decoded, "")
    if found:
        raise PayloadError(f"{what} cannot be stored as JSON: {found}")


def change(given: Any, decoded: Any, path: str) -> str | None:
    """Say where a value differs from its decoded form, or return None."""
    if given is decoded or equal(given, decoded):
        return None
    if _same_instant(given, decoded):
        return None
    if isinstance(given, dict) and isinstance(decoded, dict):
        for key in given:
            if key not in decoded:
                return at(path, _lost_key(key))
    elif has_fields(given) and type(given) is type(decoded):
        pass
    elif not any(isinstance(given, kind) and isinstance(decoded, kind) for kind in (list, tuple)):
        return at(
            path,
            f"{shorten(given)} ({type(given).__qualname__}) "
            f"would come back as {shorten(decoded)} ({type(decoded).__qualname__}); "
            "pass it in that form, or annotate the parameter with the type you mean",
        )
    ours, theirs = list(children(given)), list(children(decoded))
    if len(ours) != len(theirs):
        return at(path, f"{counted(len(ours), 'member')} would come back as {len(theirs)}")
    if isinstance(given, dict):
        theirs = [(step, decoded[key]) for key, (step, _) in zip(given, ours, strict=True)]
    for (step, mine), (_, yours) in zip(ours, theirs, strict=True):
        if found := change(mine, yours, path + step):
            return found
    return None


def _lost_key(key: object) -> str:
    if isinstance(key, str):
        return f"the key {shorten(key)} would be lost; the annotation does not know it"
    return (
        f"the key {shorten(key)} ({type(key).__qualname__}) would come back as text: in JSON every key is; "
        "use text keys, or annotate the parameter with the type of its keys"
    )


def _same_instant(given: object, decoded: object) -> bool:
    # Python calls a datetime in a repeated or skipped hour unequal to the same instant in another zone.
    return (
        isinstance(given, datetime.datetime)
        and isinstance(decoded, datetime.datetime)
        and given.tzinfo is not None
        and decoded.tzinfo is not None
        and given.astimezone(datetime.UTC) == decoded.astimezone(datetime.UTC)
    )


def equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - whatever a class's __eq__ raises, it did not say that they are equal
        return False
