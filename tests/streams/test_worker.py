"""A stream worker on a real broker: what succeeds leaves an offset, and what does not becomes a job of the store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import UNSET

from taskharbor import Context, Harbor, RetryPolicy, StreamError, Unrecoverable
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.rules.meta import read_meta
from taskharbor.streams import StreamWorker
from tests.streams.log import QUICK_BEATS, Log, until

QUICK = RetryPolicy(
    max_attempts=3, initial=0.01, maximum=0.02, jitter=None, never_retry_on=["validation error"]
)


@asynccontextmanager
async def working(harbor: Harbor, log: Log, **options: Any) -> AsyncIterator[StreamWorker]:
    given: dict[str, Any] = {"retry": QUICK, "grace_seconds": 1.0, "settings": QUICK_BEATS} | options
    worker = StreamWorker(harbor, brokers=log.bootstrap, topic=log.topic, group=log.group, **given)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


async def test_messages_are_executed_and_leave_nothing_but_their_offsets(harbor: Harbor, log: Log):
    done: list[int] = []

    @harbor.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    log.put_calls("note", range(300))
    async with working(harbor, log):
        await until(lambda: len(done) == 300)
        await until(log.is_committed)
    assert sorted(done) == list(range(300))
    assert set((await harbor.jobs.acounts()).values()) == {0}


async def test_failed_message_is_retried_as_a_job_with_all_its_attempts(harbor: Harbor, log: Log):
    done: list[int] = []
    failed: list[int] = []

    @harbor.task(name="note")
    async def note(ctx: Context, n: int) -> int:
        if ctx.retry_count < 2:
            failed.append(n)
            raise TimeoutError("timeout")
        done.append(n)
        return n

    log.put({"task": "note", "payload": {"n": 7}, "correlationId": "order-7"}, key="seven")
    async with working(harbor, log):
        await until(lambda: done == [7])
        await until(log.is_committed)
    [job] = await harbor.jobs.alist()
    assert (job.state, job.queue, job.attempts) == (State.SUCCEEDED, f"stream:{log.topic}", 2)
    assert job.correlation_id == "order-7"
    assert failed == [7, 7]
    attempts = await harbor.jobs.ahistory(job.id)
    assert [(each.number, each.status) for each in attempts] == [
        (3, AttemptStatus.SUCCEEDED),
        (2, AttemptStatus.FAILED),
        (1, AttemptStatus.FAILED),
    ]
    assert attempts[-1].error == "TimeoutError: timeout"
    meta = read_meta(job.record.meta)
    assert (meta["stream-topic"], meta["stream-offset"], meta["stream-key"]) == (log.topic, "0", "seven")


async def test_dead_message_is_a_dead_letter_of_the_store_and_of_the_topic(harbor: Harbor, log: Log):
    @harbor.task(name="pay")
    async def pay(user_id: str) -> None:
        raise ValueError("validation error: user not allowed")

    log.put({"task": "pay", "payload": {"user_id": "u-1"}}, key="u-1")
    async with working(harbor, log):
        [copy] = await asyncio.to_thread(log.read, log.dead_letter_topic, 1)
        await until(log.is_committed)
    [job] = await harbor.dlq.alist()
    assert (job.task, job.reason, job.attempts) == ("pay", Reason.NOT_RETRYABLE, 1)
    headers = {name: value.decode() for name, value in copy.headers()}
    assert copy.key() == b"u-1"
    assert json.loads(copy.value())["payload"] == {"user_id": "u-1"}
    assert headers["kafka_dlt-original-topic"] == log.topic
    assert headers["kafka_dlt-original-offset"] == "0"
    assert headers["kafka_dlt-original-consumer-group"] == log.group
    assert headers["kafka_dlt-exception-fqcn"] == "ValueError"
    assert "user not allowed" in headers["kafka_dlt-exception-message"]
    assert (headers["taskharbor-task"], headers["taskharbor-attempts"]) == ("pay", "1")
    assert headers["taskharbor-reason"] == "not_retryable"
    assert headers["taskharbor-job"] == job.id


async def test_message_that_dies_after_its_retries_is_copied_once(memory: Harbor, log: Log):
    @memory.task(name="pay")
    async def pay() -> None:
        raise TimeoutError("unavailable")

    log.put({"task": "pay"})
    async with working(memory, log):
        [copy] = await asyncio.to_thread(log.read, log.dead_letter_topic, 1)
        await until(lambda: _ended(memory, log))
    [job] = await memory.dlq.alist()
    assert (job.reason, job.attempts) == (Reason.EXHAUSTED, 3)
    assert dict(copy.headers())["taskharbor-attempts"] == b"3"


async def _ended(harbor: Harbor, log: Log) -> bool:
    counts = await harbor.jobs.acounts(f"stream:{log.topic}:dead")
    return counts["succeeded"] == 1


async def test_message_that_cannot_be_read_is_dead_and_its_bytes_go_to_the_topic(harbor: Harbor, log: Log):
    done: list[int] = []

    @harbor.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    log.put(b"\xffnot json", {"task": "note", "payload": {"n": 1}}, partition=0)
    async with working(harbor, log):
        [copy] = await asyncio.to_thread(log.read, log.dead_letter_topic, 1)
        await until(lambda: done == [1])
        await until(log.is_committed)
    assert copy.value() == b"\xffnot json"
    [job] = await harbor.dlq.alist()
    assert job.reason is Reason.INVALID_PAYLOAD
    assert f"{log.topic}[0]@0 cannot be read" in (job.error or "")
    assert job.payload["beginning"].endswith("not json")


async def test_at_most_once_task_is_handed_over_before_it_begins(harbor: Harbor, log: Log):
    begun: list[str] = []

    @harbor.task(name="charge", delivery="at_most_once")
    async def charge(ctx: Context) -> None:
        begun.append(ctx.job.id)
        assert (await harbor.jobs.aget(ctx.job.id)).state is State.RUNNING  # the store knows it

    log.put({"task": "charge"})
    async with working(harbor, log):
        await until(lambda: len(begun) == 1)
        await until(log.is_committed)
    [job] = await harbor.jobs.alist(task="charge")
    assert (job.id, job.state) == (begun[0], State.SUCCEEDED)


async def test_children_exist_once_their_message_is_finished(memory: Harbor, log: Log):
    @memory.task(name="child")
    async def child(n: int) -> None: ...

    @memory.task(name="parent")
    async def parent(ctx: Context, n: int) -> None:
        ctx.enqueue(child.s(n))

    log.put_calls("parent", range(3))
    async with working(memory, log):
        await until(log.is_committed)
    assert sorted(job.payload["n"] for job in await memory.jobs.alist(task="child")) == [0, 1, 2]


async def test_unknown_task_has_the_grace_of_every_job(memory: Harbor, log: Log):
    log.put({"task": "nobody:knows"})
    async with working(memory, log):
        await until(log.is_committed)
    [job] = await memory.jobs.alist()
    assert job.state is State.SCHEDULED
    [attempt] = await memory.jobs.ahistory(job.id)
    assert attempt.status is AttemptStatus.RELEASED


async def test_attempts_of_a_message_are_capped_by_the_policy(memory: Harbor, log: Log):
    @memory.task(name="fails")
    async def fails() -> None:
        raise TimeoutError

    log.put({"task": "fails", "maxAttempts": 2}, {"task": "fails", "maxAttempts": 1_000})
    async with working(memory, log):
        await until(lambda: _dead(memory, 2))
    assert sorted(job.attempts for job in await memory.dlq.alist()) == [2, 3]


async def test_policy_of_a_task_decides_after_each_attempt_of_its_message(harbor: Harbor, log: Log):
    @harbor.task(name="fails", retry=RetryPolicy(max_attempts=2, initial=0.03, jitter=None))
    async def fails() -> None:
        raise TimeoutError

    log.put({"task": "fails"})
    async with working(harbor, log):
        await until(lambda: _dead(harbor, 1))
    [job] = await harbor.dlq.alist()
    assert (job.reason, job.attempts) == (Reason.EXHAUSTED, 2)
    delays = [each.retry_delay for each in await harbor.jobs.ahistory(job.id)]
    assert delays == [None, 0.03]


async def test_message_of_a_task_without_a_policy_has_the_policy_of_the_worker(harbor: Harbor, log: Log):
    @harbor.task(name="fails")
    async def fails() -> None:
        raise TimeoutError

    log.put({"task": "fails"})
    async with working(harbor, log):
        await until(lambda: _dead(harbor, 1))
    [job] = await harbor.dlq.alist()
    assert (job.reason, job.attempts) == (Reason.EXHAUSTED, 3)


async def test_failed_message_carries_the_policy_of_its_worker_to_another(memory: Harbor, log: Log):
    @memory.task(name="fails")
    async def fails() -> None:
        raise TimeoutError

    @memory.task(name="fails-by-its-own", retry=RetryPolicy(max_attempts=4))
    async def fails_by_its_own() -> None:
        raise TimeoutError

    log.put({"task": "fails"}, {"task": "fails-by-its-own"})
    async with working(memory, log, serves_retries=False):
        await until(lambda: _jobs(memory, 2))
    records = await memory.driver.get([job.id for job in await memory.jobs.alist()])
    retries = {record.task: record.options.retry for record in records if record is not None}
    assert retries == {"fails": QUICK.to_dict(), "fails-by-its-own": UNSET}


async def _jobs(harbor: Harbor, count: int) -> bool:
    return sum((await harbor.jobs.acounts()).values()) == count


async def _dead(harbor: Harbor, count: int) -> bool:
    return (await harbor.jobs.acounts())["dead"] == count


async def test_slow_message_holds_up_no_other_and_is_not_committed_over(memory: Harbor, log: Log):
    release = asyncio.Event()
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        if n == 0:
            await release.wait()
        done.append(n)

    log.put_calls("note", range(100), partition=0)
    async with working(memory, log):
        await until(lambda: len(done) == 99)
        await until(lambda: log.committed()[0].metadata != "")  # what is finished beyond the slow one
        assert log.committed()[0].offset in (0, -1001)
        release.set()
        await until(log.is_committed)
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("retries", ["store", "topics"])
async def test_second_stop_ends_at_once_and_what_is_not_finished_comes_again(
    memory: Harbor, log: Log, retries: str
):
    begun: list[int] = []
    stuck = True

    @memory.task(name="note")
    async def note(n: int) -> None:
        begun.append(n)
        if stuck:
            await asyncio.sleep(3_600)

    log.put_calls("note", range(3))
    given: dict[str, Any] = {"settings": QUICK_BEATS, "retries": retries, "revoke_seconds": 3_600.0}
    worker = StreamWorker(memory, brokers=log.bootstrap, topic=log.topic, group=log.group, **given)
    running = asyncio.create_task(worker.run())
    await until(lambda: len(begun) == 3)
    worker.stop()
    worker.stop()
    await asyncio.wait_for(running, 30)
    assert await memory.jobs.alist() == []
    stuck = False
    async with working(memory, log, retries=retries):
        await until(lambda: len(begun) == 6)
        await until(log.is_committed)
    assert sorted(begun) == [0, 0, 1, 1, 2, 2]


async def test_successor_does_not_repeat_what_was_finished_beyond_the_commit(memory: Harbor, log: Log):
    done: list[int] = []
    stuck = True

    @memory.task(name="note")
    async def note(n: int) -> None:
        if n == 0 and stuck:
            await asyncio.sleep(3_600)
        done.append(n)

    log.put_calls("note", range(50), partition=0)
    async with working(memory, log, grace_seconds=0.0):
        await until(lambda: len(done) == 49)
    stuck = False
    async with working(memory, log):
        await until(lambda: 0 in done)
        await until(log.is_committed)
    assert sorted(done) == list(range(50))


async def test_message_that_was_handed_over_is_not_executed_again_from_the_log(harbor: Harbor, log: Log):
    """The store has it, although the group has committed nothing: the worker died between the two."""
    begun: list[int] = []

    @harbor.task(name="fails")
    async def fails(n: int) -> None:
        begun.append(n)
        raise Unrecoverable("no")

    log.put_calls("fails", [5], partition=0)
    async with working(harbor, log):
        await until(lambda: _dead(harbor, 1))
        await until(log.is_committed)
    log.admin.delete_consumer_groups([log.group])[log.group].result(60)
    async with working(harbor, log):
        log.put_calls("fails", [6], partition=0)
        await until(lambda: 6 in begun)
        await until(log.is_committed)
    assert begun == [5, 6]


async def test_two_members_share_the_partitions(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        await asyncio.sleep(0.005)
        done.append(n)

    log.put_calls("note", range(200))
    async with working(memory, log), working(memory, log, name="second"):
        await until(lambda: len(set(done)) == 200)
        log.put_calls("note", range(200, 400))
        await until(lambda: len(set(done)) == 400)
        await until(log.is_committed)


async def test_sync_handlers_run_in_threads(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    def note(n: int) -> None:
        done.append(n)

    log.put_calls("note", range(50))
    async with working(memory, log):
        await until(log.is_committed)
    assert sorted(done) == list(range(50))


# -- the producer --------------------------------------------------------------------------------


async def test_published_signatures_are_executed(memory: Harbor, log: Log):
    done: list[str] = []

    @memory.task(name="send", max_attempts=4)
    async def send(ctx: Context, to: str, copies: int = 1) -> None:
        done.append(f"{to}/{copies}/{ctx.job.correlation_id}")

    stream = memory.stream(log.topic, brokers=log.bootstrap)
    published = await stream.apublish(send.using(correlation_id="c").s(to="a@b.c"), key="a")
    assert (published.topic, published.offset) == (log.topic, 0)
    answers = await asyncio.to_thread(stream.publish_many, [send.s("d@e.f", copies=2)] * 3)
    assert len(answers) == 3
    async with working(memory, log):
        await until(lambda: len(done) == 4)
    assert sorted(done) == ["a@b.c/1/c"] + ["d@e.f/2/None"] * 3


async def test_option_that_a_log_cannot_keep_is_refused(memory: Harbor, log: Log):
    @memory.task(name="send")
    async def send() -> None: ...

    stream = memory.stream(log.topic, brokers=log.bootstrap)
    with pytest.raises(ValueError, match="cannot carry priority"):
        await stream.apublish(send.using(priority=5).s())
    with pytest.raises(ValueError, match="takes a signature"):
        await stream.apublish(send)  # type: ignore[arg-type]


async def test_producer_of_a_topic_belongs_to_its_brokers(memory: Harbor, log: Log):
    here = memory.stream(log.topic, brokers=log.bootstrap)
    elsewhere = memory.stream(log.topic, brokers="127.0.0.1:1")
    assert elsewhere is not here
    assert memory.stream(log.topic, brokers=log.bootstrap) is here


async def test_closed_producer_says_so_and_the_next_one_is_new(memory: Harbor, log: Log):
    @memory.task(name="send")
    async def send() -> None: ...

    closed = memory.stream(log.topic, brokers=log.bootstrap)
    closed.close()
    with pytest.raises(StreamError, match="is closed; get another one"):
        await closed.apublish(send.s())
    assert (await memory.stream(log.topic, brokers=log.bootstrap).apublish(send.s())).topic == log.topic


async def test_nothing_can_be_published(memory: Harbor, log: Log):
    stream = memory.stream(log.topic, brokers=log.bootstrap)
    assert stream.publish_many([]) == await stream.apublish_many([]) == []


async def test_no_brokers_is_one_clear_error(memory: Harbor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TASKHARBOR_BROKERS", raising=False)
    with pytest.raises(ValueError, match="no brokers are named"):
        memory.stream("tasks")


# -- bad input -----------------------------------------------------------------------------------


async def test_missing_topic_is_one_clear_error(memory: Harbor, log: Log):
    worker = StreamWorker(memory, brokers=log.bootstrap, topic="missing", group="g")
    with pytest.raises(StreamError, match="missing.*--create-topic"):
        await worker.run()


async def test_topic_is_created_on_request(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    log.topic = f"{log.topic}-new"
    async with working(memory, log, creates_topic=True):
        await until(lambda: log.topic in log.admin.list_topics(timeout=30).topics)
        log.put_calls("note", [1])
        await until(lambda: done == [1])


async def test_unreachable_broker_is_one_clear_error(memory: Harbor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskharbor.streams.brokers.ANSWER_SECONDS", 0.5)
    worker = StreamWorker(memory, brokers="127.0.0.1:1", group="g")
    with pytest.raises(StreamError, match="no broker answers at 127.0.0.1:1"):
        await worker.run()


def test_settings_that_would_lose_messages_are_refused(memory: Harbor):
    with pytest.raises(ValueError, match="enable.auto.commit cannot be set"):
        StreamWorker(memory, brokers="x:1", group="g", settings={"enable.auto.commit": True})


async def test_setting_that_the_client_does_not_know_is_one_clear_error(memory: Harbor):
    worker = StreamWorker(memory, brokers="127.0.0.1:1", group="g", settings={"nonsense": "1"})
    with pytest.raises(ValueError, match="setting of the Kafka client is wrong.*nonsense"):
        await worker.run()


async def test_success_of_a_message_is_reported_with_how_long_it_took(harbor: Harbor, log: Log, caplog):
    caplog.set_level("INFO", "taskharbor.worker")

    @harbor.task(name="note")
    async def note(n: int) -> None: ...

    log.put_calls("note", [1])
    async with working(harbor, log):
        await until(lambda: "succeeded" in caplog.text)
    [seconds] = re.findall(r"succeeded.* seconds=(\S+)", caplog.text)
    assert float(seconds) >= 0
