"""What runs in the processes that the fault tests start, stop and kill.

python crew.py work URL FOLDER '{"lease_seconds": 1}'      a worker, until it is told to stop
python crew.py enqueue URL FOLDER '{"batch": 5}'           a producer, until it is killed
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

from taskharbor import Harbor, Worker

FOLDER = Path(sys.argv[3] if len(sys.argv) > 3 else ".")


def tell(file: str, text: str) -> None:
    """One line, whole, in the file when this returns, whatever becomes of this process."""
    line = os.open(FOLDER / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(line, f"{text}\n".encode())
    finally:
        os.close(line)


def declare(harbor: Harbor) -> None:
    @harbor.task(name="note")
    async def note(n: int, low: float = 0.0, high: float = 0.0) -> int:
        tell("executions", f"{n} {os.getpid()}")
        await asyncio.sleep(random.uniform(low, high))
        return n

    @harbor.task(name="note_sync")
    def note_sync(n: int, seconds: float = 0.0) -> int:
        tell("executions", f"{n} {os.getpid()}")
        time.sleep(seconds)
        return n

    @harbor.task(name="until_released")
    async def until_released() -> int:
        """Each process has a file of its own that lets it go on."""
        tell("executions", f"0 {os.getpid()}")
        released = FOLDER / f"release-{os.getpid()}"
        while not released.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.005)
        return os.getpid()

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


if __name__ == "__main__":
    role, url = sys.argv[1], sys.argv[2]
    with Harbor(url) as store:
        declare(store)
        {"work": work, "enqueue": enqueue}[role](store, json.loads(sys.argv[4]))
