"""Ending attempts: the fence, and what a transition does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import repeat

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.base import (
    Claim,
    Note,
    PlainSuccesses,
    ProgressNote,
    SettleAnswer,
    SettleResult,
    Transition,
    text_size,
)
from taskharbor.drivers.postgres import workflows
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.enqueue import columns, enqueue, insert_rows_alone, store_rows
from taskharbor.drivers.postgres.moving import add_tallies, ended_row, ready_row
from taskharbor.drivers.postgres.places import is_id
from taskharbor.records import AttemptStatus, Delivery, NewJob, State
from taskharbor.rules import settling as rules
from taskharbor.rules.settling import Move
from taskharbor.rules.standing import Standing

# -- the fast path -------------------------------------------------------------------------------

LEASES_REMEMBERED = 4096
SHARED_FROM = 8  # successes of a lease: the row that they then share costs less than it saves
KEY_WAIT = "200ms"  # for the key of a child, which a producer may be storing
KEY_WAIT_ALONE = "10ms"  # … once the batch has waited, for each that has such children


class _Lease:
    """What a claim was answered: where each job is in its lease, and what the lease says of it."""

    __slots__ = ("_attempts", "_numbers", "_queues", "positions")

    def __init__(self, claim: Claim) -> None:
        self.positions = {job.id: index for index, job in enumerate(claim.jobs)}
        self._numbers = [job.number for job in claim.jobs]
        self._attempts = [job.attempts for job in claim.jobs]  # failures at the start
        self._queues = [job.queue for job in claim.jobs]

    def proves(self, successes: PlainSuccesses, places: Sequence[int]) -> bool:
        """Whether each is of an attempt of this lease that has not been settled."""
        return (
            min(places) >= 0
            and [self._numbers[place] for place in places] == successes.numbers
            and [self._attempts[place] for place in places] == successes.attempts
        )

    def queues_of(self, places: Sequence[int]) -> Mapping[str, int]:
        """Return how many of these jobs each queue has."""
        return Counter([self._queues[place] for place in places])


class Covered:
    """What this process has claimed and not settled: so a plain success need not be looked up in its lease.

    An attempt is forgotten when its settle is sent, whatever becomes of it: only what certainly has no row yet
    may skip the look.
    """

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}  # by token

    def remember(self, token: str, claim: Claim) -> None:
        """Remember a claim whose jobs are all that its lease covers, in the same order."""
        if claim.jobs:
            self._leases[token] = _Lease(claim)
            while len(self._leases) > LEASES_REMEMBERED:  # never settled here: lost, or another's to settle
                self._leases.pop(next(iter(self._leases)), None)

    def find(self, token: str) -> _Lease | None:
        return self._leases.get(token)

    def take(self, token: str, ids: Sequence[str]) -> list[int]:
        """Forget these attempts of a lease, and a lease of which nothing is left; say where each was, -1 if nowhere."""
        lease = self._leases.get(token)
        if lease is None:
            return [-1] * len(ids)
        places = list(map(lease.positions.pop, ids, repeat(-1)))
        if not lease.positions:
            self._leases.pop(token, None)
        return places


class Successes(Struct):
    """A batch of plain successes as the arrays of `settle_and_release`: those of one lease after those of another."""

    tokens: list[str] = []
    counts: list[int] = []
    runs: list[int] | None = None  # either these …
    positions: list[int] | None = None  # … or these
    firsts: list[int] = []
    first_ids: list[str] = []
    lasts: list[int] = []
    last_ids: list[str] = []
    apart: list[bool] = []
    started: list[int | None] = []
    results: list[str | None] | None = None
    queues: list[str] = []
    queue_counts: list[int] = []


def plain_successes(covered: Covered, transitions: Sequence[Transition]) -> Successes | None:
    """The batch, if it is nothing but first settles of plain successes that were claimed here."""
    batch = PlainSuccesses.of(transitions)
    if batch is None:
        for t in transitions:
            covered.take(t.token, [t.job_id])
        return None
    s = Successes()
    queues: Counter[str] = Counter()
    indexes: list[list[int]] = []
    is_plain = True
    for token, members in batch.by_token().items():  # to the last: all of them are forgotten
        lease = covered.find(token)
        places = covered.take(token, members.ids)
        is_plain = is_plain and lease is not None and lease.proves(members, places)
        if not is_plain or lease is None:
            continue
        indexes.append(places)
        queues.update(lease.queues_of(places))
        first, last = min(members.ids), max(members.ids)
        s.tokens.append(token)
        s.counts.append(len(places))
        s.firsts.append(places[members.ids.index(first)] + 1)
        s.first_ids.append(first)
        s.lasts.append(places[members.ids.index(last)] + 1)
        s.last_ids.append(last)
        s.apart.append(are_apart(first, last, len(places)))
        s.started += members.started_ats
        if batch.results is not None:
            s.results = (s.results or []) + (members.results or [])
    if not is_plain:
        return None
    if all(each == list(range(each[0], each[0] + len(each))) for each in indexes):
        s.runs = [each[0] + 1 for each in indexes]
    else:
        s.positions = [index + 1 for each in indexes for index in each]
    s.queues, s.queue_counts = list(queues), list(queues.values())
    return s


def are_apart(first_id: str, last_id: str, count: int) -> bool:
    """Whether the ids of a settle were made over a time in which many others may have been made.

    An id of version 7 begins with the milliseconds at which it was made. Where a settle's ids are at least one to a
    millisecond, those between them are no more than the fastest producers make in that time.
    """
    return _made_at(last_id) - _made_at(first_id) > count


def _made_at(job_id: str) -> int:
    return int(job_id[:8] + job_id[9:13], 16)


async def settle_plainly(
    session: Session, transitions: Sequence[Transition], s: Successes, shared_from: int = SHARED_FROM
) -> list[SettleResult] | None:
    """None, with nothing done, if there turned out to be more to it."""
    try:
        rows = await session.rows(
            "settle_and_release", s.tokens, s.counts, s.runs, s.positions, s.firsts, s.first_ids, s.lasts, s.last_ids,
            s.apart, s.started, s.results, s.queues, s.queue_counts, shared_from, session.given_now,
        )  # fmt: skip
    except asyncpg.UniqueViolationError:
        return None
    if not rows:
        return None
    now = rows[0]["now_at"]
    answers = [SettleResult(SettleAnswer.DONE, State.SUCCEEDED, at=now)] * len(transitions)
    if len(rows) > 1:
        indexes = {t.job_id: index for index, t in enumerate(transitions)}
        for index, released in _released_by(rows[1:], indexes).items():
            answers[index] = SettleResult(
                SettleAnswer.DONE, State.SUCCEEDED, released=tuple(released), at=now
            )
    return answers


def _released_by(rows: Sequence[asyncpg.Record], indexes: dict[str, int]) -> dict[int, list[str]]:
    """Who was released, by the last transition that it waited for in the batch; from rows of (id, member)."""
    last: dict[str, int] = {}
    for row in rows:
        last[row["id"]] = max(last.get(row["id"], -1), indexes[row["member"]])
    released: dict[int, list[str]] = {}
    for job_id in sorted(last):
        released.setdefault(last[job_id], []).append(job_id)
    return released


# -- the fence -----------------------------------------------------------------------------------


class Entry(Struct):
    """What a lease knows of one job it covers: enough to fence it and to put it back where it was."""

    token: str
    id: str
    number: int
    attempts: int
    first_number: int
    run_at: int
    queue: str
    due_at: int | None
    expires_at: int | None
    delivery: str | None

    @property
    def standing(self) -> Standing:
        return Standing(
            State.RUNNING,
            self.run_at,
            self.number,
            self.attempts,
            self.first_number,
            self.due_at,
            self.expires_at,
            None if self.delivery is None else Delivery(self.delivery),
        )


Proof = Transition | Note


class Fence:
    """What the store knows about a batch, read after its leases are locked."""

    def __init__(self) -> None:
        self.now = 0
        self.recorded: dict[tuple[str, int], tuple[str, AttemptStatus]] = {}  # → token, status
        self.cancels: dict[str, set[str]] = {}
        self._expires_at: dict[str, int] = {}
        self._entries: dict[tuple[str, str], Entry] = {}
        self._covered: set[str] = set()

    @classmethod
    async def around(cls, session: Session, proofs: Sequence[Proof], *, lock: str) -> Fence:
        fence = cls()
        tokens = sorted({proof.token for proof in proofs})
        for row in await session.rows(lock, tokens):
            fence._expires_at[row["token"]] = row["expires_at"]
            fence.cancels[row["token"]] = set(row["cancels"])
        fence.now = await session.now()
        attempts = sorted({(proof.job_id, proof.number) for proof in proofs if is_id(proof.job_id)})
        if not attempts:
            return fence
        ids, numbers = columns(attempts)
        for row in await session.rows("recorded", ids, numbers):
            fence.recorded[row["id"], row["number"]] = (row["token"], AttemptStatus(row["status"]))
        for row in await session.rows("entries", list(fence._expires_at), ids):
            fence._entries[row["token"], row["id"]] = Entry(*row)
        doubtful = {proof.job_id for proof in proofs if not fence._proves(proof)} & {i for i, _ in attempts}
        if doubtful:
            fence._covered = {row["id"] for row in await session.rows("covered", sorted(doubtful))}
        return fence

    def _proves(self, proof: Proof) -> bool:
        entry = self._entries.get((proof.token, proof.job_id))
        return entry is not None and entry.number == proof.number

    def admit(self, proof: Proof) -> Entry | SettleAnswer:
        """The entry that proves this attempt, or the refusal."""
        entry = self._entries.get((proof.token, proof.job_id))
        answer = rules.fence(
            proof.number,
            self.now,
            is_recorded=(proof.job_id, proof.number) in self.recorded,
            held_number=entry.number if entry else None,
            expires_at=self._expires_at.get(proof.token, 0),
            is_covered=proof.job_id in self._covered,
        )
        if answer is not SettleAnswer.DONE:
            return answer
        assert entry is not None, "the fence says so"
        return entry

    def record(self, t: Transition) -> None:
        """SettleResult just now, in this batch: for those after it, it is."""
        self.recorded[t.job_id, t.number] = (t.token, t.status)
        self._covered.discard(t.job_id)


# -- one by one ----------------------------------------------------------------------------------


def has_keyed_children(t: Transition) -> bool:
    return any(job.idempotency_key is not None for job in t.inserts)


async def settle(
    session: Session, transitions: Sequence[Transition], key_wait: str = KEY_WAIT
) -> list[SettleResult]:
    """Inside a transaction: decide in the order given, then write everything at once."""
    fence = await Fence.around(session, transitions, lock="lock_leases")
    versions = await _versions(session, transitions)
    settling = _Settling(session, fence, key_wait)
    answers = [settling.settle(t, versions) for t in transitions]
    await settling.write()
    for index, released in settling.released.items():
        answers[index] = replace(answers[index], released=tuple(released))
    for index, cancelled in settling.cancelled.items():
        answers[index] = replace(answers[index], cancelled=cancelled)
    return await _with_repeated(session, transitions, answers)


async def _with_repeated(
    session: Session, transitions: Sequence[Transition], answers: list[SettleResult]
) -> list[SettleResult]:
    """Add what the settles that were repeated report again."""
    again = {
        transitions[index].job_id: (index, transitions[index].number)
        for index, settled in enumerate(answers)
        if settled.recorded is not None and settled.answer is SettleAnswer.DONE
    }
    if not again:
        return answers
    numbers = [number for _, number in again.values()]
    rows = await session.rows("dependants_of", list(again), numbers)
    return rules.report_each_once(
        answers, [(again[row["member"]][0], row["id"], row["released"]) for row in rows]
    )


async def _versions(session: Session, transitions: Sequence[Transition]) -> dict[str, tuple[int, str | None]]:
    """Of those that recur, or did: the schedule's version, and how the next occurrence is to be delivered."""
    ids = sorted({t.job_id for t in transitions if t.relies_on is not None and is_id(t.job_id)})
    if not ids:
        return {}
    return {row["id"]: (row["version"], row["delivery"]) for row in await session.rows("versions", ids)}


class _Settling:
    """What a batch of transitions writes, gathered as rows for each table."""

    def __init__(self, session: Session, fence: Fence, key_wait: str) -> None:
        self._session = session
        self._fence = fence
        self._key_wait = key_wait
        self._now = fence.now
        self._index = -1
        self._attempts: list[tuple[object, ...]] = []
        self._ready: list[tuple[object, ...]] = []
        self._ended: list[tuple[object, ...]] = []
        self._rearmed: list[str] = []
        self._dead_letters: list[tuple[Transition, int, NewJob]] = []  # with the run's first number
        self._succeeded: dict[str, int] = {}  # job id → index of its transition
        self._failed: dict[str, int] = {}
        self.released: dict[int, list[str]] = {}  # dependants, by the transition that did it
        self.cancelled: dict[int, tuple[str, ...]] = {}
        self._inserts: list[NewJob] = []
        self._closed: Counter[str] = Counter()
        self._tally: Counter[tuple[str, str]] = Counter()

    def settle(self, t: Transition, versions: dict[str, tuple[int, str | None]]) -> SettleResult:
        self._index += 1
        recorded = self._fence.recorded.get((t.job_id, t.number))
        if recorded is not None:
            return rules.repeated(t, *recorded, self._now)
        entry = self._fence.admit(t)
        if isinstance(entry, SettleAnswer):
            return SettleResult(entry, at=self._now)
        version, declared = versions.get(t.job_id, (0, None))
        if t.relies_on not in (None, version):
            return SettleResult(SettleAnswer.CHANGED, at=self._now)
        move = rules.settle_move(
            entry.standing,
            t,
            self._now,
            cancel_requested=t.job_id in self._fence.cancels[t.token],
            declared=None if declared is None else Delivery(declared),
        )
        self._gather(t, entry, move)
        self._fence.record(t)
        self._closed[t.token] += 1
        return move.answer(self._now)

    def _gather(self, t: Transition, entry: Entry, move: Move) -> None:
        to = move.to
        self._attempts.append(
            (
                t.job_id, t.number, t.status, entry.attempts, t.attempts, t.token, t.worker, t.started_at, to.next_at,
                t.result, t.error, t.traceback, t.detail, t.worker_survived, rules.retry_delay(t, move),
                t.fingerprint, t.code_version, to.aside,
            )
        )  # fmt: skip
        self._inserts += move.inserts
        if move.dead_letter is not None:
            self._dead_letters.append((t, entry.first_number, move.dead_letter))
        if move.is_rearmed:
            self._rearmed.append(t.job_id)
        if not to.is_finished:
            self._ready.append(ready_row(t.job_id, to))
            return
        self._tally[entry.queue, to.state] += 1
        if to.state is State.SUCCEEDED:
            self._succeeded[t.job_id] = self._index
        else:
            self._failed[t.job_id] = self._index
            self._ended.append(ended_row(t.job_id, to))

    # -- writing --

    async def write(self) -> None:
        """Everything that was gathered."""
        session = self._session
        if not self._attempts:
            return
        self._attempts.sort(key=lambda row: (row[0], row[1]))
        await store_rows(session, "insert_attempts", self._attempts, attempt_size, self._now)
        if self._rearmed:
            await session.do("delete_steps", self._rearmed)
            await session.do("delete_progress", self._rearmed)
        if self._dead_letters:
            await self._leave_dead_letters()
        if self._ready:
            await session.do("put_ready", *columns(self._ready))
        if self._ended:
            await session.do("insert_ended", *columns(self._ended), self._now)
        if self._failed:
            cancelled = await workflows.cancel_dependants_of(session, list(self._failed), self._now)
            self.cancelled = {self._failed[job_id]: ids for job_id, ids in cancelled.items()}
        if self._succeeded:
            # Those for whom the last job to wait for has succeeded leave `waiting`.
            rows = await session.rows("release_dependants", sorted(self._succeeded))
            self.released = _released_by(rows, self._succeeded)
        await self._close_leases()
        await add_tallies(session, self._tally)
        if self._inserts:
            if any(job.idempotency_key is not None for job in self._inserts):
                # A key that a producer is storing is decided when that one commits, which may be in an hour. The leases
                # are locked here, and their heartbeats wait.
                await session.do("wait_for_locks", self._key_wait)
            await enqueue(session.at(self._now), self._inserts)

    async def _leave_dead_letters(self) -> None:
        """Copies of the runs that have just ended, dead from the start."""
        stored = await insert_rows_alone(
            self._session, [copy for _, _, copy in self._dead_letters], self._now
        )
        runs: list[tuple[object, ...]] = []
        for t, first_number, copy in self._dead_letters:
            if copy.id in stored:
                runs.append((t.job_id, copy.id, first_number))
                self._ended.append((copy.id, State.DEAD, t.reason, t.number, t.attempts, copy.delivery))
                self._tally[copy.queue, State.DEAD] += 1
        if runs:
            await self._session.do("copy_attempts", *columns(runs))

    async def _close_leases(self) -> None:
        tokens = sorted(self._closed)
        ids = [row[0] for row in self._attempts]
        await self._session.do("close_leases", tokens, [self._closed[token] for token in tokens], ids)
        await self._session.do("delete_closed", tokens)


def attempt_size(row: tuple[object, ...]) -> int:
    """Of its result, error, traceback and detail."""
    return sum(text_size(text) for text in row[9:13] if isinstance(text, str))


# -- progress and steps --------------------------------------------------------------------------


async def note(session: Session, notes: Sequence[Note]) -> list[SettleAnswer]:
    fence = await Fence.around(session, notes, lock="hold_leases")
    answers: list[SettleAnswer] = []
    progress: dict[str, tuple[object, ...]] = {}
    steps: dict[tuple[str, str], tuple[object, ...]] = {}
    for n in notes:
        admitted = fence.admit(n)
        if isinstance(admitted, SettleAnswer):
            answers.append(admitted)
            continue
        answers.append(SettleAnswer.DONE)
        if isinstance(n, ProgressNote):
            progress[n.job_id] = (n.job_id, n.progress.fraction, n.progress.message, n.progress.value_json)
        else:
            steps.setdefault((n.job_id, n.name), (n.job_id, n.name, n.result, n.number))
    if progress:
        await session.do("put_progress", *columns([progress[job_id] for job_id in sorted(progress)]))
    if steps:
        await store_rows(session, "put_steps", [steps[key] for key in sorted(steps)], _step_size)
    return answers


def _step_size(row: tuple[object, ...]) -> int:
    return text_size(str(row[2]))
