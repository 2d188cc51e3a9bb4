"""The retry topics: tiers of 1, 2, 4 … 256 seconds, in which a failed message waits.

Every record of a tier waits for the same time, so its topic is in the order in which records are due, and the head of a
partition says when to look again. A longer delay is made of several waits: a record goes to the largest tier that is
not above its remaining delay, again and again.
"""

from __future__ import annotations

from taskharbor.clock import MICROS_PER_SECOND

TIERS = tuple(2**power for power in range(9))


class Tiers:
    """The retry topics of a topic. `unit_seconds` is the wait of the smallest one; tests make it short."""

    def __init__(self, topic: str, unit_seconds: float = 1.0) -> None:
        self.unit = round(unit_seconds * MICROS_PER_SECOND)
        self._tiers = {f"{topic}-retry-{tier}s": tier * self.unit for tier in TIERS}

    @property
    def topics(self) -> list[str]:
        return list(self._tiers)

    def best(self, remaining: int) -> tuple[str, int] | None:
        """Return the largest tier that is not above this delay: its topic and its wait, in microseconds.

        None for a delay that is shorter than every wait.
        """
        fitting = [(topic, wait) for topic, wait in self._tiers.items() if wait <= remaining]
        return fitting[-1] if fitting else None

    @property
    def smallest(self) -> tuple[str, int]:
        return next(iter(self._tiers.items()))
