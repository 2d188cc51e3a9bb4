"""Pages that are bounded in their size, too: a thousand large jobs are gigabytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

READ_AT_ONCE = 50
PAGE_BYTES_MAX = 16 * 2**20

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Page(Protocol[T_co]):
    """A list, and where it goes on."""

    next_cursor: str | None

    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...


async def page_of(
    read: Callable[..., Awaitable[Page[T]]], size_of: Callable[[T], int], query: dict[str, Any]
) -> tuple[list[T], str | None]:
    """What `read` gives for a query, bit by bit, up to its limit; it ends early once there is much of it.

    A bit that is short ends it as well: the store has looked far enough for one request.
    """
    limit, cursor = query["limit"], query["cursor"]
    found: list[T] = []
    size = 0
    while True:
        wanted = min(READ_AT_ONCE, limit - len(found))
        page = await read(**{**query, "limit": wanted, "cursor": cursor})
        found += page
        size += sum(size_of(each) for each in page)
        cursor = page.next_cursor
        if cursor is None or len(page) < wanted or len(found) >= limit or size >= PAGE_BYTES_MAX:
            return found, cursor
