"""Pages: how long each page and each filter of the dashboard takes, on a store of a million jobs, 100,000 of them dead.

python -m benchmarks.pages [--rows 1000000] [--dead 100000] [--store sqlite] [--store postgresql]
                          [--repeats 40] [--only TEXT] [--url URL] [--ready 100000]

`--url` names a store of your own, which is filled if it holds no job and is left as it is otherwise: fill it once and
measure it often, for example with `--only` a part of the pages.

Each page is asked for as a browser asks: through the ASGI application, as a whole page and not as a live update. The
first load is that of a server that has read nothing yet. The exit code is 1 if the first load or the 95th percentile of
a page is above the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import NamedTuple

import httpx

from benchmarks.searching import fill, sample_workflow
from taskharbor import Harbor
from taskharbor.records import JobFilter, State
from taskharbor.server.app import application
from tools.postgres_server import running

BAR_MS = 150.0
GROUP = f"{13:016x}"


class Timing(NamedTuple):
    """Milliseconds for one page: the first load of a new server, the median and the 95th percentile of the others."""

    label: str
    first: float
    median: float
    high: float

    @property
    def is_slow(self) -> bool:
        return max(self.first, self.high) > BAR_MS

    def line(self) -> str:
        mark = "  above the bar" if self.is_slow else ""
        return f"{self.label:<44} {self.first:8.1f} {self.median:8.1f} {self.high:8.1f}{mark}"


def addresses(job: str, dead: str, workflow: str) -> dict[str, str]:
    """Return each page and each filter by what the report calls it."""
    searches = {
        "everything": "",
        **{f"state {state}": f"state:{state}" for state in State},
        "queue": "queue:queue-3",
        "queue, rare": "queue:rare",
        "task": "task:task-7",
        "task, rare": "task:rare",
        "tag": "tag:nightly",
        "correlation": "correlation:order-7",
        "correlation, rare": "correlation:rare",
        "workflow": f"workflow:{workflow}",
        "error group": f"group:{GROUP}",
        "error": 'error:"service 13"',
        "error, none": 'error:"no such text"',
        "error, dead": 'state:dead error:"service 13"',
        "error, dead, none": 'state:dead error:"no such text"',
        "payload": "payload.number:999000",
        "payload, none": "payload.number:-1",
        "payload, dead, none": "state:dead payload.number:-1",
        "task, dead": "state:dead task:task-7",
        "queue, ready": "state:ready queue:queue-3",
    }
    found = {
        "overview": "/",
        "overview, a week": "/?window=7d",
        "queues": "/queues",
        "one queue": "/queues/queue-3",
        "job, ready": f"/jobs/{job}",
        "job, dead": f"/jobs/{dead}",
        "job, edit": f"/jobs/{dead}/edit",
        "errors": "/errors",
        "one error group": f"/errors/{GROUP}",
        "schedules": "/schedules",
        "workflows": "/workflows",
        "one workflow": f"/workflows/{workflow}",
        "workers": "/workers",
        "streams": "/streams",
        "enqueue": "/enqueue",
        "system": "/system",
        "help": "/help",
        "requeue all dead of a group, the count": f"/jobs/bulk?verb=requeue&q=group:{GROUP}",
        "cancel all of a queue, the count": "/jobs/bulk?verb=cancel&q=queue:queue-3",
        "jobs by id": f"/jobs?q=id:{job}",
    }
    for label, typed in searches.items():
        found[f"jobs by {label}"] = str(httpx.URL("/jobs", params={"q": typed}))
    return found


async def timed(client: httpx.AsyncClient, label: str, address: str, repeats: int) -> Timing:
    spent = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        answer = await client.get(address)
        spent.append((time.perf_counter() - began) * 1_000)
        if answer.status_code not in (200, 303):
            raise RuntimeError(f"{address} answers {answer.status_code}: {answer.text[:500]}")
    return Timing(label, spent[0], statistics.median(spent[1:]), statistics.quantiles(spent[1:], n=20)[-1])


def visitor(harbor: Harbor) -> httpx.AsyncClient:
    """Return a browser on the machine of a new server."""
    transport = httpx.ASGITransport(application(harbor, open_on_loopback=True), client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)


async def until_idle() -> None:
    """Wait for what the server still reads beside its pages, such as depths: it would disturb the next page."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=60)


async def compile_templates(asked: dict[str, str]) -> None:
    """Show every page once from an empty store: a process compiles its templates once."""
    async with Harbor("memory://") as empty, visitor(empty) as client:
        for address in asked.values():
            await client.get(address)


async def measure(store: str, url: str, asked: argparse.Namespace) -> list[Timing]:
    """Fill a store, ask for every page, print a line for each, and return them."""
    async with Harbor(url) as harbor:
        await harbor.driver.migrate()
        began = time.perf_counter()
        if not (await harbor.driver.list(JobFilter(), limit=1)).jobs:
            await fill(harbor.driver, asked.rows, asked.dead, asked.ready)
        workflow = await sample_workflow(harbor)
        print(f"\n{store}: {asked.rows:,} jobs, filled in {time.perf_counter() - began:.0f} s")
        print(f"{'page':<44} {'first ms':>8} {'p50 ms':>8} {'p95 ms':>8}", flush=True)
        ready = (await harbor.driver.list(JobFilter(state=State.READY), limit=1)).jobs[0].id
        died = (await harbor.driver.list(JobFilter(state=State.DEAD), limit=1)).jobs[0].id
        pages = addresses(ready, died, workflow)
        await compile_templates(pages)
        timings = []
        for label, address in pages.items():
            if asked.only not in label:
                continue
            async with visitor(harbor) as client:
                timings.append(await timed(client, label, address, asked.repeats))
                await until_idle()
            print(timings[-1].line(), flush=True)
    slow = [timing.label for timing in timings if timing.is_slow]
    print(
        f"{len(timings) - len(slow)} of {len(timings)} are within {BAR_MS:.0f} ms at p95 and at the first load"
    )
    return timings


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--store", action="append", choices=("sqlite", "postgresql"))
    parser.add_argument("--ready", type=int, help="how many jobs stay ready; a tenth unless given")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--only", default="", help="just the pages whose names contain this")
    parser.add_argument("--url", help="a store to use and to keep, filled if it is empty")
    asked = parser.parse_args()
    timings: list[Timing] = []
    if asked.url is not None:
        store = asked.url.partition(":")[0]
        timings = asyncio.run(measure(store, asked.url, asked))
        return int(any(timing.is_slow for timing in timings))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for store in asked.store or ("sqlite", "postgresql"):
            url = f"sqlite:///{folder}/pages.db"
            if store == "postgresql":
                url = stack.enter_context(running()).dsn()
            timings += asyncio.run(measure(store, url, asked))
    return int(any(timing.is_slow for timing in timings))


if __name__ == "__main__":
    sys.exit(main())
