"""One Kafka broker for the whole run: whichever test process needs it first starts it, and all use it.

It belongs to the process that started the run, so it outlives the test process that started it: see `tests.guard`.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from tests import guard
from tools import kafka_server
from tools.kafka_server import Broker, OwnBroker

USERS = {"intern": "secret"}  # who may do what a test permits, at the broker's second address


class RunBroker(Struct):
    """The broker of the run, as one of several test processes sees it. None of them may stop it."""

    bootstrap: str
    secured: str  # where users have to sign in
    is_mock: bool = False

    def start(self) -> None:
        """It runs."""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        raise RuntimeError("the broker of the run is not stopped by a test; take the fixture mortal_broker")


@contextmanager
def running() -> Iterator[Broker]:
    """The broker of the run, or one for this block if there is only one test process."""
    is_alone = "PYTEST_XDIST_WORKER" not in os.environ or "KAFKA_BOOTSTRAP" in os.environ
    classpath = None if is_alone else kafka_server.found_classpath()
    if classpath is None:
        with kafka_server.running(users=USERS) as broker:
            yield broker
    else:
        yield _of_the_run(classpath)


def _of_the_run(classpath: str) -> RunBroker:
    folder = guard.folder_of_the_run() / "kafka"
    folder.mkdir(exist_ok=True)
    said = folder / "address"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may ask at once
        if not said.exists():
            said.write_bytes(msgspec.json.encode(_started(folder, classpath)))
    return msgspec.json.decode(said.read_bytes(), type=RunBroker)


def _started(folder: Path, classpath: str) -> RunBroker:
    environment = {**os.environ, **guard.environment_of_the_run()}
    broker = OwnBroker(folder, classpath, {}, USERS, outlives_with=environment)
    kafka_server.start_patiently(broker)
    broker.leave_running()
    return RunBroker(broker.bootstrap, broker.secured)
