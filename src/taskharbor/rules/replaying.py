"""Replaying dead jobs with a brake: how many at a time, how each fared, and when to stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from taskharbor.records import FAILURES, AttemptRecord, AttemptStatus, JobRecord, State

FIRST_SIZES = (1, 10, 100)
SIZE_MAX = 1_000
SLICES_MAX = 350  # of one replay: about what a job's steps have room for
BRAKE = 0.2
WAIT_SECONDS_MIN, WAIT_SECONDS_MAX = 0.2, 15.0
PAUSED_SECONDS = 15.0  # between two looks at a paused queue
SUCCEEDED, PENDING, GONE = (
    "succeeded",
    "pending",
    "gone",
)  # how a job fared; else it is the fingerprint of its failure


def size_of(index: int) -> int:
    """Return how many jobs the slice of this index has, from 0."""
    return FIRST_SIZES[index] if index < len(FIRST_SIZES) else SIZE_MAX


def wait_seconds(age: float, size: int) -> float:
    """Return how long to wait before the next look at a slice that was requeued `age` seconds ago."""
    least = WAIT_SECONDS_MIN * (1 + size // 100)  # a look at many jobs takes a while itself
    return min(max(age / 4, least), WAIT_SECONDS_MAX)


class Seat(Struct, frozen=True, array_like=True):
    """A job of a slice, as it was dead."""

    id: str
    number: int  # of its latest attempt then
    fingerprint: int  # which of the slice's


class Slice(Struct, frozen=True):
    """The jobs that are requeued together. It is stored before any of them is."""

    at: int
    fingerprints: list[str]
    seats: list[Seat]
    cursor: str | None  # where the next one begins; None after the last
    skipped: int = 0  # at_most_once jobs that were met on the way


def slice_of(jobs: Sequence[JobRecord], at: int, cursor: str | None, skipped: int) -> Slice:
    fingerprints = sorted({job.fingerprint or "" for job in jobs})
    places = {fingerprint: place for place, fingerprint in enumerate(fingerprints)}
    seats = [Seat(job.id, job.number, places[job.fingerprint or ""]) for job in jobs]
    return Slice(at, fingerprints, seats, cursor, skipped)


def is_still_dead(job: JobRecord, number: int, began_at: int) -> bool:
    """Say whether the job is as the slice found it, and so has not been requeued yet.

    A job that was requeued and died again has a later attempt; one that an operator dead-lettered again, a later end.
    """
    return job.state is State.DEAD and job.number == number and (job.finished_at or 0) <= began_at


def fared(job: JobRecord | None, number: int, fingerprint: str) -> str | None:
    """Say how a requeued job fared in its new run; None if only its history can say that.

    `number` is that of its latest attempt before, `fingerprint` what it died of then.
    """
    if job is None or job.state is State.CANCELLED:
        return GONE
    if job.number == number:
        return (job.fingerprint or GONE) if job.state is State.DEAD else PENDING
    if job.number > number + 1:
        return None
    match job.state:
        case State.SUCCEEDED:
            return SUCCEEDED
        case State.DEAD:
            return job.fingerprint or GONE
        case State.RUNNING:
            return PENDING
        case _:
            return None


def fared_by_history(job: JobRecord, rows: Iterable[AttemptRecord], number: int, fingerprint: str) -> str:
    """Say how a requeued job fared by its attempts, newest first: its first success or failure in the new run.

    A loss counts only if the job had died of one: a deployment loses jobs, too.
    """
    for row in sorted((row for row in rows if row.number > number), key=lambda row: row.number):
        if row.status is AttemptStatus.SUCCEEDED:
            return SUCCEEDED
        is_failure = row.status in FAILURES or (
            row.status is AttemptStatus.LOST and row.fingerprint == fingerprint
        )
        if is_failure and row.fingerprint is not None:
            return row.fingerprint
    return (job.fingerprint or GONE) if job.state is State.DEAD else PENDING


class Tally(Struct):
    """How the jobs of a slice, or of all of them, fared."""

    succeeded: int = 0
    same: int = 0  # failed again with the fingerprint that they had died of
    others: dict[str, int] = field(default_factory=dict)  # failed with another one: how many of each
    gone: int = 0  # cancelled, discarded or deleted meanwhile
    pending: int = 0

    def add(self, fate: str, fingerprint: str) -> None:
        if fate == SUCCEEDED:
            self.succeeded += 1
        elif fate == PENDING:
            self.pending += 1
        elif fate == GONE:
            self.gone += 1
        elif fate == fingerprint:
            self.same += 1
        else:
            self.others[fate] = self.others.get(fate, 0) + 1

    def join(self, other: Tally) -> None:
        self.succeeded += other.succeeded
        self.same += other.same
        self.gone += other.gone
        self.pending += other.pending
        self.others = dict(Counter(self.others) + Counter(other.others))

    def must_stop(self, size: int, brake: float) -> bool:
        """Say whether more than this share of the slice has failed with the same fingerprint again."""
        return self.same > brake * size

    def is_decided(self, size: int, brake: float) -> bool:
        return self.pending == 0 or self.must_stop(size, brake)
