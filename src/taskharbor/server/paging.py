"""Pages of jobs that are bounded in their size, too: a thousand large ones are gigabytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from taskharbor.client.handle import Job
from taskharbor.client.jobs import JobPage

READ_AT_FIRST = 10  # and then twice as many each time, while they turn out to be small
PAGE_BYTES_MAX = 8 * 2**20


async def page_of_jobs(read: Callable[..., Awaitable[JobPage]], query: dict[str, Any]) -> JobPage:
    """What `read` gives for a query, bit by bit, up to its limit; it ends early once there is much of it.

    A bit that is short ends it as well: the store has looked far enough for one request.
    """
    limit, cursor = query["limit"], query["cursor"]
    found: list[Job[Any]] = []
    size, wanted = 0, READ_AT_FIRST
    while True:
        wanted = min(wanted, limit - len(found))
        page = await read(**{**query, "limit": wanted, "cursor": cursor})
        found += page
        size += sum(_size_of(job) for job in page)
        cursor = page.next_cursor
        if cursor is None or len(page) < wanted or len(found) >= limit or size >= PAGE_BYTES_MAX:
            return JobPage(found, cursor)
        wanted *= 2


def _size_of(job: Job[Any]) -> int:
    """About so many bytes: what is not payload or result is small."""
    return len(job.record.payload) + len(job.record.result or "")
