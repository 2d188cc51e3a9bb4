"""Places that clients share, so that one client cannot take them all."""

from __future__ import annotations

from collections import Counter


class Shares:
    """A bounded number of places, and a smaller one for each client."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._taken: Counter[str] = Counter()

    def is_full(self) -> bool:
        return self._taken.total() >= self.total

    def is_full_for(self, key: str) -> bool:
        """Whether this client already has its share."""
        return self._taken[key] >= self.each

    def has_room_for(self, key: str) -> bool:
        return not (self.is_full() or self.is_full_for(key))

    def take(self, key: str) -> None:
        self._taken[key] += 1

    def give_back(self, key: str) -> None:
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
