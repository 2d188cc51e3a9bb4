"""What a contestant is: the fixed protocol that every file in `contestants/` fulfils."""

from __future__ import annotations

import enum
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Literal

from benchmarks.work import PLAIN, Kind, Work

BATCH = 1_000
"""Jobs in one call of a bulk enqueue by batches."""

Role = Literal["taskharbor", "peer", "limit"]
Started = Callable[[int], None]
"""Called by a latency handler as its first act, with the number of the probe."""


class Durability(enum.IntEnum):
    """What an acknowledged enqueue survives. Comparable: a higher level survives more."""

    MEMORY = 0
    """Nothing: the jobs are gone with the process."""
    OFF = 1
    """A crash of the process; a crash of the machine may corrupt the store."""
    NORMAL = 2
    """A crash of the process; a crash of the machine may lose the last commits."""
    FULL = 3
    """A crash of the machine: every commit is synced before it is acknowledged."""


class Contestant(ABC):
    """One queue at one setting. A verb it cannot do returns None, and the report shows a dash.

    Every verb that takes a count returns the seconds it took, timed inside the verb so that opening
    connections, event loops and threads is not counted. An instance lives in one process for one measurement.
    """

    name: ClassVar[str]
    store: ClassVar[str]
    role: ClassVar[Role] = "peer"
    durability: ClassVar[Durability]
    durability_note: ClassVar[str]
    """How the durability comes about, and what a kill -9 in the middle of a job does to that job."""
    distribution: ClassVar[str | None] = None
    """The installed distribution whose version the report names; None for what comes with Python."""
    own_worker: ClassVar[bool] = True
    """False for a bare queue, whose worker is a loop written here: no timeouts, retries or concurrency."""
    separate_worker: ClassVar[bool] = True
    """False where a worker cannot be another process than the producer: the store lives in the process."""

    slots: int | None = None
    """How many handlers of `work` run at once, where a measurement gives all contestants the same number."""
    kinds: ClassVar[tuple[Kind, ...]] = ("async",)
    """The kinds of handlers that are measured: those that it has a way of its own to run."""
    needs_postgres: ClassVar[bool] = False
    """Whether the run must have a PostgreSQL server for it."""
    jobs_max: ClassVar[int | None] = None
    """A slow queue is measured with fewer jobs: its rate is the same, and the others need not wait for it."""

    def __init__(self, *, poll_seconds: float) -> None:
        self.poll_seconds = poll_seconds

    @classmethod
    def create_store(cls, directory: Path) -> None:
        """Make what a server keeps for this directory's store; called once, before any `setup`."""
        return

    @classmethod
    def remove_store(cls, directory: Path) -> None:
        """Remove it again; the directory itself goes by itself."""
        return

    @classmethod
    def version(cls) -> str:
        if cls.distribution is None:
            return "standard library"
        try:
            return metadata.version(cls.distribution)
        except metadata.PackageNotFoundError:
            return "source tree"  # imported from a path, not installed

    @abstractmethod
    def setup(self, directory: Path) -> None:
        """Open the store inside `directory`; called once in each process, also on a store that exists."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def enqueue(self) -> None:
        """Enqueue one no-op job, durable on return at the stated level."""

    def observed_durability(self) -> Durability | None:
        """The level read from the live connection, or None where it cannot be seen."""
        return None

    def enqueue_one(self, count: int) -> float | None:
        enqueue = self.enqueue
        begun = time.perf_counter()
        for _ in range(count):
            enqueue()
        return time.perf_counter() - begun

    def enqueue_concurrent(self, count: int, callers: int) -> float | None:
        """`count` jobs by `callers` at once, one call for each job. Threads, where it is not async."""
        return run_in_threads(self.enqueue, count, callers)

    def enqueue_bulk(self, count: int) -> float | None:
        """`count` jobs in one call."""
        return None

    def enqueue_batches(self, count: int) -> float | None:
        """`count` jobs in calls of BATCH."""
        seconds = 0.0
        for size in batches(count):
            taken = self.enqueue_bulk(size)
            if taken is None:
                return None
            seconds += taken
        return seconds

    def fill(self, count: int) -> None:
        """Put `count` no-op jobs into the store by the fastest way there is, untimed."""
        if self.enqueue_bulk(count) is None:
            self.enqueue_one(count)

    def fill_work(self, work: Work, count: int) -> None:
        """Put `count` jobs into the store whose handlers do this work, untimed."""
        if work != PLAIN:
            raise NotImplementedError(f"{self.name} has no handler for {work}")
        self.fill(count)

    def drain(self, count: int) -> float | None:
        """Run the `count` jobs that are in the store in this process; raise if another number ran."""
        return None

    def drain_share(self, told: Callable[[int], None]) -> None:
        """Run jobs beside other processes that do so too, and tell from time to time how many ran here.

        Return when none is left to claim, or when standard input ends, after telling the last number.
        """
        raise NotImplementedError

    def share_command(self) -> list[str] | None:
        """The command of a queue in another language that does the same, and tells on standard output."""
        return None

    def count_queries(self) -> None:
        """From now on count what the store is asked, by connections that are opened from now on."""
        return

    def queries_counted(self) -> int | None:
        """How often it was asked so far, or None where that cannot be known."""
        return None

    def server_seconds(self) -> float | None:
        """Processor time that the store's server has used so far; None where there is none or it is elsewhere."""
        return None

    def log_bytes(self) -> int | None:
        """How much the store's server has written to its log so far; None where there is no server."""
        return None

    def store_url(self) -> str | None:
        """The store's URL, for TaskHarbor's own commands; None for whom they are not."""
        return None

    def store_chord(self, count: int) -> float | None:
        """Store a chord of `count` no-op members; None where there is no such thing in the store."""
        return None

    def drain_chord(self, count: int) -> float | None:
        """Run the chord that is in the store to its end; raise if its finalizer did not get all the results."""
        return None

    def probe(self, number: int) -> None:
        """Enqueue one latency job carrying `number`."""
        raise NotImplementedError

    def probe_work(self, work: Work, number: int) -> None:
        """The same with a handler of the kind of `work`."""
        self.probe(number)

    def draining_pid(self) -> int:
        """The process whose memory a drain uses: this one, or that of a queue in another language."""
        return os.getpid()

    def serve_command(self, descriptor: int) -> list[str] | None:
        """The command of a worker in another language, which writes its own reports to this descriptor."""
        return None

    def serve(self, started: Started) -> None:
        """Be the worker of latency jobs until terminated; not called where `separate_worker` is False."""
        raise NotImplementedError


def run_in_threads(call: Callable[[], None], count: int, callers: int) -> float:
    """Seconds for `count` calls shared evenly by `callers` threads, measured from a common start."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(callers + 1)
    shares = [count // callers + (index < count % callers) for index in range(callers)]

    def run(share: int) -> None:
        barrier.wait()
        try:
            for _ in range(share):
                call()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    if errors:
        raise errors[0]
    return seconds


def batches(count: int, size: int = BATCH) -> Iterator[int]:
    for begin in range(0, count, size):
        yield min(size, count - begin)


def check_all_ran(ran: int, expected: int) -> None:
    """A rate over jobs that did not run is worse than no rate."""
    if ran != expected:
        raise RuntimeError(f"{ran} jobs ran where {expected} were in the store")
