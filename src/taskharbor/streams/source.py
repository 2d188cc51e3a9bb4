"""A topic as a source of jobs: a worker claims its messages and settles them, as it does with the jobs of a store.

A message that succeeds leaves nothing but its offset. Whatever else becomes of it, it is handed over to the store
first, and only then does its offset count as finished. So a crash repeats messages, and loses none.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import wait_for
from taskharbor.drivers.base import (
    CancelRequests,
    Claim,
    Claimed,
    ClaimRequest,
    Driver,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    JobSource,
    PlainSuccesses,
    SettleAnswer,
    SettleResult,
    Transition,
    worker_of,
)
from taskharbor.drivers.capabilities import HandOver
from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.errors import PayloadError
from taskharbor.records import (
    FAILURES,
    AttemptRecord,
    AttemptStatus,
    DeadCopy,
    JobRecord,
    NewJob,
    Options,
    State,
    encode_options,
    read_options,
)
from taskharbor.settle_batch import REFUSALS
from taskharbor.streams.consumer import Assigned, Commit
from taskharbor.streams.dead_jobs import UNREADABLE_TASK, unkeepable_job, unreadable_job
from taskharbor.streams.first import First, copied
from taskharbor.streams.messages import Place, Readable, Unreadable, read_message, with_place
from taskharbor.streams.offsets import AHEAD_MAX, PartitionOffsets, decode
from taskharbor.streams.operators import Operators
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.upkeep.retrying import Outages

logger = logging.getLogger("taskharbor.stream")

T = TypeVar("T")

HAND_OVER_AT_ONCE = 500
BUFFER_BYTES = 16 * 1_048_576  # of messages that no handler has begun
COPY_AGAIN_SECONDS = 1.0
HAND_OVER_SECONDS = 5.0  # for what runs on when its partition goes away
_DONE = SettleResult(SettleAnswer.DONE, State.SUCCEEDED)


class Held(Struct, eq=False):
    """A message that was taken from the log and is not finished."""

    place: Place
    claimed: Claimed
    size: int
    token: str = ""  # of the claim that handed it to the executor


class Keys(Struct, frozen=True):
    """The keys under which messages of one log are jobs of the store: by partition, in the order of the offsets."""

    log: str  # a digest of cluster, topic and group, in hex

    def of(self, place: Place) -> str:
        return self.at(place.partition, place.offset)

    def at(self, partition: int, offset: int) -> str:
        return f"{self.log}:{partition:06d}:{offset:020d}"

    def offset_of(self, key: str) -> int:
        return int(key.rpartition(":")[2])


class Rules(Struct, frozen=True):
    """What the stream's worker decides about messages, apart from the retry policy's own rules."""

    queue: str  # of the jobs that messages become
    is_task: Callable[[str], bool]
    is_handed_over_first: Callable[[str], bool]
    seal: Callable[[str], str]  # a payload, as the store keeps it
    policy: dict[str, Any] | None  # the worker's, as JSON; None if it follows the code
    dead_copy: DeadCopy | None
    send_unreadable: Callable[[Place, Unreadable, Any], Awaitable[None]] | None


class StreamSource(JobSource):
    """What a worker needs of a source of jobs, on top of a topic. What has to last goes to the harbor's store.

    The messages belong to the loop. The methods of `consumer.Listener` are called by the consumer's thread; what both
    touch is guarded by a lock, which is held for a batch at a time.
    """

    WHY_NOT = "the first attempt of a message leaves no row in the store (a retry does), so it has no"

    def __init__(
        self,
        store: Driver,
        outages: Outages,
        *,
        topic: str,
        log: bytes,
        capacity: int,
        rules: Rules,
        revoke_seconds: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._store = store
        self._handing = HandOver.of(store)
        self._outages = outages
        self.clock = store.clock
        self._topic = topic
        self._log = log
        self.keys = Keys(log.hex())
        self._capacity = capacity
        self._rules = rules
        self._usual_options = encode_options(Options(dead_copy=rules.dead_copy))
        self._revoke_seconds = revoke_seconds
        self._loop = loop
        self._lock = threading.Lock()
        self._partitions: dict[int, PartitionOffsets] = {}
        self._buffer: deque[Held] = deque()
        self._buffer_bytes = 0
        self._held: dict[str, Held] = {}
        self._first: list[First] = []  # to be handed over without being executed here
        self._first_bytes = 0
        self._arriving = 0  # messages on their way from the consumer's thread
        self.operators = Operators(store, rules.queue, self._announce)
        self.is_closing = False  # nothing more is taken from the log
        self._changes = 0
        self._changed = asyncio.Event()
        self._finished = asyncio.Event()
        self._failure: asyncio.Future[None] = loop.create_future()
        # Ends what the executor has not begun of the partitions that go away; the worker sets it.
        self.hand_back: Callable[[Callable[[Claimed], bool]], None] = lambda unwanted: None

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

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Heartbeat:
        """Extend by itself: no other worker has these messages while their partitions are this consumer's."""
        instant = self.clock.now() if now is None else now
        extended = [Extended(each.token, SettleAnswer.DONE, instant + each.lease) for each in extensions]
        return Heartbeat(instant, extended, self.operators.paused, self.operators.holds)

    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> CancelRequests:
        return CancelRequests(0)  # a message cannot be cancelled before it is a job

    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> ExpiredLease | None:
        return None

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        if isinstance(transitions, PlainSuccesses):
            held = [self._held.pop(job_id, None) for job_id in transitions.ids]
            self._finish([each.place for each in held if each is not None])
            if None not in held:
                return [_DONE] * len(held)
            return [_DONE if each is not None else SettleResult(SettleAnswer.NOT_RUNNING) for each in held]
        return await self._settle_each(transitions, self.clock.now() if now is None else now)

    def change_token(self) -> int:
        return self._changes

    async def wait_for_change(self, token: int, seconds: float) -> None:
        if self._changes != token:
            return
        self._changed.clear()
        try:
            await wait_for(self.clock, self._changed.wait(), seconds)
        except TimeoutError:
            pass

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> list[JobRecord | None]:
        return await self._store.get(ids, now=now)

    async def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        return await self._store.history(job_id, limit)

    # -- settling --

    async def _settle_each(self, transitions: Sequence[Transition], now: int) -> list[SettleResult]:
        """Hand over what did not succeed, and then count all of it as finished."""
        handed: list[HandedOver] = []
        children: list[NewJob] = []
        places: list[Place] = []
        answers: list[SettleResult] = []
        again: list[Held] = []
        for t in transitions:
            held = self._held.get(t.job_id)
            if held is None or held.token != t.token:
                answers.append(SettleResult(SettleAnswer.LEASE_MISMATCH, at=now))
                continue
            answers.append(SettleResult(SettleAnswer.DONE, t.to, now + t.delay if t.delay else None, at=now))
            is_handed_back = t.status is AttemptStatus.RELEASED and t.to is State.READY and t.delay is None
            if is_handed_back and t.aside is None:
                again.append(held)  # it stays in the log, and here as long as the partition does
                continue
            places.append(held.place)
            if t.to is State.SUCCEEDED:
                children += t.inserts
            else:
                handed.append(self._handed_over(held, t, now))
        if children:
            await self._store.enqueue(children)
        if handed:
            await self._handing.hand_over(handed)
        for each in again:
            self._offer_again(each)
        for place in places:
            self._held.pop(place.job_id, None)
        self._finish(places)
        return answers

    def _handed_over(self, held: Held, t: Transition, now: int) -> HandedOver:
        """The job that a message becomes after its first attempt."""
        attempt = AttemptRecord(
            job_id=t.job_id,
            number=1,
            status=t.status,
            retry_count=0,
            worker=t.worker or worker_of(t.token),
            started_at=t.started_at,
            finished_at=now,
            error=t.error,
            traceback=t.traceback,
            detail=t.detail,
            fingerprint=t.fingerprint,
            code_version=t.code_version,
            retry_delay=t.delay if t.status in FAILURES and t.to is State.READY else None,
        )
        try:
            job = replace(self._job_of(held), delay=t.delay or 0)
        except PayloadError as error:  # sealed, it is too large
            return self._unkeepable(held.place, held.claimed.task, error)
        return HandedOver(job, attempt, t.attempts, t.to, t.reason, t.inserts)

    def _job_of(self, held: Held) -> NewJob:
        c = held.claimed
        options = read_options(c.options)[0]
        if self._rules.policy is not None:
            options = replace(options, retry=self._rules.policy)
        return NewJob(
            c.id,
            c.task,
            self._rules.seal(c.payload),
            self._rules.queue,
            idempotency_key=self.keys.of(held.place),
            options=options,
            meta=c.meta,
        )

    def _sealed(self, job: NewJob) -> NewJob:
        return replace(job, payload=self._rules.seal(job.payload))

    def _unattempted(self, held: Held) -> HandedOver:
        """The job of a message that goes to the store as it is."""
        try:
            return HandedOver(self._job_of(held))
        except PayloadError as error:  # sealed, it is too large
            return self._unkeepable(held.place, held.claimed.task, error)

    def _finish(self, places: Iterable[Place]) -> None:
        with self._lock:
            for place in places:
                partition = self._partitions.get(place.partition)
                if partition is not None:
                    partition.finish(place.offset)
        self._finished.set()

    def _offer_again(self, held: Held) -> None:
        if held.place.partition in self._partitions:
            held.token = ""
            self._buffer.appendleft(held)
            self._buffer_bytes += held.size
        else:
            self._held.pop(held.claimed.id, None)

    # -- messages --

    def _take(self, messages: Sequence[Any]) -> None:
        """Take messages that the consumer's thread has read."""
        now = self.clock.now()
        with self._lock:
            self._arriving -= len(messages)
            taken = [each for each in messages if self._is_new(each.partition(), each.offset())]
        for message in taken:
            try:
                self._take_one(message, now)
            except Exception as error:  # noqa: BLE001 - one message must not take the others along
                place = self._place_of(message)
                self._add_first(First(place, self._unkeepable(place, UNREADABLE_TASK, error), 0))
        if taken:
            self._announce()

    def _announce(self) -> None:
        self._changes += 1
        self._changed.set()

    def _is_new(self, partition: int, offset: int) -> bool:
        offsets = self._partitions.get(partition)
        return offsets is not None and offsets.take(offset)

    def _take_one(self, message: Any, now: int) -> None:
        body: bytes | None = message.value()
        place = self._place_of(message)
        read = read_message(body, message.key(), message.headers(), self._rules.is_task)
        if isinstance(read, Unreadable):
            handed = unreadable_job(place, read, self._rules.queue, self.keys.of(place), now)
            handed = replace(handed, job=self._sealed(handed.job))
            self._add_first(First(place, handed, len(body or b""), read, message))
            return
        read.meta = with_place(read.meta, place, message.key())
        held = Held(place, self._claimed(place, read, now), len(body or b""))
        if self._rules.is_handed_over_first(read.task):
            self._add_first(First(place, self._unattempted(held), held.size))
            return
        self._held[held.claimed.id] = held
        self._buffer.append(held)
        self._buffer_bytes += held.size

    def _place_of(self, message: Any) -> Place:
        _, timestamp = message.timestamp()
        return Place(self._log, self._topic, message.partition(), message.offset(), timestamp)

    def _claimed(self, place: Place, read: Readable, now: int) -> Claimed:
        at = (
            min(place.timestamp * 1_000, now) if place.timestamp > 0 else now
        )  # its producer may say anything
        return Claimed(
            place.job_id,
            read.task,
            read.payload,
            self._rules.queue,
            0,
            1,
            0,
            1,
            at,
            at,
            options=self._with_copy(read.options),
            meta=read.meta,
        )

    def _with_copy(self, options: str | None) -> str | None:
        """The options of a message's job: should it die, at whatever attempt, a copy goes to the topic."""
        if options is None:
            return self._usual_options
        return encode_options(replace(read_options(options)[0], dead_copy=self._rules.dead_copy))

    async def hand_over_first(self) -> None:
        """Hand over what is not to be executed here. Runs for as long as the worker does."""
        while True:
            token = self._changes
            # Those whose bytes have to be copied come last: they wait for the dead-letter topic, the others do not.
            waiting = sorted(self._first, key=lambda each: each.read is not None)[:HAND_OVER_AT_ONCE]
            batch = await copied(waiting, self._rules.send_unreadable)
            if not batch and waiting:
                await self.clock.sleep(COPY_AGAIN_SECONDS)
                continue
            if not batch:
                await self.wait_for_change(token, 1.0)
                continue
            done = await self._handed_over_first(batch)
            self._drop_first(set(map(id, batch)))
            self._finish([each.place for each in done])

    def _add_first(self, first: First) -> None:
        self._first.append(first)
        self._first_bytes += first.size

    def _drop_first(self, ids: set[int]) -> None:
        self._first = [each for each in self._first if id(each) not in ids]
        self._first_bytes = sum(each.size for each in self._first)

    async def _handed_over_first(self, batch: Sequence[First]) -> Sequence[First]:
        """Hand these over; return those that stand in the store."""
        try:
            await self._patiently(partial(self._handing.hand_over, [each.handed for each in batch]))
            return batch
        except REFUSALS as error:
            if len(batch) > 1:
                return [each for one in batch for each in await self._handed_over_first([one])]
            [each] = batch
            each.handed = self._unkeepable(each.place, each.handed.job.task, error)
            await self._patiently(partial(self._handing.hand_over, [each.handed]))
            return batch

    def _unkeepable(self, place: Place, task: str, error: Exception) -> HandedOver:
        return unkeepable_job(place, task, error, self._rules.queue, self.keys.of(place), self.clock.now())

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        return await self._outages.retry_until_available(ask, "messages cannot be handed over to the store")

    # -- what the consumer's thread calls --

    def room(self) -> int:
        """How many more messages may come, by number and by bytes."""
        if self.is_closing or self._buffer_bytes + self._first_bytes >= BUFFER_BYTES:
            return 0
        with self._lock:
            free = self._capacity - len(self._buffer) - len(self._first) - self._arriving
            if free <= 0:
                return 0
            ahead = max((each.ahead for each in self._partitions.values()), default=0)
        return min(free, AHEAD_MAX - ahead)

    def arrived(self, messages: Sequence[Any]) -> None:
        with self._lock:
            self._arriving += len(messages)
        self._loop.call_soon_threadsafe(self._take, messages)

    def to_commit(self) -> list[Commit]:
        with self._lock:
            due = [(number, each.to_commit()) for number, each in self._partitions.items()]
        return [Commit(number, *what) for number, what in due if what is not None]

    def committed(self, commits: Sequence[Commit]) -> None:
        with self._lock:
            for each in commits:
                if (partition := self._partitions.get(each.partition)) is not None:
                    partition.acknowledged(each.offset, each.metadata)

    def assigned(self, partitions: Sequence[Assigned]) -> None:
        self._on_loop(self._assigned(partitions))

    def revoked(self, partitions: Sequence[int]) -> list[Commit]:
        # However busy the loop is, this waits: forgetting a partition that has come back would lose its messages.
        commits: list[Commit] = self._on_loop(self._revoked(partitions))
        return commits

    def lost(self, partitions: Sequence[int]) -> None:
        self._loop.call_soon_threadsafe(self._lost, partitions)

    def failed(self, error: Exception) -> None:
        def tell() -> None:
            if not self._failure.done():
                self._failure.set_exception(error)

        self._loop.call_soon_threadsafe(tell)

    def _on_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def until_failure(self) -> None:
        await asyncio.shield(self._failure)

    # -- partitions that come and go --

    async def _assigned(self, partitions: Sequence[Assigned]) -> None:
        """Learn what is finished of them, before the first message is taken."""
        for each in partitions:
            committed = each.committed or 0
            finished = decode(committed, each.metadata)
            first, last = self.keys.at(each.partition, committed), self.keys.at(each.partition, 10**19)
            read = partial(self._handing.handed_over, self._rules.queue, first, last, AHEAD_MAX)
            keys = await self._patiently(read)
            finished |= {self.keys.offset_of(key) for key in keys}
            with self._lock:
                self._partitions[each.partition] = PartitionOffsets(committed, finished)

    async def _revoked(self, partitions: Sequence[int]) -> list[Commit]:
        """Let what runs end, hand over what does not in time, and say what to commit."""
        gone = frozenset(partitions)
        self._drop_buffered(gone)
        self.hand_back(lambda claimed: self._is_of(claimed.id, gone))
        deadline = self.clock.monotonic() + self._revoke_seconds
        while running := [each for each in self._held.values() if each.place.partition in gone]:
            left = deadline - self.clock.monotonic()
            if left <= 0:
                await self._hand_over_running(running)
                break
            self._finished.clear()
            try:
                await wait_for(self.clock, self._finished.wait(), left)
            except TimeoutError:
                continue
        commits = [each for each in self.to_commit() if each.partition in gone]
        self._forget(partitions)
        return commits

    async def _hand_over_running(self, running: Sequence[Held]) -> None:
        """Hand over messages whose handlers still run, uncounted: the handlers may overlap with the next attempt."""
        jobs = [self._unattempted(each) for each in running]
        try:
            await wait_for(
                self.clock, self._patiently(partial(self._handing.hand_over, jobs)), HAND_OVER_SECONDS
            )
        except (TimeoutError, *REFUSALS) as error:
            log_line(
                logger,
                logging.WARNING,
                "{messages} messages still run and could not be handed over; they come again from {topic}: {error}",
                {"messages": len(running), "topic": self._topic, "error": str(error) or "the store is away"},
            )
            return
        for each in running:
            self._held.pop(each.claimed.id, None)
        self._finish([each.place for each in running])

    def _drop_buffered(self, gone: frozenset[int]) -> None:
        kept = deque(each for each in self._buffer if each.place.partition not in gone)
        for each in self._buffer:
            if each.place.partition in gone:
                self._held.pop(each.claimed.id, None)
                self._buffer_bytes -= each.size
        self._buffer = kept
        self._drop_first({id(each) for each in self._first if each.place.partition in gone})

    def _is_of(self, job_id: str, partitions: frozenset[int]) -> bool:
        held = self._held.get(job_id)
        return held is not None and held.place.partition in partitions

    def _lost(self, partitions: Sequence[int]) -> None:
        """Begin nothing more of these. What runs goes on, and may overlap with the next execution."""
        gone = frozenset(partitions)
        self.hand_back(lambda claimed: self._is_of(claimed.id, gone))
        self._forget(partitions)

    def _forget(self, partitions: Sequence[int]) -> None:
        gone = frozenset(partitions)
        self._drop_buffered(gone)
        for job_id in [job_id for job_id, held in self._held.items() if held.place.partition in gone]:
            del self._held[job_id]
        with self._lock:
            for each in gone:
                self._partitions.pop(each, None)

    # -- for metrics --

    def figures(self) -> dict[str, int]:
        with self._lock:
            incomplete = sum(each.open for each in self._partitions.values())
        return {"in_flight": len(self._held), "buffered": len(self._buffer), "incomplete": incomplete}
