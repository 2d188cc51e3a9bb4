"""What a stream worker cannot use: brokers, topics, groups and messages. One clear line each, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are public, and not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from taskharbor import ConfigurationError, Context, Harbor, StreamError
from taskharbor.streams import StreamWorker
from taskharbor.streams.brokers import Brokers
from taskharbor.streams.client_errors import explained, passes_for_member
from taskharbor.streams.ingest import Ingester
from taskharbor.streams.producer import Published
from taskharbor.streams.topics.tiers import Tiers
from tests.run_broker import RunBroker
from tests.streams.log import PATIENCE_SECONDS, QUICK_BEATS, Log, until
from tests.streams.test_worker import working
from tools.kafka_server import MOCK_LACKS, Broker, OwnBroker

INTERN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "intern",
    "sasl.password": "secret",
}


@pytest.fixture
def secured(broker: Broker) -> str:
    if not isinstance(broker, OwnBroker | RunBroker):
        pytest.skip(f"only a broker of our own has users; a mock has no {MOCK_LACKS}")
    return broker.secured


def permit(log: Log, kind: ResourceType, name: str, operation: AclOperation) -> None:
    rule = AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:intern", "*", operation, AclPermissionType.ALLOW
    )
    [created] = log.admin.create_acls([rule]).values()
    created.result(PATIENCE_SECONDS)


async def refusal(harbor: Harbor, log: Log, brokers: str, **options: Any) -> str:
    """Start a worker that cannot begin, and return its one line."""
    worker = StreamWorker(harbor, brokers=brokers, topic=log.topic, group=log.group, **options)
    with pytest.raises(StreamError) as caught:
        await asyncio.wait_for(worker.run(), PATIENCE_SECONDS)
    line = str(caught.value)
    assert "\n" not in line
    return line


async def test_user_without_permission_reads_what_is_missing(memory: Harbor, log: Log, secured: str):
    options: dict[str, Any] = {"settings": INTERN, "dead_letter_topic": None}
    line = await refusal(memory, log, secured, **options)
    assert f"topic {log.topic!r}: Broker: Topic authorization failed; this user may not" in line

    permit(log, ResourceType.TOPIC, log.topic, AclOperation.READ)
    line = await refusal(memory, log, secured, **options)
    assert "Group authorization failed; this user may not" in line
    assert log.group in line

    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    permit(log, ResourceType.GROUP, log.group, AclOperation.READ)
    log.put_calls("note", range(10))
    log.bootstrap, open_to_all = secured, log.bootstrap
    async with working(memory, log, **options):
        await until(lambda: len(done) == 10)
        log.bootstrap = open_to_all
        await until(log.is_committed)


async def test_user_who_may_not_make_transactions_reads_it_and_what_is_documented_is_enough(
    memory: Harbor, log: Log, secured: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(StreamWorker, "_tier_seconds", 0.05)
    options: dict[str, Any] = {"settings": INTERN | QUICK_BEATS, "retries": "topics", "name": "first"}
    own = [*Tiers(log.topic).topics, log.dead_letter_topic]
    permit(log, ResourceType.TOPIC, log.topic, AclOperation.READ)
    for topic in own:
        log.create(topic, 1)
        permit(log, ResourceType.TOPIC, topic, AclOperation.READ)
    for group in (log.group, f"{log.group}-retry"):
        permit(log, ResourceType.GROUP, group, AclOperation.READ)
    line = await refusal(memory, log, secured, **options)
    name = f"taskharbor-{log.group}-{log.topic}-first"
    assert line.startswith(f"transactional id {name!r}: ")
    assert "Transactional Id authorization failed; this user may not" in line

    done: list[int] = []

    @memory.task(name="fails-once")
    async def fails_once(ctx: Context, n: int) -> None:
        if ctx.retry_count == 0:
            raise ValueError("unavailable")
        done.append(n)

    permit(log, ResourceType.TRANSACTIONAL_ID, name, AclOperation.WRITE)
    for topic in own:
        permit(log, ResourceType.TOPIC, topic, AclOperation.WRITE)
    log.put_calls("fails-once", [1], partition=0)
    log.bootstrap, open_to_all = secured, log.bootstrap
    async with working(memory, log, **options):
        await until(lambda: done == [1])
        log.bootstrap = open_to_all
        await until(log.is_committed)


async def test_wrong_password_is_one_clear_error(memory: Harbor, log: Log, secured: str):
    line = await refusal(memory, log, secured, settings={**INTERN, "sasl.password": "guessed"})
    assert "the brokers refuse these credentials" in line
    assert "guessed" not in line


async def test_ingesting_worker_that_is_refused_once_it_runs_does_not_ask_again(
    memory: Harbor, log: Log, secured: str
):
    """Its password was changed. The answer that names the topic is asked for over a new connection."""
    guessed = Brokers(secured, {**INTERN, "sasl.password": "guessed"})
    ingester = Ingester(
        memory,
        guessed,
        topic=log.topic,
        group=log.group,
        queue=None,
        dead_queue="dead",
        send_unreadable=None,
        settle_seconds=1.0,
    )
    with pytest.raises(KafkaException) as caught:
        await asyncio.to_thread(ingester._identify, lambda: False)
    assert not passes_for_member(caught.value.args[0])
    assert "the brokers refuse these credentials" in str(explained(caught.value, log.topic))


@pytest.fixture
def stranger(log: Log) -> Iterator[Consumer]:
    """A member of the group that shares partitions by another rule."""
    consumer = Consumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": log.group,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe([log.topic])
    yield consumer
    consumer.close()


async def test_group_with_members_of_another_kind_is_one_clear_error(
    memory: Harbor, log: Log, stranger: Consumer, broker: Broker
):
    if broker.is_mock:
        pytest.skip(f"a mock of a broker has no {MOCK_LACKS}")

    def has_joined() -> bool:
        stranger.poll(0.1)
        return bool(stranger.assignment())

    await until(has_joined)
    line = await refusal(memory, log, log.bootstrap)
    assert "the group has members with another assignment strategy" in line
    assert f"group {log.group!r}" in line


@pytest.mark.parametrize("address", ["http://localhost:9092", "localhost:99999", "a:9092,b:65536"])
def test_address_that_the_client_would_misread_is_refused(memory: Harbor, address: str):
    with pytest.raises(ConfigurationError, match="brokers are addresses such as"):
        StreamWorker(memory, brokers=address, group="g")


@pytest.mark.parametrize("address", ["localhost", "[::1]:9092", "SSL://a:1, b:65535", ["a:1", "b:2"]])
def test_address_that_the_client_reads_is_taken(memory: Harbor, address: str | list[str]):
    StreamWorker(memory, brokers=address, group="g")


async def test_worker_that_is_stopped_while_it_looks_for_brokers_ends(memory: Harbor):
    worker = StreamWorker(memory, brokers="127.0.0.1:1", group="g")
    running = asyncio.create_task(worker.run())
    await until(lambda: worker._stopping is not None)
    worker.stop()
    await running  # without the error of brokers that do not answer


@pytest.fixture
def real_broker(broker: Broker) -> Broker:
    if broker.is_mock:
        pytest.skip("a mock creates every topic that is asked for")
    return broker


@pytest.mark.usefixtures("real_broker")
async def test_publish_to_a_missing_topic_says_so_and_succeeds_once_it_is_there(memory: Harbor, log: Log):
    @memory.task(name="note")
    async def note(n: int) -> None: ...

    topic = f"{log.topic}-missing"
    stream = memory.stream(topic, brokers=log.bootstrap)
    for _ in range(2):  # the client knows it by the second time
        with pytest.raises(StreamError) as caught:
            await stream.apublish(note.s(n=1))
        assert str(caught.value) == (
            f"topic {topic!r} is missing; create it, or start a worker of this topic with --create-topic, "
            "and publish again"
        )
    log.create(topic, 1)

    async def is_published() -> bool:
        [told] = await asyncio.gather(stream.apublish(note.s(n=1)), return_exceptions=True)
        return isinstance(told, Published) or "is missing" not in str(told)

    await until(is_published)
    assert (await stream.apublish(note.s(n=1))).topic == topic


@pytest.mark.usefixtures("real_broker")
async def test_publish_that_fails_leaves_its_error_to_the_caller(
    memory: Harbor, log: Log, caplog: pytest.LogCaptureFixture
):
    """And not to the loop, which logs errors that nobody has asked for."""

    @memory.task(name="note")
    async def note(n: int) -> None: ...

    stream = memory.stream(f"{log.topic}-missing", brokers=log.bootstrap)
    with pytest.raises(StreamError, match="is missing"):
        await stream.apublish_many([note.s(n=1), note.s(n=2)])
    gc.collect()
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []
    assert await stream.apublish_many([]) == []


@pytest.mark.usefixtures("real_broker")
async def test_dead_letter_topic_that_is_missing_has_an_advice_of_its_own(memory: Harbor, log: Log):
    line = await refusal(memory, log, log.bootstrap, creates_own_topics=False)
    assert line == f"topic '{log.topic}-dlq' is missing; create it, or leave out --no-create-topics"


async def test_hostile_messages_hold_up_nothing(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    deep = b"[" * 100_000 + b"]" * 100_000
    call = b'{"task": "note", "payload": {"n": %s}}'
    hostile: list[dict[str, Any]] = [
        {"body": call % deep},
        {"body": deep},
        {"body": call % (b"9" * 5_000)},
        {"body": call % b"1e999"},
        {"body": call % b"NaN"},
        {"body": call % b'"\\u0000"'},
        {"body": b"\0" * 1_000},
        {"body": b'{"task": "\\u0000"}'},
        {"body": b'{"task": "note", "meta": {"a": "\\u0000"}}'},
        {"body": b'{"task": "' + b"x" * 100_000 + b'"}'},
        {"body": call % b"1", "key": b"k" * 900_000},
        {"body": call % b"1", "key": b"\xff\x00"},
        {"body": call % b"1", "headers": [("taskharbor-task", b"\xff\xfe")]},
        {"body": call % b"1", "headers": [("traceparent", b"\x00" * 5_000), ("tracestate", b"\xff" * 9_000)]},
        {"body": call % b"1", "headers": [("taskharbor-correlation-id", b"c" * 50_000)]},
        {"body": b"{}", "headers": [("taskharbor-task", None)]},
        {"body": None},
        {"body": b""},
    ]
    for each in hostile:
        log.put(each.pop("body"), partition=0, **each)
    log.put_calls("note", [2], partition=0)
    async with working(memory, log):
        await until(lambda: 2 in done)
        await until(log.is_committed)
    jobs = await memory.jobs.alist(limit=100)
    # Each was executed, is a dead letter that says which message it was and why, or waits for code that can take it.
    assert len(jobs) + len(done) == len(hostile) + 1, [job.record.error for job in jobs]
    dead = await memory.dlq.alist(limit=100)
    assert len(dead) == 10
    assert all(
        job.error and job.error.startswith(f"{log.topic}[0]@") and "\n" not in job.error for job in dead
    )
