"""What the fingerprint costs a failing job: `python -m benchmarks.fingerprints [--store memory] [--rounds 9]`.

The same jobs fail twice, with and without the computation: without it, every failure has one and the same fingerprint.
A round is a process of its own that drains equal stores in turn, forwards and backwards; a ratio compares the two
within a round. Actions are of operators: no drain writes to the audit, so there is nothing of it to measure.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import postgres
from benchmarks.processes import end_with_parent
from benchmarks.telemetry import STORES, _url, interval

VARIANTS = ("a constant", "computed")


class OutOfStock(Exception):
    pass


def reserve(number: int) -> None:
    try:
        look_up(number)
    except KeyError as error:
        raise OutOfStock(
            f"order {number} of https://shop.example/orders/{number}?page=2 is in /var/spool/shop/{number:08x}.json, "
            f"and 'item {number}' is out of stock since 2026-01-31T08:00:00Z"
        ) from error


def look_up(number: int) -> None:
    raise KeyError(number)


def drain(store: str, variant: str, jobs: int, scratch: Path) -> float:
    """Return the microseconds of this process's processor for each job, which fails once, then dies."""
    from taskharbor import Harbor, RetryPolicy, Worker
    from taskharbor.rules import fingerprint

    def constant(error: BaseException, text: str) -> str:
        return "0123456789abcdef"

    computed: Callable[[BaseException, str], str] = (
        constant if variant == "a constant" else fingerprint.of_error
    )
    with _url(store, scratch) as url, mock.patch.object(fingerprint, "of_error", computed):
        harbor = Harbor(url)
        harbor.migrate()

        @harbor.task(name="reserve", retry=RetryPolicy(max_attempts=2, initial=0, maximum=0, jitter=None))
        async def task(number: int) -> None:
            reserve(number)

        async def whole() -> float:
            await task.aenqueue_many([{"number": number} for number in range(jobs)])
            worker = Worker(harbor, concurrency=100, metrics=False, rollups=False)
            gc.collect()
            begun = time.process_time()
            await worker.drain()
            used = time.process_time() - begun
            counts = await harbor.jobs.acounts()
            assert counts["dead"] == jobs, counts
            groups = len(await harbor.dlq.agroups())
            assert groups == 1, groups
            await harbor.aclose()
            return used / jobs * 1e6

        return asyncio.run(whole())


def measure(store: str, jobs: int, scratch: Path) -> dict[str, float]:
    import logging

    logging.getLogger("taskharbor").setLevel(
        logging.CRITICAL
    )  # a line for each failure is not what is measured
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    drain(store, VARIANTS[0], jobs // 4, scratch)  # imports, and the processor's own warming up
    for variant in (*VARIANTS, *reversed(VARIANTS)):
        found[variant].append(drain(store, variant, jobs, scratch))
    return {variant: statistics.mean(each) for variant, each in found.items()}


def _round(store: str, jobs: int, scratch: str) -> Any:
    words = [sys.executable, "-m", "benchmarks.fingerprints", "--store", store, "--jobs", str(jobs)]
    done = subprocess.run(
        [*words, "--scratch", scratch],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=end_with_parent,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--scratch", help=argparse.SUPPRESS)  # of one round, in a process of its own
    asked = parser.parse_args()
    if asked.scratch is not None:
        print(json.dumps(measure(asked.store[0], asked.jobs, Path(asked.scratch))))
        return
    for store in asked.store or STORES:
        # The server's own account has to reach its folder, so that one is not in the scratch folder.
        server = (
            postgres.serving(None, Path(tempfile.gettempdir())) if store == "postgresql" else nullcontext()
        )
        with tempfile.TemporaryDirectory() as scratch, server:
            rounds = [_round(store, asked.jobs, scratch) for _ in range(asked.rounds)]
        low, median, high = interval([each["computed"] / each["a constant"] for each in rounds])
        without, with_it = (statistics.median(each[variant] for each in rounds) for variant in VARIANTS)
        print(
            f"{store}: a job that fails twice takes {with_it:.1f} µs of the processor, {without:.1f} with a constant: "
            f"{median:.3f} ({low:.3f} to {high:.3f}) of it",
            flush=True,
        )


if __name__ == "__main__":
    main()
