"""Handlers in processes of their own: they use every core, a timeout kills them, and a crash hurts no other job."""

from __future__ import annotations

import os
import time

from taskharbor import Harbor, State, Worker

# A handler's process imports this module to find its function, so it is declared at the top level.
harbor = Harbor("memory://")


@harbor.task(name="primes", isolation="process")
def primes(below: int) -> list[int]:
    found = [number for number in range(2, below) if all(number % divisor for divisor in range(2, number))]
    return [len(found), os.getpid()]


@harbor.task(name="endless", isolation="process", timeout=1, max_attempts=1)
def endless() -> None:
    time.sleep(3600)


@harbor.task(name="crash", isolation="process")
def crash() -> None:
    os._exit(3)  # as a fault in C code would


def main() -> None:
    counted = primes.enqueue_many([{"below": 300} for _ in range(4)])
    late, crashed = endless.enqueue(), crash.enqueue()
    Worker(harbor, concurrency=3, max_losses=2).drain_sync()

    results = [job.result() for job in counted]
    assert [count for count, _ in results] == [62, 62, 62, 62]
    assert os.getpid() not in {process for _, process in results}
    print("counted elsewhere:", len(results), "times")

    [attempt] = late.history()
    assert attempt.status == "timed_out"
    print("killed:", attempt.error)

    assert crashed.refresh().state is State.DEAD
    assert [attempt.status for attempt in crashed.history()] == ["lost", "lost"]
    print(crashed.refresh().reason, "-", crashed.refresh().error)


if __name__ == "__main__":
    main()
