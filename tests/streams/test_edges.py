"""A stream worker where operators, codecs, hostile messages and refused copies come in."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from taskharbor import Context, Harbor, StoreUnavailable
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.streams.brokers import Brokers
from taskharbor.streams.consumer import PolledConsumer
from taskharbor.streams.producer import Sender
from taskharbor.worker.upkeep.colleagues import Colleagues
from tests.streams.log import Log, until
from tests.streams.test_worker import working


class Base64:
    name = "base64"

    def encode(self, text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    def decode(self, text: str) -> str:
        return base64.b64decode(text).decode()


async def test_store_keeps_payloads_of_messages_as_the_codec_encodes_them(log: Log):
    done: list[str] = []
    async with Harbor("memory://", payload_codec=Base64()) as harbor:

        @harbor.task(name="fails-once")
        async def fails_once(ctx: Context, word: str) -> None:
            if ctx.retry_count == 0:
                raise TimeoutError
            done.append(word)

        @harbor.task(name="once", delivery="at_most_once")
        async def once(word: str) -> None:
            done.append(word)

        @harbor.task(name="note")
        async def note(word: str) -> None:
            done.append(word)

        log.put(*({"task": task, "payload": {"word": "secret"}} for task in ("fails-once", "once", "note")))
        log.put(b"secret but no JSON")
        async with working(harbor, log):
            await until(lambda: len(done) == 3)
            await until(log.is_committed)
        records = [job.record for job in await harbor.jobs.alist(queue=f"stream:{log.topic}")]
        assert sorted(each.task for each in records) == ["fails-once", "once", "taskharbor.stream:unreadable"]
        assert all(each.payload.startswith('{"taskharbor:codec":"base64"') for each in records)
        [dead] = await harbor.dlq.alist()
        assert dead.payload["beginning"] == "secret but no JSON"


async def test_message_that_is_too_large_once_it_is_sealed_is_dead(log: Log):
    async with Harbor("memory://", payload_codec=Base64()) as harbor:

        @harbor.task(name="fails")
        async def fails(word: str) -> None:
            raise TimeoutError

        log.put({"task": "fails", "payload": {"word": "x" * 900_000}})
        async with working(harbor, log):
            await until(log.is_committed)
        [dead] = await harbor.dlq.alist()
        assert (dead.task, dead.reason) == ("fails", Reason.INVALID_PAYLOAD)
        assert "cannot be kept by the store" in (dead.error or "")


async def test_messages_of_a_held_task_wait_in_the_store(harbor: Harbor, log: Log):
    done: list[str] = []

    @harbor.task(name="held")
    async def held() -> None:
        done.append("held")

    @harbor.task(name="other")
    async def other() -> None:
        done.append("other")

    await harbor.holds.ahold(task="held")
    log.put({"task": "held"}, {"task": "other"}, partition=0)
    async with working(harbor, log):
        await until(lambda: "other" in done)
        await until(log.is_committed)
        await until(lambda: _is_aside(harbor))
        assert done == ["other"]
        await harbor.holds.arelease(task="held")
        await until(lambda: done == ["other", "held"])


async def _is_aside(harbor: Harbor) -> bool:
    """Whether the retrying worker has met the held job as well, and put it aside."""
    [job] = await harbor.jobs.alist(task="held")
    return job.state is State.READY and len(await harbor.jobs.ahistory(job.id)) == 2


async def test_messages_wait_in_the_log_while_the_queue_is_paused(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    await memory.queues.apause(f"stream:{log.topic}")
    log.put_calls("note", range(5))
    async with working(memory, log) as worker:
        await until(lambda: worker._source is not None and worker._source.figures()["buffered"] == 5)
        await asyncio.sleep(0.1)
        assert done == []
        await memory.queues.aresume(f"stream:{log.topic}")
        await until(lambda: len(done) == 5)
        await until(log.is_committed)


async def test_message_of_a_task_that_only_another_worker_knows_goes_to_the_store(
    memory: Harbor, log: Log, monkeypatch: pytest.MonkeyPatch
):
    async def know(self: Colleagues, task: str, queue: str) -> bool:
        return self.are_known

    monkeypatch.setattr(Colleagues, "know", know)
    log.put({"task": "elsewhere"})
    async with working(memory, log, serves_retries=False):
        await until(log.is_committed)
    [job] = await memory.jobs.alist(task="elsewhere")
    [row] = await memory.jobs.ahistory(job.id)
    assert (row.status, job.attempts) == (AttemptStatus.RELEASED, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"task": "note", "payload": {"n": 1}, "maxAttempts": 10**30},
        {"task": "note", "payload": {"n": 1}, "timeout": 1e300},
        {"task": "note", "payload": {"n": 1}, "meta": {"a": "\ud800"}},
        {"task": "note\u0000", "payload": {"n": 1}},
        {"task": "note", "payload": {"n": 1}, "id": "\ud800", "correlationId": "\u0000"},
        b'{"task": "note", "payload": ' + b'{"n":' * 5_000 + b"1" + b"}" * 5_001,
        b'{"task": "note", "payload": {"n": "\xff"}}',
    ],
)
async def test_hostile_message_holds_up_nothing(memory: Harbor, log: Log, body: Any):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    log.put(body, {"task": "note", "payload": {"n": 2}}, partition=0)
    async with working(memory, log):
        await until(lambda: 2 in done)
        await until(log.is_committed)


async def test_time_that_a_producer_gives_holds_up_nothing(memory: Harbor, log: Log):
    done: list[Any] = []

    @memory.task(name="note")
    async def note(ctx: Context) -> None:
        done.append(ctx.job.enqueued_at)
        if len(done) == 1:
            raise TimeoutError

    log.topic += "-ahead"
    log.create(log.topic, log.partitions, {"message.timestamp.after.max.ms": str(2**62)})
    log.put({"task": "note"}, timestamp=2**47)
    async with working(memory, log):
        await until(lambda: len(done) == 2)
        await until(log.is_committed)


async def test_copy_that_the_brokers_refuse_ends_no_worker(memory: Harbor, log: Log):
    done: list[int] = []

    @memory.task(name="note")
    async def note(n: int) -> None:
        done.append(n)

    log.put(b"x" * 900_000, {"task": "note", "payload": {"n": 2}}, partition=0)
    log.create(log.dead_letter_topic, 1, {"max.message.bytes": "1000"})
    async with working(memory, log):
        await until(lambda: done == [2])
        await until(log.is_committed)
    [dead] = await memory.dlq.alist()
    assert dead.reason is Reason.INVALID_PAYLOAD


async def test_message_that_needs_steps_or_sleep_goes_on_as_a_job_uncounted(memory: Harbor, log: Log):
    done: list[str] = []
    begun: list[str] = []

    async def one() -> int:
        begun.append("one")
        return 1

    def two() -> int:
        begun.append("two")
        return 2

    @memory.task(name="steps")
    async def steps(ctx: Context) -> None:
        await ctx.step("one", one)
        await ctx.sleep("a", 0.01)
        done.append("steps")

    @memory.task(name="in-a-thread")
    def in_a_thread(ctx: Context) -> None:
        ctx.step("two", two)
        done.append("in-a-thread")

    @memory.task(name="progress")
    async def progress(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        done.append("progress")

    isolated = memory.task(name="isolated", isolation="process")(step_in_a_process)
    assert isolated.name == "isolated"
    log.put({"task": "steps"}, {"task": "in-a-thread"}, {"task": "progress"}, {"task": "isolated"})
    async with working(memory, log):
        await until(lambda: sorted(done) == ["in-a-thread", "progress", "steps"])
        await until(lambda: _has_succeeded(memory, "isolated"))
        await until(log.is_committed)
    assert sorted(begun) == ["one", "two"]
    for task in ("steps", "in-a-thread", "isolated"):
        [job] = await memory.jobs.alist(task=task)
        rows = await memory.jobs.ahistory(job.id)
        assert job.attempts == 0
        assert rows[-1].status is AttemptStatus.SLEPT
        assert "job of the store" in (rows[-1].detail or "")


def step_in_a_process(ctx: Context) -> int:
    value = ctx.step("pid", os.getpid)
    assert isinstance(value, int)
    return value


async def _has_succeeded(harbor: Harbor, task: str) -> bool:
    return bool(await harbor.jobs.alist(task=task, state="succeeded"))


# -- partitions that come and go -----------------------------------------------------------------


async def test_revoked_partition_is_given_up_in_time_while_the_store_is_away(
    memory: Harbor, log: Log, monkeypatch: pytest.MonkeyPatch
):
    """The members of the group wait for this. What was not handed over comes again."""
    begun: list[int] = []

    @memory.task(name="stuck")
    async def stuck(n: int) -> None:
        begun.append(n)
        await asyncio.sleep(3_600)

    async def away(jobs: Any, **_: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr("taskharbor.streams.rebalances.HAND_OVER_SECONDS", 0.05)
    log.put_calls("stuck", range(3), partition=0)
    async with working(memory, log, grace_seconds=0.0, revoke_seconds=0.05) as worker:
        await until(lambda: len(begun) == 3)
        monkeypatch.setattr(memory.driver, "hand_over", away)
        assert worker._source is not None
        assert await asyncio.wait_for(worker._source.rebalances.revoked([0]), 30) == []
        assert not worker._source._taken.has(0)
    assert max(log.committed()[0].offset, 0) == 0


async def test_messages_that_have_not_begun_when_their_partition_leaves_stay_in_the_log(
    memory: Harbor, log: Log, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.worker.run.STALLED_SECONDS", 60.0)  # what is claimed ahead stays so
    begun: list[int] = []
    may_end = asyncio.Event()

    @memory.task(name="stuck")
    async def stuck(n: int) -> None:
        begun.append(n)
        await may_end.wait()

    log.put_calls("stuck", range(20), partition=0)
    async with working(memory, log, concurrency=2, revoke_seconds=30.0) as worker:
        worker._worker._expected_pace = 1_000.0  # as if it had been busy: it claims ahead

        def claimed() -> int:
            if worker._source is None:
                return 0
            figures: dict[str, int] = worker._source.figures()
            return figures["in_flight"] - figures["buffered"]

        await until(lambda: len(begun) == 2 and claimed() > 2)
        rebalances = worker._source.rebalances
        revoking = asyncio.create_task(rebalances.revoked([0]))
        await until(lambda: rebalances.is_revoking)
        may_end.set()
        [commit] = await asyncio.wait_for(revoking, 20)
    assert (begun, commit.offset) == ([0, 1], 2)
    assert sum((await memory.jobs.acounts()).values()) == 0


def test_committed_offsets_are_asked_for_until_the_brokers_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskharbor.streams.asking.AGAIN_SECONDS", 0.0)

    class Asked:
        answers: ClassVar[list[int]] = [KafkaError._TIMED_OUT, KafkaError.NOT_COORDINATOR]

        def committed(self, partitions: Any, timeout: float) -> Any:
            if self.answers:
                raise KafkaException(KafkaError(self.answers.pop()))
            return [TopicPartition("t", 0, 7)]

        def assign(self, partitions: Any) -> None:
            self.read_from = partitions

    class Told:
        def assigned(self, topic_id: str, partitions: Any) -> None:
            self.topic_id, self.partitions = topic_id, partitions

    told = Told()

    class Named:
        answers: ClassVar[list[int]] = [KafkaError._TRANSPORT]

        def find(self) -> str:
            if self.answers:
                raise KafkaException(KafkaError(self.answers.pop()))
            return "id"

        def look(self) -> None: ...

    consumer = PolledConsumer({}, "t", "g", told, Named())  # type: ignore[arg-type]
    consumer._on_assign(Asked(), [TopicPartition("t", 0)])
    assert [(each.partition, each.committed) for each in told.partitions] == [(0, 7)]
    assert told.topic_id == "id"


async def test_answer_that_nobody_waits_for_any_more_holds_up_no_other(log: Log):
    """A worker that stops gives up waiting for the copy of a dead message; the client's thread goes on."""
    sender = Sender(Brokers(log.bootstrap))
    waiting = asyncio.wrap_future(sender.send(log.topic, b"first"))
    waiting.cancel()
    await asyncio.wait([waiting])
    later = asyncio.wrap_future(sender.send(log.topic, b"second"))
    assert (await asyncio.wait_for(later, 20)).topic == log.topic
    await asyncio.to_thread(sender.close)
    assert sum(log.ends()) == 2
