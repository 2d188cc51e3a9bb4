"""Code around the handlers: hooks that open shared resources, a middleware, events, and a child job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taskharbor import Context, Event, Harbor, RetryPolicy, Worker, current_context

notes: list[str] = []
seen: list[str] = []
CALLS = (("invoice", 0), ("mail", 0), ("mail", 1))


def main(harbor: Harbor) -> None:
    @harbor.on_worker_start
    async def open_connections() -> None:
        notes.append("worker started")

    @harbor.on_worker_stop
    def close_connections() -> None:
        notes.append("worker stopped")

    @harbor.middleware
    async def announce(ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(f"> {ctx.job.task} {ctx.correlation_id} retry_count={ctx.retry_count}")
        return await call()  # what it raises or returns is the attempt's outcome

    @harbor.on("succeeded")
    @harbor.on("dead")
    def record(event: Event) -> None:
        notes.append(f"{event.name}: {event.task} {event.reason or ''}".rstrip())

    @harbor.task(name="invoice")
    async def invoice(order: int) -> None:
        # The child exists if and only if this attempt succeeds, and carries the same correlation id.
        current_context().enqueue(mail.s(f"invoice of order {order}"))

    @harbor.task(name="mail", retry=RetryPolicy(max_attempts=2, initial=0, jitter=None))
    def mail(subject: str) -> None:
        raise ConnectionError(f"no mail server for {subject!r}")

    invoice.using(correlation_id="request-7").enqueue(7)
    Worker(harbor).drain_sync()
    harbor.close()  # lets subscribers finish

    print("\n".join([*seen, *notes]))
    assert seen == [f"> {task} request-7 retry_count={n}" for task, n in CALLS]
    assert sorted(notes) == ["dead: mail exhausted", "succeeded: invoice", "worker started", "worker stopped"]


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Harbor(f"sqlite:///{Path(folder) / 'harbor.db'}"))
