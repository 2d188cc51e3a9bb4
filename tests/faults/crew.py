"""What runs in the processes that the fault tests start, stop and kill.

python crew.py work URL FOLDER '{"lease_seconds": 1}'      a worker, until it is told to stop
python crew.py enqueue URL FOLDER '{"batch": 5}'           a producer, until it is killed
python crew.py insist URL FOLDER '{"high": 0.1}'           a producer that repeats what fails, until it is told to stop
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uuid_utils

from taskharbor import Context, Harbor, Worker, current_context
from taskharbor.clock import to_micros
from taskharbor.errors import StoreUnavailable

FOLDER = Path(sys.argv[3] if len(sys.argv) > 3 else ".")


def tell(file: str, text: str) -> None:
    """One line, whole, in the file when this returns, whatever becomes of this process."""
    line = os.open(FOLDER / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(line, f"{text}\n".encode())
        os.fsync(line)
    finally:
        os.close(line)


def read_lines(file: str) -> list[str]:
    return (FOLDER / file).read_text().split("\n")[:-1]


def began(n: int) -> None:
    """A line for this execution, before anything else: see audit.py."""
    job = current_context().job
    tell("executions", f"{n} {job.id} {job.number} {os.getpid()}")


def declare(harbor: Harbor) -> None:
    @harbor.task(name="note")
    async def note(n: int, low: float = 0.0, high: float = 0.0) -> int:
        began(n)
        await asyncio.sleep(random.uniform(low, high))
        return n

    @harbor.task(name="note_sync")
    def note_sync(n: int, seconds: float = 0.0) -> int:
        began(n)
        time.sleep(seconds)
        return n

    @harbor.task(name="until_released")
    async def until_released() -> int:
        """Each process has a file of its own that lets it go on."""
        began(0)
        released = FOLDER / f"release-{os.getpid()}"
        while not released.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.005)
        return os.getpid()

    @harbor.task(name="due")
    async def due(ctx: Context, n: int) -> None:
        """An occurrence of the schedule n: when it was due, and under which number it runs."""
        assert ctx.job.due_at is not None
        tell("occurrences", f"{n} {to_micros(ctx.job.due_at)} {ctx.job.number} {os.getpid()}")
        await asyncio.sleep(random.uniform(0.0, 0.1))  # so that a kill finds some of them under way

    @harbor.task(name="member")
    async def member(n: int) -> int:
        tell("members", str(n))
        await asyncio.sleep(random.uniform(0.0, 0.03))
        return n

    @harbor.task(name="finalizer")
    async def finalizer(numbers: list[int]) -> list[int]:
        tell("finalizers", str(len(read_lines("members"))))
        await asyncio.sleep(0.05)
        return numbers

    @harbor.task(name="link")
    async def link(trail: list[int], n: int) -> list[int]:
        await asyncio.sleep(random.uniform(0.0, 0.03))
        return [*trail, n]

    @harbor.task(name="charge", max_attempts=1)
    async def charge(n: int) -> None:
        """Fail in one of three ways, in words of its own; a file says from which number on the cause is gone."""
        tell("charges", f"{n} {current_context().job.number}")
        await asyncio.sleep(random.uniform(0.0, 0.02))
        fixed = FOLDER / "fixed"
        if fixed.exists() and n >= int(fixed.read_text()):
            return
        given = uuid_utils.uuid4()
        match n % 3:
            case 0:
                raise ValueError(f"order {given} of {n} has no address")
            case 1:
                raise ConnectionError(f"cannot reach https://bank.example/{given}?n={n} within {n / 7:.3f} s")
            case _:
                raise LookupError(f"no file /srv/orders/{given}.json at {time.time()}: 'order {n}'")

    @harbor.task(name="poison")
    async def poison() -> None:
        tell("strikes", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)

    @harbor.on_worker_start
    def ready() -> None:
        tell("workers", str(os.getpid()))


def work(harbor: Harbor, options: dict[str, Any]) -> None:
    Worker(harbor, **options).run_sync()


def enqueue(harbor: Harbor, options: dict[str, Any]) -> None:
    """Every job is acknowledged, in a line of a file, after `enqueue` has returned, and never before."""
    batch = options["batch"]
    note = harbor.tasks["note"]
    while True:
        jobs = [note.enqueue(n=0)] if batch == 1 else note.enqueue_many([{"n": n} for n in range(batch)])
        tell("accepted", " ".join(job.id for job in jobs))


def insist(harbor: Harbor, options: dict[str, Any]) -> None:
    """An enqueue that fails is repeated under the same key, or the same id, until it is acknowledged."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    note = harbor.tasks["note"]
    n = 0
    while not stopped:
        n += 1
        naming: dict[str, Any] = (
            {"id": str(uuid_utils.uuid7())} if n % 2 else {"idempotency_key": f"{os.getpid()}-{n}"}
        )
        named = note.using(**naming)
        job = None
        while job is None:
            try:
                job = named.enqueue(n=n, high=options["high"])
            except StoreUnavailable:
                tell("repeated", str(n))
                time.sleep(0.05)
        tell("accepted", job.id)
        time.sleep(options["pause"])


def set_clock_wrong(seconds: float) -> None:
    """For all of this process: whoever asks for the wall time is told another one."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(seconds * 1e9)


def widen_net(seconds: float) -> None:
    """So that what is found, is found by listening."""
    from taskharbor.drivers.postgres import changes

    changes.NET_SECONDS = seconds


if __name__ == "__main__":
    role, url = sys.argv[1], sys.argv[2]
    given = json.loads(sys.argv[4])
    if "clock_off_by" in given:
        set_clock_wrong(given.pop("clock_off_by"))
    if "net_seconds" in given:
        widen_net(given.pop("net_seconds"))
    with Harbor(url) as store:
        declare(store)
        {"work": work, "enqueue": enqueue, "insist": insist}[role](store, given)
