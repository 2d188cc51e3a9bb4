"""Streams on a real broker: TaskHarbor's worker, a hand-written loop, FastStream, and ingest against bulk enqueue.

    python -m benchmarks.streams                   three rounds, interleaved
    python -m benchmarks.streams --quick           does it run?
    python -m benchmarks --publish results.json --section streams

Every measurement has a process of its own and reads one topic, filled before, from its begin, as a group of its own. A
rate is counted from the first handler's end to the last one's. Where no broker can be started, nothing is measured: a
mock would say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.noise import measure_noise
from benchmarks.postgres import SETTINGS as POSTGRES_SETTINGS
from benchmarks.processes import end_with_parent
from benchmarks.report import Table, noise_table, number, plain, spread, times
from benchmarks.rounds import Samples
from benchmarks.settings import Settings
from benchmarks.streams_contestants import CONTESTANTS, INGESTS, LATENCIES
from tools import kafka_server, postgres_server

PARTITIONS = 4
ROUNDS = 3
MESSAGES = 60_000
PROBES = 100

ONE_BY_ONE = ("faststream", "faststream workers")  # they commit after each message

NOOP, WORKING = "no-op handlers", "handlers of 1 ms"
OURS = "taskharbor stream"
# (ours, the other, the least that ours has to be of it); None: reported without a bar
BARS: Sequence[tuple[str, str, str, float | None]] = (
    (NOOP, OURS, "asyncio loop", 0.4),
    (NOOP, OURS, "faststream", 1.0),
    (NOOP, OURS, "faststream workers", 1.0),
    (NOOP, OURS, "faststream batch", 1.0),
    (NOOP, OURS, "bare consume loop", None),
    (WORKING, OURS, "asyncio loop", 0.8),
    (WORKING, OURS, "faststream", 1.0),
    (WORKING, OURS, "faststream workers", 1.0),
    (WORKING, OURS, "faststream batch", 1.0),
    ("jobs stored", "ingest sqlite", "enqueue_many sqlite", 0.6),
    ("jobs stored", "ingest postgres", "enqueue_many postgres", 0.7),
)


def run_streams(_entries: Sequence[Any], settings: Settings, scratch: Path) -> Samples:
    """All contestants, round by round, on one broker and one PostgreSQL."""
    samples = Samples()
    messages = settings.jobs
    with kafka_server.running() as broker, postgres_server.running(POSTGRES_SETTINGS) as server:
        if broker.is_mock:
            samples.failures.append("streams: there is no broker but a mock; install Java and Maven")
            return samples
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        fill(broker.bootstrap, topic, messages)
        given = {"BENCH_BROKERS": broker.bootstrap, "BENCH_TOPIC": topic, "BENCH_POSTGRES": server.dsn()}
        few = messages // 10  # where minutes would say no more than seconds do
        plan = [(NOOP, name, few if name in ONE_BY_ONE else messages) for name in CONTESTANTS]
        plan += [(WORKING, name, few) for name in CONTESTANTS if name != "bare consume loop"]
        plan += [("jobs stored", name, messages) for name in INGESTS]
        plan += [("latency", name, settings.probes) for name in LATENCIES]
        for round_number in range(1, settings.rounds + 1):
            samples.hear(measure_noise(scratch))
            for kind, name, count in plan:
                measure(samples, kind, name, count, given, settings.timeout_seconds, round_number)
        samples.hear(measure_noise(scratch))
    return samples


def measure(
    samples: Samples,
    kind: str,
    name: str,
    count: int,
    given: dict[str, str],
    timeout: float,
    round_number: int,
) -> None:
    """One measurement, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.streams_contestants", kind, name, str(count)]
    print(f"{round_number} {kind}: {name}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            preexec_fn=end_with_parent,
        )
    except subprocess.TimeoutExpired as error:
        samples.failures.append(f"{kind}, {name}: {error}")
        return
    if done.returncode:
        samples.failures.append(f"{kind}, {name}: {done.stderr[-300:]}")
        return
    figures = json.loads(done.stdout.splitlines()[-1])
    samples.add(name, {f"{kind}{suffix}": value for suffix, value in figures.items()}, round_number)


def fill(bootstrap: str, topic: str, messages: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    [created] = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
    created.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for n in range(messages):
        body = json.dumps({"task": "note", "payload": {"n": n}}).encode()
        producer.produce(topic, body, partition=n % PARTITIONS)
        if n % 1_000 == 0:
            producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("the broker did not take all messages")


def stream_tables(_contestants: Sequence[Any], samples: Samples, settings: Settings) -> list[Table]:
    def seen(name: str, figure: str) -> list[float]:
        return samples.values.get(name, {}).get(figure, [])

    def rates(kind: str, names: Iterable[str]) -> Table:
        rows = [
            [name, number(statistics.median(values)), spread(values)]
            for name in names
            if (values := seen(name, kind))
        ]
        return Table(f"{kind}: messages a second", ["", "median", "min\N{EN DASH}max"], rows)

    ratios = []
    for kind, ours, other, bar in BARS:
        pairs = list(zip(seen(ours, kind), seen(other, kind), strict=False))
        if pairs:
            found = [mine / theirs for mine, theirs in pairs]
            limit = "none" if bar is None else times(bar)
            ratios.append([kind, f"{ours} / {other}", times(statistics.median(found)), spread(found), limit])
    latency = [
        [name, number(statistics.median(p50)), number(statistics.median(seen(name, "latency p99")))]
        for name in LATENCIES
        if (p50 := seen(name, "latency p50"))
    ]
    return [
        rates(NOOP, CONTESTANTS),
        rates(WORKING, CONTESTANTS),
        rates("jobs stored", INGESTS),
        Table("ratios, round by round", ["", "", "median", "min\N{EN DASH}max", "at least"], ratios),
        Table("from publishing to the handler's begin, ms", ["", "p50", "p99"], latency),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    asked = parser.parse_args()
    settings = Settings(rounds=asked.rounds, jobs=asked.messages, probes=PROBES, timeout_seconds=180.0)
    if asked.quick:
        settings = Settings(rounds=1, jobs=3_000, probes=10, timeout_seconds=120.0)
    with tempfile.TemporaryDirectory() as scratch:
        samples = run_streams([], settings, Path(scratch))
    print(plain([*stream_tables([], samples, settings), noise_table(samples)]))
    for failure in samples.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return bool(samples.failures)


if __name__ == "__main__":
    sys.exit(main())
