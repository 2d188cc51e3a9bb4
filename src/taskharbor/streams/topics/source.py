"""A topic and its retry topics as a source of jobs: what fails waits in the brokers, and no store keeps anything.

Every message is in one place at any time: in the topic, in a retry topic, or in the dead-letter topic. It goes from one
to the next in a transaction that also finishes its offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import wait_for
from taskharbor.drivers.base import (
    Claim,
    Claimed,
    ClaimRequest,
    Driver,
    Extension,
    Heartbeat,
    SettleAnswer,
    SettleResult,
    Transition,
)
from taskharbor.drivers.contract.reading import StreamPartition
from taskharbor.errors import StoreUnavailable
from taskharbor.records import AttemptRecord, AttemptStatus, JobRecord, NewJob, State
from taskharbor.rules.policy import LOST_SUPERVISED, Loss, weigh_loss
from taskharbor.streams.dead_jobs import report_dead, why_unreadable
from taskharbor.streams.log_source import BUFFER_BYTES, LogSource
from taskharbor.streams.messages import Place, Unreadable, read_message, unreadable, with_place
from taskharbor.streams.offsets import decode
from taskharbor.streams.topics import trails
from taskharbor.streams.topics.consumer import TopicAssigned
from taskharbor.streams.topics.moves import Ledger, Move, Partition, Record
from taskharbor.streams.topics.records import Records
from taskharbor.streams.topics.sleeping import Held, Sleeping
from taskharbor.streams.topics.tiers import Tiers
from taskharbor.streams.topics.trails import ROWS_MAX, Foreign
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

ASIDE_UNITS = 8  # waits of the smallest tier before a message of a held task is looked at again


class TopicsOptions(Struct, frozen=True):
    """What the stream's worker knows about its topic."""

    topic: str
    group: str
    log: bytes  # a digest of cluster, topic and group
    queue: str  # whose pauses apply
    is_task: Callable[[str], bool]
    capacity: int
    revoke_seconds: float


class TopicsSource(LogSource[Held]):
    """What a worker needs of a source of jobs, on top of a topic and its retry topics.

    The messages belong to the loop. The methods of `consumer.TopicsListener` are called by the consumer's thread.
    """

    WHY_NOT = 'with retries="topics" a message leaves no row in the store, so it has no'

    def __init__(
        self,
        store: Driver,
        options: TopicsOptions,
        tiers: Tiers,
        records: Records,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(store, options.queue, loop)
        self._options = options
        self._tiers = tiers
        self._records = records
        self.ledger = Ledger(loop)
        self._buffer: deque[Held] = deque()  # no handler has begun them
        self._buffer_bytes = 0
        self._held: dict[str, Held] = {}  # by the id of their jobs
        self._sleeping = Sleeping(self.clock)
        self._rewind: dict[Partition, int] = {}  # retry partitions that are to be read again, and from where
        self._leaving: set[Partition] = set()
        self._finished = asyncio.Event()
        self._has_workers = True  # without any, what was begun never ends
        self.wake: Callable[[], None] = lambda: None  # makes a transaction at once
        # Ends what the executor has not begun of the partitions that go away; the worker sets it.
        self.hand_back: Callable[[Callable[[Claimed], bool]], None] = lambda unwanted: None

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the worker, for as long as it does."""
        return [self._look_at_sleeping(), self.operators.watch(), self.until_failure()]

    # -- what the worker asks --

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        instant = self.clock.now() if now is None else now
        jobs: list[Claimed] = []
        size = 0
        wanted = 0 if request.suspects or self.operators.is_paused else request.limit
        while self._buffer and len(jobs) < wanted:
            held = self._buffer[0]
            if jobs and size + held.size > request.bytes_limit:
                break
            self._buffer.popleft()
            size += held.size
            held.token = request.token
            if held.claimed.id in self.losses:
                self._settle_lost(held, request.max_losses)
            else:
                jobs.append(held.claimed)
        self._buffer_bytes -= size
        return Claim(
            instant,
            instant + request.lease,
            jobs,
            more=bool(jobs and self._buffer),
            max_losses=request.max_losses,
            holds=self.operators.holds,
        )

    def _settle_lost(self, held: Held, max_losses: int) -> None:
        """Record the loss of what another process had begun when it died; the message may kill this one, too.

        The supervisor was there, and the process may have died of any of its messages.
        """
        lost = self.losses.pop(held.claimed.id)
        what = f"lost: worker {lost.worker} {lost.how}"
        loss = Loss(held.token, lost.worker, LOST_SUPERVISED, what, started_at=lost.started_at)
        transition = weigh_loss(loss, held.claimed, held.trail.history(ROWS_MAX), max_losses=max_losses)
        log_line(
            logger,
            logging.WARNING,
            "message {message} was begun when worker {worker} {how}; it is tried again later, or dead",
            {"message": str(held.place), "worker": lost.worker, "how": lost.how, "job": held.claimed.id},
        )
        settling = asyncio.ensure_future(self._settle_each([transition], self.clock.now()))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        """Extend by itself.

        A message of an `at_most_once` task begins after this has committed its offset: it cannot come again.
        """
        for job_id in [job_id for each in extensions for job_id in each.at_most_once]:
            await self._commit_first(job_id)
        return await super().extend(extensions, now=now)

    async def _commit_first(self, job_id: str) -> None:
        held = self._held.get(job_id)
        if held is not None and not held.is_committed:
            held.is_committed = True  # from now on it does not go with its partition
            [has_moved] = await self._until_moved([Move(held.place, None)])
            if not has_moved:
                held = self._held.pop(job_id, None) and None
        if held is None:
            raise StoreUnavailable(f"message {job_id} went to another worker before it began")

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        return [None] * len(ids)

    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        held = self._held.get(job_id)
        return [] if held is None else held.trail.history(limit)

    # -- settling --

    async def _settle_each(self, transitions: Sequence[Transition], now: int) -> list[SettleResult]:
        """Move what did not succeed, and wait until the brokers have it."""
        answers: list[SettleResult] = []
        children: list[NewJob] = []
        finished: list[Held] = []
        kept: list[tuple[Held, Transition]] = []
        moved: dict[int, tuple[Held, Move]] = {}  # by the place among the answers
        for t in transitions:
            held = self._held.get(t.job_id)
            if held is None or held.token != t.token:
                answers.append(SettleResult(SettleAnswer.LEASE_MISMATCH, at=now))
                continue
            children += t.inserts
            record = self._record_after(held, t, now)
            if record is not None:
                moved[len(answers)] = held, Move(held.place, record, is_finished=held.is_committed)
            elif t.to is State.READY:
                kept.append((held, t))
            else:
                finished.append(held)
            answers.append(SettleResult(SettleAnswer.DONE, t.to, now + t.delay if t.delay else None, at=now))
        if children:  # what a handler enqueues, and failure tasks: they go to the store, as from any worker
            await self._store.enqueue(children)
            # Those whose partitions have gone meanwhile come again, and what becomes of them then counts.
            kept = [(held, t) for held, t in kept if self._is_at_work(held)]
            finished = [held for held in finished if self._is_at_work(held)]
            for index in [index for index, (held, _) in moved.items() if not self._is_at_work(held)]:
                del moved[index]
                answers[index] = SettleResult(SettleAnswer.LEASE_EXPIRED, at=now)
        for held, t in kept:
            self._keep(held, t, now)
        for held in (*finished, *(held for held, _ in moved.values())):
            self._held.pop(held.claimed.id, None)
        self._end(finished)
        have_moved = await self._until_moved([move for _, move in moved.values()])
        for index, has_moved in zip(moved, have_moved, strict=True):
            if not has_moved:
                answers[index] = SettleResult(SettleAnswer.LEASE_EXPIRED, at=now)
        return answers

    def _is_at_work(self, held: Held) -> bool:
        return self._held.get(held.claimed.id) is held

    def _record_after(self, held: Held, t: Transition, now: int) -> Record | None:
        """The record that an attempt leads to; None after a success, and for what stays here until it is due."""
        if t.to is State.DEAD:
            return self._records.dead(held, held.trail.after(t, now), t)
        if t.to is not State.READY:
            return None
        if _is_handed_back(t):
            # If its offset is committed, it comes again from the topic to which it goes now.
            return self._records.soon(held, held.trail, now) if held.is_committed else None
        trail = self._trail_after(held, t, now)
        if t.status is AttemptStatus.LOST:  # in memory, the next crash would forget it
            return self._records.soon(held, trail, now)
        return self._records.later(held, trail, now)

    def _trail_after(self, held: Held, t: Transition, now: int) -> trails.Trail:
        trail = held.trail.after(t, now)
        if t.aside is not None and t.delay is None:
            return replace(trail, due_at=now + ASIDE_UNITS * self._tiers.unit)
        return trail

    def _keep(self, held: Held, t: Transition, now: int) -> None:
        """Keep a message in memory: one that was handed back, or is due in less than the smallest tier waits."""
        held.token = ""
        if not _is_handed_back(t):
            trail = self._trail_after(held, t, now)
            held.trail, held.has_failed = trail, True
            held.claimed = replace(
                held.claimed, number=trail.number + 1, attempts=trail.attempts, run_at=trail.due_at
            )
        if not self.ledger.has(held.partition):
            self._held.pop(held.claimed.id, None)
        elif held.partition in self._leaving:
            self._leave([held], now)
        elif held.trail.due_at > now:
            self._sleeping.add(held, held.trail.due_at)
        else:
            self._buffer.appendleft(held)
            self._buffer_bytes += held.size
            self._changes.announce()

    def _leave(self, messages: Sequence[Held], now: int) -> None:
        """Let go of messages whose partition goes away: those that failed here are sent on, the others come again."""
        for held in messages:
            self._held.pop(held.claimed.id, None)
        failed = [held for held in messages if held.has_failed]
        self._send([Move(held.place, self._records.soon(held, held.trail, now)) for held in failed])
        self._finished.set()

    def _pop(self, job_id: str) -> Held | None:
        return self._held.pop(job_id, None)

    def _end(self, ended: Iterable[Held]) -> None:
        self.ledger.finish(each.place for each in ended if not each.is_committed)
        self._finished.set()

    def _send(self, moves: Sequence[Move]) -> None:
        if moves:
            self.ledger.move(moves)
            self._finished.set()
            self.wake()

    async def _until_moved(self, moves: Sequence[Move]) -> list[bool]:
        """Wait for the transaction of these; return which of them have moved."""
        answers = [self._loop.create_future() for _ in moves]
        for move, answer in zip(moves, answers, strict=True):
            move.answer = answer
        self._send(moves)
        return [await each for each in answers]

    # -- messages --

    def _take(self, messages: Sequence[Any]) -> None:
        """Take messages that the consumer's thread has read."""
        now = self.clock.now()
        for message in messages:
            partition = message.topic(), message.partition()
            if partition in self._rewind:
                continue
            if self._sleeping.is_full(partition):
                self._rewind[partition] = message.offset()  # when the others have waited, it is read again
                continue
            if self.ledger.take(partition, message.offset()):
                self._take_one(message, now)
        self.ledger.arriving(-len(messages), are_retries=self._are_retries(messages))
        self._changes.announce()

    def _take_one(self, message: Any, now: int) -> None:
        _, timestamp = message.timestamp()
        place = Place(
            self._options.log, message.topic(), message.partition(), message.offset(), max(timestamp, 0)
        )
        first = place
        try:
            trail, headers = self._trail_of(message, place)
            first = trail.first
            read = self._read(message, trail, headers, place, now)
            if not isinstance(read, Unreadable):
                self._admit(read, now)
                return
        except _Foreign:
            self.ledger.finish([place])  # that group reads it as well
            return
        except Exception as error:  # noqa: BLE001 - one message must not take the others along
            read = unreadable(str(error) or repr(error), message.value() or b"")
        report_dead(first, why_unreadable(first, read))
        self._send([Move(place, self._records.unreadable(first, message, read))])

    def _admit(self, held: Held, now: int) -> None:
        held.is_waiting = held.trail.wait_until > now
        if held.is_waiting:
            self._sleeping.add(held, held.trail.wait_until)
        else:
            self._look_at(held, now)

    def _trail_of(self, message: Any, place: Place) -> tuple[trails.Trail, trails.Headers]:
        options = self._options
        if place.topic == options.topic:
            return trails.first_trail(place, message.headers())
        read = trails.read(message.headers(), options.group, options.log)
        if not isinstance(read, Foreign):
            return read
        if read.group is None:
            raise ValueError("it is no retry record: no worker of this topic has written it")
        raise _Foreign

    def _read(
        self, message: Any, trail: trails.Trail, headers: trails.Headers, place: Place, now: int
    ) -> Held | Unreadable:
        body: bytes | None = message.value()
        read = read_message(body, message.key(), headers, self._options.is_task)
        if isinstance(read, Unreadable):
            return read
        first = trail.first
        at = (
            min(first.timestamp * 1_000, now) if first.timestamp > 0 else now
        )  # its producer may say anything
        claimed = Claimed(
            first.job_id,
            read.task,
            read.payload,
            self._options.queue,
            0,
            trail.number + 1,
            trail.attempts,
            1,
            trail.due_at or at,
            at,
            options=read.options,
            meta=with_place(read.meta, first, message.key()),
        )
        return Held(place, claimed, trail, message, headers, len(body or b""))

    # -- messages that wait --

    def _look_at(self, held: Held, now: int) -> None:
        """Offer a message to the worker if it is due; else let it rest here, or send it to its next tier."""
        job_id = held.claimed.id
        if self._held.get(job_id, held) is not held:  # another record of the same message is at work
            self._sleeping.add(held, now + self._tiers.unit)
            return
        record = self._records.later(held, held.trail, now)
        if record is not None:
            self._held.pop(job_id, None)
            self._send([Move(held.place, record)])
            return
        self._held[job_id] = held
        if held.trail.due_at > now:
            self._sleeping.add(held, held.trail.due_at)
        else:
            self._buffer.append(held)
            self._buffer_bytes += held.size

    async def _look_at_sleeping(self) -> None:
        while True:
            now = self.clock.now()
            for held in self._sleeping.pop(now):
                if self.ledger.has(held.partition):
                    self._look_at(held, now)
            self._changes.announce()
            await self._sleeping.wait(now)

    # -- what the consumer's thread calls: see `consumer.TopicsListener` --

    def room(self) -> int:
        """How many more messages may come, by number and by bytes."""
        if self.is_closing or self._buffer_bytes >= BUFFER_BYTES:
            return 0
        return self.ledger.room(self._options.capacity - len(self._buffer) - self._sleeping.resting)

    def to_rewind(self, assigned: Collection[Partition]) -> list[tuple[Partition, int]]:
        """Which of these partitions are to be read again, and from where: what was read of them before has come."""
        if not self._rewind or self.ledger.is_expecting_retries:
            return []
        ready = [
            each for each in list(self._rewind) if each in assigned and not self._sleeping.is_waiting(each)
        ]
        # (The loop forgets partitions that are lost, at any moment.)
        found = [(each, self._rewind.pop(each, None)) for each in ready]
        return [(each, offset) for each, offset in found if offset is not None]

    def rewind(self, partition: Partition, offset: int) -> None:
        self._rewind[partition] = offset

    def to_hold(self) -> frozenset[Partition]:
        """The partitions whose head waits, that are to be read again, or that run too far ahead of their commits."""
        return frozenset((*self._sleeping.partitions(), *list(self._rewind), *self.ledger.far_ahead()))

    def in_doubt(self) -> list[tuple[Partition, int]]:
        return self.ledger.in_doubt()

    def trust(self, partition: Partition) -> None:
        async def trust() -> None:  # on the loop: after what came before
            self.ledger.trust(partition)

        asyncio.run_coroutine_threadsafe(trust(), self._loop).result()

    def arrived(self, messages: Sequence[Any]) -> None:
        self.ledger.arriving(len(messages), are_retries=self._are_retries(messages))
        self._loop.call_soon_threadsafe(self._take, messages)

    def _are_retries(self, messages: Sequence[Any]) -> bool:
        """Whether these are retry records. A consumer reads either them or the topic."""
        return bool(messages[0].topic() != self._options.topic)

    def assigned(self, partitions: Sequence[TopicAssigned]) -> None:
        async def begin() -> None:  # on the loop: after what is left there of the time before
            for each in partitions:
                committed = each.committed or 0
                self.ledger.begin(each.partition, each.committed, decode(committed, each.metadata))

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result()

    def revoked(self, partitions: Sequence[Partition]) -> None:
        # However busy the loop is, this waits: forgetting a partition that has come back would lose its messages.
        asyncio.run_coroutine_threadsafe(self._revoked(frozenset(partitions)), self._loop).result()

    def forget(self, partitions: Sequence[Partition]) -> None:
        gone = frozenset(partitions)
        self.ledger.forget(gone)  # at once: the next transaction has nothing of them
        self._loop.call_soon_threadsafe(self._forget, gone)

    # -- partitions that go away --

    def workers_ended(self) -> None:
        self._has_workers = False
        self._finished.set()

    async def _revoked(self, gone: frozenset[Partition]) -> None:
        """Let what runs end, and send on what rests here after a failure. The rest comes again."""
        self._leaving |= gone
        self._drop_buffered(gone)
        resting = [each for each in self._sleeping.remove(gone) if self._held.get(each.claimed.id) is each]
        self._leave(resting, self.clock.now())
        self.hand_back(lambda claimed: self._is_of(claimed.id, gone))
        deadline = self.clock.monotonic() + self._options.revoke_seconds
        while self._has_workers and any(self._is_of(job_id, gone) for job_id in self._held):
            self._finished.clear()
            try:
                await wait_for(self.clock, self._finished.wait(), deadline - self.clock.monotonic())
            except TimeoutError:
                break

    def _is_of(self, job_id: str, partitions: Collection[Partition]) -> bool:
        """Whether a message comes again with these partitions. (One whose offset is committed does not.)"""
        held = self._held.get(job_id)
        return held is not None and not held.is_committed and held.partition in partitions

    def _drop_buffered(self, gone: Collection[Partition]) -> None:
        dropped = [each for each in self._buffer if each.partition in gone]
        self._buffer = deque(each for each in self._buffer if each.partition not in gone)
        self._buffer_bytes -= sum(each.size for each in dropped)
        self._leave(dropped, self.clock.now())

    def _forget(self, gone: frozenset[Partition]) -> None:
        """Begin nothing more of these. What runs goes on, and may overlap with the next execution."""
        self.hand_back(lambda claimed: self._is_of(claimed.id, gone))
        self._drop_buffered(gone)
        self._sleeping.remove(gone)
        for job_id in [job_id for job_id in self._held if self._is_of(job_id, gone)]:
            del self._held[job_id]
        for each in gone:
            self._rewind.pop(each, None)
        self._leaving -= gone

    @property
    def sleeps(self) -> int:
        """How many messages wait, in a retry topic or until they are due within a second."""
        return len(self._sleeping)

    # -- for metrics --

    def partition_figures(self) -> list[StreamPartition]:
        """What is known of each partition of the topic. (The retry topics have a group of their own.)"""
        return self.ledger.partition_figures(self._options.topic)

    def figures(self) -> dict[str, int]:
        return {
            "in_flight": len(self._held),
            "buffered": len(self._buffer),
            "incomplete": self.ledger.incomplete,
        }


class _Foreign(Exception):
    """A retry record of another group."""


def _is_handed_back(t: Transition) -> bool:
    """Whether the attempt says nothing about the message: it did not begin, or the worker cut it off."""
    return t.status is AttemptStatus.RELEASED and t.to is State.READY and t.delay is None and t.aside is None
