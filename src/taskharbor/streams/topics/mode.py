"""`retries="topics"`, put together: the retry topics, the source of jobs, the consumer and the transactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from taskharbor.drivers.base import Driver
from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.errors import ConfigurationError
from taskharbor.streams.brokers import Brokers, TopicWatch
from taskharbor.streams.client_errors import CREATE_OWN_TOPIC
from taskharbor.streams.topic_names import checked_topic
from taskharbor.streams.topics.consumer import TopicsConsumer
from taskharbor.streams.topics.records import Records
from taskharbor.streams.topics.source import TopicsOptions, TopicsSource
from taskharbor.streams.topics.tiers import Tiers
from taskharbor.streams.topics.transactions import Transactions

TIER_SECONDS = 1.0
RETRY_GROUP_SUFFIX = "-retry"  # of the group that reads the retry topics


def check_options(*, topic: str, dead_letter_topic: str | None, serves_retries: bool, order: str) -> None:
    """Refuse what cannot be kept without a store."""
    if order != "none":
        raise ConfigurationError(
            f'the order {order} is for retries="store": a message that waits in a retry topic is overtaken by the '
            "later ones of its key, and a topic cannot hold those back; the store can"
        )
    if dead_letter_topic is None:
        raise ConfigurationError(
            'retries="topics" needs a dead-letter topic: without one, dead messages would be lost; name it'
        )
    if not serves_retries:
        raise ConfigurationError(
            'retries="topics" has no queue that could be left to other workers: every member of the group reads the '
            "retry topics; leave serves_retries (--no-retries) out"
        )
    for each in Tiers(topic).topics:
        checked_topic(each, what="a retry topic")
        if each == dead_letter_topic:
            raise ConfigurationError(
                f"{each!r} is a retry topic of {topic!r}, and dead messages would be executed again from there; name "
                "another dead-letter topic"
            )


def transactional_id(group: str, topic: str, member: str) -> str:
    """The name under which the brokers know a worker's transactions.

    It must be another one for each live worker. One that starts again under its old name ends what it had left open.
    So a static member takes its `group.instance.id`, and another worker its name.
    """
    return f"taskharbor-{group}-{topic}-{member}"


def create_topics(brokers: Brokers, tiers: Tiers, dead_letter_topic: str, *, create: bool) -> None:
    """Find the retry topics and the dead-letter topic, or create them."""
    brokers.find_all(
        [*tiers.topics, dead_letter_topic],
        create=create,
        instead=CREATE_OWN_TOPIC,
    )


class TopicsConsumers:
    """The consumer of the topic, that of its retry topics, and the transactions of both.

    They are members of two groups: in one, a worker might get all partitions of the topic and another one none.
    """

    def __init__(self, consumers: Sequence[TopicsConsumer], transactions: Transactions) -> None:
        self._consumers = consumers
        self.transactions = transactions

    def seen(self, of: Sequence[StreamPartition]) -> list[StreamPartition]:
        """Add what only the consumer of the topic knows."""
        consumer = self._consumers[0]
        return consumer.seen(consumer.topics[0], of)

    def start(self) -> None:
        self.transactions.start()
        for each in self._consumers:
            each.start()

    def stop(self, seconds: float) -> bool:
        """Commit what is finished, leave the groups and end the threads; False if it takes longer."""
        deadline = time.monotonic() + seconds
        for each in self._consumers:
            each.ask_to_stop()
        have_left = [each.has_stopped(max(deadline - time.monotonic(), 0.1)) for each in self._consumers]
        return self.transactions.stop(max(deadline - time.monotonic(), 0.1)) and all(have_left)


def opened(
    brokers: Brokers,
    store: Driver,
    options: TopicsOptions,
    *,
    tiers: Tiers,
    dead_letter_topic: str,
    topic_id: str,
    worker: str,
    loop: asyncio.AbstractEventLoop,
) -> tuple[TopicsSource, TopicsConsumers]:
    """Return the source of jobs and the consumers that feed it, ready to be started."""
    records = Records(tiers, dead_letter_topic, options.group)
    source = TopicsSource(store, options, tiers, records, loop)
    committed = {"isolation.level": "read_committed"}
    # Every record of a retry topic counts, wherever the group begins in the topic itself.
    from_begin = {**committed, "auto.offset.reset": "earliest"}
    watch = TopicWatch(brokers, options.topic)
    consumers = [
        TopicsConsumer({**brokers.consumer_settings(group), **own}, topics, source, *more)
        for group, topics, own, more in (
            (options.group, [options.topic], committed, (watch, topic_id)),
            (f"{options.group}{RETRY_GROUP_SUFFIX}", tiers.topics, from_begin, ()),
        )
    ]
    member = str(brokers.client_settings().get("group.instance.id", worker))
    name = transactional_id(options.group, options.topic, member)
    settings = {**brokers.producer_settings(), "transactional.id": name}
    transactions = Transactions(settings, source.ledger, consumers, source.failed)
    for each in consumers:
        each.flush = transactions.flush
    source.wake = transactions.wake
    return source, TopicsConsumers(consumers, transactions)
