"""A long job says how far it is, and ends when somebody cancels it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import Context, Harbor, JobCancelled, State, Worker


async def main(harbor: Harbor) -> None:
    halfway = asyncio.Event()
    cleaned_up = asyncio.Event()

    @harbor.task(name="report", timeout=60)
    async def report(ctx: Context, pages: int) -> int:
        try:
            for page in range(pages):
                ctx.progress((page + 1) / pages, f"page {page + 1} of {pages}")
                if page + 1 == pages // 2:
                    halfway.set()
                    await asyncio.sleep(3600)  # a page that takes its time
            return pages
        finally:
            cleaned_up.set()  # a cancelled handler cleans up as any coroutine does

    # The request reaches the worker with its heartbeat, three times in a lease.
    async with Worker(harbor, lease_seconds=1):
        job = await report.aenqueue(pages=10)
        await halfway.wait()
        running = await job.arefresh()
        while running.progress is None:  # it is stored a moment later
            await asyncio.sleep(0.01)
            running = await job.arefresh()
        assert running.state is State.RUNNING
        print(f"{running.progress.fraction:.0%}: {running.progress.message}")
        assert running.progress.fraction == 0.5

        asked = await harbor.jobs.acancel(job.id)
        assert asked.cancel_requested
        try:
            await job.aresult(timeout=10)
        except JobCancelled:
            print("cancelled")
        await asyncio.wait_for(cleaned_up.wait(), 10)

    [attempt] = await job.ahistory()
    assert attempt.status == "cancelled"
    assert (await job.arefresh()).state is State.CANCELLED


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Harbor(f"sqlite:///{Path(folder) / 'harbor.db'}") as harbor:
        asyncio.run(main(harbor))
