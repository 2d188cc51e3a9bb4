"""Where partitions are read, after whatever the client, the store and rebalances did: nothing is skipped, and no
partition stands still."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition, Uuid

from taskharbor import Harbor
from taskharbor.streams import StreamWorker
from taskharbor.streams.consumer import Assigned, Commit, PolledConsumer
from taskharbor.streams.ingest import Ingester
from taskharbor.streams.jobs import Held
from taskharbor.streams.lines import WAITING_BYTES_MAX, Lines, Order
from taskharbor.streams.messages import Place
from taskharbor.streams.offsets import AHEAD_MAX
from taskharbor.streams.source import StreamSource
from taskharbor.streams.taken import Taken
from taskharbor.streams.topics import trails
from taskharbor.streams.topics.consumer import TopicsConsumer
from taskharbor.streams.topics.moves import FAR_AHEAD, Ledger
from taskharbor.streams.topics.records import Records
from tests.streams.log import QUICK_BEATS, Log, until
from tests.streams.test_worker import working
from tools.kafka_server import MOCK_LACKS, Broker

MODULES = {"store": "taskharbor.streams.consumer", "topics": "taskharbor.streams.topics.consumer"}
MODES: dict[str, dict[str, Any]] = {"store": {}, "topics": {"retries": "topics"}, "ingest": {"ingest": True}}


@pytest.fixture
def real_broker(broker: Broker) -> Broker:
    if broker.is_mock:
        pytest.skip(f"a mock of a broker has no {MOCK_LACKS}")
    return broker


@pytest.fixture
def done(memory: Harbor) -> list[int]:
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int, filler: str = "") -> None:
        done.append(n)

    return done


# -- a partition that goes and comes back within one call of the client --------------------------


class Hasty(confluent_kafka.Consumer):
    """A client that loses its partition and gets it back while it is asked for what is behind the first message.

    Meanwhile another member has executed some messages and committed them.
    """

    log: Log
    first = 15  # the message that was polled before
    set_back_to = 10

    def subscribe(self, topics: Any, **callbacks: Any) -> None:  # type: ignore[override] # as it is called here
        self.callbacks = callbacks
        self.polled: int | None = None
        self.has_lost = False
        super().subscribe(topics, **callbacks)

    def poll(self, timeout: float = -1) -> Any:
        message = super().poll(timeout)
        if message is not None and message.error() is None and message.topic() == self.log.topic:
            self.polled = message.offset()
        return message

    def consume(self, *arguments: Any) -> Any:
        if self.polled != self.first and not self.has_lost:
            return []
        if not self.has_lost:
            self.has_lost = True
            partition = [TopicPartition(self.log.topic, 0)]
            self.callbacks["on_lost"](self, partition)
            self.incremental_unassign(partition)
            self.commit(offsets=[TopicPartition(self.log.topic, 0, self.set_back_to)], asynchronous=False)
            self.callbacks["on_assign"](self, partition)
        return super().consume(*arguments)


@pytest.mark.usefixtures("real_broker")
@pytest.mark.parametrize("mode", ["store", "topics"])
async def test_message_that_was_polled_before_a_rebalance_hides_none_of_those_after_it(
    memory: Harbor, log: Log, done: list[int], monkeypatch: pytest.MonkeyPatch, mode: str
):
    monkeypatch.setattr(Hasty, "log", log, raising=False)
    monkeypatch.setattr(f"{MODULES[mode]}.Consumer", Hasty)
    await memory.queues.apause(f"stream:{log.topic}")
    log.partitions = 1
    log.put_calls("note", range(20), partition=0)
    async with working(memory, log, **MODES[mode]) as worker:
        await until(lambda: worker._source is not None and worker._source.figures()["buffered"] == 10)
        await memory.queues.aresume(f"stream:{log.topic}")
        await until(log.is_committed)
    assert sorted(done) == list(range(Hasty.set_back_to, 20))


# -- partitions that stand still -----------------------------------------------------------------


async def test_partition_whose_waiting_messages_end_at_once_is_read_on(
    memory: Harbor, log: Log, monkeypatch: pytest.MonkeyPatch
):
    """As many wait as may, so no more is read. All of them end before the consumer looks again."""
    may_end, is_looking, have_ended = asyncio.Event(), threading.Event(), threading.Event()
    real = StreamSource.full
    done: list[int] = []

    def full(self: StreamSource) -> set[int]:
        if is_looking.is_set():
            assert have_ended.wait(60)
        return real(self)

    monkeypatch.setattr(StreamSource, "full", full)

    @memory.task(name="note")
    async def note(n: int, filler: str = "") -> None:
        await may_end.wait()
        done.append(n)

    filler = "x" * (WAITING_BYTES_MAX // 3)
    log.put(*({"task": "note", "payload": {"n": n, "filler": filler}} for n in range(5)), partition=0)
    async with working(memory, log, order="partition") as worker:
        await until(lambda: 0 in {each.partition for each in worker._presence().partitions if each.paused})
        is_looking.set()
        may_end.set()
        await until(lambda: len(done) >= 5)
        have_ended.set()
        log.put_calls("note", [5], partition=0)
        await until(lambda: done == [0, 1, 2, 3, 4, 5])
        await until(log.is_committed)


def test_line_that_has_ended_is_not_full():
    lines = Lines(Order.PARTITION, None, holds=False)  # type: ignore[arg-type] # it makes no keys here
    messages = [
        Held(Place(b"", "t", 0, offset, 0), None, WAITING_BYTES_MAX, line="line")  # type: ignore[arg-type]
        for offset in range(2)
    ]
    assert [lines.enter(each) for each in messages] == [True, False]
    assert lines.full() == {0}
    following = lines.leave(messages[0])
    assert following is messages[1]
    assert lines.leave(following) is None
    assert lines.full() == set()


def message(offset: int, partition: int = 0) -> Any:
    return SimpleNamespace(partition=lambda: partition, offset=lambda: offset)


def test_partition_never_runs_further_ahead_of_its_commit_than_allowed_and_delays_no_other():
    """The first message does not end, all others do."""
    taken = Taken()
    taken.begin(0, 0, ())
    taken.begin(1, 0, ())
    position = 0
    while room := min(500, taken.room(2_000)):
        messages = [message(offset) for offset in range(position, position + room)]
        taken.arriving(room)
        taken.new_ones(messages)
        taken.finish(Place(b"", "t", 0, each.offset(), 0) for each in messages if each.offset())
        position += room
        assert position <= AHEAD_MAX
    assert position == AHEAD_MAX
    assert taken.far_ahead() == {0}
    assert taken.room(2_000) == 2_000


def test_messages_on_their_way_count_for_how_far_a_partition_is_ahead():
    taken = Taken()
    taken.begin(0, 0, ())
    taken.arriving(2)
    taken.new_ones([message(0), message(AHEAD_MAX - 600)])
    taken.arriving(500)
    assert taken.room(2_000) == 99


async def test_retry_partition_that_is_far_ahead_delays_no_other():
    ledger = Ledger(asyncio.get_running_loop())
    far, other = ("t", 0), ("t", 1)
    for each in (far, other):
        ledger.begin(each, 0, ())
    ledger.take(far, 0)
    ledger.take(far, FAR_AHEAD - 1)
    assert ledger.far_ahead() == []
    assert 0 < ledger.room(5_000) <= AHEAD_MAX - FAR_AHEAD
    ledger.take(far, FAR_AHEAD)
    assert ledger.far_ahead() == [far]
    assert ledger.room(5_000) == 5_000


@pytest.mark.usefixtures("real_broker")
async def test_partition_that_is_far_ahead_is_held_and_the_others_are_read(
    memory: Harbor, log: Log, done: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.streams.topics.moves.FAR_AHEAD", 50)
    may_end = asyncio.Event()

    @memory.task(name="slow")
    async def slow() -> None:
        await may_end.wait()

    log.put({"task": "slow"}, partition=0)
    log.put_calls("note", range(200), partition=0)
    async with working(memory, log, retries="topics") as worker:
        await until(lambda: 0 in {each.partition for each in worker._presence().partitions if each.paused})
        log.put_calls("note", range(200, 400), partition=1)
        await until(lambda: set(range(200, 400)) <= set(done))
        may_end.set()
        await until(log.is_committed)
    assert sorted(done) == list(range(400))


# -- what is asked of the client, and what it answers --------------------------------------------


class Client:
    """Stands for the client library where a real one answers as it likes."""

    def __init__(self) -> None:
        self.seeks: list[tuple[int, int]] = []
        self.refuses = 0  # seeks, from now on
        self.commits: list[Any] = []

    def seek(self, place: TopicPartition) -> None:
        if self.refuses:
            self.refuses -= 1
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.seeks.append((place.partition, place.offset))

    def committed(self, partitions: Any, timeout: float) -> Any:
        return [TopicPartition(each.topic, each.partition, 7) for each in partitions]

    def commit(self, offsets: Any, asynchronous: bool) -> None:
        self.commits.append(offsets)

    def incremental_assign(self, partitions: Any) -> None:
        self.begins = [each.offset for each in partitions]

    def resume(self, partitions: Any) -> None: ...


class Told:
    """What a consumer tells its listener."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, int | None]] = []
        self.away: list[Any] = []
        self.taken_over: set[int] = set()

    def assigned(self, topic_id: str, partitions: Any) -> None:
        self.given += [(each.partition, each.committed) for each in partitions]

    def lost(self, partitions: Any) -> None:
        self.away += partitions

    def disowned(self) -> set[int]:
        disowned, self.taken_over = self.taken_over, set()
        return disowned

    def in_doubt(self) -> list[tuple[int, int]]:
        return []

    def to_commit(self) -> list[Commit]:
        return [Commit(0, 8, "")]


class TopicsTold(Told):
    def assigned(self, partitions: Any) -> None:  # type: ignore[override] # what the other consumer tells
        self.given += [(each.partition, each.committed) for each in partitions]

    def forget(self, partitions: Any) -> None:
        self.away += partitions


class Watch:
    """Says which topic it is. `seen` is an answer to an earlier question."""

    def __init__(self) -> None:
        self.id = "first"
        self.seen: str | None = None

    def find(self) -> str:
        return self.id

    def look(self) -> str | None:
        seen, self.seen = self.seen, None
        return seen


def consumer_of(client: Client, told: Told, watch: Watch) -> PolledConsumer:
    """A consumer with partition 0, committed at 7."""
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    consumer = PolledConsumer(config, "t", "g", told, watch)  # type: ignore[arg-type]
    consumer._consumer = client
    consumer._on_assign(client, [TopicPartition("t", 0)])
    assert told.given == [(0, 7)]
    told.given.clear()
    return consumer


def test_partition_that_the_client_cannot_read_yet_is_taken_again_as_soon_as_it_can():
    client, told = Client(), Told()
    consumer = consumer_of(client, told, Watch())
    told.taken_over, client.refuses = {0}, 2
    for _ in range(2):
        consumer._read_elsewhere()
        assert told.given == []  # nothing of it is taken
    consumer._read_elsewhere()
    assert (client.seeks, told.given) == ([(0, 7)], [(0, 7)])
    consumer._read_elsewhere()
    assert len(told.given) == 1


def test_topic_that_was_made_anew_is_read_from_its_begin_as_soon_as_the_client_can():
    client, told, watch = Client(), Told(), Watch()
    consumer = consumer_of(client, told, watch)
    watch.id = watch.seen = "second"
    client.refuses = 1
    consumer._read_elsewhere()
    assert (told.away, told.given) == ([0], [])
    consumer._read_elsewhere()
    assert told.given == [(0, None)]
    assert client.seeks == [(0, confluent_kafka.OFFSET_BEGINNING)]


def test_late_answer_about_the_topic_that_was_does_not_begin_anew():
    client, told, watch = Client(), Told(), Watch()
    consumer = consumer_of(client, told, watch)
    watch.seen = "the one before"
    consumer._read_elsewhere()
    assert (told.away, client.seeks) == ([], [])


def test_partitions_that_are_here_begin_anew_when_another_one_comes_of_another_topic():
    client, told, watch = Client(), Told(), Watch()
    consumer = consumer_of(client, told, watch)
    watch.id = "second"
    consumer._on_assign(client, [TopicPartition("t", 1)])
    consumer._read_elsewhere()
    assert told.given == [(1, None), (0, None)]


def test_commit_of_the_topic_that_was_says_nothing_about_the_one_that_comes():
    """It may come to the brokers after they have deleted what they knew of the topic."""
    client, told, watch = Client(), Told(), Watch()
    consumer = consumer_of(client, told, watch)
    consumer._on_lost(client, [TopicPartition("t", 0)])
    watch.id = "second"
    consumer._on_assign(client, [TopicPartition("t", 0)])
    assert told.given == [(0, None)]
    assert client.begins == [confluent_kafka.OFFSET_BEGINNING]


NO_IDS = ["t", str(Uuid(0, 0))]  # what stands for the id of a topic whose brokers give it none


@pytest.mark.parametrize("no_id", NO_IDS)
def test_topic_that_gets_an_id_when_its_brokers_are_upgraded_is_the_same(no_id: str):
    """While they are upgraded one by one, some answer with an id and some without."""
    client, told, watch = Client(), Told(), Watch()
    watch.id = no_id
    consumer = consumer_of(client, told, watch)
    for number, topic_id in enumerate(["real", no_id, "real"], 1):
        watch.id = watch.seen = topic_id
        consumer._read_elsewhere()
        consumer._on_assign(client, [TopicPartition("t", number)])
    consumer._read_elsewhere()
    assert (told.away, client.seeks) == ([], [])
    assert told.given == [(1, 7), (2, 7), (3, 7)]


@pytest.mark.parametrize("no_id", NO_IDS)
def test_retrying_by_topics_a_topic_that_gets_an_id_is_the_same(no_id: str):
    client, told, watch = Client(), TopicsTold(), Watch()
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    consumer = TopicsConsumer(config, ["t"], told, watch, no_id)  # type: ignore[arg-type]
    consumer._consumer = client
    watch.id = watch.seen = "real"
    consumer._on_assign(client, [TopicPartition("t", 0)])
    consumer._read_elsewhere()
    assert (told.away, client.seeks, told.given) == ([], [], [(("t", 0), 7)])


def test_partition_that_leaves_is_not_taken_again():
    client, told = Client(), Told()
    consumer = consumer_of(client, told, Watch())
    told.taken_over, client.refuses = {0}, 1
    consumer._read_elsewhere()
    consumer._on_lost(client, [TopicPartition("t", 0)])
    consumer._read_elsewhere()
    assert (client.seeks, told.given) == ([], [])


def test_retrying_by_topics_a_topic_that_was_made_anew_is_read_from_its_begin():
    client, told, watch = Client(), TopicsTold(), Watch()
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    consumer = TopicsConsumer(config, ["t"], told, watch, "first")  # type: ignore[arg-type]
    consumer._consumer = client
    consumer._on_assign(client, [TopicPartition("t", 0)])
    assert told.given == [(("t", 0), 7)]
    watch.seen = "the one before"
    consumer._read_elsewhere()
    assert client.seeks == []
    watch.id = watch.seen = "second"
    client.refuses = 1
    consumer._read_elsewhere()
    assert (told.away, told.given[1:]) == ([("t", 0)], [])  # nothing of it is taken before the client can
    consumer._read_elsewhere()
    assert told.given[1:] == [(("t", 0), None)]
    watch.id, client.refuses = "another", 1
    watch.seen = watch.id
    consumer._read_elsewhere()
    consumer._on_lost(client, [TopicPartition("t", 0)])
    consumer._read_elsewhere()
    assert told.given[2:] == []  # it has left
    consumer._on_assign(client, [TopicPartition("t", 0)])
    assert told.given.pop() == (("t", 0), 7)
    watch.id = "third"
    consumer._on_assign(client, [TopicPartition("t", 1)])
    assert told.given[2:] == [(("t", 1), None)]  # whatever the group has committed
    consumer._read_elsewhere()
    assert told.given[3:] == [(("t", 0), None)]


def test_commit_whose_answer_names_no_partition_is_made_again():
    client = Client()
    consumer = consumer_of(client, Told(), Watch())
    consumer._commit()
    consumer._commit()
    assert len(client.commits) == 1  # the first one is not answered yet
    consumer._on_commit(KafkaError(KafkaError._TIMED_OUT), [])
    consumer._commit()
    assert len(client.commits) == 2


# -- what is under way when partitions go and come -----------------------------------------------


def held_of(partition: int = 0) -> Any:
    claimed = SimpleNamespace(id=f"job of {partition}")
    return SimpleNamespace(place=Place(b"", "t", partition, 0, 0), claimed=claimed, size=1, token="")


def test_message_that_has_not_begun_when_its_partition_leaves_is_not_offered_again():
    """It stays in the log for the next owner; the store gets only what a handler has begun."""
    taken = Taken()
    messages = [held_of(0), held_of(1)]
    for each in messages:
        taken.begin(each.place.partition, 0, ())
        taken.add(each)
    assert taken.next("token", 2, 10) == messages
    taken.leave([0])
    for each in messages:
        taken.offer_again(each)
    assert taken.of({0}) == []
    assert taken.next("again", 2, 10) == [messages[1]]
    taken.forget([0])
    taken.begin(0, 0, ())
    taken.add(messages[0])
    assert taken.next("token", 2, 10) == [messages[0]]
    taken.offer_again(messages[0])
    assert taken.next("again", 2, 10) == [messages[0]]


def test_message_that_came_again_is_not_let_go_with_the_one_before():
    taken = Taken()
    taken.begin(0, 0, ())
    before, again = held_of(), held_of()
    taken.add(before)
    assert taken.next("one", 1, 10) == [before]
    taken.forget([0])
    taken.begin(0, 0, ())
    taken.add(again)
    taken.let_go(before)
    taken.offer_again(before)
    assert taken.get(again.claimed.id) is again
    assert taken.next("two", 2, 10) == [again]


async def test_partition_that_came_after_it_was_taken_over_is_not_taken_a_second_time(
    memory: Harbor, log: Log, done: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(PolledConsumer, "_read_elsewhere", lambda self: None)  # it would take the answer
    async with working(memory, log) as worker:
        await until(lambda: worker._source is not None and worker._source._taken.partitions == {0, 1})
        source = worker._source
        source._disowned.extend([0, 1])
        await source._assigned("id", [Assigned(0, None, None)])
        assert source.disowned() == {1}
        assert source.disowned() == set()


@pytest.mark.usefixtures("real_broker")
async def test_message_that_the_worker_itself_stumbles_over_is_dead_and_holds_up_nothing(
    memory: Harbor, log: Log, done: list[int], monkeypatch: pytest.MonkeyPatch
):
    real = Records.later

    def later(self: Records, held: Any, trail: trails.Trail, now: int) -> Any:
        if held.place.offset == 1:
            raise RuntimeError("a bug")
        return real(self, held, trail, now)

    monkeypatch.setattr(Records, "later", later)
    log.put_calls("note", range(3), partition=0)
    async with working(memory, log, retries="topics"):
        await until(log.is_committed)
        [dead] = await asyncio.to_thread(log.read, log.dead_letter_topic, 1)
    assert sorted(done) == [0, 2]
    assert dict(dead.headers())["kafka_dlt-exception-message"] == b"a bug"


# -- topics that go ------------------------------------------------------------------------------


@pytest.mark.usefixtures("real_broker")
@pytest.mark.parametrize("mode", MODES)
async def test_worker_waits_for_a_topic_that_is_away_and_reads_the_one_that_comes(
    memory: Harbor,
    log: Log,
    done: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("taskharbor.streams.brokers.WATCH_SECONDS", 0.5)
    quick = {"topic.metadata.refresh.interval.ms": 300, "topic.metadata.propagation.max.ms": 300}
    settings = {**QUICK_BEATS, **quick}

    async def has(numbers: range) -> bool:
        if mode != "ingest":
            return set(numbers) <= set(done)
        return set(numbers) <= {job.payload["n"] for job in await memory.jobs.alist(limit=100)}

    log.put_calls("note", range(10), partition=0)
    where: dict[str, Any] = {"brokers": log.bootstrap, "topic": log.topic, "group": log.group}
    async with StreamWorker(memory, **where, settings=settings, **MODES[mode]):
        await until(lambda: has(range(10)))
        log.delete()
        await until(lambda: "cannot be read" in caplog.text or "another worker" in caplog.text)
        log.create(log.topic, log.partitions)
        log.put_calls("note", range(100, 120), partition=0)
        await until(lambda: has(range(100, 120)))
        await until(log.is_committed)


@pytest.mark.usefixtures("real_broker")
async def test_ingesting_worker_asks_again_when_the_brokers_do_not_say_which_topic_it_is(
    memory: Harbor, log: Log, monkeypatch: pytest.MonkeyPatch
):
    real = Ingester._identify
    failures = [KafkaError._TRANSPORT, KafkaError._TIMED_OUT]

    def identify(self: Ingester, *arguments: Any) -> Any:
        if failures:
            raise KafkaException(KafkaError(failures.pop()))
        return real(self, *arguments)

    monkeypatch.setattr(Ingester, "_identify", identify)
    log.put_calls("note", range(5))
    where: dict[str, Any] = {"brokers": log.bootstrap, "topic": log.topic, "group": log.group}
    async with StreamWorker(memory, **where, settings=QUICK_BEATS, ingest=True):
        await until(lambda: has_jobs(memory, 5))


async def has_jobs(harbor: Harbor, count: int) -> bool:
    return sum((await harbor.jobs.acounts()).values()) == count
