"""The limit: the standard library's sqlite3 with the least that could be called a queue."""

from __future__ import annotations

import itertools
import sqlite3
import time
from pathlib import Path

from benchmarks.contestant import Contestant, Durability, check_all_ran
from benchmarks.contestants._sqlite import durability_of

PAYLOAD = b'{"task":"noop","args":[],"kwargs":{}}'
BATCH = 100
CLAIM = "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs ORDER BY id LIMIT ?) RETURNING id, payload"
FINISH = "INSERT INTO finished (id, finished_at) VALUES (?, ?)"
INSERT = "INSERT INTO jobs (payload, enqueued_at) VALUES (?, ?)"


class RawSqlite(Contestant):
    name = "raw sqlite3"
    store = "sqlite"
    role = "limit"
    durability = Durability.FULL
    durability_note = "WAL, synchronous=FULL; no queue at all, the limit of disk and library"
    own_worker = False
    separate_worker = False
    synchronous = "FULL"

    def setup(self, directory: Path) -> None:
        self.connection = sqlite3.connect(directory / "raw.db", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={self.synchronous}")
        self.connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, payload BLOB, enqueued_at REAL)")
        self.connection.execute("CREATE TABLE finished (id INTEGER PRIMARY KEY, finished_at REAL)")

    def close(self) -> None:
        self.connection.close()

    def observed_durability(self) -> Durability:
        return durability_of(self.connection)

    def enqueue(self) -> None:
        self.connection.execute(INSERT, (PAYLOAD, time.time()))

    def enqueue_concurrent(self, count: int, callers: int) -> None:
        return None  # one connection belongs to one thread; a limit of threads is another question

    def enqueue_bulk(self, count: int) -> float:
        begun = time.perf_counter()
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(INSERT, itertools.repeat((PAYLOAD, time.time()), count))
        self.connection.execute("COMMIT")
        return time.perf_counter() - begun

    def drain(self, count: int) -> float:
        """Claim and finish by batches, in one transaction each: no lease, no handler, no second process."""
        ran = 0
        begun = time.perf_counter()
        while ran < count:
            self.connection.execute("BEGIN IMMEDIATE")
            claimed = self.connection.execute(CLAIM, (BATCH,)).fetchall()
            self.connection.executemany(FINISH, [(job_id, time.time()) for job_id, _ in claimed])
            self.connection.execute("COMMIT")
            if not claimed:
                break
            ran += len(claimed)
        seconds = time.perf_counter() - begun
        check_all_ran(ran, count)
        return seconds


class RawSqliteNormal(RawSqlite):
    name = "raw sqlite3 (NORMAL)"
    durability = Durability.NORMAL
    durability_note = "WAL, synchronous=NORMAL; the same limit without a sync for each commit"
    synchronous = "NORMAL"


CONTESTANTS = [RawSqlite, RawSqliteNormal]
