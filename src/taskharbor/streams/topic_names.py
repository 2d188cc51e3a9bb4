"""Names of topics, as Kafka takes them."""

from __future__ import annotations

import re

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

LENGTH_MAX = 249  # characters
_TAKEN = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Whether Kafka takes this name."""
    return _problem_of(name) is None


def checked_topic(name: object, *, what: str = "a topic") -> str:
    """Return the name of a topic; `ConfigurationError` if Kafka would refuse it. `what` says which topic it is."""
    if not isinstance(name, str):
        raise ConfigurationError(f"the name of {what} is text, not {shorten(name)}")
    problem = _problem_of(name)
    if problem is not None:
        raise ConfigurationError(f"{shorten(name)} cannot be the name of {what}: {problem}")
    return str.__str__(name)


def _problem_of(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > LENGTH_MAX:
        return f"it has {len(name):,} characters, and Kafka takes at most {LENGTH_MAX}"
    if name in (".", ".."):
        return "to Kafka, '.' and '..' are no names; choose another one"
    if not _TAKEN.fullmatch(name):
        return "Kafka takes only the characters a-z, A-Z, 0-9, '.', '_' and '-'"
    return None
