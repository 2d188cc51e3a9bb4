"""An allowance: how much of something may still be done, refilled as time passes."""

from __future__ import annotations

import time


class Allowance:
    """At most `at_once` together, and `each_second` in the long run."""

    def __init__(self, at_once: float, each_second: float) -> None:
        self._at_once = at_once
        self._each_second = each_second
        self._left = at_once
        self._counted_at = time.monotonic()

    def is_left(self) -> bool:
        """Whether anything may be done now. A caller that is let in may spend more than there is, and leave a debt."""
        now = time.monotonic()
        grown = (now - self._counted_at) * self._each_second
        self._left, self._counted_at = min(self._at_once, self._left + grown), now
        return self._left > 0

    def refill(self) -> None:
        self._left = self._at_once

    def spend(self, number: float) -> None:
        self._left -= number
