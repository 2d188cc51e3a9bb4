"""A real Kafka broker for a run of the tests or of the benchmarks: one KRaft node on free loopback ports.

The first of these that is there: the broker at $KAFKA_BOOTSTRAP, the installation in $KAFKA_HOME, Apache Kafka's jars
by Java and Maven (kept in a cache outside of the repository). Without any, librdkafka's mock cluster; `is_mock` says
so.
To start one by hand: `python -m tools.kafka_server --help`.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tools.loopback import end_with_the_run, free_port

START_SECONDS = 120.0
STARTS = 3  # tries, on a machine that is busy or takes a port away
POM = Path(__file__).parent / "kafka" / "pom.xml"
READY = "Kafka Server started"
# What a mock accepts and does not do. Tests that rest on it are skipped there, with this as the reason.
MOCK_LACKS = "transactions, restarts with data, the metadata limit, static membership, permissions, retention"

# Small and quick: one node, few internal partitions, no waiting for members that may still join.
SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "num.partitions": "4",
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
}


class Broker(Protocol):
    """What a test needs of a broker, whichever it is."""

    bootstrap: str
    is_mock: bool

    def start(self) -> None: ...
    def stop(self, how: signal.Signals = signal.SIGTERM) -> None: ...


class OwnBroker:
    """A broker of our own, in a folder of its own. A test may stop and start it again, with its data.

    It ends with the thread that started it; with `outlives_with`, the environment that it gets, it does not.
    """

    is_mock = False

    def __init__(
        self,
        folder: Path,
        classpath: str,
        settings: Mapping[str, str],
        users: Mapping[str, str],
        *,
        outlives_with: Mapping[str, str] | None = None,
    ) -> None:
        self._outlives_with = outlives_with
        self._folder = folder
        self._classpath = classpath
        self._settings = settings
        self._users = users
        self._process: subprocess.Popen[bytes] | None = None
        self._file = folder / "server.properties"
        self._log = folder / "log"
        self._began_at = 0
        self.bootstrap = ""
        self.secured = ""  # where users have to sign in; empty if there are none

    def create(self) -> None:
        """Choose the ports and make an empty data folder."""
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        settings = {
            **SETTINGS,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self._folder / "data"),
        }
        if self._users:
            self.secured = f"127.0.0.1:{free_port()}"
            settings |= self._security(settings)
        settings |= self._settings
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [
            *self._java("128m"),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster,
            "-c",
            str(self._file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Kafka's data folder could not be made: {done.stderr or done.stdout}")

    def _security(self, settings: Mapping[str, str]) -> dict[str, str]:
        """A listener where users sign in. They may do what an access-control list permits; who comes by the other
        listener may do everything."""
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        users = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        return {
            "listeners": f"{settings['listeners']},SASL_PLAINTEXT://{self.secured}",
            "advertised.listeners": f"{settings['advertised.listeners']},SASL_PLAINTEXT://{self.secured}",
            "listener.security.protocol.map": (
                f"{settings['listener.security.protocol.map']},SASL_PLAINTEXT:SASL_PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def start(self) -> None:
        """Call this from a thread that lasts: when the thread ends, the kernel ends the broker."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process, and do not wait until it answers."""
        self._began_at = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java("512m"), "kafka.Kafka", str(self._file)],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                env=self._outlives_with,
                # One call of the system, and then the broker.
                preexec_fn=_end_with_the_run if self._outlives_with is None else None,  # noqa: PLW1509
            )

    def wait_until_ready(self) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up_at and self._process is not None and self._process.poll() is None:
            if READY in self._said(self._began_at):
                return
            time.sleep(0.05)
        self.stop(signal.SIGKILL)
        raise RuntimeError(f"Kafka did not start:\n{self._said(self._began_at)[-4_000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """SIGTERM is an orderly shutdown, SIGKILL a crash."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(how)
            process.wait(START_SECONDS)

    def leave_running(self) -> None:
        """Leave the process to the guard of the run, which knows it by its environment."""
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # it is not waited for; without this, Python warns that it still runs

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop it in the middle of everything, with its connections open, for as long as the block lasts."""
        assert self._process is not None, "it runs"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _said(self, begin: int) -> str:
        with self._log.open("rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace")

    def _java(self, heap: str) -> list[str]:
        # A broker of a test lives for minutes: the small collector and the quick compiler start it sooner.
        flags = [
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.log.org.apache=warn",
        ]
        level = "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info"
        return ["java", f"-Xmx{heap}", *flags, level, "-cp", self._classpath]


def _end_with_the_run() -> None:
    end_with_the_run(signal.SIGKILL)


class ForeignBroker:
    """The broker at $KAFKA_BOOTSTRAP. It is not ours to stop."""

    is_mock = False

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def start(self) -> None: ...

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        raise RuntimeError("the broker at $KAFKA_BOOTSTRAP is not stopped by a test")


class MockBroker:
    """librdkafka's mock cluster, in this process: quick, and no proof of what MOCK_LACKS names."""

    is_mock = True

    def __init__(self) -> None:
        self.bootstrap = ""
        self._host: Any = None

    def start(self) -> None:
        from confluent_kafka import Producer

        self._host = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "replaced by the mock"})
        brokers = self._host.list_topics(timeout=10).brokers.values()
        self.bootstrap = ",".join(f"{each.host}:{each.port}" for each in brokers)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._host = None


@contextmanager
def running(
    settings: Mapping[str, str] | None = None,
    *,
    users: Mapping[str, str] | None = None,
    parent: Path | None = None,
) -> Iterator[Broker]:
    """Run a broker for as long as the block lasts, and leave nothing behind.

    `users`, with their passwords, may use a broker of our own only as far as its access-control lists permit.
    """
    if bootstrap := os.environ.get("KAFKA_BOOTSTRAP"):
        yield ForeignBroker(bootstrap)
        return
    classpath = found_classpath()
    if classpath is None:
        mock = MockBroker()
        mock.start()
        yield mock
        mock.stop()
        return
    folder = Path(tempfile.mkdtemp(prefix="taskharbor-kafka-", dir=parent))
    broker = OwnBroker(folder, classpath, settings or {}, users or {})
    try:
        start_patiently(broker)
        yield broker
    finally:
        broker.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def start_patiently(broker: OwnBroker) -> None:
    """Start a new one, on a machine that may be busy."""
    for left in reversed(range(STARTS)):
        try:
            broker.create()
            broker.start()
            return
        except RuntimeError:
            if not left:
                raise


# -- the jars ------------------------------------------------------------------------------------


def found_classpath() -> str | None:
    """Return where Kafka's jars are; None if this machine can have none."""
    if shutil.which("java") is None:
        return None
    if home := os.environ.get("KAFKA_HOME"):
        return f"{home}/libs/*"
    if shutil.which("mvn") is None:
        return None
    return f"{_fetched()}/*"


def _fetched() -> Path:
    """Return the folder with the jars that the pom names; Maven fetches them if it is the first time."""
    mark = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taskharbor"
    folder = cache / f"kafka-{mark}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may ask at once
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        shutil.copy(POM, work)
        copied = Path(work) / "libs"
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={copied}"], cwd=work, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"Maven could not fetch Kafka's jars: {(done.stderr or done.stdout)[-2_000:]}\n"
                "Mend that, or set $KAFKA_HOME to an installation or $KAFKA_BOOTSTRAP to a broker"
            )
        copied.rename(folder)


# -- by hand -------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until it is interrupted, or for as long as a command takes."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.kafka_server",
        description=(
            "A Kafka broker of its own, in a temporary folder and on loopback. It prints its address and runs until "
            "it is interrupted. With a COMMAND, it runs for as long as that takes, and $KAFKA_BOOTSTRAP is its address."
        ),
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what to run beside it"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left behind
    try:
        with running() as broker:
            if not options.command:
                sys.stdout.write(f"{broker.bootstrap}{' (a mock)' if broker.is_mock else ''}\n")
                sys.stdout.flush()
                while True:
                    signal.pause()
            environment = {**os.environ, "KAFKA_BOOTSTRAP": broker.bootstrap}
            return subprocess.run(options.command, env=environment, check=False).returncode
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
