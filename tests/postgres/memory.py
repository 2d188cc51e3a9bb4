"""A worker in a process of its own, whose memory is measured.

`memory.py URL JOBS` drains that number of jobs with results of a megabyte, and prints by how many mebibytes it grew.
"""

from __future__ import annotations

import asyncio
import resource
import sys

from taskharbor import Harbor, Worker

MEGABYTE = 1_000_000


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main(url: str, jobs: int) -> None:
    async with Harbor(url) as harbor:
        await harbor.amigrate()

        @harbor.task
        async def large(n: int) -> str:
            return "".join(chr(97 + (n * k) % 26) for k in range(1_000)) * (MEGABYTE // 1_000)

        handles = await large.aenqueue_many([{"n": n} for n in range(jobs)])
        before = peak()
        await Worker(harbor, concurrency=20).drain()
        print(peak() - before, flush=True)
        assert len(await handles[-1].aresult()) == MEGABYTE


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
