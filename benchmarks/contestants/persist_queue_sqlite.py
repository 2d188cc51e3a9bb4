"""persist-queue: SQLite queues without a worker, so the worker is the bare loop of its documentation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import persistqueue

from benchmarks.contestant import Contestant, Durability, Started, check_all_ran
from benchmarks.contestants._sqlite import durability_of

NOOP = {"task": "noop", "args": []}
TASK_DONE_EVERY = 100


class PersistQueue(Contestant):
    name = "persist-queue"
    store = "sqlite"
    durability = Durability.FULL
    durability_note = (
        "WAL, synchronous left at SQLite's default (FULL); SQLiteQueue, bare loop; "
        "kill -9 loses the running job, finished jobs are deleted"
    )
    distribution = "persist-queue"
    own_worker = False

    def setup(self, directory: Path) -> None:
        self.queue: Any = self.open(str(directory))

    def open(self, path: str) -> Any:
        return persistqueue.SQLiteQueue(path, auto_commit=True, multithreading=True)

    def close(self) -> None:
        self.queue.close()

    def observed_durability(self) -> Durability:
        return durability_of(self.queue._putter)

    def enqueue(self) -> None:
        self.queue.put(NOOP)

    def drain(self, count: int) -> float:
        ran = 0
        begun = time.perf_counter()
        while self.step(noop):
            ran += 1
        seconds = time.perf_counter() - begun
        check_all_ran(ran, count)
        return seconds

    def step(self, handler: Any) -> bool:
        """Run one job; False when there is none."""
        try:
            item = self.queue.get(block=False)
        except persistqueue.Empty:
            return False
        handler(*item["args"])
        return True

    def probe(self, number: int) -> None:
        self.queue.put({"task": "probe", "args": [number]})

    def serve(self, started: Started) -> None:
        # A blocking get waits for an event of its own process, so across processes there is only polling.
        while True:
            if not self.step(started):
                time.sleep(self.poll_seconds)


class PersistQueueTaskDone(PersistQueue):
    name = "persist-queue (task_done)"
    durability_note = (
        f"WAL, FULL; SQLiteQueue(auto_commit=False), task_done for each {TASK_DONE_EVERY} jobs, "
        "one consumer only; kill -9 reruns them after a restart, finished jobs are deleted"
    )

    def open(self, path: str) -> Any:
        self.since_done = 0
        return persistqueue.SQLiteQueue(path, auto_commit=False, multithreading=True)

    def step(self, handler: Any) -> bool:
        more = super().step(handler)
        self.since_done += more
        if self.since_done >= TASK_DONE_EVERY or (self.since_done and not more):
            self.queue.task_done()
            self.since_done = 0
        return more


class PersistQueueAck(PersistQueue):
    name = "persist-queue (ack)"
    durability_note = (
        "WAL, FULL; SQLiteAckQueue, get and ack for each job; "
        "kill -9 reruns after a restart, finished jobs are kept"
    )

    def open(self, path: str) -> Any:
        self.previous: int | None = None
        return persistqueue.SQLiteAckQueue(path, multithreading=True)

    def step(self, handler: Any) -> bool:
        # next_in_order, or each get reads past all the rows that were acknowledged before it.
        after = {} if self.previous is None else {"id": self.previous, "next_in_order": True}
        try:
            item = self.queue.get(block=False, raw=True, **after)
        except persistqueue.Empty:
            return False
        handler(*item["data"]["args"])
        self.queue.ack(id=item["pqid"])
        self.previous = item["pqid"]
        return True


def noop() -> None:
    return None


CONTESTANTS = [PersistQueue, PersistQueueTaskDone, PersistQueueAck]
