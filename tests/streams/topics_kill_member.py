"""A member with `retries="topics"` that kills itself right after it has written something for the N-th time.

It counts from the failure of a handler on. What it writes: a record that the broker has, offsets, the commit of a
transaction. A line of its file is an execution.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import confluent_kafka

from taskharbor import Context, Harbor, RetryPolicy
from taskharbor.streams import StreamWorker
from taskharbor.streams.topics import consumer, transactions

bootstrap, topic, group, file, dies_after = *sys.argv[1:5], int(sys.argv[5])
told = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
has_failed = False
writes = 0


def written() -> None:
    global writes
    if has_failed:
        writes += 1
        if writes == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)


class Producer(confluent_kafka.Producer):
    def produce(self, *args: Any, **kwargs: Any) -> None:
        super().produce(*args, **kwargs)
        assert self.flush(30) == 0  # so that the broker has it, whatever comes next
        written()

    def send_offsets_to_transaction(self, *args: Any) -> None:
        super().send_offsets_to_transaction(*args)
        written()

    def commit_transaction(self, *args: Any) -> None:
        super().commit_transaction(*args)
        written()


class Consumer(confluent_kafka.Consumer):
    def commit(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().commit(*args, **{**kwargs, "asynchronous": False})
        written()
        return answer


harbor = Harbor("memory://")


@harbor.task(name="note")
async def note(ctx: Context, n: int) -> None:
    global has_failed
    os.write(told, (json.dumps([n, ctx.retry_count]) + "\n").encode())
    if n == 0:
        has_failed = True
        raise ValueError("unavailable: fails each time")


for module in (transactions, consumer):
    module.Producer, module.Consumer = Producer, Consumer  # type: ignore[attr-defined] # one of them has each
StreamWorker._tier_seconds = 0.05
StreamWorker(
    harbor,
    brokers=bootstrap,
    topic=topic,
    group=group,
    retries="topics",
    retry=RetryPolicy(max_attempts=2, initial=0.05, jitter=None),
    # A static member has the partitions of its predecessor at once, and ends the transaction that was left open.
    settings={"group.instance.id": "mortal"},
).run_sync()
