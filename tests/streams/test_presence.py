"""What stream workers record of themselves: `harbor.streams`, REST, the command line and metrics show the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskharbor import Harbor
from taskharbor.cli import cli
from taskharbor.drivers.contract.reading import StreamPartition, StreamPresence, WorkerRecord
from taskharbor.stream_readings import readings_of
from taskharbor.streams import StreamWorker
from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.store_gauges import gauges_of, read_store
from tests.streams.log import Log, until
from tests.streams.test_worker import working
from tools.kafka_server import MOCK_LACKS, Broker


async def test_live_stream_workers_show_partitions_and_lag(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.streams.worker.REPORT_SECONDS", 0.1)
    url, may_end = f"sqlite:///{tmp_path}/harbor.db", asyncio.Event()
    async with Harbor(url) as harbor:
        await harbor.amigrate()

        @harbor.task(name="note")
        async def note(n: int) -> None:
            if n == 0:
                await may_end.wait()

        @harbor.task(name="dies")
        async def dies() -> None:
            raise ValueError("validation error")

        log.put_calls("note", range(5), partition=0)
        log.put({"task": "dies"}, partition=0)
        async with working(harbor, log, metrics=True) as worker:
            await until(lambda: _shows(harbor, lag=6, ahead=5, committed=0))
            [stream] = await harbor.streams.alist()
            assert (stream.topic, stream.group, stream.workers) == (log.topic, log.group, [worker.name])
            assert stream.retries == "store"
            first = stream.partitions[0]
            assert (first.committed, first.position, first.end, first.incomplete) == (0, 6, 6, 1)
            assert (first.worker, first.paused) == (worker.name, False)
            gauges = gauges_of(await read_store(harbor.driver))
            labels = (log.topic, log.group, "0")
            assert gauges[catalogue.STREAM_LAG.name][labels] == 6
            assert gauges[catalogue.STREAM_AHEAD.name][labels] == 5
            assert gauges[catalogue.STREAM_INCOMPLETE.name][labels] == 1
            answer = await asyncio.to_thread(CliRunner().invoke, cli, ["streams", "--json", "--url", url])
            [shown] = json.loads(answer.stdout)["items"]
            assert (shown["lag"], shown["partitions"][0]["worker"]) == (6, worker.name)
            assert shown["retries"] == "store"
            may_end.set()
            await until(lambda: _shows(harbor, lag=0, ahead=0))
            counted = worker._totals().snapshot().process
            assert [counted[_start(each)] for each in COUNTERS] == [6, 1, 1]
        assert await harbor.streams.alist() == []


async def test_worker_that_retries_by_topics_shows_partitions_and_lag(
    tmp_path: Path, broker: Broker, log: Log, monkeypatch: pytest.MonkeyPatch
):
    if broker.is_mock:
        pytest.skip(f"the mock has no {MOCK_LACKS}")
    monkeypatch.setattr("taskharbor.streams.worker.REPORT_SECONDS", 0.1)
    may_end = asyncio.Event()
    async with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        await harbor.amigrate()

        @harbor.task(name="note")
        async def note(n: int) -> None:
            if n == 0:
                await may_end.wait()

        log.put_calls("note", range(5), partition=0)
        async with working(harbor, log, retries="topics") as worker:
            await until(lambda: _shows(harbor, lag=5, ahead=4, committed=0, incomplete=1, worker=worker.name))
            assert [each.retries for each in await harbor.streams.alist()] == ["topics"]
            may_end.set()
            await until(lambda: _shows(harbor, lag=0, ahead=0, committed=5, end=5))


async def test_worker_that_stores_messages_shows_partitions_and_lag(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
):
    """Its lag is what is not stored; and it has no slots, so that nobody counts on it."""
    monkeypatch.setattr("taskharbor.streams.worker.REPORT_SECONDS", 0.1)
    monkeypatch.setattr("taskharbor.streams.ends.LOOK_SECONDS", 0.0)
    async with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        await harbor.amigrate()
        may_store = asyncio.Event()
        may_store.set()
        real = harbor.driver.ingest  # type: ignore[attr-defined] # one that can

        async def ingest(*args: Any, **kwargs: Any) -> Any:
            await may_store.wait()
            return await real(*args, **kwargs)

        monkeypatch.setattr(harbor.driver, "ingest", ingest)
        log.put_calls("note", range(3), partition=0)
        worker = StreamWorker(harbor, brokers=log.bootstrap, topic=log.topic, group=log.group, ingest=True)
        async with worker:
            await until(lambda: _shows(harbor, lag=0, committed=3, end=3, worker=worker.name))
            assert [each.retries for each in await harbor.streams.alist()] == ["ingest"]
            may_store.clear()
            log.put_calls("note", range(3, 8), partition=0)
            await until(lambda: _shows(harbor, lag=5, committed=3, position=8, end=8, incomplete=5))
            gauges = gauges_of(await read_store(harbor.driver))
            assert gauges[catalogue.STREAM_LAG.name][log.topic, log.group, "0"] == 5
            assert gauges[catalogue.SLOTS.name][()] == 0
            may_store.set()
            await until(lambda: _shows(harbor, lag=0, committed=8, incomplete=0))
        assert await harbor.streams.alist() == []


COUNTERS = (catalogue.STREAM_TAKEN, catalogue.STREAM_HANDED_OVER, catalogue.STREAM_DEAD)


def _start(metric: catalogue.Metric) -> int:
    return catalogue.offsets(catalogue.of(catalogue.Source.PROCESS))[metric.name]


async def _shows(harbor: Harbor, **wanted: Any) -> bool:
    return any(
        all(getattr(each, name) == value for name, value in wanted.items())
        for stream in await harbor.streams.alist()
        for each in stream.partitions
        if each.partition == 0
    )


def test_members_of_a_group_are_put_together():
    def worker(name: str, group: str, *partitions: StreamPartition) -> WorkerRecord:
        return WorkerRecord(name, "host", 1, 10, 0, stream=StreamPresence("tasks", group, partitions))

    plain = WorkerRecord("plain", "host", 1, 10, 0)
    one = worker("one", "shop", StreamPartition(0, 3, 9, 10), StreamPartition(1, None, 0, 4))
    two = worker("two", "shop", StreamPartition(1, 2, 4, 4))  # it has just taken the partition over
    other = worker("three", "audit", StreamPartition(0, 1, 1))
    assert [each.lag for each in readings_of([worker("new", "shop")])] == [None]
    audit, shop = readings_of([plain, one, two, other])
    assert (audit.group, audit.lag, shop.lag) == ("audit", None, 9)
    assert [(each.partition, each.worker) for each in shop.partitions] == [(0, "one"), (1, "two")]
    assert shop.workers == ["one", "two"]
    assert shop.queue == "stream:tasks"


def test_members_that_do_not_agree_where_messages_are_retried_are_mixed():
    def worker(name: str, retries: str | None) -> WorkerRecord:
        return WorkerRecord(name, "host", 1, 10, 0, stream=StreamPresence("tasks", "shop", retries=retries))

    def retries_of(*retries: str | None) -> str | None:
        [shop] = readings_of([worker(f"w{n}", each) for n, each in enumerate(retries)])
        return shop.retries

    assert retries_of("store", "store") == "store"
    assert retries_of("store", "topics") == "mixed"
    assert retries_of(None) is None  # of a version that did not say it
    assert retries_of(None, "topics") == "topics"
