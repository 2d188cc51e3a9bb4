"""A worker on Kafka or Redpanda: a retry policy for each kind of task, and handlers that take the whole payload.

The brokers are in $TASKHARBOR_BROKERS. It needs the extra: pip install 'taskharbor[kafka]'."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

from taskharbor import Context, Harbor, RetryPolicy
from taskharbor.streams import StreamWorker

TEMPORARY = ["timeout", "unavailable", "connection"]
QUICK = RetryPolicy(max_retries=5, initial=0.1, maximum=10, jitter=0.1, retry_on=TEMPORARY)
REFUSED = ["404", "authentication failed", "invalid request"]
API = RetryPolicy(max_retries=7, initial=2, maximum=120, multiplier=1.5, jitter=0.2, never_retry_on=REFUSED)
LOCKED = ["deadlock", "connection closed"]
DATABASE = RetryPolicy(max_retries=3, initial=0.05, maximum=5, jitter=0.05, retry_on=LOCKED)
UNWANTED = ["invalid email", "unsubscribed"]
EMAIL = RetryPolicy(max_retries=10, initial=5, maximum=300, multiplier=1.3, never_retry_on=UNWANTED)
assert DATABASE.is_retryable(RuntimeError("deadlock detected"))
assert not API.is_retryable(OSError("404"))


async def main(harbor: Harbor, brokers: str) -> None:
    @harbor.task(name="send_email", raw=True, retry=EMAIL)
    async def send_email(payload: dict[str, Any]) -> None:
        if "@" not in payload.get("to", ""):
            raise ValueError("invalid email")

    @harbor.task(name="process_payment", raw=True, retry=QUICK)
    async def process_payment(ctx: Context, payload: dict[str, Any]) -> None:
        if not isinstance(payload.get("user_id"), str):
            raise ValueError("validation error: missing user_id")
        if ctx.retry_count == 0:
            raise ConnectionError("payment service unavailable")

    topic = f"tasks-{uuid.uuid4().hex[:8]}"
    async with StreamWorker(harbor, brokers=brokers, topic=topic, group="shop", creates_topic=True):
        tasks = harbor.stream(topic, brokers=brokers)  # it waits for the topic
        await tasks.apublish(send_email.s({"to": "a@b.c"}), key="a@b.c")
        await tasks.apublish(send_email.s({"to": "no address"}))
        await tasks.apublish(process_payment.s({"user_id": "u-1"}))
        await tasks.apublish(process_payment.s({"amount": 5}))
        paid = {"task": "process_payment", "state": "succeeded"}
        while await harbor.dlq.acount() < 2 or not await harbor.jobs.acount(**paid):  # noqa: ASYNC110 - any worker may execute them
            await asyncio.sleep(0.05)
    dead = {job.task: str(job.error) for job in await harbor.dlq.alist()}
    assert dead["send_email"] == "ValueError: invalid email"
    assert dead["process_payment"] == "ValueError: validation error: missing user_id"
    [job] = await harbor.jobs.alist(**paid)
    print(await job.aretry_metrics())


if __name__ == "__main__":
    asyncio.run(main(Harbor("memory://"), os.environ["TASKHARBOR_BROKERS"]))
