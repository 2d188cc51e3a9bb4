"""Replaying a dead-letter topic on a real broker: what is sent back, what the brake stops, and where it goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from taskharbor import Harbor, StreamError
from taskharbor.cli import cli
from taskharbor.streams import TopicReplay
from tests.streams.log import Log, until
from tests.streams.test_retry_topics import working
from tools.kafka_server import MOCK_LACKS, Broker

QUIET = 2.0


@pytest.fixture(autouse=True)
def real_broker(broker: Broker) -> None:
    if broker.is_mock:
        pytest.skip(f"the mock has no {MOCK_LACKS}")


def replay(log: Log, **options: Any) -> TopicReplay:
    return TopicReplay(log.bootstrap, log.dead_letter_topic, **{"quiet_seconds": QUIET} | options)


async def test_dead_messages_are_sent_back_and_executed_once(memory: Harbor, log: Log):
    is_mended = False
    done: list[int] = []
    lines: list[str] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        if not is_mended:
            raise ValueError("validation error: no such order")
        done.append(n)

    log.put(*({"n": n} for n in range(12)), headers={"taskharbor-task": b"note", "own": b"1"})
    log.put(b"not json")
    async with working(memory, log):
        letters = await asyncio.to_thread(log.read, log.dead_letter_topic, 13)
        causes = await asyncio.to_thread(replay(log).count)
        assert sorted(causes.values()) == [1, 12]
        [fingerprint] = [cause for cause, count in causes.items() if count == 12]
        assert causes["invalid_payload"] == 1
        command = ["stream", "replay", "--from", log.dead_letter_topic, "--brokers", log.bootstrap]
        dry = await asyncio.to_thread(CliRunner().invoke, cli, [*command, "--dry-run", "--json"])
        assert json.loads(dry.stdout) == {"messages": 13, "causes": causes}
        is_mended = True
        mended = replay(log, fingerprint=fingerprint, tell=lines.append)
        replayed = await asyncio.to_thread(mended.run)
        assert (replayed.total, replayed.sent, replayed.left, replayed.slices) == (13, 12, 1, 3)
        assert (replayed.stopped, replayed.failed_same) == (False, 0)
        await until(lambda: len(done) == 12)
        again = await asyncio.to_thread(CliRunner().invoke, cli, [*command, "--group", fingerprint, "--json"])
        assert json.loads(again.stdout)["total"] == 0
    assert sorted(done) == list(range(12))
    assert lines[-1].startswith("12 sent back: 0 are dead again")
    assert len(letters) == 13


async def test_brake_stops_a_replay_that_fails_again_and_the_next_one_goes_on(memory: Harbor, log: Log):
    begun: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        begun.append(n)
        raise ValueError("validation error: no such order")

    log.put_calls("note", range(30), partition=0)
    log.create(log.dead_letter_topic, 1)
    async with working(memory, log):
        await asyncio.to_thread(log.read, log.dead_letter_topic, 30)
        first = await asyncio.to_thread(replay(log).run)
        assert (first.sent, first.slices, first.stopped, first.failed_same) == (1, 1, True, 1)
        second = await asyncio.to_thread(replay(log, brake=1.0).run)
        # It goes on after the one that was sent, and takes the one that came back.
        assert (second.total, second.sent, second.stopped) == (30, 30, False)
        assert (second.failed_same, second.slices) == (30, 3)
        letters = await asyncio.to_thread(log.read, log.dead_letter_topic, 61)
    assert len(begun) == 61
    assert sorted(json.loads(each.value())["payload"]["n"] for each in letters) == sorted(begun)


async def test_letter_with_springs_headers_goes_back_without_them(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    source, dead = log.topic, f"{log.topic}-dlt"
    spring: dict[str, Any] = {
        "kafka_dlt-original-topic": source.encode(),
        "kafka_dlt-original-partition": (0).to_bytes(4, "big"),
        "kafka_dlt-original-offset": (7).to_bytes(8, "big"),
        "kafka_dlt-original-consumer-group": log.group.encode(),
        "kafka_dlt-exception-fqcn": b"java.lang.IllegalStateException",
        "own": b"1",
    }
    log.create(dead, 1)
    log.topic = dead
    log.put({"task": "note", "payload": {"n": 1}}, headers=spring)
    log.put({"task": "note", "payload": {"n": 2}}, headers={**spring, "taskharbor-delivery": b"at_most_once"})
    log.put(b"without a topic to go back to")
    log.topic = source
    async with working(memory, log):
        replayed = await asyncio.to_thread(TopicReplay(log.bootstrap, dead, quiet_seconds=QUIET).run)
        await until(lambda: done == [1])
    assert (replayed.total, replayed.sent, replayed.skipped) == (3, 1, 2)
    [message] = await asyncio.to_thread(log.read, source, 1)
    assert [name for name, _ in message.headers()] == ["own", "taskharbor-replay"]


def test_missing_dead_letter_topic_is_one_line_with_an_advice_that_the_command_can_follow(log: Log):
    command = ["stream", "replay", "--from", f"{log.topic}-dead", "--brokers", log.bootstrap]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1
    [line] = done.output.splitlines()
    assert line.startswith(
        f"Error: topic '{log.topic}-dead' is missing; check its name: dead messages of TOPIC"
    )
    assert "--create-topic" not in line


def test_letter_whose_own_topic_is_missing_is_named_and_stays(log: Log):
    dead, gone = log.dead_letter_topic, f"{log.topic}-gone"
    log.create(dead, 1)
    log.topic = dead
    log.put({"task": "note"}, headers={"kafka_dlt-original-topic": gone.encode()})
    for _ in range(2):
        with pytest.raises(StreamError, match=f"topic '{gone}' is missing; dead messages go back to it"):
            replay_of(log).run()


def replay_of(log: Log) -> TopicReplay:
    return TopicReplay(log.bootstrap, log.topic, quiet_seconds=QUIET)


def test_letter_without_a_topic_that_could_be_is_skipped(log: Log):
    log.create(log.dead_letter_topic, 1)
    log.topic = log.dead_letter_topic
    log.put({"task": "note"}, headers={"kafka_dlt-original-topic": b"x y/!"})
    replayed = replay_of(log).run()
    assert (replayed.total, replayed.sent, replayed.skipped) == (1, 0, 1)


class Refused:
    """A producer whose transaction is refused for its offsets. What it has not sent then is undelivered as well."""

    def __init__(self) -> None:
        self._undelivered: list[Any] = []

    def begin_transaction(self) -> None: ...

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        self._undelivered.append(on_delivery)

    def send_offsets_to_transaction(self, *_: Any) -> None:
        error = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, txn_requires_abort=True)
        raise KafkaException(error)

    def abort_transaction(self, seconds: float) -> None:
        for each in self._undelivered:
            each(KafkaError(KafkaError._PURGE_QUEUE), None)


def test_replay_that_is_refused_says_why_and_not_what_became_of_its_messages(log: Log):
    log.create(log.dead_letter_topic, 1)
    log.topic, origin = log.dead_letter_topic, log.topic
    log.put({"task": "note"}, headers={"kafka_dlt-original-topic": origin.encode()})
    replay = replay_of(log)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(StreamError, match="Group authorization failed"),
    ):
        patch.setattr(replay, "_producer", Refused)
        replay.run()


def test_brake_that_is_no_share_is_refused():
    with pytest.raises(ValueError, match="brake is a share from 0 to 1"):
        TopicReplay("x:1", "tasks-dlq", brake=20)
