"""What the Kafka client says by itself: nothing beside our own error at the start, and warnings later."""

from __future__ import annotations

import asyncio
import logging

import pytest
from click.testing import CliRunner

from taskharbor import Harbor, StreamError
from taskharbor.cli import cli
from taskharbor.streams.client_log import AGAIN_SECONDS, ClientLog

NOBODY = "127.0.0.1:1"
CLIENT = "taskharbor.stream.client"


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [each.levelno for each in caplog.records if each.name == CLIENT]


@pytest.mark.parametrize(
    "command", [["stream", "--group", "g"], ["stream", "replay", "--from", "tasks-dlq", "--dry-run"]]
)
def test_brokers_that_do_not_answer_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: list[str]
):
    monkeypatch.setattr("taskharbor.streams.brokers.ANSWER_SECONDS", 1.0)
    done = CliRunner().invoke(cli, [*command, "--brokers", NOBODY, "--url", "memory://"])
    assert done.exit_code == 1
    [line] = [each for each in done.stderr.splitlines() if " INFO " not in each]
    assert line.startswith(f"Error: no broker answers at {NOBODY}: ")
    assert "Connection refused" in line
    assert capfd.readouterr().err == ""


async def test_publish_to_brokers_that_do_not_answer_says_why_and_logs_nothing(
    memory: Harbor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    caplog.set_level(logging.DEBUG, CLIENT)
    monkeypatch.setattr("taskharbor.streams.producer.PUBLISH_SECONDS", 1.0)

    @memory.task(name="note")
    async def note() -> None: ...

    stream = memory.stream("tasks", brokers=NOBODY)
    with pytest.raises(
        StreamError, match=r"not answered within 1 s \(.*Connection refused.*\); the messages may"
    ):
        await asyncio.to_thread(stream.publish, note.s())
    assert levels(caplog)
    assert set(levels(caplog)) == {logging.DEBUG}
    assert capfd.readouterr().err == ""


FORM, NAME = "%s [%s] %s", "rdkafka#consumer-1"
LOST = "[thrd:a:1/bootstrap]: a:1/bootstrap: Connect to ipv4#1.2.3.4:1 failed: Connection refused"


def test_what_the_client_says_later_is_logged_and_a_lost_connection_is_no_error(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG, CLIENT)
    log = ClientLog(has_met=False)
    log.log(logging.ERROR, FORM, "FAIL", NAME, LOST)
    log.log(logging.WARNING, FORM, "CONFWARN", NAME, "a setting is of no use")
    log.log(
        logging.WARNING,
        FORM,
        "CONFWARN",
        NAME,
        "x is a consumer property and will be ignored by this producer",
    )
    assert levels(caplog) == [logging.DEBUG, logging.WARNING, logging.DEBUG]
    assert log.because() == " (Connect to ipv4#1.2.3.4:1 failed: Connection refused)"
    caplog.clear()
    log.has_met = True
    log.log(logging.ERROR, FORM, "FAIL", NAME, LOST)
    log.log(logging.ERROR, FORM, "ERROR", NAME, "1/1 brokers are down")
    log.log(logging.ERROR, FORM, "TXNERR", NAME, "a transaction that is repeated")
    log.log(logging.ERROR, FORM, "FATAL", NAME, "nothing works any more")
    assert levels(caplog) == [*[logging.WARNING] * 3, logging.ERROR]
    assert caplog.messages[0] == f"FAIL [{NAME}] {LOST}"


def test_a_connection_that_is_tried_again_and_again_is_a_warning_now_and_then(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG, CLIENT)
    now = 1_000.0
    log = ClientLog(has_met=True, monotonic=lambda: now)
    for _ in range(3):
        log.log(logging.ERROR, FORM, "FAIL", NAME, LOST)
    log.log(logging.ERROR, FORM, "FAIL", NAME, LOST.replace("a:1", "b:1"))
    assert levels(caplog) == [logging.WARNING, logging.DEBUG, logging.DEBUG, logging.WARNING]
    caplog.clear()
    now += AGAIN_SECONDS
    log.log(logging.ERROR, FORM, "FAIL", NAME, LOST)
    assert levels(caplog) == [logging.WARNING]
