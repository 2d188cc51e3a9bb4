"""What messages become: claims that a worker executes, and jobs of the store for whatever does not succeed at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.clock import Clock
from taskharbor.drivers.base import Claimed, Transition, worker_of
from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.errors import PayloadError
from taskharbor.records import (
    FAILURES,
    AttemptRecord,
    DeadCopy,
    NewJob,
    Options,
    State,
    encode_options,
    read_options,
)
from taskharbor.streams.dead_jobs import unkeepable_job, unreadable_job
from taskharbor.streams.messages import Place, Unreadable, read_message, with_place


class Held(Struct, eq=False, gc=False):
    """A message that was taken from the log and is not finished. (What it holds refers to nothing that holds it.)"""

    place: Place
    claimed: Claimed
    size: int
    token: str = ""  # of the claim that handed it to the executor
    line: str | None = None  # the key of its line: see `lines`


class Keys(Struct, frozen=True):
    """The keys under which messages of one log are jobs of the store: by partition, in the order of the offsets."""

    log: str  # a digest of cluster, topic and group, in hex

    def at(self, partition: int, offset: int) -> str:
        return f"{self.partition(partition)}:{offset:020d}"

    def partition(self, partition: int) -> str:
        return f"{self.log}:{partition:06d}"

    @staticmethod
    def partition_of(key: str) -> str:
        return key.rpartition(":")[0]

    @staticmethod
    def number_of(partition: str) -> int:
        return int(partition.rpartition(":")[2])

    def offset_of(self, key: str) -> int:
        return int(key.rpartition(":")[2])

    @staticmethod
    def of(place: Place) -> str:
        return Keys(place.log.hex()).at(place.partition, place.offset)


class Rules(Struct, frozen=True):
    """What the stream's worker decides about messages, apart from the retry policy's own rules."""

    queue: str  # of the jobs that messages become
    is_task: Callable[[str], bool]
    is_handed_over_first: Callable[[str], bool]
    seal: Callable[[str], str]  # a payload, as the store keeps it
    # The policy that a job of this task carries, as JSON; None if the one of the code decides.
    policy_of: Callable[[str], dict[str, Any] | None]
    dead_copy: DeadCopy | None
    send_unreadable: Callable[[Place, Unreadable, Any], Awaitable[None]] | None


class MessageJobs:
    """Makes claims and jobs of messages."""

    def __init__(self, topic: str, rules: Rules, clock: Clock) -> None:
        self._topic = topic
        self.log = b""
        self._rules = rules
        self._queue = rules.queue
        self._clock = clock
        self._usual_options = encode_options(Options(dead_copy=rules.dead_copy))
        self.keys = Keys("")

    def name_log(self, log: bytes) -> None:
        """Learn which log the messages come from: a topic that was deleted and made anew is another one."""
        self.log = log
        self.keys = Keys(log.hex())

    def place_of(self, message: Any) -> Place:
        _, timestamp = message.timestamp()
        return Place(self.log, self._topic, message.partition(), message.offset(), timestamp)

    def read(self, message: Any, now: int) -> Held | Unreadable:
        """Make the claim of a message. Reading never raises."""
        body: bytes | None = message.value()
        key = message.key()
        read = read_message(body, key, message.headers(), self._rules.is_task)
        if isinstance(read, Unreadable):
            return read
        place = self.place_of(message)
        at = place.timestamp * 1_000
        if not 0 < at < now:  # its producer may say anything about its time
            at = now
        claimed = Claimed(
            place.job_id,
            read.task,
            read.payload,
            self._queue,
            0,
            1,
            0,
            1,
            at,
            at,
            options=self._usual_options if read.options is None else self._with_copy(read.options),
            meta=with_place(read.meta, place, key),
        )
        return Held(place, claimed, len(body or b""))

    def _with_copy(self, options: str) -> str | None:
        """The options of a message's job: should it die, at whatever attempt, a copy goes to the topic."""
        return encode_options(replace(read_options(options)[0], dead_copy=self._rules.dead_copy))

    # -- jobs of the store --

    def attempted(self, held: Held, t: Transition, now: int) -> HandedOver:
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
            return self.unkeepable(held.place, held.claimed.task, error)
        return HandedOver(job, attempt, t.attempts, t.to, t.reason, t.inserts)

    def unattempted(self, held: Held) -> HandedOver:
        """The job of a message that goes to the store as it is."""
        try:
            return HandedOver(self._job_of(held))
        except PayloadError as error:  # sealed, it is too large
            return self.unkeepable(held.place, held.claimed.task, error)

    def unreadable(self, place: Place, read: Unreadable) -> HandedOver:
        """The dead job of a message that no claim can be made of."""
        handed = unreadable_job(place, read, self._rules.queue, self.keys.of(place), self._clock.now())
        return replace(handed, job=replace(handed.job, payload=self._rules.seal(handed.job.payload)))

    def unkeepable(self, place: Place, task: str, error: Exception) -> HandedOver:
        """The dead job of a message that the store refuses."""
        return unkeepable_job(place, task, error, self._rules.queue, self.keys.of(place), self._clock.now())

    def _job_of(self, held: Held) -> NewJob:
        c = held.claimed
        options = read_options(c.options)[0]
        if (policy := self._rules.policy_of(c.task)) is not None:
            options = replace(options, retry=policy)
        return NewJob(
            c.id,
            c.task,
            self._rules.seal(c.payload),
            self._rules.queue,
            idempotency_key=self.keys.of(held.place),
            options=options,
            meta=c.meta,
        )
