"""huey with its SQLite storage and its own consumer, run in this process with threads."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from huey import SqliteHuey

from benchmarks.contestant import Contestant, Durability, Started, check_all_ran
from benchmarks.contestants._sqlite import durability_of

DRAIN_TIMEOUT_SECONDS = 600
ON_CRASH = "kill -9 loses the running job, finished jobs are deleted"


class Huey(Contestant):
    name = "huey"
    store = "sqlite"
    durability = Durability.FULL
    durability_note = f"WAL, synchronous left at SQLite's default (FULL); {ON_CRASH}"
    distribution = "huey"
    fsync: ClassVar[bool | None] = None
    workers: ClassVar[int] = 1
    """Threads of the consumer. 2, 4 and 8 drain no-op jobs slower: they share one connection and one lock."""

    def setup(self, directory: Path) -> None:
        self.huey: Any = SqliteHuey("bench", filename=str(directory / "huey.db"), fsync=self.fsync)
        self.ran = itertools.count(1)
        self.expected = 0
        self.drained = threading.Event()

        def noop() -> None:
            if next(self.ran) == self.expected:
                self.drained.set()

        def probe(number: int) -> None:
            self.started(number)

        self.noop = self.huey.task(name="noop")(noop)
        self.probe_task = self.huey.task(name="probe")(probe)

    def close(self) -> None:
        self.huey.storage.close()

    def observed_durability(self) -> Durability:
        return durability_of(self.huey.storage.conn)

    def enqueue(self) -> None:
        self.noop()

    def drain(self, count: int) -> float:
        self.expected = count
        consumer = self.consumer()
        begun = time.perf_counter()
        consumer.start()
        finished = self.drained.wait(DRAIN_TIMEOUT_SECONDS)
        seconds = time.perf_counter() - begun
        consumer.stop(graceful=True)
        check_all_ran(count if finished else next(self.ran) - 1, count)
        return seconds

    def probe(self, number: int) -> None:
        self.probe_task(number)

    def serve(self, started: Started) -> None:
        self.started = started
        self.consumer().run()

    def consumer(self) -> Any:
        """No periodic tasks, and the polling interval that all peers get, without backoff."""
        return self.huey.create_consumer(
            workers=self.workers,
            worker_type="thread",
            periodic=False,
            initial_delay=self.poll_seconds,
            max_delay=self.poll_seconds,
        )


class HueyFsync(Huey):
    """FULL said and not inherited: it differs from `huey` on a SQLite built with another default."""

    name = "huey (fsync=True)"
    durability_note = f"WAL, synchronous=FULL; {ON_CRASH}"
    fsync = True


class HueyNoFsync(Huey):
    name = "huey (fsync=False)"
    durability = Durability.OFF
    durability_note = f"WAL, synchronous=OFF; {ON_CRASH}"
    fsync = False


class HueyDefaultPolling(Huey):
    name = "huey (default polling)"
    durability_note = "as huey, with the consumer's own polling: 0.1 s, growing by 1.15 to 10 s while idle"

    def consumer(self) -> Any:
        return self.huey.create_consumer(workers=self.workers, worker_type="thread", periodic=False)


CONTESTANTS = [Huey, HueyFsync, HueyNoFsync, HueyDefaultPolling]
