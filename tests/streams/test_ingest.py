"""Ingest mode on a real broker: each message becomes one job, whatever crashes, repeats and rebalances there are."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from taskharbor import ConfigurationError, Harbor, Job, RetryPolicy
from taskharbor.drivers.capabilities import Ingest
from taskharbor.drivers.contract.ingesting import Ingested
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.records import Reason, State
from taskharbor.rules.meta import read_meta
from taskharbor.streams import StreamWorker
from taskharbor.streams.brokers import TopicWatch
from taskharbor.streams.ingest_jobs import LogId
from taskharbor.streams.ingest_reader import IngestReader, Partition
from tests.streams.log import QUICK_BEATS, Log, until
from tests.streams.test_reading import NO_IDS


def ingesting(harbor: Harbor, log: Log, **options: Any) -> StreamWorker:
    """A worker that runs inside of `async with`."""
    given: dict[str, Any] = {"settings": QUICK_BEATS} | options
    return StreamWorker(harbor, brokers=log.bootstrap, topic=log.topic, group=log.group, ingest=True, **given)


async def stored(harbor: Harbor, log: Log, count: int) -> None:
    """Wait until there are this many jobs, and the brokers know that nothing is left."""
    await until(lambda: _count(harbor, count))
    await until(log.is_committed)


async def _count(harbor: Harbor, count: int) -> bool:
    return sum((await harbor.jobs.acounts()).values()) >= count


async def numbers(harbor: Harbor, **where: Any) -> Counter[int]:
    """How many jobs there are of each message."""
    return Counter(job.payload["n"] for job in await all_jobs(harbor, **where))


async def all_jobs(harbor: Harbor, **where: Any) -> list[Job[Any]]:
    page = await harbor.jobs.alist(limit=1_000, **where)
    jobs = list(page)
    while page.next_cursor is not None:
        page = await harbor.jobs.alist(limit=1_000, cursor=page.next_cursor, **where)
        jobs += page
    return jobs


async def test_each_message_becomes_one_job_with_the_options_of_its_task(harbor: Harbor, log: Log):
    @harbor.task(
        name="note", queue="notes", priority=3, retry=RetryPolicy(max_attempts=7), meta={"team": "a"}
    )
    async def note(n: int) -> None: ...

    log.put_calls("note", range(300))
    log.put(
        {"task": "note", "payload": {"n": 300}, "maxAttempts": 99, "correlationId": "order-1", "id": "m-1"}
    )
    log.put({"task": "unknown", "payload": {"n": 301}}, key="k")
    async with ingesting(harbor, log):
        await stored(harbor, log, 302)
    assert await numbers(harbor) == Counter(range(302))
    [job] = [each for each in await all_jobs(harbor) if each.payload["n"] == 300]
    record = job.record
    assert (job.queue, job.priority, record.options.max_attempts) == ("notes", 3, 7)
    assert (job.correlation_id, record.idempotency_key) == ("order-1", None)
    meta = read_meta(record.meta)
    assert (meta["stream-topic"], meta["stream-message-id"], meta["team"]) == (log.topic, "m-1", "a")
    [unknown] = await harbor.jobs.alist(task="unknown")
    assert (unknown.queue, read_meta(unknown.record.meta)["stream-key"]) == ("default", "k")


async def test_jobs_of_a_partition_are_claimed_in_the_order_of_the_log(memory: Harbor, log: Log):
    log.put_calls("note", range(500), partition=0)
    async with ingesting(memory, log, queue="front"):
        await stored(memory, log, 500)
    jobs = await all_jobs(memory, queue="front")
    assert [job.payload["n"] for job in sorted(jobs, key=lambda job: job.id)] == list(range(500))


async def test_position_is_the_stores_and_not_what_the_group_has_committed(memory: Harbor, log: Log):
    """A commit is for tools that show the lag: one that was lost, or moved by a hand, repeats and skips nothing."""
    log.put_calls("note", range(100), partition=0)
    async with ingesting(memory, log):
        await stored(memory, log, 100)
    log.put_calls("note", range(100, 200), partition=0)
    for moved_to in (3, 150):
        log.commit([TopicPartition(log.topic, 0, moved_to)])
        async with ingesting(memory, log):
            await stored(memory, log, 200)
    assert await numbers(memory) == Counter(range(200))


async def test_pruned_jobs_do_not_come_back(memory: Harbor, log: Log):
    log.put_calls("note", range(50))
    async with ingesting(memory, log):
        await stored(memory, log, 50)
    for job in await memory.jobs.alist(limit=100):
        await memory.jobs.acancel(job.id)
        await memory.jobs.adelete(job.id)
    log.commit([TopicPartition(log.topic, number, 0) for number in range(log.partitions)])
    async with ingesting(memory, log):
        log.put_calls("note", [50])
        await stored(memory, log, 1)
    assert await numbers(memory) == Counter([50])


async def test_group_that_executed_messages_goes_on_where_it_was(memory: Harbor, log: Log):
    """What the group has committed counts for a partition that the store knows nothing of."""
    log.put_calls("note", range(10), partition=0)
    log.commit([TopicPartition(log.topic, 0, 4)])
    async with ingesting(memory, log):
        await stored(memory, log, 6)
    assert await numbers(memory) == Counter(range(4, 10))


async def test_reader_that_was_replaced_stores_nothing_and_goes_on_where_the_store_is(
    memory: Harbor, log: Log, caplog: pytest.LogCaptureFixture
):
    """Another reader moves the offset between the read of a batch and its write."""
    store = Ingest.of(memory.driver)
    real, moved = MemoryDriver.ingest, 0
    logs: list[str] = []

    async def ingest(driver: MemoryDriver, batches: Any, *, now: int | None = None) -> Any:
        nonlocal moved
        logs.extend(each.log for each in batches)
        if moved < 3:
            moved += 1  # the other one takes the same messages, up to the first
            [batch] = batches
            [group] = batch.groups
            first = {name: getattr(group, name)[:1] for name in ("ids", "payloads", "metas")}
            one = type(group)(group.shared, **first)
            next_offset = int(read_meta(one.metas[0])["stream-offset"]) + 1
            await real(driver, [type(batch)(batch.log, 0, batch.expected, next_offset, [one])])
        return await real(driver, batches, now=now)

    log.put_calls("note", range(400), partition=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryDriver, "ingest", ingest)
        async with ingesting(memory, log):
            await stored(memory, log, 400)
    assert await numbers(memory) == Counter(range(400))
    assert moved == 3
    assert "were refused: the store is at 1 by now" in caplog.text
    assert await store.ingested(logs[0], [0]) == {0: 400}


async def test_batch_that_was_refused_is_read_again_whatever_else_the_reader_looks_into(
    memory: Harbor, log: Log, monkeypatch: pytest.MonkeyPatch
):
    """The store is behind what was read when a late answer about the topic's id makes the reader look where it is."""
    real, refused, looked = MemoryDriver.ingest, 0, 0

    async def ingest(driver: MemoryDriver, batches: Any, *, now: int | None = None) -> Any:
        nonlocal refused
        if not refused:
            refused = 1
            return [Ingested(False, None, 0) for _ in batches]
        return await real(driver, batches, now=now)

    def look(watch: TopicWatch) -> str | None:
        nonlocal looked
        looked += refused
        return "the one before" if looked == 1 else None

    monkeypatch.setattr(MemoryDriver, "ingest", ingest)
    monkeypatch.setattr(TopicWatch, "look", look)
    log.put_calls("note", range(20), partition=0)
    async with ingesting(memory, log):
        await until(lambda: looked > 1)
        log.put_calls("note", [20], partition=0)
        await until(log.is_committed)
    assert await numbers(memory) == Counter(range(21))


async def test_members_that_come_and_go_store_each_message_once(harbor: Harbor, log: Log):
    async with ingesting(harbor, log):
        log.put_calls("note", range(500))
        for round_number in range(3):
            async with ingesting(harbor, log):
                log.put_calls("note", range(500 + 300 * round_number, 800 + 300 * round_number))
                await until(lambda n=round_number: _count(harbor, 650 + 300 * n))  # type: ignore[misc]
        await stored(harbor, log, 1_400)
    assert await numbers(harbor) == Counter(range(1_400))


async def test_message_that_cannot_be_read_is_dead_in_its_place(harbor: Harbor, log: Log):
    log.put({"task": "note", "payload": {"n": 1}}, b"no JSON", None, {"task": "note", "payload": {"n": 2}})
    async with ingesting(harbor, log):
        copies = await asyncio.to_thread(log.read, log.dead_letter_topic, 2)
        await until(log.is_committed)
    assert sorted(each.value() or b"" for each in copies) == [b"", b"no JSON"]
    assert await numbers(harbor, task="note") == Counter([1, 2])
    dead = await harbor.dlq.alist()
    assert {(each.reason, each.queue) for each in dead} == {(Reason.INVALID_PAYLOAD, f"stream:{log.topic}")}
    assert sorted(each.payload["beginning"] for each in dead) == ["", "no JSON"]


async def test_messages_that_retention_deleted_are_named_and_the_rest_is_stored(
    memory: Harbor, log: Log, caplog: pytest.LogCaptureFixture
):
    log.put_calls("note", range(20), partition=0)
    async with ingesting(memory, log):
        await stored(memory, log, 20)
    log.put_calls("note", range(20, 60), partition=0)
    log.delete_before(0, 50)
    async with ingesting(memory, log):
        await stored(memory, log, 30)
    assert await numbers(memory) == Counter([*range(20), *range(50, 60)])
    assert f"messages of {log.topic}[0] from 20 to 50 were deleted before they were stored" in caplog.text


class Huge:
    name = "huge"

    def encode(self, text: str) -> str:
        return base64.b64encode(text.encode() * (2 if len(text) < 1_000 else 3_000)).decode()

    def decode(self, text: str) -> str:
        return text


async def test_message_that_the_store_cannot_keep_is_dead_and_the_others_are_stored(log: Log):
    async with Harbor("memory://", payload_codec=Huge()) as harbor:
        log.put({"task": "note", "payload": {"n": 1}}, {"task": "note", "payload": {"n": "x" * 2_000}})
        log.put({"task": "note", "payload": {"n": 3}})
        async with ingesting(harbor, log):
            await stored(harbor, log, 3)
        assert await harbor.jobs.acounts() | {"ready": 0, "dead": 0} == dict.fromkeys(State, 0)
        counts = await harbor.jobs.acounts()
        assert (counts["ready"], counts["dead"]) == (2, 1)


async def test_options_of_executing_are_refused(memory: Harbor):
    given: dict[str, Any] = {"brokers": "localhost:9", "group": "g"}
    for options in ({"concurrency": 5}, {"retry": None}, {"serves_retries": False}, {"metrics": True}):
        with pytest.raises(ConfigurationError, match="cannot go with ingest=True"):
            StreamWorker(memory, ingest=True, **given, **options)
    with pytest.raises(ConfigurationError, match="is for ingest=True"):
        StreamWorker(memory, queue="front", **given)


async def test_events_tell_of_each_stored_message(memory: Harbor, log: Log):
    heard: list[str] = []
    memory.on("enqueued")(lambda event: heard.append(event.job_id))
    log.put_calls("note", range(20))
    async with ingesting(memory, log):
        await until(lambda: len(heard) == 20)
    assert set(heard) == {job.id for job in await memory.jobs.alist(limit=100)}


def test_command_stores_messages_and_refuses_options_of_executing(log: Log, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/harbor.db"
    where = ["--url", url, "--brokers", log.bootstrap, "--topic", log.topic, "--group", log.group]
    command = [sys.executable, "-m", "taskharbor.cli", "stream", *where]
    log.put_calls("note", range(30))
    for options, why in (
        (["--ingest", "--concurrency", "5"], "--concurrency cannot go with --ingest"),
        (["--queue", "front"], "--queue is for --ingest"),
    ):
        refused = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert why in refused.stderr

    async def are_stored() -> None:
        async with Harbor(url) as harbor:
            await harbor.amigrate()
            await stored(harbor, log, 30)
            assert await numbers(harbor, queue="front") == Counter(range(30))

    with subprocess.Popen([*command, "--ingest", "--queue", "front"]) as process:
        try:
            asyncio.run(are_stored())
        finally:
            process.terminate()
    assert process.returncode == 0


# -- which log it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("no_id", NO_IDS)
def test_ingested_topic_that_gets_an_id_when_its_brokers_are_upgraded_is_the_same(no_id: str):
    logs = [LogId.of("c", "t", each, "g") for each in (no_id, "real")]
    positions = SimpleNamespace(identify=lambda is_unwanted: logs[1], look=lambda: "real")
    reader = IngestReader({}, "t", positions, None, None)  # type: ignore[arg-type] # it makes no jobs
    reader._log, reader.partitions[0] = logs[0], Partition(0, logs[0], 7, 9)
    reader._notice_new_topic()
    assert reader._elsewhere == set()
    assert reader._identified() == logs[0]


async def test_commit_of_the_topic_that_was_says_nothing_about_the_one_that_is_ingested():
    log, begins = LogId.of("c", "t", "first", "g"), []
    known = SimpleNamespace(offset=7, error=None, partition=0)
    client = SimpleNamespace(
        committed=lambda partitions, timeout: [known],
        get_watermark_offsets=lambda place, timeout: (2, 30),
        incremental_assign=lambda places: begins.append([each.offset for each in places]),
    )

    async def stored(log: LogId, partitions: Any) -> dict[int, int]:
        return {}

    positions: Any = SimpleNamespace(identify=lambda is_unwanted: log, stored=stored)
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    reader = IngestReader(config, "t", positions, None, asyncio.get_running_loop())  # type: ignore[arg-type]
    for name in ("first", "second"):
        log = LogId.of("c", "t", name, "g")
        await asyncio.to_thread(reader._on_assign, client, [TopicPartition("t", 0)])
        reader._on_lost(client, [TopicPartition("t", 0)])
    assert begins == [[7], [2]]
