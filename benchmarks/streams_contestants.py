"""The contestants of `benchmarks.streams`. As a program: one measurement, with its figures as JSON on the last line."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CONCURRENCY = 100
AT_ONCE = 500
WORK_SECONDS = 0.001
GAP_SECONDS = (0.01, 0.05)
WARM_UP_PROBES = 10
BATCH = 1_000

Figures = dict[str, float]


class Handled:
    """Counts handlers that have ended: the rate is that from the first end to the last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        self.first = self.last = 0.0
        self.done = asyncio.Event()

    def one(self, messages: int = 1) -> None:
        self.seen += messages
        if self.seen == messages:
            self.first = time.perf_counter()
        if self.seen >= self.count and not self.done.is_set():
            self.last = time.perf_counter()
            self.done.set()

    @property
    def figures(self) -> Figures:
        return {"": (self.count - 1) / (self.last - self.first)}


def brokers() -> str:
    return os.environ["BENCH_BROKERS"]


def topic() -> str:
    return os.environ["BENCH_TOPIC"]


def new_group() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


def consumer() -> Any:
    from confluent_kafka import Consumer

    reader = Consumer(
        {
            "bootstrap.servers": brokers(),
            "group.id": new_group(),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": True,
        }
    )
    reader.subscribe([topic()])
    return reader


async def ours(count: int, work: float) -> Figures:
    from taskharbor import Harbor
    from taskharbor.streams import StreamWorker

    handled = Handled(count)
    async with Harbor("memory://") as harbor:

        @harbor.task(name="note")
        async def note(n: int) -> None:
            if work:
                await asyncio.sleep(work)
            handled.one()

        async with StreamWorker(
            harbor, brokers=brokers(), topic=topic(), group=new_group(), concurrency=CONCURRENCY,
            dead_letter_topic=None,
        ):  # fmt: skip
            await handled.done.wait()
    return handled.figures


async def asyncio_loop(count: int, work: float) -> Figures:
    """What a developer writes: a task for each message under a semaphore, offsets committed by the client."""
    handled, limit, running = Handled(count), asyncio.Semaphore(CONCURRENCY), set[Any]()

    async def note(n: int) -> None:
        if work:
            await asyncio.sleep(work)
        handled.one()

    handlers = {"note": note}

    async def handle(body: bytes) -> None:
        try:
            message = json.loads(body)
            await handlers[message["task"]](**message["payload"])
        finally:
            limit.release()

    reader, loop = consumer(), asyncio.get_running_loop()
    while not handled.done.is_set():
        messages = await loop.run_in_executor(None, reader.consume, AT_ONCE, 0.1)
        for message in messages:
            if message.error() is None:
                await limit.acquire()
                task = loop.create_task(handle(message.value()))
                running.add(task)
                task.add_done_callback(running.discard)
        await asyncio.sleep(0)
    reader.close()
    return handled.figures


async def bare_loop(count: int, work: float) -> Figures:
    handled, reader = Handled(count), consumer()
    while not handled.done.is_set():
        messages = [each for each in reader.consume(AT_ONCE, 0.1) if each.error() is None]
        if messages:
            handled.one(len(messages))
    reader.close()
    return handled.figures


@dataclass
class Payload:
    n: int


@dataclass
class Message:
    task: str
    payload: Payload


async def faststream(
    count: int, work: float, *, batch: bool = False, commits_first: bool = False, workers: int = 1
) -> Figures:
    """Validate each message, await the handler of the task that it names, and commit after that.

    With several workers FastStream can only commit first: what a crash interrupts is lost.
    """
    from faststream import AckPolicy
    from faststream.confluent import KafkaBroker

    handled, limit = Handled(count), asyncio.Semaphore(CONCURRENCY)
    broker = KafkaBroker(brokers(), logger=None)
    options: dict[str, Any] = {
        "group_id": new_group(),
        "auto_offset_reset": "earliest",
        "ack_policy": AckPolicy.ACK_FIRST if commits_first else AckPolicy.ACK,
    }

    async def note(payload: Payload) -> None:
        if work:
            await asyncio.sleep(work)
        handled.one()

    handlers = {"note": note}

    async def limited(message: Message) -> None:
        async with limit:
            await handlers[message.task](message.payload)

    if batch:

        @broker.subscriber(topic(), batch=True, max_records=AT_ONCE, **options)
        async def take_batch(messages: list[Message]) -> None:
            if work:
                await asyncio.gather(*map(limited, messages))
                return
            for message in messages:  # where no handler waits for anything, tasks would only cost
                await handlers[message.task](message.payload)
    else:

        @broker.subscriber(topic(), max_workers=workers, **options)
        async def take(message: Message) -> None:
            await handlers[message.task](message.payload)

    await broker.start()
    await handled.done.wait()
    await broker.stop()
    return handled.figures


async def faststream_workers(count: int, work: float) -> Figures:
    return await faststream(count, work, commits_first=True, workers=CONCURRENCY)


async def faststream_batch(count: int, work: float) -> Figures:
    return await faststream(count, work, batch=True)


# -- ingest against bulk enqueue -------------------------------------------------------------------


def store_url(store: str, folder: str) -> str:
    if store == "sqlite":
        return f"sqlite:///{folder}/bench.db"
    return f"{os.environ['BENCH_POSTGRES']}?schema=bench_{uuid.uuid4().hex[:8]}"


async def ingest(count: int, store: str) -> Figures:
    """From the first batch in the store to the last."""
    from taskharbor import Harbor
    from taskharbor.streams import StreamWorker

    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with Harbor(store_url(store, folder)) as harbor:
            await harbor.amigrate()
            kind: Any = type(harbor.driver)
            real, stored, first, done = kind.ingest, 0, 0.0, asyncio.Event()

            async def counted(driver: Any, batches: Any, *, now: int | None = None) -> Any:
                nonlocal stored, first
                if not first:
                    first = time.perf_counter()
                answers = await real(driver, batches, now=now)
                stored += sum(len(group.ids) for each in batches for group in each.groups)
                if stored >= count:
                    done.set()
                return answers

            kind.ingest = counted

            @harbor.task(name="note")
            async def note(n: int) -> None: ...

            worker = StreamWorker(
                harbor,
                brokers=brokers(),
                topic=topic(),
                group=new_group(),
                ingest=True,
                dead_letter_topic=None,
            )
            async with worker:
                await done.wait()
                seconds = time.perf_counter() - first
            kind.ingest = real
            assert sum((await harbor.jobs.acounts()).values()) == count
    return {"": count / seconds}


async def bulk(count: int, store: str) -> Figures:
    from taskharbor import Harbor

    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with Harbor(store_url(store, folder)) as harbor:
            await harbor.amigrate()

            @harbor.task(name="note")
            async def note(n: int) -> None: ...

            begun = time.perf_counter()
            for start in range(0, count, BATCH):
                await note.aenqueue_many([{"n": n} for n in range(start, min(start + BATCH, count))])
            seconds = time.perf_counter() - begun
    return {"": count / seconds}


# -- latency ---------------------------------------------------------------------------------------


class Probes:
    """Publishes a message now and then, and takes the time until its handler begins."""

    def __init__(self, count: int) -> None:
        self.count = count + WARM_UP_PROBES
        self.topic = f"{topic()}-latency-{uuid.uuid4().hex[:8]}"
        self.sent: dict[int, float] = {}
        self.taken: dict[int, float] = {}
        self._begun = threading.Event()
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": brokers()})
        next(iter(admin.create_topics([NewTopic(self.topic, 1)]).values())).result(60)

    def begun(self, n: int) -> None:
        self.taken[n] = (time.perf_counter() - self.sent[n]) * 1_000
        self._begun.set()

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": brokers(), "linger.ms": 0})
        for n in range(self.count):
            self._begun.clear()
            body = json.dumps({"task": "note", "payload": {"n": n}}).encode()
            self.sent[n] = time.perf_counter()
            producer.produce(self.topic, body)
            producer.flush(30)
            if not self._begun.wait(60):
                raise TimeoutError(f"message {n} did not arrive")
            time.sleep(random.uniform(*GAP_SECONDS))

    @property
    def figures(self) -> Figures:
        taken = sorted(ms for n, ms in self.taken.items() if n >= WARM_UP_PROBES)
        return {" p50": statistics.median(taken), " p99": taken[min(len(taken) - 1, len(taken) * 99 // 100)]}


async def our_latency(count: int) -> Figures:
    from taskharbor import Harbor
    from taskharbor.streams import StreamWorker

    probes = Probes(count)
    async with Harbor("memory://") as harbor:

        @harbor.task(name="note")
        async def note(n: int) -> None:
            probes.begun(n)

        async with StreamWorker(
            harbor, brokers=brokers(), topic=probes.topic, group=new_group(), dead_letter_topic=None
        ):
            await asyncio.to_thread(probes.run)
    return probes.figures


async def faststream_latency(count: int) -> Figures:
    from faststream.confluent import KafkaBroker

    probes = Probes(count)
    broker = KafkaBroker(brokers(), logger=None)

    @broker.subscriber(probes.topic, group_id=new_group(), auto_offset_reset="earliest")
    async def note(message: dict[str, Any]) -> None:
        probes.begun(message["payload"]["n"])

    await broker.start()
    await asyncio.to_thread(probes.run)
    await broker.stop()
    return probes.figures


CONTESTANTS: dict[str, Callable[[int, float], Any]] = {
    "taskharbor stream": ours,
    "asyncio loop": asyncio_loop,
    "faststream": faststream,
    "faststream workers": faststream_workers,
    "faststream batch": faststream_batch,
    "bare consume loop": bare_loop,
}
INGESTS: dict[str, tuple[Callable[[int, str], Any], str]] = {
    f"{name} {store}": (call, store)
    for store in ("sqlite", "postgres")
    for name, call in (("ingest", ingest), ("enqueue_many", bulk))
}
LATENCIES: dict[str, Callable[[int], Any]] = {
    "taskharbor stream": our_latency,
    "faststream": faststream_latency,
}


def main() -> None:
    kind, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if kind == "latency":
        figures = asyncio.run(LATENCIES[name](count))
    elif name in INGESTS:
        call, store = INGESTS[name]
        figures = asyncio.run(call(count, store))
    else:
        work = WORK_SECONDS if kind == "handlers of 1 ms" else 0.0
        figures = asyncio.run(CONTESTANTS[name](count, work))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
