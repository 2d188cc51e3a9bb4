"""`staged`: moves a harbor onto a fresh memory store and clock, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError
from taskharbor.testing.checks import check_harbor
from taskharbor.testing.clock import TestingClock
from taskharbor.testing.drain import Drain, RunInline
from taskharbor.testing.store import FailingStore

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


class Stage:
    """A harbor of one test, its clock and its store, and what runs its jobs."""

    def __init__(self, harbor: Harbor, clock: TestingClock, store: FailingStore) -> None:
        self.harbor = harbor
        self.clock = clock
        self.store = store
        self.drain = Drain(harbor)
        self.run_inline = RunInline(harbor)


_stages: list[Stage] = []


def current_stage() -> Stage | None:
    """Return the innermost stage of this process."""
    return _stages[-1] if _stages else None


@contextmanager
def staged(harbor: Harbor | None = None, clock: TestingClock | None = None) -> Iterator[Stage]:
    """Give this harbor, or a bare one, a memory store and a clock of its own while the block runs.

    For unittest and other runners; with pytest, the fixtures do it.
    """
    from taskharbor.client.harbor import Harbor

    if harbor is not None:
        check_harbor(harbor, "staged()")
    if clock is not None and not isinstance(clock, TestingClock):
        raise ConfigurationError(f"staged() takes a TestingClock as its clock, not {shorten(clock)}")
    clock = clock or TestingClock()
    store = FailingStore(clock)
    bare = harbor is None
    harbor = Harbor(driver=store) if harbor is None else harbor
    before = harbor.driver, harbor.has_url
    harbor._import_included()
    harbor.driver, harbor.has_url = store, False
    stage = Stage(harbor, clock, store)
    _stages.append(stage)
    try:
        yield stage
    finally:
        _stages.remove(stage)
        harbor.events.close()
        if not bare:
            harbor.driver, harbor.has_url = before


def named_harbor(name: str) -> Harbor:
    """Import the harbor that `module:object` names."""
    from taskharbor.client.harbor import Harbor

    module_name, colon, path = name.partition(":")
    if not module_name or not colon or not path:
        raise ConfigurationError(
            f'taskharbor_app in pytest\'s settings takes module:object, such as "shop:harbor", not {name!r}'
        )
    try:
        found: object = import_module(module_name)
    except Exception as error:
        raise ConfigurationError(
            f"taskharbor_app in pytest's settings names {name!r}, and the module {module_name} cannot be imported: "
            f"{type(error).__name__}: {error}. Check the name, and pytest's setting pythonpath"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(
                f"taskharbor_app in pytest's settings names {name!r}, and {module_name} has no {path}; name a Harbor"
            )
        found = getattr(found, part)
    if not isinstance(found, Harbor):
        raise ConfigurationError(
            f"taskharbor_app in pytest's settings names {name!r}, which is a {type(found).__name__}; name a Harbor"
        )
    return found


def clock_from(text: str) -> TestingClock:
    """Make the clock that the setting `taskharbor_clock` asks for."""
    if not text:
        return TestingClock()
    if text == "now":
        return TestingClock(datetime.now(UTC).replace(microsecond=0))
    try:
        return TestingClock(datetime.fromisoformat(text))
    except (ValueError, ConfigurationError):
        raise ConfigurationError(
            f"taskharbor_clock in pytest's settings takes a time in ISO 8601 with its zone, such as "
            f"2026-03-01T09:00:00Z, or now, not {text!r}"
        ) from None
