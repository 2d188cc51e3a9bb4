"""What the processes of `test_sqlite_processes` do. Run as a script: role, file, numbers."""

from __future__ import annotations

import sys
import threading
import time

from taskharbor import Harbor, Worker


def race_for_one_key(file: str, threads: int, times: int) -> None:
    """Every thread enqueues the same key; print each id that came back, and how many were new."""
    harbor = Harbor(f"sqlite:///{file}")
    barrier = threading.Barrier(threads)
    ids: set[str] = set()
    fresh: list[str] = []

    def enqueue() -> None:
        barrier.wait()
        for _ in range(times):
            job = harbor.enqueue("t", {"from": threading.current_thread().name}, idempotency_key="order-42")
            ids.add(job.id)
            if not job.existed:
                fresh.append(job.id)

    everybody = [threading.Thread(target=enqueue) for _ in range(threads)]
    for thread in everybody:
        thread.start()
    for thread in everybody:
        thread.join()
    harbor.close()
    print(*ids, len(fresh), sep="\n")


def do_everything(file: str, number: int, seconds: int) -> None:
    """Enqueue, read, operate and work at once, in three threads, for a while; print what was enqueued and done."""
    harbor = Harbor(f"sqlite:///{file}?synchronous=normal")
    done: list[str] = []

    @harbor.task(name="t", queue=f"q{number}")
    def t(x: int) -> int:
        done.append("x")
        return x

    give_up_at = time.monotonic() + seconds
    enqueued = cancelled = 0

    def produce() -> None:
        nonlocal enqueued
        while time.monotonic() < give_up_at:
            t.enqueue(1)
            enqueued += 1 + len(t.enqueue_many([{"x": 2}] * 5))

    def look_after() -> None:
        nonlocal cancelled
        while time.monotonic() < give_up_at:
            harbor.jobs.counts()
            harbor.queues.list()
            cancelled += harbor.jobs.cancel(t.using(delay=60).enqueue(3).id).state == "cancelled"
            harbor.jobs.list(limit=20, queue=f"q{number}")

    def work() -> None:
        while time.monotonic() < give_up_at:
            Worker(harbor, queues=[f"q{number}"]).drain_sync()

    failures: list[BaseException] = []

    def noticed(role):
        def run() -> None:
            try:
                role()
            except BaseException as error:
                failures.append(error)

        return run

    threads = [threading.Thread(target=noticed(role)) for role in (produce, look_after, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Worker(harbor, queues=[f"q{number}"]).drain_sync()
    harbor.close()
    if failures:
        raise failures[0]
    print(enqueued, len(done), cancelled)


if __name__ == "__main__":
    role, file, *numbers = sys.argv[1:]
    {"race": race_for_one_key, "everything": do_everything}[role](file, *map(int, numbers))
