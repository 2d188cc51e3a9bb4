"""How long `why` takes beside a million jobs: `python -m benchmarks.why [--jobs N] [--store sqlite|postgres]`.

The store is filled with ready jobs of several queues and priorities. Four workers have signed on and hold jobs, and
roll-ups say how fast they are. Then each kind of job is explained many times, in the process that also reads.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from taskharbor import Harbor
from taskharbor.client.options import new_ids
from taskharbor.drivers.base import Cancel, ClaimRequest, Extension, Transition, WorkerRecord
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.reading import PRESENCE_LASTS
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.records import AttemptStatus, NewJob, State
from taskharbor.rules.rollups import begin_of
from tools import postgres_server

QUEUES = [f"queue-{n}" for n in range(20)]
PRIORITIES = (-5, 0, 5)
AT_ONCE = 50_000
HELD = 64  # jobs that each worker holds
MEMBERS = 1_000
LEASE = 600_000_000


async def fill(harbor: Harbor, jobs: int) -> None:
    for start in range(0, jobs, AT_ONCE):
        ids = new_ids(min(AT_ONCE, jobs - start))
        await harbor.driver.enqueue(
            [
                NewJob(
                    each, "send", '{"to":"a@b.c"}', QUEUES[n % len(QUEUES)], PRIORITIES[n % len(PRIORITIES)]
                )
                for n, each in enumerate(ids)
            ]
        )


async def prepare(harbor: Harbor) -> dict[str, str]:
    """Make a job of each kind; their ids."""
    driver = harbor.driver
    kinds = {}
    for kind, job_options in {
        "the last of the line": {"priority": -100, "queue": QUEUES[3]},
        "the first of the line": {"priority": 100, "queue": QUEUES[3]},
        "not due": {"delay": 86_400, "queue": QUEUES[3]},
        "in a queue without a worker": {"queue": "alone"},
    }.items():
        kinds[kind] = (await harbor.aenqueue("send", **job_options)).id  # type: ignore[arg-type]
    claimed = await driver.claim(ClaimRequest("w0/1", LEASE, HELD, tuple(QUEUES)))
    running = [job.id for job in claimed.jobs if job.id != kinds["the first of the line"]]
    for name in range(1, 4):
        await driver.claim(ClaimRequest(f"w{name}/1", LEASE, HELD, tuple(QUEUES)))
    await driver.extend([Extension("w0/1", LEASE, tuple((each, claimed.now) for each in running[:8]))])
    first = next(job for job in claimed.jobs if job.id == kinds["the first of the line"])
    failed = claimed.jobs[-1]
    put_back = Transition("w0/1", first.id, first.number, AttemptStatus.RELEASED, State.READY, attempts=0)
    retried = Transition(
        "w0/1", failed.id, failed.number, AttemptStatus.FAILED, State.READY, attempts=1, error="no", delay=LEASE
    )  # fmt: skip
    await driver.settle([put_back, retried])
    kinds |= {"running": running[0], "backs off": failed.id}
    members = new_ids(MEMBERS)
    [waiting] = new_ids(1)
    await driver.enqueue([NewJob(each, "part", queue=QUEUES[0]) for each in members])
    await driver.enqueue([NewJob(waiting, "last", depends_on=tuple(members))])
    kinds[f"waits for {MEMBERS:,} jobs"] = waiting
    await driver.operate(Cancel(), members[-1:])
    now = await driver.now()
    workers = [
        WorkerRecord(f"w{n}", "host", 1, 16, 0, tuple(QUEUES), lease=LEASE, tasks=("send", "part"))
        for n in range(4)
    ]
    await WORKERS.put(driver, workers, PRESENCE_LASTS * 100)
    counted = [
        Rollup(begin_of(now, Period.MINUTE), queue, "send", Figures(started=500)) for queue in QUEUES * 6
    ]
    await Rollups.of(driver).append_rollups(counted)
    return kinds


async def measure(url: str, jobs: int, times: int) -> None:
    async with Harbor(url) as harbor:
        await harbor.driver.migrate()
        await fill(harbor, jobs)
        kinds = await prepare(harbor)
        print(f"{url.partition(':')[0]}, {jobs:,} jobs, {times} times each, milliseconds")
        for kind, job_id in kinds.items():
            taken = []
            for _ in range(times):
                begun = time.perf_counter()
                found = await harbor.jobs.awhy(job_id)
                taken.append((time.perf_counter() - begun) * 1_000)
            first, median, slowest = taken[0], statistics.median(taken), max(taken[1:])
            print(
                f"  {kind:<28} first {first:7.2f}  then median {median:7.2f}  slowest {slowest:7.2f}  {found.code}"
            )
    for kind, job_id in kinds.items():
        print(
            f"  {kind:<28} by a new harbor, which connects first: {await by_a_new_harbor(url, job_id):7.2f}"
        )


async def by_a_new_harbor(url: str, job_id: str) -> float:
    """Return the milliseconds of one `why` with all that comes before it in a program that has just begun.

    The very first reader after a bulk insert pays something else: PostgreSQL marks the rows that it meets as committed.
    """
    begun = time.perf_counter()
    async with Harbor(url) as harbor:
        await harbor.jobs.awhy(job_id)
        return (time.perf_counter() - begun) * 1_000


@contextmanager
def store(name: str) -> Iterator[str]:
    if name == "postgres":
        with postgres_server.running({}) as server:
            yield server.dsn()
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/why.db?synchronous=normal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--store", choices=("sqlite", "postgres"), action="append")
    asked = parser.parse_args()
    for name in asked.store or ("sqlite", "postgres"):
        with store(name) as url:
            asyncio.run(measure(url, asked.jobs, asked.times))


if __name__ == "__main__":
    main()
