"""Pages of jobs with a bounded size in bytes: a thousand large jobs are gigabytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from taskharbor.client.handle import Job
from taskharbor.client.jobs import JobPage

READ_AT_FIRST = 10  # then twice as many each time, while the jobs are small
EXAMINED_MAX = 50_000  # jobs that were looked at: then the next part is left to the next request
PAGE_BYTES_MAX = 8 * 2**20


async def page_of_jobs(read: Callable[..., Awaitable[JobPage]], query: dict[str, Any]) -> JobPage:
    """Read a page in growing parts, up to the query's limit or until it is large.

    A short part ends the page as well: the store has searched far enough for one request.
    """
    limit, cursor = query["limit"], query["cursor"]
    found: list[Job[Any]] = []
    size, examined, wanted = 0, 0, READ_AT_FIRST
    while True:
        wanted = min(wanted, limit - len(found))
        page = await read(**{**query, "limit": wanted, "cursor": cursor})
        found += page
        size += sum(_size_of(job) for job in page)
        cursor, examined = page.next_cursor, examined + page.examined
        is_whole = cursor is None or len(page) < wanted or len(found) >= limit
        if is_whole or size >= PAGE_BYTES_MAX or examined >= EXAMINED_MAX:
            return JobPage(found, cursor, examined=examined, reached=page.reached)
        wanted *= 2


def _size_of(job: Job[Any]) -> int:
    """Estimate the bytes of a job: everything but payload and result is small."""
    return len(job.record.payload) + len(job.record.result or "")
