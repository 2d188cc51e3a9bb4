"""Drivers that offer the core, and only some capabilities: the memory driver with the others hidden."""

from __future__ import annotations

from typing import Any

from taskharbor.clock import Clock
from taskharbor.drivers.base import Driver
from taskharbor.drivers.capabilities import Capability
from taskharbor.drivers.memory import MemoryDriver


def offering(*capabilities: type[Capability]) -> type[Any]:
    """A driver class that offers the core and these capabilities."""
    verbs = Driver.__abstractmethods__.union(*(each.__abstractmethods__ for each in capabilities))

    def begin(self: Any, clock: Clock | None = None) -> None:
        self.memory = MemoryDriver(clock)
        self.clock = self.memory.clock

    members = {"__init__": begin, "inline": True, **{verb: _forwarded(verb) for verb in verbs}}
    return type("CoreDriver", (Driver, *capabilities), members)


def _forwarded(verb: str) -> Any:
    def forward(self: Any, *args: Any, **more: Any) -> Any:
        return getattr(self.memory, verb)(*args, **more)

    return forward
