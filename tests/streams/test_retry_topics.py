"""`retries="topics"` on a real broker: what fails waits in retry topics, and moves between topics by transactions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from taskharbor import Context, Harbor, RetryPolicy, StreamError
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Transition
from taskharbor.records import AttemptStatus, State
from taskharbor.streams import StreamWorker
from taskharbor.streams.messages import Place
from taskharbor.streams.topics import sleeping, trails
from taskharbor.streams.topics.consumer import TopicsConsumer
from taskharbor.streams.topics.moves import Ledger, Move, Record
from taskharbor.streams.topics.tiers import Tiers
from taskharbor.worker.supervisor.channel import LostMessage
from tests.streams.log import QUICK_BEATS, Log, until
from tools.kafka_server import MOCK_LACKS, Broker

UNIT = 0.05  # seconds that the smallest tier waits
QUICK = RetryPolicy(
    max_attempts=3,
    initial=UNIT,
    maximum=1_000,
    multiplier=4,
    jitter=None,
    never_retry_on=["validation error"],
)


@pytest.fixture(autouse=True)
def real_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    if broker.is_mock:
        pytest.skip(f"the mock has no {MOCK_LACKS}")
    monkeypatch.setattr(StreamWorker, "_tier_seconds", UNIT)


@asynccontextmanager
async def working(harbor: Harbor, log: Log, **options: Any) -> AsyncIterator[StreamWorker]:
    given: dict[str, Any] = {"retries": "topics", "retry": QUICK, "grace_seconds": 1.0}
    given |= {"settings": QUICK_BEATS} | options
    worker = StreamWorker(harbor, brokers=log.bootstrap, topic=log.topic, group=log.group, **given)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


async def test_record_of_a_transaction_that_failed_is_not_written_after_its_partition_came_back():
    """The message comes again with the partition: a second record of it would be one too many."""
    ledger, partition = Ledger(asyncio.get_running_loop()), ("tasks", 0)
    answer = asyncio.get_running_loop().create_future()
    ledger.begin(partition, 0, ())
    assert ledger.take(partition, 0)
    ledger.move([Move(Place(b"log", "tasks", 0, 0, 0), Record("tasks-dlq", None, b"{}", []), answer)])
    batch = ledger.next_batch()
    assert len(batch.moves) == 1
    ledger.forget([partition])
    ledger.begin(partition, 0, ())
    ledger.undone(batch)
    assert ledger.next_batch().is_empty
    assert await answer is False


async def test_messages_are_executed_and_their_offsets_committed_in_transactions(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    log.put_calls("note", range(300))
    async with working(memory, log):
        await until(lambda: len(done) == 300)
        await until(log.is_committed)
    assert sorted(done) == list(range(300))
    assert set((await memory.jobs.acounts()).values()) == {0}


async def test_failed_message_waits_in_the_largest_tier_and_hops_until_it_is_due(log: Log):
    clock = ManualClock()
    begun: list[int] = []
    async with Harbor("memory://", clock=clock) as harbor:

        @harbor.task(name="note", retry=RetryPolicy(max_attempts=2, initial=7.5, jitter=None))
        async def note(ctx: Context, n: int) -> None:
            begun.append(clock.now())
            if ctx.retry_count == 0:
                raise TimeoutError("timeout: fails once")

        body = {"task": "note", "payload": {"n": 7}, "correlationId": "order-7"}
        log.put(body, key="seven", headers={"own": b"1"})
        worker = StreamWorker(
            harbor, brokers=log.bootstrap, topic=log.topic, group=log.group, retries="topics", retry=QUICK
        )
        worker._tier_seconds = 1.0
        async with worker:
            for tier in (4, 2, 1):
                [record] = await asyncio.to_thread(log.read, f"{log.topic}-retry-{tier}s", 1)
                headers = {name: value.decode() for name, value in record.headers()}
                assert (record.key(), headers["own"]) == (b"seven", "1")
                assert headers["taskharbor-retry-attempts"] == "1"
                assert headers["taskharbor-retry-error-type"] == "TimeoutError"
                assert headers["taskharbor-retry-error"] == "timeout: fails once"
                assert headers["taskharbor-correlation-id"] == "order-7"
                assert headers["taskharbor-retry-fingerprint"]
                assert headers["taskharbor-retry-first-failed-at"] < headers["taskharbor-retry-due-at"]
                await until(lambda: worker._source.sleeps == 1)
                clock.advance(tier)
            await until(lambda: worker._source.sleeps == 1)  # half a second, in memory
            assert len(begun) == 1
            clock.advance(0.5)
            await until(lambda: len(begun) == 2)
            assert begun[1] - begun[0] == 7_500_000
            await until(log.is_committed)


async def test_dead_message_is_in_the_dead_letter_topic_with_all_its_attempts(
    memory: Harbor, log: Log, caplog: pytest.LogCaptureFixture
):
    @memory.task(name="pay")
    async def pay(user_id: str | None = None) -> None:
        raise ValueError("validation error: missing user_id" if user_id is None else "unavailable")

    log.put(b"\xffnot json", {"task": "pay"}, {"task": "pay", "payload": {"user_id": "u-1"}}, key="u-1")
    async with working(memory, log):
        letters = await asyncio.to_thread(log.read, log.dead_letter_topic, 3)
        await until(log.is_committed)
    by_reason = {dict(each.headers())["taskharbor-reason"].decode(): each for each in letters}
    exhausted = by_reason["exhausted"]
    headers = {name: value.decode() for name, value in exhausted.headers()}
    assert (exhausted.key(), json.loads(exhausted.value())["payload"]) == (b"u-1", {"user_id": "u-1"})
    assert headers["kafka_dlt-original-topic"] == log.topic
    assert headers["kafka_dlt-original-offset"] == "2"
    assert headers["kafka_dlt-original-consumer-group"] == log.group
    assert (headers["kafka_dlt-exception-fqcn"], headers["kafka_dlt-exception-message"]) == (
        "ValueError",
        "unavailable",
    )
    assert (headers["taskharbor-task"], headers["taskharbor-attempts"]) == ("pay", "3")
    history = json.loads(headers["taskharbor-history"])
    assert [(each["number"], each["status"]) for each in history] == [(n, "failed") for n in (1, 2, 3)]
    assert not [name for name in headers if name.startswith("taskharbor-retry-")]
    assert dict(by_reason["not_retryable"].headers())["taskharbor-attempts"] == b"1"
    unreadable = by_reason["invalid_payload"]
    assert unreadable.value() == b"\xffnot json"
    offset = dict(unreadable.headers())["kafka_dlt-original-offset"].decode()
    assert re.search(rf"message {log.topic}\[\d\]@{offset} is dead: .* cannot be read", caplog.text)


async def test_short_delay_is_waited_for_in_memory_and_outlives_an_orderly_stop(memory: Harbor, log: Log):
    """A delay below the smallest tier leaves no record, unless the worker goes away meanwhile."""
    counts: list[int] = []

    @memory.task(name="note", retry=RetryPolicy(max_attempts=9, initial=UNIT / 2, multiplier=1, jitter=None))
    async def note(ctx: Context) -> None:
        counts.append(ctx.retry_count)
        if ctx.retry_count < 2:
            raise TimeoutError

    @memory.task(name="rests", retry=RetryPolicy(max_attempts=9, initial=3_000, jitter=None))
    async def rests(ctx: Context) -> None:
        counts.append(10 + ctx.retry_count)
        if ctx.retry_count == 0:
            raise TimeoutError

    log.put({"task": "note"})
    async with working(memory, log):
        await until(lambda: counts == [0, 1, 2])
        await until(log.is_committed)
    log.put({"task": "rests"})
    hour = 3_600.0
    worker = StreamWorker(
        memory, brokers=log.bootstrap, topic=log.topic, group=log.group, retries="topics", retry=QUICK
    )
    worker._tier_seconds = hour
    async with worker:
        await until(lambda: counts[-1] == 10)
        assert not log.is_committed()
    assert log.is_committed()  # its failure is in the smallest retry topic
    [record] = await asyncio.to_thread(log.read, f"{log.topic}-retry-1s", 1)
    assert dict(record.headers())["taskharbor-retry-attempts"] == b"1"


async def test_at_most_once_message_begins_after_its_offset_is_committed(memory: Harbor, log: Log):
    seen: list[bool] = []

    @memory.task(name="charge", delivery="at_most_once")
    async def charge() -> None:
        seen.append(await asyncio.to_thread(log.is_committed))
        raise TimeoutError("unavailable")

    log.put({"task": "charge"}, partition=0)
    async with working(memory, log):
        [letter] = await asyncio.to_thread(log.read, log.dead_letter_topic, 1)
    assert seen == [True]
    headers = dict(letter.headers())
    assert (headers["taskharbor-reason"], headers["taskharbor-delivery"]) == (
        b"not_retryable",
        b"at_most_once",
    )


async def test_groups_that_share_a_topic_retry_their_own_failures(memory: Harbor, log: Log):
    done: list[str] = []

    @memory.task(name="note")
    async def note(ctx: Context) -> None:
        if ctx.retry_count == 0:
            raise TimeoutError
        done.append("first")

    async with Harbor("memory://") as another:

        @another.task(name="note")
        async def other(ctx: Context) -> None:
            done.append(f"second {ctx.retry_count}")

        log.put({"task": "note"})
        async with working(memory, log):
            await until(lambda: done == ["first"])
        log.group += "-2"
        async with working(another, log):
            await until(lambda: len(done) == 2)
            log.topic, log.group, log.partitions = f"{log.topic}-retry-1s", f"{log.group}-retry", 4
            await until(lambda: any(each.offset == 1 for each in log.committed()))
    assert done == ["first", "second 0"]


async def test_unknown_task_has_the_grace_of_every_job(memory: Harbor, log: Log):
    log.put({"task": "nobody:knows"})
    async with working(memory, log):
        await until(log.is_committed)
        [record] = await asyncio.to_thread(log.read, f"{log.topic}-retry-16s", 1)
    headers = dict(record.headers())
    assert headers["taskharbor-retry-attempts"] == b"0"
    assert b"unknown_task" in headers["taskharbor-retry-history"]


async def test_members_share_the_retry_topics_and_execute_each_message_once(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(ctx: Context, n: int) -> None:
        await asyncio.sleep(0.01)
        if ctx.retry_count == 0 and n % 3 == 0:
            raise TimeoutError
        done.append(n)

    log.put_calls("note", range(150))
    async with working(memory, log):
        await until(lambda: len(done) > 10)
        async with working(memory, log):
            log.put_calls("note", range(150, 300))
            await until(lambda: len(done) >= 200)
        await until(lambda: len(done) >= 300)
        await until(log.is_committed)
    assert sorted(done) == list(range(300))


async def test_message_that_a_dead_process_had_begun_is_tried_again_with_its_loss_recorded(
    memory: Harbor, log: Log
):
    begun: list[tuple[int, int]] = []

    @memory.task(name="note", retry=RetryPolicy(max_attempts=2, initial=2 * UNIT, jitter=None))
    async def note(ctx: Context) -> None:
        begun.append((ctx.job.number, ctx.retry_count))
        if ctx.retry_count == 0:
            worker._losses[ctx.job.id] = LostMessage(ctx.job.id, "w-1", "was killed", 0)
            raise TimeoutError

    log.put({"task": "note"})
    async with working(memory, log) as worker:
        await until(lambda: len(begun) == 2)
        await until(log.is_committed)
    assert begun == [(1, 0), (3, 1)]
    records = await asyncio.to_thread(log.read, f"{log.topic}-retry-1s", 1)
    assert b'"lost"' in dict(records[-1].headers())["taskharbor-retry-history"]


async def test_retry_partition_that_waits_is_read_again_beyond_what_memory_takes(
    memory: Harbor, log: Log, monkeypatch: pytest.MonkeyPatch
):
    done: list[int] = []
    monkeypatch.setattr(sleeping, "WAITING_BYTES", 1_000)

    @memory.task(name="note", retry=RetryPolicy(max_attempts=2, initial=UNIT * 8, jitter=None))
    async def note(ctx: Context, n: int) -> None:
        if ctx.retry_count == 0:
            raise TimeoutError
        done.append(n)

    log.put_calls("note", range(60))
    async with working(memory, log):
        await until(lambda: len(done) >= 60)
        await until(log.is_committed)
    assert sorted(done) == list(range(60))


async def test_record_that_a_topic_does_not_take_is_replaced_by_its_beginning(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    log.create(log.dead_letter_topic, 1, {"max.message.bytes": "6000"})
    log.put(b"x" * 900_000, {"task": "note", "payload": {"n": 2}}, partition=0)
    async with working(memory, log):
        [letter] = await asyncio.to_thread(log.read, log.dead_letter_topic, 1)
        await until(lambda: done == [2])
        await until(log.is_committed)
    assert letter.value() == b"x" * 4_096
    assert dict(letter.headers())["taskharbor-shortened"] == b"900000"


async def test_record_that_waits_is_executed_also_where_the_group_begins_at_the_end_of_its_topic(
    memory: Harbor, log: Log
):
    """The worker stops before it has read anything of the retry topic, so its group has committed nothing there."""
    done: list[int] = []

    @memory.task(name="note")
    async def note(ctx: Context, n: int) -> None:
        if ctx.retry_count == 0:
            raise ValueError("unavailable")
        done.append(n)

    real = TopicsConsumer.start
    log.put_calls("note", [0], partition=0)
    log.commit([TopicPartition(log.topic, 0, 0)])
    settings = {**QUICK_BEATS, "auto.offset.reset": "latest"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TopicsConsumer, "start", lambda self: real(self) if self.topics == [log.topic] else None
        )
        async with working(memory, log, settings=settings):
            await until(log.is_committed)
    async with working(memory, log, settings=settings):
        await until(lambda: done == [0])


async def test_second_worker_of_one_name_stops_the_first_with_one_clear_line(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    def worker() -> StreamWorker:
        options: dict[str, Any] = {
            "topic": log.topic,
            "group": log.group,
            "retries": "topics",
            "name": "same",
            "settings": QUICK_BEATS,
        }
        return StreamWorker(memory, brokers=log.bootstrap, grace_seconds=1.0, **options)

    log.put_calls("note", [0])
    first, second = worker(), worker()
    running = asyncio.create_task(first.run())
    await until(lambda: done == [0])
    await until(log.is_committed)
    async with second:
        await until(lambda: second._source is not None and second._source.ledger._offsets)
        for n in range(1, 21):
            log.put_calls("note", [n], partition=n % 2)
        with pytest.raises(
            StreamError, match=r"another worker uses the transactional id .*same.*name of its own"
        ):
            await running
        await until(lambda: set(done) == set(range(21)))
        await until(log.is_committed)


async def test_transaction_whose_answer_is_lost_is_not_repeated(memory: Harbor, log: Log):
    class LosesAnswer:
        """The real producer; of one commit the answer does not arrive."""

        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def commit_transaction(self, *args: Any) -> None:
            self._producer.commit_transaction(*args)
            raise KafkaException(KafkaError(KafkaError._FATAL, "lost", fatal=True))

    @memory.task(name="pay")
    async def pay() -> None:
        raise ValueError("validation error")

    async with working(memory, log) as worker:
        await until(
            lambda: worker._consumer is not None and worker._consumer.transactions._producer is not None
        )
        transactions = worker._consumer.transactions
        transactions._producer = LosesAnswer(transactions._producer)
        log.put({"task": "pay"})
        await asyncio.to_thread(log.read, log.dead_letter_topic, 1)
        await until(lambda: not isinstance(transactions._producer, LosesAnswer))
        log.put({"task": "pay"})
        letters = await asyncio.to_thread(log.read, log.dead_letter_topic, 2)
        await until(log.is_committed)
        log.put({"task": "pay"})
        letters = await asyncio.to_thread(log.read, log.dead_letter_topic, 3)
    assert sorted((each.headers()[1][1], each.headers()[2][1]) for each in letters) == sorted(
        {(each.headers()[1][1], each.headers()[2][1]) for each in letters}
    )


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dead_letter_topic": None}, "needs a dead-letter topic"),
        ({"order": "key"}, "overtaken by the later ones of its key"),
        ({"order": "partition"}, 'order partition is for retries="store"'),
        ({"serves_retries": False}, "no queue that could be left"),
        ({"ingest": True}, "leave one of them out"),
        ({"retries": "memory"}, 'retries is "store" or "topics"'),
        ({"settings": {"transactional.id": "mine"}}, "transactional.id cannot be set"),
    ],
)
def test_option_that_this_mode_cannot_keep_is_refused(memory: Harbor, options: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        StreamWorker(memory, **{"brokers": "x:1", "group": "g", "retries": "topics"} | options)


async def test_missing_retry_topic_is_one_clear_error(memory: Harbor, log: Log):
    options: dict[str, Any] = {"retries": "topics", "creates_own_topics": False}
    worker = StreamWorker(memory, brokers=log.bootstrap, topic=log.topic, group="g", **options)
    with pytest.raises(
        StreamError, match=r"-retry-1s' is missing; create it, or leave out --no-create-topics"
    ):
        await worker.run()


# -- pure ----------------------------------------------------------------------------------------


@given(delay=st.integers(0, 10**10))
def test_waits_of_the_tiers_fill_a_delay_to_less_than_the_smallest(delay: int):
    tiers = Tiers("tasks")
    waits: list[int] = []
    while (tier := tiers.best(delay - sum(waits))) is not None:
        waits.append(tier[1])
    assert 0 <= delay - sum(waits) < tiers.unit
    assert waits == sorted(waits, reverse=True)


PLACE = Place(b"log", "tasks", 3, 12, 1_700_000_000_000)


@given(
    number=st.integers(0, 10_000),
    error=st.none() | st.text(min_size=1, max_size=3_000).map(lambda text: f"builtins.ValueError: {text}"),
    status=st.sampled_from(AttemptStatus),
    delay=st.none() | st.integers(0, 10**12),
    own=st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=5),
)
def test_retry_record_says_what_has_happened_to_its_message(
    number: int, error: str | None, status: AttemptStatus, delay: int | None, own: trails.Headers
):
    own = [each for each in own if not each[0].startswith(trails.PREFIX)]
    t = Transition("w/1", "id", number + 1, status, State.READY, number, delay=delay, error=error)
    trail = trails.Trail(PLACE, number=number, attempts=number).after(t, now=1_800_000_000_000_000)
    written = trails.headers_of(trail, "g", own, None)
    assert trails.read(written, "g", b"log") == (trail, own)
    assert trails.read(written, "another", b"log") == trails.Foreign("g")
    assert [row.number for row in trail.history(10)] == [number + 1]
