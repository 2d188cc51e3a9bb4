"""Names of topics: what Kafka refuses is refused at once, wherever a name is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError
from confluent_kafka.cimpl import NewTopic

from taskharbor import ConfigurationError, Harbor
from taskharbor.cli import cli
from taskharbor.streams import StreamWorker, TopicReplay
from taskharbor.streams.topic_names import LENGTH_MAX, is_topic_name
from tests.streams.log import PATIENCE_SECONDS, Log
from tools.kafka_server import Broker

REFUSED = ["x y/!", ".", "..", "a:b", "a\n", "ä", "a" * (LENGTH_MAX + 1)]
TAKEN = ["...", "a.B_c-9", "a" * LENGTH_MAX]


@pytest.mark.parametrize("name", [*REFUSED, ""])
def test_name_that_kafka_refuses_is_refused_wherever_it_is_given(memory: Harbor, name: str):
    for given in (
        lambda: memory.stream(name, brokers="x:1"),
        lambda: StreamWorker(memory, brokers="x:1", group="g", topic=name),
        lambda: StreamWorker(memory, brokers="x:1", group="g", dead_letter_topic=name),
        lambda: TopicReplay("x:1", name),
    ):
        with pytest.raises(
            ConfigurationError, match="cannot be the name of a (dead-letter )?topic: "
        ) as caught:
            given()
        assert "\n" not in str(caught.value)


def test_name_that_leaves_no_room_for_its_retry_topics_is_refused(memory: Harbor):
    with pytest.raises(
        ConfigurationError, match="cannot be the name of a retry topic: it has 250 characters"
    ):
        StreamWorker(memory, brokers="x:1", group="g", topic="a" * 239, retries="topics")


def test_topic_that_the_worker_reads_takes_no_dead_letters(memory: Harbor):
    with pytest.raises(ConfigurationError, match="cannot go to the same topic"):
        StreamWorker(memory, brokers="x:1", group="g", topic="tasks", dead_letter_topic="tasks")
    with pytest.raises(ConfigurationError, match="'tasks-retry-4s' is a retry topic of 'tasks'"):
        StreamWorker(
            memory,
            brokers="x:1",
            group="g",
            topic="tasks",
            dead_letter_topic="tasks-retry-4s",
            retries="topics",
        )


def test_name_that_is_no_text_is_refused(memory: Harbor):
    with pytest.raises(ConfigurationError, match="the name of a topic is text, not \\['tasks'\\]"):
        memory.stream(["tasks"], brokers="x:1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    [
        ["stream", "--group", "g", "--topic", "x y/!"],
        ["stream", "--group", "g", "--topic", "x y/!", "--processes", "2"],
        ["stream", "--group", "g", "--topic", "x y/!", "--ingest"],
        ["stream", "replay", "--from", "x y/!"],
    ],
)
def test_command_refuses_it_in_one_line(tmp_path: Path, command: list[str]):
    url = f"sqlite:///{tmp_path}/harbor.db"
    done = CliRunner().invoke(cli, [*command, "--brokers", "127.0.0.1:1", "--url", url])
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "Error: 'x y/!' cannot be the name of a topic: Kafka takes only the characters a-z, A-Z, 0-9, '.', '_' and '-'"
    ]


def test_kafka_itself_takes_and_refuses_the_same_names(log: Log, broker: Broker):
    if broker.is_mock:
        pytest.skip("a mock takes every name")
    for name in [*REFUSED, *TAKEN]:
        assert _takes(log, name) == is_topic_name(name), name


def _takes(log: Log, name: str) -> bool:
    """Ask the broker whether it would create the topic."""
    [asked] = log.admin.create_topics([NewTopic(name, 1)], validate_only=True).values()
    error = asked.exception(PATIENCE_SECONDS)
    assert error is None or error.args[0].code() == KafkaError.TOPIC_EXCEPTION, error
    return error is None
