"""The first job: declare a task, enqueue it, let a worker run it, read its result."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import Harbor, State, Worker


def main() -> None:
    with TemporaryDirectory() as folder, Harbor(f"sqlite:///{Path(folder) / 'harbor.db'}") as harbor:

        @harbor.task(name="greet")
        def greet(name: str, greeting: str = "Hello") -> str:
            return f"{greeting}, {name}"

        # Calling the task calls the function. Enqueueing it stores a job; when `enqueue` returns, the job is durable.
        assert greet("Ada") == "Hello, Ada"
        job = greet.enqueue("Ada")
        assert job.state is State.READY
        assert job.payload == {"name": "Ada"}  # defaults are not stored

        later = greet.using(delay=3600, priority=9).enqueue("Grace", greeting="Good evening")
        assert later.state is State.SCHEDULED

        # A worker usually runs in a process of its own (`taskharbor worker`). Draining is for scripts and tests.
        Worker(harbor).drain_sync()

        print(job.result(timeout=10))
        assert job.result(timeout=10) == "Hello, Ada"

        [attempt] = job.history()
        print(f"attempt {attempt.number}: {attempt.status}")
        assert (attempt.number, attempt.status) == (1, "succeeded")

        assert harbor.jobs.counts()["scheduled"] == 1  # the other one waits for its time


if __name__ == "__main__":
    main()
