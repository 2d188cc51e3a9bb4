"""`StreamWorker`: executes the messages of a topic, and what becomes of them in the store."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from taskharbor.client.harbor import Harbor
from taskharbor.codec import checked_name, shorten
from taskharbor.drivers.base import Claimed
from taskharbor.drivers.capabilities import HandOver
from taskharbor.drivers.contract.reading import StreamPartition, StreamPresence, WorkerRecord
from taskharbor.errors import ConfigurationError, StreamError
from taskharbor.failure_tasks import dead_letter_queue
from taskharbor.records import DeadCopy
from taskharbor.rules.retry import RetryPolicy
from taskharbor.streams import dead_letters
from taskharbor.streams.brokers import Brokers, Topic, TopicWatch
from taskharbor.streams.client_errors import CREATE_OWN_TOPIC, CREATE_TOPIC
from taskharbor.streams.consumer import PolledConsumer
from taskharbor.streams.dead_letters import UnreadableCopies
from taskharbor.streams.ingest import Ingester, refuse_unused
from taskharbor.streams.jobs import Rules
from taskharbor.streams.lines import Order
from taskharbor.streams.messages import log_digest
from taskharbor.streams.producer import Sender
from taskharbor.streams.source import StreamSource
from taskharbor.streams.topic_names import checked_topic
from taskharbor.streams.topics import mode
from taskharbor.streams.topics.mode import TopicsConsumers
from taskharbor.streams.topics.source import TopicsOptions, TopicsSource
from taskharbor.streams.topics.tiers import Tiers
from taskharbor.telemetry.logs import log_line
from taskharbor.telemetry.metrics.totals import Totals
from taskharbor.worker.run import Phase
from taskharbor.worker.signals import run_with_signals
from taskharbor.worker.supervisor.channel import LostMessage
from taskharbor.worker.upkeep.presence import Presence
from taskharbor.worker.upkeep.retrying import Outages
from taskharbor.worker.worker import GRACE_SECONDS, Worker

logger = logging.getLogger("taskharbor.stream")

QUEUE_PREFIX = "stream:"
CONCURRENCY = 100
AHEAD = 2_000  # messages that are read before a handler is free
REVOKE_SECONDS = 5.0
LEAVE_SECONDS = 15.0
REPORT_SECONDS = 5.0  # between two records of what it reads
PARTITIONS_SHOWN_MAX = 1_000  # of one worker, in its record


class StreamWorker:
    """Executes the messages of a Kafka topic as jobs of the harbor's tasks, as a member of a consumer group.

    A message that succeeds leaves nothing but its offset. One that fails becomes a job in the queue `stream:TOPIC` of
    the harbor's store, with its attempt recorded, and is retried there by the same rules as every job: a backoff never
    holds up its partition. This worker serves that queue as well, unless `serves_retries=False` leaves it to others.

    `order` says which messages run one after the other, in the order of the log: none, those of one key, or those of
    one partition. A failed one delays those behind it until its job has ended. If it is dead, the next one runs, unless
    `on_dead="hold"` keeps them waiting until an operator requeues, discards or deletes it.

    With `ingest=True` it executes nothing: it stores each message as one job, in `queue` or in the queue that its task
    declares, and ordinary workers execute the jobs.

    With `retries="topics"` it waits in retry topics of the brokers instead, and no store is involved.

    `retry` is the policy for tasks that have none, and the cap on every message's `maxAttempts`. `settings` are further
    settings of the Kafka client, such as `{"security.protocol": "SASL_SSL", …}`.
    """

    _tier_seconds = mode.TIER_SECONDS  # the wait of the smallest retry topic; tests make it short

    def __init__(
        self,
        harbor: Harbor,
        *,
        brokers: str | list[str],
        topic: str = "tasks",
        group: str,
        concurrency: int = CONCURRENCY,
        order: Literal["none", "key", "partition"] = "none",
        on_dead: Literal["next", "hold"] = "next",
        retries: Literal["store", "topics"] = "store",
        retry: RetryPolicy | None | UnsetType = UNSET,
        serves_retries: bool = True,
        dead_letter_topic: str | None | UnsetType = UNSET,
        creates_topic: bool = False,
        creates_own_topics: bool = True,
        grace_seconds: float = GRACE_SECONDS,
        revoke_seconds: float = REVOKE_SECONDS,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        metrics: bool = False,
        ingest: bool = False,
        queue: str | None = None,
    ) -> None:
        if not isinstance(harbor, Harbor):
            raise ConfigurationError(f"StreamWorker takes a Harbor, not {shorten(harbor)}")
        if retries not in ("store", "topics"):
            raise ConfigurationError(f'retries is "store" or "topics", not {shorten(retries)}')
        self.retries: Literal["store", "topics"] = retries
        self.order, self.on_dead = _checked_order(order, on_dead)
        self.harbor = harbor
        self.topic = checked_topic(topic)
        self.group = checked_name("group", group)
        self.queue = f"{QUEUE_PREFIX}{self.topic}"
        self._brokers = Brokers(brokers, settings)
        self._creates_topic = creates_topic
        self._creates_own_topics = creates_own_topics
        if dead_letter_topic is UNSET:
            dead_letter_topic = f"{self.topic}-dlq"
        if dead_letter_topic is not None:
            dead_letter_topic = checked_topic(dead_letter_topic, what="a dead-letter topic")
            if dead_letter_topic == self.topic:
                raise ConfigurationError(
                    f"dead messages of topic {self.topic!r} cannot go to the same topic: the worker would execute them "
                    "again without end; name another dead-letter topic"
                )
        self.dead_letter_topic: str | None = dead_letter_topic
        if retries == "topics":
            mode.check_options(
                topic=self.topic,
                dead_letter_topic=self.dead_letter_topic,
                serves_retries=serves_retries,
                order=order,
            )
        else:
            HandOver.of(harbor.driver)
        self._sender = Sender(self._brokers)
        self._revoke_seconds = revoke_seconds
        both: dict[str, Any] = {"concurrency": concurrency, "retry": retry, "grace_seconds": grace_seconds}
        self._worker = Worker(harbor, [self.queue], **both, name=name, metrics=metrics)
        self._retries = None if retries == "topics" else self._of_the_store(serves_retries, both)
        self._ingester: Ingester | None = None
        if ingest and retries == "topics":
            raise ConfigurationError(
                'ingest=True executes no messages, so retries="topics" would do nothing; leave one of them out'
            )
        if ingest:
            refuse_unused(
                concurrency != CONCURRENCY, order != "none", retry is not UNSET, not serves_retries, metrics
            )
            self._ingester = self._new_ingester(queue)
        elif queue is not None:
            raise ConfigurationError(
                f"queue={shorten(queue)} is for ingest=True; messages that fail become jobs of {self.queue!r}"
            )
        self._worker._stream = self._presence
        self._tell: Callable[[StreamPresence], object] | None = None  # a supervisor, which records it
        self._losses: dict[str, LostMessage] = {}  # messages that other processes had begun when they died
        self._on_ready: Callable[[], None] | None = None  # called when it begins to read
        self._source: Any = None  # a StreamSource or a TopicsSource, once it runs
        self._consumer: Any = None  # a PolledConsumer or the TopicsConsumers
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _of_the_store(self, serves_retries: bool, options: dict[str, Any]) -> Worker | None:
        """The worker for what becomes of messages in the store; None if it would serve no queue."""
        served = [self.queue] if serves_retries else []
        if self.dead_letter_topic is not None:
            served.append(dead_letter_queue(self.topic))
        if not served:
            return None
        worker = Worker(self.harbor, served, **options, name=f"{self._worker.name}-retries")
        worker._calls_hooks = False
        # One meter counts what happens to messages, here and in the store, and one writes the roll-ups.
        worker._meter = self._worker._meter
        worker.rollups = False
        return worker

    @property
    def name(self) -> str:
        return self._worker.name

    @property
    def _takes_interrupts(self) -> bool:
        return self._worker._takes_interrupts

    @_takes_interrupts.setter
    def _takes_interrupts(self, takes: bool) -> None:
        for worker in self._workers:
            worker._takes_interrupts = takes

    @property
    def _workers(self) -> list[Worker]:
        return [worker for worker in (self._worker, self._retries) if worker is not None]

    def _report_loop_stopped(self) -> None:
        self._worker._report_loop_stopped()

    @property
    def _phase(self) -> Phase:
        return self._worker._phase

    @property
    def _on_stop(self) -> Callable[[], None] | None:
        return self._worker._on_stop

    @_on_stop.setter
    def _on_stop(self, call: Callable[[], None] | None) -> None:
        self._worker._on_stop = call

    @property
    def metrics(self) -> bool:
        """Whether it counts what docs/metrics.md lists."""
        return self._worker.metrics

    def _totals(self) -> Totals:
        return self._worker._totals()

    # -- running --

    async def run(self) -> None:
        """Execute messages until `stop()`."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.harbor._import_included()
        try:
            topic = await self._found(self.topic, self._creates_topic, CREATE_TOPIC)
            if self.dead_letter_topic is not None and self.retries == "store":
                await self._found(self.dead_letter_topic, self._creates_own_topics, CREATE_OWN_TOPIC)
            opened = None if self._ingester is not None else await self._opened(topic)
        except StreamError:
            if self._stopping.is_set():
                return
            raise
        if self._ingester is not None:
            await self._ingest(self._ingester, self._stopping)
        if opened is None:
            return
        source, consumer = opened
        self._source, self._consumer, self._worker._source = source, consumer, source
        log_line(
            logger,
            logging.INFO,
            "Stream worker {worker} reads {topic} as a member of {group}",
            {"worker": self.name, "topic": self.topic, "group": self.group},
        )
        try:
            await asyncio.to_thread(consumer.start)
            if self._on_ready is not None:
                self._on_ready()
            await self._work(source)
        finally:
            source.is_closing = True
            source.workers_ended()
            closing = asyncio.ensure_future(asyncio.to_thread(self._sender.close))
            if not await asyncio.to_thread(consumer.stop, self._revoke_seconds + LEAVE_SECONDS):
                log_line(
                    logger,
                    logging.WARNING,
                    "the consumer of {topic} did not leave its group in time; the brokers notice that it is gone",
                    {"topic": self.topic},
                )
            await closing

    async def _found(self, topic: str, creates: bool, if_missing: str) -> Topic:
        assert self._stopping is not None, "`run` made it"
        find = partial(self._brokers.topic, topic, create=creates, is_unwanted=self._stopping.is_set)
        return await asyncio.to_thread(partial(find, if_missing=if_missing))

    async def _ingest(self, ingester: Ingester, stopping: asyncio.Event) -> None:
        log_line(
            logger,
            logging.INFO,
            "Stream worker {worker} stores the messages of {topic} as a member of {group}",
            {"worker": self.name, "topic": self.topic, "group": self.group},
        )
        started_at = self.harbor.driver.clock.now()
        presence = Presence(
            self.harbor.driver, self.harbor.driver.clock, lambda: [self._record_of_ingest(started_at)]
        )
        beside = [asyncio.ensure_future(each) for each in (presence.run(), self._report(presence.changed))]
        try:
            await ingester.run(stopping)
        finally:
            for each in beside:
                each.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await presence.sign_off()
            await asyncio.to_thread(self._sender.close)

    def _record_of_ingest(self, started_at: int) -> WorkerRecord:
        """What the store shows of a worker that executes nothing: no slots, no queues, no tasks."""
        return WorkerRecord(
            self.name,
            socket.gethostname(),
            os.getpid(),
            0,
            started_at,
            queues=(),
            tasks=(),
            stream=self._presence(),
        )

    def _new_ingester(self, queue: str | None) -> Ingester:
        dead = self.dead_letter_topic
        return Ingester(
            self.harbor,
            self._brokers,
            topic=self.topic,
            group=self.group,
            queue=None if queue is None else checked_name("queue", queue),
            dead_queue=self.queue,
            send_unreadable=None if dead is None else UnreadableCopies(self._sender, dead, self.group).send,
            settle_seconds=self._revoke_seconds,
        )

    async def _opened(
        self, topic: Topic
    ) -> tuple[StreamSource, PolledConsumer] | tuple[TopicsSource, TopicsConsumers]:
        """What is read from the topic, and what reads it."""
        if self.retries == "topics":
            assert self._loop is not None, "`run` made it"
            return await asyncio.to_thread(self._over_topics, topic, self._loop)
        if self.dead_letter_topic is not None:
            dead_letters.declare(self.harbor, self.topic, self._sender)
        source = self._new_source(topic)
        settings = self._brokers.consumer_settings(self.group)
        watch = TopicWatch(self._brokers, self.topic)
        return source, PolledConsumer(settings, self.topic, self.group, source, watch)

    def _over_topics(
        self, topic: Topic, loop: asyncio.AbstractEventLoop
    ) -> tuple[TopicsSource, TopicsConsumers]:
        """What is read from the topic and its retry topics."""
        assert self.dead_letter_topic is not None, "checked when it was made"
        tiers = Tiers(self.topic, self._tier_seconds)
        mode.create_topics(self._brokers, tiers, self.dead_letter_topic, create=self._creates_own_topics)
        source, consumer = mode.opened(
            self._brokers,
            self.harbor.driver,
            TopicsOptions(
                self.topic,
                self.group,
                log_digest(topic.cluster, topic.id, self.group),
                self.queue,
                lambda task: self.harbor._known(task) is not None,
                AHEAD + 2 * self._worker.concurrency,
                self._revoke_seconds,
            ),
            tiers=tiers,
            dead_letter_topic=self.dead_letter_topic,
            topic_id=topic.id,
            worker=self.name,
            loop=loop,
        )
        source.hand_back = self._hand_back
        source.losses = self._losses
        assert self._stopping is not None, "`run` made it"
        consumer.transactions.connect(self._stopping.is_set)
        return source, consumer

    async def _work(self, source: StreamSource | TopicsSource) -> None:
        """Run the workers until one of them, or the consumer, ends."""
        assert self._stopping is not None, "`run` made it"
        workers = self._workers
        running = [asyncio.ensure_future(worker.run()) for worker in workers]
        others = [
            asyncio.ensure_future(each)
            for each in (*source.parts(), self._report(self._record_run), self._stopping.wait())
        ]
        try:
            await asyncio.wait([*running, *others], return_when=asyncio.FIRST_COMPLETED)
            source.is_closing = True
            for worker in workers:
                worker.stop()
            await asyncio.gather(*running)
            for each in others:
                if each.done() and not each.cancelled():
                    each.result()
        finally:
            for task in (*running, *others):
                task.cancel()
            await asyncio.gather(*running, *others, return_exceptions=True)

    def _presence(self) -> StreamPresence:
        """What this worker reads now, for its record in the store."""
        partitions: list[StreamPartition] = []
        if self._ingester is not None:
            partitions = self._ingester.partition_figures()[:PARTITIONS_SHOWN_MAX]
        elif self._source is not None:
            partitions = self._consumer.seen(self._source.partition_figures()[:PARTITIONS_SHOWN_MAX])
        retries = self.retries if self._ingester is None else "ingest"
        return StreamPresence(self.topic, self.group, tuple(partitions), retries)

    async def _report(self, record: Callable[[], None]) -> None:
        """Record now and then what the worker reads: which partitions, and how far it is behind."""
        while True:
            await self.harbor.driver.clock.sleep(REPORT_SECONDS)
            if self._tell is not None:
                self._tell(self._presence())
            else:
                record()

    def _record_run(self) -> None:
        if (run := self._worker._run) is not None:
            run.record_presence()

    def _new_source(self, topic: Topic) -> StreamSource:
        harbor, worker = self.harbor, self._worker
        assert self._loop is not None, "`run` made it"

        def is_handed_over_first(task: str) -> bool:
            known = harbor.tasks.get(task) or harbor._known(task)
            return known is not None and known.is_at_most_once

        policy, dead = worker.retry, self.dead_letter_topic
        own = policy.to_dict() if policy is not None and not policy.follows_code else None

        def policy_of(task: str) -> dict[str, Any] | None:
            known = harbor.tasks.get(task) or harbor._known(task)
            return own if known is not None and known.declared_policy is UNSET else None

        source = StreamSource(
            harbor.driver,
            Outages(harbor.driver.clock),
            topic=self.topic,
            log_of=lambda topic_id: log_digest(topic.cluster, topic_id, self.group),
            capacity=AHEAD + 2 * worker.concurrency,
            rules=Rules(
                self.queue,
                lambda task: harbor._known(task) is not None,
                is_handed_over_first,
                harbor.sealing.seal,
                policy_of,
                None if dead is None else DeadCopy(self.topic, dead, self.group),
                None if dead is None else UnreadableCopies(self._sender, dead, self.group).send,
            ),
            order=self.order,
            holds=self.on_dead == "hold",
            revoke_seconds=self._revoke_seconds,
            loop=self._loop,
        )
        source.rebalances.hand_back = self._hand_back
        source.losses = self._losses
        source.count_in(self._worker._meter)
        return source

    def _hand_back(self, unwanted: Callable[[Claimed], bool]) -> None:
        run = self._worker._run
        if run is not None:
            run.hand_back(unwanted)

    def run_sync(self) -> None:
        """`run()` with a loop of its own; SIGTERM and SIGINT shut down gracefully, a second signal ends it at once."""
        run_with_signals(self.run, self)

    def stop(self) -> None:
        """Shut down gracefully; called again, end at once: what is not finished comes again.

        Any thread may call it."""
        loop, stopping = self._loop, self._stopping
        if loop is None or stopping is None:
            return

        def stop() -> None:
            if stopping.is_set():
                for worker in self._workers:
                    worker.stop()
            stopping.set()

        try:
            loop.call_soon_threadsafe(stop)
        except RuntimeError:
            if not loop.is_closed():
                raise

    async def __aenter__(self) -> StreamWorker:
        self._background = asyncio.get_running_loop().create_task(self.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await self._background


def _checked_order(order: str, on_dead: str) -> tuple[Order, str]:
    chosen = Order(_chosen("order", order, ("none", "key", "partition")))
    then = _chosen("on_dead", on_dead, ("next", "hold"))
    if then == "hold" and chosen is Order.NONE:
        raise ConfigurationError(
            "on_dead='hold' keeps messages behind a dead one waiting, and without an order none is behind another; "
            "give order='key' or order='partition' as well"
        )
    return chosen, then


def _chosen(option: str, given: str, choices: Sequence[str]) -> str:
    if given not in choices:
        raise ConfigurationError(f"{option} is one of {', '.join(choices)}, not {shorten(given)}")
    return given
