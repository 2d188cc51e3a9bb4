"""A sorted sequence that is used as a queue: filled mostly at its end, emptied mostly at its front."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", tuple[int, str], str)

_COMPACT_AT = 512


class Order(Generic[K]):
    """Distinct keys in ascending order.

    The keys before `_head` have been taken. They are left there until there are many of them, so that
    taking from the front does not move the whole list, and so that a key which belongs at the front (a
    job handed back) finds room there.

    Do not change an order while one of its iterators is in use.
    """

    __slots__ = ("_head", "_keys")

    def __init__(self) -> None:
        self._keys: list[K] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._keys) - self._head

    def add(self, key: K) -> None:
        keys, head = self._keys, self._head
        if not keys or keys[-1] < key:
            keys.append(key)
            return
        at = bisect_left(keys, key, head)
        if at == head > 0:
            self._head -= 1
            keys[self._head] = key
        else:
            keys.insert(at, key)

    def remove(self, key: K) -> None:
        keys, head = self._keys, self._head
        at = head if keys[head] == key else bisect_left(keys, key, head)
        assert keys[at] == key, "removed what is not there"
        if at != head:
            del keys[at]
            return
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(keys):
            del keys[: self._head]
            self._head = 0

    def count_before(self, bound: K) -> int:
        return bisect_left(self._keys, bound, self._head) - self._head

    def first(self) -> K | None:
        return self._keys[self._head] if self else None

    def first_from(self, bound: K) -> K | None:
        """The first key that is not before `bound`."""
        at = bisect_left(self._keys, bound, self._head)
        return self._keys[at] if at < len(self._keys) else None

    def before(self, bound: K) -> Iterator[K]:
        """The keys before `bound`, ascending."""
        return islice(self._keys, self._head, bisect_left(self._keys, bound, self._head))

    def since(self, bound: K) -> Iterator[K]:
        """The keys from `bound` on, ascending."""
        return islice(self._keys, bisect_left(self._keys, bound, self._head), None)

    def descending(self, below: K | None = None) -> Iterator[K]:
        """All the keys, or those before `below`, the greatest first."""
        end = len(self._keys) if below is None else bisect_left(self._keys, below, self._head)
        return (self._keys[at] for at in range(end - 1, self._head - 1, -1))
