"""litequeue: a SQLite queue without a worker, so the worker is a bare loop of pop and done."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litequeue

from benchmarks.contestant import Contestant, Durability, Started, check_all_ran, run_in_threads
from benchmarks.contestants._sqlite import durability_of

NOOP = json.dumps({"task": "noop", "args": []})


class LiteQueue(Contestant):
    name = "litequeue"
    store = "sqlite"
    durability = Durability.NORMAL
    durability_note = (
        "WAL, synchronous=NORMAL (its own setting); bare loop; "
        "a kill -9 leaves the running job locked until a caller calls retry, finished jobs are kept"
    )
    distribution = "litequeue"
    own_worker = False

    def setup(self, directory: Path) -> None:
        self.queue: Any = litequeue.LiteQueue(directory / "lite.db", timeout=30)

    def close(self) -> None:
        self.queue.close()

    def observed_durability(self) -> Durability:
        return durability_of(self.queue.conn)

    def enqueue(self) -> None:
        self.queue.put(NOOP)

    def enqueue_concurrent(self, count: int, callers: int) -> float:
        # Its one connection is used by all threads, and the library has no lock of its own around it.
        lock = threading.Lock()

        def enqueue() -> None:
            with lock:
                self.queue.put(NOOP)

        return run_in_threads(enqueue, count, callers)

    def enqueue_bulk(self, count: int) -> float:
        begun = time.perf_counter()
        with self.queue.transaction():
            for _ in range(count):
                self.queue.put(NOOP)
        return time.perf_counter() - begun

    def drain(self, count: int) -> float:
        ran = 0
        begun = time.perf_counter()
        while self.step(noop):
            ran += 1
        seconds = time.perf_counter() - begun
        check_all_ran(ran, count)
        return seconds

    def step(self, handler: Callable[..., None]) -> bool:
        """Run one job; False when there is none."""
        message = self.queue.pop()
        if message is None:
            return False
        handler(*json.loads(message.data)["args"])
        self.queue.done(message.message_id)
        return True

    def probe(self, number: int) -> None:
        self.queue.put(json.dumps({"task": "probe", "args": [number]}))

    def serve(self, started: Started) -> None:
        while True:
            if not self.step(started):
                time.sleep(self.poll_seconds)


class LiteQueueFull(LiteQueue):
    name = "litequeue (FULL)"
    durability = Durability.FULL
    durability_note = "as litequeue, with synchronous=FULL set on its connection: durability equal to ours"

    def setup(self, directory: Path) -> None:
        super().setup(directory)
        self.queue.conn.execute("PRAGMA synchronous=FULL")


def noop() -> None:
    return None


CONTESTANTS = [LiteQueue, LiteQueueFull]
