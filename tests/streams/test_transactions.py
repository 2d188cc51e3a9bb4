"""Transactions that cannot be made: what waits for them has its answer, and the worker's line says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from taskharbor import Harbor
from taskharbor.streams import StreamWorker
from taskharbor.streams.brokers import Brokers
from taskharbor.streams.messages import Place
from taskharbor.streams.topics.moves import Ledger, Move, Record
from taskharbor.streams.topics.transactions import Transactions
from tests.streams.log import PATIENCE_SECONDS, Log, until
from tools.kafka_server import MOCK_LACKS, Broker


@pytest.fixture
def real_broker(broker: Broker) -> Broker:
    if broker.is_mock:
        pytest.skip(f"a mock of a broker has no {MOCK_LACKS}")
    return broker


class Group:
    """A member of a group that has committed nothing."""

    topics: Sequence[str] = ("tasks",)

    def group(self) -> Any:
        return "the first generation"

    def committed(self, partitions: list[Any]) -> list[Any]:
        return []


class Fenced:
    """A producer whose place another one has taken."""

    def begin_transaction(self) -> None: ...

    def produce(self, *_: Any, **__: Any) -> None: ...

    def send_offsets_to_transaction(self, *_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))


async def test_message_that_cannot_move_any_more_has_its_answer():
    """Without one, the worker waits for it until the lease is over before it ends."""
    loop = asyncio.get_running_loop()
    ledger, failures = Ledger(loop), list[Exception]()
    transactions = Transactions({"transactional.id": "same"}, ledger, [Group()], failures.append)
    transactions._producer = Fenced()
    ledger.begin(("tasks", 0), 0, ())
    assert ledger.take(("tasks", 0), 0)
    answer = loop.create_future()
    ledger.move([Move(Place(b"", "tasks", 0, 0, 0), Record("tasks-dlq", None, b"{}", []), answer)])
    transactions.start()
    try:
        assert await asyncio.wait_for(answer, PATIENCE_SECONDS) is False
    finally:
        await asyncio.to_thread(transactions.stop, PATIENCE_SECONDS)
    [failure] = failures
    assert "another worker uses the transactional id 'same'" in str(failure)


def moving(log: Log, ledger: Ledger, failures: list[Exception]) -> Transactions:
    """Transactions that move records only: what they finish was committed before."""
    settings = {**Brokers(log.bootstrap).producer_settings(), "transactional.id": log.group}
    transactions = Transactions(settings, ledger, [], failures.append)
    transactions.connect(lambda: False)
    return transactions


def move_to(topic: str, body: bytes, offset: int, answer: Any = None, instead: Any = None) -> Move:
    place = Place(b"", "tasks", 0, offset, 0)
    return Move(place, Record(topic, None, body, [], instead), answer, is_finished=True)


class OneByOne(confluent_kafka.Producer):
    """A client that has the brokers' answer to each record before it takes the next one."""

    def produce(self, *arguments: Any, **more: Any) -> None:
        super().produce(*arguments, **more)
        self.flush(PATIENCE_SECONDS)


@pytest.mark.usefixtures("real_broker")
async def test_record_that_is_refused_in_the_middle_of_a_transaction_ends_no_worker(
    log: Log, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.streams.topics.transactions.Producer", OneByOne)
    log.create(log.dead_letter_topic, 1, {"max.message.bytes": "6000"})
    loop, failures = asyncio.get_running_loop(), list[Exception]()
    ledger = Ledger(loop)
    answers = [loop.create_future() for _ in range(2)]

    def shorter(_: str) -> Record:
        return Record(log.dead_letter_topic, None, b"shorter", [])

    large = move_to(log.dead_letter_topic, b"x" * 900_000, 0, answers[0], shorter)
    ledger.move([large, move_to(log.dead_letter_topic, b"small", 1, answers[1])])
    transactions = await asyncio.to_thread(moving, log, ledger, failures)
    transactions.start()
    try:
        assert await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_SECONDS) == [True, True]
    finally:
        await asyncio.to_thread(transactions.stop, PATIENCE_SECONDS)
    assert failures == []
    letters = await asyncio.to_thread(log.read, log.dead_letter_topic, 2)
    assert sorted(each.value() for each in letters) == [b"shorter", b"small"]


@pytest.mark.usefixtures("real_broker")
async def test_topic_that_a_record_cannot_go_to_is_named(log: Log, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskharbor.streams.brokers.NEW_TOPIC_MS", 200)
    loop, failures = asyncio.get_running_loop(), list[Exception]()
    ledger, gone = Ledger(loop), f"{log.topic}-retry-1s"
    answer = loop.create_future()
    ledger.move([move_to(gone, b"{}", 0, answer)])
    transactions = await asyncio.to_thread(moving, log, ledger, failures)
    transactions.start()
    try:
        assert await asyncio.wait_for(answer, PATIENCE_SECONDS) is False
        await until(lambda: failures)
    finally:
        await asyncio.to_thread(transactions.stop, PATIENCE_SECONDS)
    assert [str(each) for each in failures] == [
        f"topic {gone!r} is missing; create it, or leave out --no-create-topics"
    ]


async def test_worker_that_is_stopped_before_it_may_make_transactions_ends(
    memory: Harbor, log: Log, real_broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    """Such as where the brokers cannot make the topic that they keep transactions in."""
    has_asked, may_fail = asyncio.Event(), False
    loop = asyncio.get_running_loop()

    class NotReady:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def init_transactions(self, seconds: float) -> None:
            loop.call_soon_threadsafe(has_asked.set)
            time.sleep(0.05)
            code = KafkaError.INVALID_CONFIG if may_fail else KafkaError.COORDINATOR_NOT_AVAILABLE
            raise KafkaException(KafkaError(code))

    monkeypatch.setattr("taskharbor.streams.topics.transactions.Producer", NotReady)
    where: dict[str, Any] = {"brokers": log.bootstrap, "topic": log.topic, "group": log.group}
    worker = StreamWorker(memory, **where, retries="topics")
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(has_asked.wait(), PATIENCE_SECONDS)
        worker.stop()
        done, _ = await asyncio.wait([running], timeout=10)
    finally:
        may_fail = True  # ends the thread
    assert done
    running.result()  # without an error
