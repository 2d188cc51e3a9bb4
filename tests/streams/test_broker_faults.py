"""Rebalances, brokers and processes that go away, logs that lose their beginning: each time the lag falls again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicPartition

from taskharbor import Context, Harbor
from taskharbor.records import State
from taskharbor.streams import StreamWorker
from taskharbor.streams.consumer import PolledConsumer
from taskharbor.streams.topics.consumer import TopicsConsumer
from tests.streams.log import PATIENCE_SECONDS, QUICK_BEATS, Log, until
from tests.streams.test_worker import working
from tools.kafka_server import MOCK_LACKS, Broker, OwnBroker

MEMBER = Path(__file__).parent / "member.py"
OUTAGE_SECONDS = float(os.environ.get("TASKHARBOR_FAULT_STREAM_OUTAGE_SECONDS", "1"))
AGAIN_SECONDS = 10.0  # after the broker has noticed everything, the lag has fallen
MODES: dict[str, dict[str, Any]] = {"store": {}, "topics": {"retries": "topics"}, "ingest": {"ingest": True}}
SESSION_SECONDS = 6  # after that, it notices that the worker is another member by now


@pytest.fixture(autouse=True)
def real_broker(broker: Broker) -> Broker:
    if broker.is_mock:
        pytest.skip(f"a mock of a broker has no {MOCK_LACKS}")
    return broker


class Noted:
    """What handlers noted, in any worker of the test's process."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()
        self.may_end = asyncio.Event()
        self.may_end.set()

    def declare(self, harbor: Harbor) -> None:
        @harbor.task(name="note")
        async def note(n: int) -> None:
            self.begun[n] += 1
            await self.may_end.wait()
            self.done[n] += 1

        @harbor.task(name="fails-once")
        async def fails_once(ctx: Context, n: int) -> None:
            if ctx.retry_count == 0:
                raise TimeoutError("timeout")
            self.done[n] += 1

    def has(self, *numbers: range) -> bool:
        return self.done.keys() >= {n for each in numbers for n in each}


@pytest.fixture
def noted(memory: Harbor) -> Noted:
    noted = Noted()
    noted.declare(memory)
    return noted


def partitions_of(worker: StreamWorker) -> set[int]:
    return set() if worker._source is None else set(worker._source._taken.partitions)


# -- rebalances ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_lag_falls_to_0_while_members_come_and_go(
    memory: Harbor, log: Log, noted: Noted, protocol: str
):
    """Commits and rebalances meet each other all the time here, in the old protocol of groups and in the new one."""
    settings: dict[str, Any] = {"group.protocol": protocol}
    if protocol == "classic":
        settings |= QUICK_BEATS
    rounds = 2
    async with working(memory, log, settings=settings) as first:
        await until(lambda: partitions_of(first) == {0, 1})
        for number in range(rounds):
            producing = asyncio.create_task(
                asyncio.to_thread(log.put_calls, "note", range(1_000 * number, 1_000 * number + 1_000))
            )
            async with working(memory, log, settings=settings) as second:
                await until(lambda: partitions_of(second) and len(partitions_of(first)) == 1)
                log.put_calls("fails-once", [10_000 + number], partition=number % 2)
                await producing
            await until(lambda: partitions_of(first) == {0, 1})
        await until(lambda: noted.has(range(1_000 * rounds), range(10_000, 10_000 + rounds)))
        await until(log.is_committed)
    assert len(await memory.jobs.alist(task="fails-once", state="succeeded")) == rounds


async def test_worker_that_stops_while_a_partition_is_revoked_loses_nothing(
    memory: Harbor, log: Log, noted: Noted
):
    noted.may_end.clear()
    log.put_calls("note", range(40), partition=0)
    log.put_calls("note", range(40, 80), partition=1)
    async with working(memory, log, revoke_seconds=30.0, grace_seconds=30.0, settings=QUICK_BEATS) as first:
        await until(lambda: len(noted.begun) == 80)
        async with working(memory, log) as second:
            await until(lambda: first._source is not None and first._source.rebalances.is_revoking)
            first.stop()
            noted.may_end.set()
            await until(lambda: partitions_of(second) == {0, 1})
            await until(lambda: noted.has(range(80)))
            await until(log.is_committed)


@pytest.mark.parametrize("mode", ["store", "topics"])
async def test_partition_that_leaves_while_it_is_paused_is_read_when_it_comes_back(
    memory: Harbor, log: Log, noted: Noted, monkeypatch: pytest.MonkeyPatch, mode: str
):
    """The client keeps a pause beyond the assignment, and would keep the partition paused."""
    monkeypatch.setattr("taskharbor.streams.worker.AHEAD", 0)
    queue = f"stream:{log.topic}"
    await memory.queues.apause(queue)
    options = {"concurrency": 5, **MODES[mode]}
    async with working(memory, log, **options) as first:
        await until(lambda: _partitions(first) == {0, 1})
        log.put_calls("note", range(20), partition=0)
        log.put_calls("note", range(20, 40), partition=1)
        await until(lambda: _paused(first) == {0, 1})
        async with working(memory, log, name="second", **options) as second:
            await until(lambda: len(_partitions(first)) == len(_partitions(second)) == 1)
            await memory.queues.aresume(queue)
            await until(lambda: noted.has(range(40)) and not _paused(first))
        await until(lambda: _partitions(first) == {0, 1})
        log.put_calls("note", range(40, 60), partition=0)
        log.put_calls("note", range(60, 80), partition=1)
        await until(lambda: noted.has(range(80)))
        await until(log.is_committed)


def _partitions(worker: StreamWorker) -> set[int]:
    return set() if worker._source is None else {each.partition for each in worker._presence().partitions}


def _paused(worker: StreamWorker) -> set[int]:
    return {each.partition for each in worker._presence().partitions if each.paused}


# -- clients that read elsewhere -----------------------------------------------------------------

CONSUMERS: dict[str, Any] = {"store": PolledConsumer, "topics": TopicsConsumer}


@pytest.mark.parametrize("mode", ["store", "topics"])
async def test_client_reads_from_the_offset_that_the_worker_was_told(
    memory: Harbor, log: Log, noted: Noted, monkeypatch: pytest.MonkeyPatch, mode: str
):
    """If it asked the brokers by itself, it could hear of an older one. Here, it would."""
    read_committed = CONSUMERS[mode]._read_committed

    def read_and_set_back(self: Any, consumer: Any, partitions: list[Any]) -> list[Any]:
        known: list[Any] = read_committed(self, consumer, partitions)
        if ours := [each for each in known if each.topic == log.topic]:
            begins = [TopicPartition(each.topic, each.partition, 0) for each in ours]
            consumer.commit(offsets=begins, asynchronous=False)
        return known

    monkeypatch.setattr(CONSUMERS[mode], "_read_committed", read_and_set_back)
    log.put_calls("note", range(20), partition=0)
    log.commit([TopicPartition(log.topic, 0, 10)])
    async with working(memory, log, **MODES[mode]):
        await until(lambda: noted.has(range(10, 20)))
        await until(log.is_committed)
    assert sorted(noted.done.elements()) == list(range(10, 20))


@pytest.mark.parametrize("mode", ["store", "topics"])
async def test_partition_goes_on_when_the_client_has_read_from_before_its_offset(
    memory: Harbor,
    log: Log,
    noted: Noted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
):
    """What was behind the worker is left out, and what is before it is executed once."""
    caplog.set_level(logging.WARNING)
    module = "taskharbor.streams.consumer" if mode == "store" else "taskharbor.streams.topics.consumer"

    def assign_wrongly(consumer: Any, config: Any, partitions: list[Any]) -> None:
        consumer.incremental_assign([TopicPartition(each.topic, each.partition, 0) for each in partitions])

    monkeypatch.setattr(f"{module}.assign", assign_wrongly)
    log.put_calls("note", range(20), partition=0)
    log.commit([TopicPartition(log.topic, 0, 10)])
    async with working(memory, log, **MODES[mode]):
        await until(lambda: noted.has(range(10, 20)))
        log.put_calls("note", range(20, 30), partition=0)
        await until(lambda: noted.has(range(20, 30)))
        await until(log.is_committed)
    assert sorted(noted.done.elements()) == list(range(10, 30))
    assert f"messages of {log.topic}[0] from before 10 came" in caplog.text


@pytest.mark.parametrize("mode", ["store", "topics"])
async def test_log_that_ends_before_what_was_committed_is_read_from_its_begin(
    memory: Harbor, log: Log, noted: Noted, caplog: pytest.LogCaptureFixture, mode: str
):
    caplog.set_level(logging.WARNING)
    log.put_calls("note", range(20), partition=0)
    log.commit([TopicPartition(log.topic, 0, 1_000)])
    async with working(memory, log, **MODES[mode]):
        await until(lambda: noted.has(range(20)))
        await until(log.is_committed)
    assert "made anew" in caplog.text


# -- processes and brokers that go away ----------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("how", ["none", "topics"])
async def test_frozen_process_goes_on_and_warns_when_its_partitions_are_gone(
    log: Log, tmp_path: Path, how: str
):
    # A store for each: a process that is frozen within a transaction would hold the lock of a shared file.
    told = tmp_path / "executions"
    members = [_member(log, "memory://", how, told, tmp_path / "stderr") for _ in range(2)]
    try:
        await until(lambda: _shares(log) == [1, 1])
        frozen = members[0]
        frozen.send_signal(signal.SIGSTOP)
        log.put_calls("note", range(100))
        await until(lambda: _shares(log) == [2])
        await until(log.is_committed)
        frozen.send_signal(signal.SIGCONT)
        await until(lambda: _shares(log) == [1, 1])
        log.put_calls("note", range(100, 200))
        await until(log.is_committed)
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        assert {each["n"] for each in lines if each["at"] == "begin"} == set(range(200))
        assert frozen.pid in {each["pid"] for each in lines if each.get("n", 0) >= 100}
        assert frozen.pid in {each["pid"] for each in lines if each["at"] == "lost"}
        assert all(each.poll() is None for each in members), (tmp_path / "stderr").read_text()
    finally:
        for each in members:
            each.kill()
            each.wait()


def _member(log: Log, url: str, how: str, told: Path, errors: Path) -> subprocess.Popen[bytes]:
    command = [str(MEMBER), url, log.bootstrap, log.topic, log.group, how, str(told), ""]
    with errors.open("ab") as file:
        return subprocess.Popen([sys.executable, *command], stdout=file, stderr=file)


def _shares(log: Log) -> list[int]:
    """How many partitions each member of the group has, once the group has settled."""
    [described] = log.admin.describe_consumer_groups([log.group]).values()
    try:
        group = described.result(PATIENCE_SECONDS)
    except KafkaException as error:
        if error.args[0].code() not in (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR):
            raise
        return []  # the first group of a broker: its coordinator begins
    if group.state is not ConsumerGroupState.STABLE:
        return []
    return sorted(len(each.assignment.topic_partitions) for each in group.members)


OUTAGES = [("store", "killed"), ("topics", "frozen")]
if OUTAGE_SECONDS > AGAIN_SECONDS:  # the long form
    OUTAGES = [(mode, how) for mode in MODES for how in ("killed", "frozen")]


@pytest.mark.timeout(180 + 2 * OUTAGE_SECONDS)
@pytest.mark.parametrize(("mode", "how"), OUTAGES)
async def test_lag_falls_to_0_when_a_broker_is_back(
    memory: Harbor,
    mortal_broker: OwnBroker,
    noted: Noted,
    mode: str,
    how: str,
    caplog: pytest.LogCaptureFixture,
):
    """It is killed and started again, or stops in the middle of everything and goes on. The worker is the same."""
    caplog.set_level(logging.WARNING)
    log = Log(mortal_broker.bootstrap, f"tasks-{uuid.uuid4().hex[:10]}")
    log.put_calls("note", range(500))
    log.put_calls("fails-once", range(500, 510))
    worker = StreamWorker(
        memory,
        brokers=log.bootstrap,
        topic=log.topic,
        group=log.group,
        grace_seconds=1.0,
        settings={"session.timeout.ms": SESSION_SECONDS * 1_000},
        **MODES[mode],
    )

    async def done(numbers: range) -> bool:
        if mode == "ingest":
            return sum((await memory.jobs.acounts()).values()) == numbers.stop
        return noted.has(numbers)

    async with worker:
        await until(lambda: done(range(510)) if mode == "ingest" else len(noted.begun) > 100)
        if how == "killed":
            mortal_broker.stop(signal.SIGKILL)
            await asyncio.sleep(OUTAGE_SECONDS)  # so that commits, fetches and heartbeats find no broker
            mortal_broker.launch()
            await asyncio.to_thread(mortal_broker.wait_until_ready)
        else:
            with mortal_broker.frozen():
                await asyncio.sleep(OUTAGE_SECONDS)
        back_at = time.monotonic()
        log.put_calls("note", range(510, 1_000))
        await until(lambda: done(range(1_000)))
        await until(log.is_committed)
        if OUTAGE_SECONDS > AGAIN_SECONDS:
            assert time.monotonic() - back_at < SESSION_SECONDS + AGAIN_SECONDS
    complaints = [each for each in caplog.records if "could not be committed" in each.getMessage()]
    assert len(complaints) < 10  # and not one for each try
    of_the_client = [each for each in caplog.records if each.name == "taskharbor.stream.client"]
    assert {each.levelno for each in of_the_client} <= {logging.WARNING}
    lost = [each for each in of_the_client if "Connection refused" in each.getMessage()]
    assert (how == "killed") == bool(lost)
    assert len(lost) < 20  # and not one for each try


# -- logs that lose their beginning --------------------------------------------------------------


async def test_worker_goes_on_at_the_earliest_message_when_older_ones_are_deleted(
    memory: Harbor, log: Log, noted: Noted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Once while it runs and its partitions are paused, once while it is away."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("taskharbor.streams.worker.AHEAD", 0)
    await memory.queues.apause(f"stream:{log.topic}")
    log.put_calls("note", range(10), partition=0)
    async with working(memory, log, concurrency=5) as worker:
        await until(lambda: worker._consumer is not None and worker._consumer.paused == 2)
        log.put_calls("note", range(10, 100), partition=0)
        log.delete_before(0, 50)
        await memory.queues.aresume(f"stream:{log.topic}")
        await until(log.is_committed)
    log.put_calls("note", range(100, 200), partition=0)
    log.delete_before(0, 150)
    async with working(memory, log):
        await until(log.is_committed)
    assert sorted(noted.done) == [*range(10), *range(50, 100), *range(150, 200)]
    assert log.committed()[0].offset == 200
    lines = [each.getMessage() for each in caplog.records if "no longer in the log" in each.getMessage()]
    assert len(lines) == 2
    assert f"from {log.topic}[0]@10 on" in lines[0]
    assert f"from {log.topic}[0]@100 on" in lines[1]


@pytest.mark.parametrize("mode", ["store", "topics"])
async def test_topic_that_is_made_anew_under_a_worker_is_another_log(
    memory: Harbor, log: Log, noted: Noted, mode: str
):
    log.put_calls("fails-once", range(3), partition=0)
    async with working(memory, log, **MODES[mode]):
        await until(lambda: noted.has(range(3)))
        await until(log.is_committed)
        log.delete()
        log.create(log.topic, log.partitions)
        log.put_calls("fails-once", range(100, 102), partition=0)
        await until(lambda: noted.has(range(100, 102)))
        await until(log.is_committed)
    assert noted.done == Counter([0, 1, 2, 100, 101])
    jobs = await memory.jobs.alist(task="fails-once")
    assert sorted(job.payload["n"] for job in jobs) == ([0, 1, 2, 100, 101] if mode == "store" else [])
    assert {job.state for job in jobs} <= {State.SUCCEEDED}


async def test_message_of_the_topic_that_was_ends_none_of_the_one_that_comes(
    memory: Harbor, log: Log, noted: Noted, monkeypatch: pytest.MonkeyPatch
):
    """A failed message reaches the store after its topic was made anew, where its offset is another message."""
    is_asked, may_store, is_stored = asyncio.Event(), asyncio.Event(), asyncio.Event()
    real: Any = memory.driver.hand_over  # type: ignore[attr-defined] # not every driver has it

    async def hand_over(*arguments: Any, **more: Any) -> Any:
        is_asked.set()
        await may_store.wait()
        answers = await real(*arguments, **more)
        is_stored.set()
        return answers

    monkeypatch.setattr("taskharbor.streams.brokers.WATCH_SECONDS", 0.5)
    monkeypatch.setattr(memory.driver, "hand_over", hand_over)
    log.put_calls("note", [0], partition=0)
    log.put_calls("fails-once", [1], partition=0)
    async with working(memory, log):
        await until(lambda: noted.has(range(1)) and is_asked.is_set())
        log.delete()
        log.create(log.topic, log.partitions)
        log.put_calls("note", [100], partition=0)
        await until(lambda: noted.has(range(100, 101)))
        may_store.set()
        await until(is_stored.is_set)
        log.put_calls("note", [101], partition=0)
        await until(lambda: noted.has(range(101, 102)))
        await until(log.is_committed)
