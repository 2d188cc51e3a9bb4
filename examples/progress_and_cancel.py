"""A long job says how far it is, stops when an operator cancels it, and goes to another worker at a shutdown."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import Context, Harbor, JobCancelled, State, Worker


async def main(harbor: Harbor) -> None:
    go_on = threading.Event()

    @harbor.task(name="report", timeout=60)
    def report(ctx: Context, pages: int) -> int:
        for page in range(pages):
            ctx.progress(page / pages, f"page {page + 1} of {pages}")
            while page == pages // 2 and not go_on.wait(0.01):  # a page that takes its time
                ctx.raise_if_stopped()  # `finally` blocks run; to return here would be a success
        return pages

    async def halfway() -> str:
        job = await report.aenqueue(pages=10)
        while job.progress is None or job.progress.fraction < 0.5:
            await asyncio.sleep(0.01)
            job = await job.arefresh()
        print(f"{job.progress.fraction:.0%}: {job.progress.message}")
        return job.id

    # The request reaches the worker with its heartbeat, three times in a lease.
    async with Worker(harbor, lease_seconds=1):
        job = await harbor.jobs.acancel(await halfway())
        assert job.cancel_requested
        try:
            await job.aresult(timeout=10)
        except JobCancelled:
            print("cancelled")
        [attempt] = await job.ahistory()
        assert attempt.status == "cancelled"

        second = await halfway()  # in the middle of it, the end of this block shuts the worker down
    released = await harbor.jobs.aget(second)
    assert (released.state, released.attempts) == (State.READY, 0)
    print("released, and nothing is counted")

    go_on.set()
    await Worker(harbor).drain()
    assert await released.aresult() == 10
    print("finished by another worker:", [str(attempt.status) for attempt in await released.ahistory()])


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Harbor(f"sqlite:///{Path(folder) / 'harbor.db'}") as harbor:
        asyncio.run(main(harbor))
