"""Failures: retried with growing delays, then kept in the dead-letter queue, then requeued by a person."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import Harbor, JobFailed, RetryPolicy, Unrecoverable, Worker

QUICK = RetryPolicy(max_attempts=3, initial=0.02, maximum=0.1, jitter=None, never_retry_on=["404"])


async def main(harbor: Harbor) -> None:
    server = {"is up": False}

    @harbor.task(name="fetch", retry=QUICK)
    async def fetch(url: str) -> str:
        if url.startswith("ftp:"):
            raise Unrecoverable("we speak no FTP")  # the dead-letter queue at once
        if url.endswith("/missing"):
            raise LookupError("404 not found")  # the policy classifies it: no retry either
        if not server["is up"]:
            raise ConnectionError("connection refused")
        return f"body of {url}"

    async with Worker(harbor):
        flaky = await fetch.aenqueue("https://example.org/")
        hopeless = await fetch.aenqueue("ftp://example.org/")
        missing = await fetch.aenqueue("https://example.org/missing")
        for job, reason in ((flaky, "exhausted"), (hopeless, "unrecoverable"), (missing, "not_retryable")):
            try:
                await job.aresult(timeout=10)
            except JobFailed as error:
                print(f"{job.payload['url']}: {error.error}")
            assert (await job.arefresh()).reason == reason

        history = await flaky.ahistory()  # newest first
        assert [attempt.status for attempt in history] == ["failed"] * 3
        assert [attempt.retry_count for attempt in history] == [2, 1, 0]

        # The cause is fixed: begin a new run. The old attempts stay in the history.
        server["is up"] = True
        assert len(await harbor.dlq.alist()) == 3
        await harbor.dlq.arequeue(flaky.id)
        await harbor.dlq.adiscard(hopeless.id)
        print(await flaky.aresult(timeout=10))
        assert [attempt.number for attempt in await flaky.ahistory()] == [4, 3, 2, 1]


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Harbor(f"sqlite:///{Path(folder) / 'harbor.db'}") as harbor:
        asyncio.run(main(harbor))
