"""Leases and what they cover: claiming, extending and collecting them, and the workers that survive them."""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.base import (
    Claim,
    Claimed,
    ClaimRequest,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    SettleAnswer,
    claimed_size,
    text_size,
    worker_of,
)
from taskharbor.drivers.sqlite import endings
from taskharbor.drivers.sqlite.aside import HOLD_KINDS, hold_labels, labels_of, lanes_of, open_lanes, recall
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import DELIVERIES, FIRST_NUMBER_MAX, Reading, as_told, is_text
from taskharbor.records import PRIORITY_MAX, PRIORITY_MIN, Delivery, Reason, State
from taskharbor.rules.aside import hold_label, queue_of
from taskharbor.rules.settling import proves_survival
from taskharbor.rules.standing import Standing

T = TypeVar("T")

CLAIM = statements("claim")
SETTLE = statements("settle")

# Jobs that one statement reads, into one text, which may have twice the bytes of their payloads: JSON escapes what
# payloads are full of. Large ones are read a few at a time, and how large they are is known only afterwards.
DUE_AT_FIRST = 8
DUE_AT_ONCE = 64
DUE_BYTES = 1_048_576
FIRST_PLACE = (-(2**63), "")  # before every job of a line
ODD_AT_ONCE = 100
READY_COLUMNS = (
    "suspect", "queue", "rank", "run_at", "id", "number", "attempts", "first_number", "due_at", "expires_at",
    "delivery",
)  # fmt: skip


class Entry(Struct, array_like=True):
    """What a lease knows of one job it covers: enough to fence it and to put it back where it was."""

    id: str
    number: int
    attempts: int
    first_number: int
    run_at: int
    queue: str
    due_at: int | None = None
    expires_at: int | None = None
    delivery: Delivery | None = None

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
            self.delivery,
        )


class Proof(Struct):
    """What a lease knows of attempts that it covers."""

    attempts: list[int]
    queues: dict[str, int]  # how many jobs of each queue


class Columns(Struct, array_like=True):
    """The entries of a lease as it stores them: by column, with one value for all of them where they agree."""

    ids: list[str]
    numbers: int | list[int]
    attempts: int | list[int]
    first_numbers: int | list[int]
    run_at: int | list[int]
    queues: str | list[str]
    due_at: int | None | list[int | None]
    expires_at: int | None | list[int | None]
    deliveries: Delivery | None | list[Delivery | None]

    @classmethod
    def of(cls, jobs: Sequence[Entry | Claimed]) -> Columns:
        return cls(
            [job.id for job in jobs],
            _agreed([job.number for job in jobs]),
            _agreed([job.attempts for job in jobs]),
            _agreed([job.first_number for job in jobs]),
            _agreed([job.run_at for job in jobs]),
            _agreed([job.queue for job in jobs]),
            _agreed([job.due_at for job in jobs]),
            _agreed([job.expires_at for job in jobs]),
            _agreed([job.delivery for job in jobs]),
        )

    def entries(self) -> Iterator[Entry]:
        count = len(self.ids)
        return map(
            Entry,
            self.ids,
            _each(self.numbers, count),
            _each(self.attempts, count),
            _each(self.first_numbers, count),
            _each(self.run_at, count),
            _each(self.queues, count),
            _each(self.due_at, count),
            _each(self.expires_at, count),
            _each(self.deliveries, count),
        )

    def proof(self, ids: list[str], numbers: list[int]) -> Proof | None:
        """What is known of these attempts; None if one of them is not covered."""
        position_of = dict(zip(self.ids, range(len(self.ids)), strict=True))
        try:
            at = [position_of[job_id] for job_id in ids]
        except KeyError:
            return None
        if _those(self.numbers, at) != numbers:
            return None
        if isinstance(self.queues, str):
            return Proof(_those(self.attempts, at), {self.queues: len(ids)})
        return Proof(_those(self.attempts, at), Counter([self.queues[position] for position in at]))


def _agreed(column: list[T]) -> T | list[T]:
    return column[0] if column and column.count(column[0]) == len(column) else column


def _each(column: T | list[T], count: int) -> list[T]:
    return column if isinstance(column, list) else [column] * count


def _those(column: T | list[T], positions: list[int]) -> list[T]:
    if isinstance(column, list):
        return [column[position] for position in positions]
    return [column] * len(positions)


_encode = msgspec.json.Encoder().encode
_decode_entries = msgspec.json.Decoder(Columns).decode
_decode_claimed = msgspec.json.Decoder(list[Claimed]).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode
_decode_running = msgspec.json.Decoder(dict[str, int]).decode


class Lease:
    """A lease row, with its entries read when they are first asked for."""

    def __init__(self, session: Session, row: tuple[Any, ...]) -> None:
        (
            self.token,
            self.origin,
            self.worker,
            self.expires_at,
            self.expired_at,
            self.alone,
            self.supervised,
            self.max_losses,
            self.worker_survived,
            self.open,
            cancels,
            running,
        ) = row
        self.cancels: list[str] = [] if cancels == "[]" else _decode_ids(cancels)
        self.running: dict[str, int] = {} if running == "{}" else _decode_running(running)
        self._session = session
        self._entries: dict[str, Entry] | None = None

    @property
    def columns(self) -> Columns:
        """The entries as they are stored."""
        (text,) = self._session.one(CLAIM["entries"], (self.token,))
        return _decode_entries(text)

    @property
    def entries(self) -> dict[str, Entry]:
        if self._entries is None:
            self._entries = {entry.id: entry for entry in self.columns.entries()}
        return self._entries

    def unsettled(self) -> list[Entry]:
        """The entries with no attempt row yet, in the order they were claimed."""
        if self.open == len(self.entries):
            return list(self.entries.values())
        return [e for e in self.entries.values() if not self.is_settled(e)]

    def still_running(self) -> dict[str, int]:
        """What the last heartbeat reported, less what has been settled since."""
        if not self.running:
            return {}
        unsettled = {entry.id for entry in self.unsettled()}
        return {job_id: started for job_id, started in self.running.items() if job_id in unsettled}

    def cancel_requested(self) -> tuple[str, ...]:
        """The unsettled jobs that were asked to end."""
        asked = [i for i in self.cancels if i in self.entries and not self.is_settled(self.entries[i])]
        return tuple(sorted(asked))

    def is_settled(self, entry: Entry) -> bool:
        return self._session.one(SETTLE["recorded"], (entry.id, entry.number)) is not None

    def store_entries(self) -> None:
        columns = Columns.of(list(self.entries.values()))
        self._session.execute(CLAIM["update_entries"], (as_json(columns), self.token))

    def is_expired(self) -> bool:
        return bool(self._session.now >= self.expires_at)


def find(session: Session, token: str) -> Lease | None:
    row = session.one(CLAIM["lease"], (token,))
    return None if row is None else Lease(session, row)


def all_leases(session: Session) -> list[Lease]:
    found = session.found
    if found is not None and "leases" in found:
        return list(found["leases"])
    leases = [Lease(session, row) for row in session.execute(CLAIM["leases"]).fetchall()]
    if found is not None:
        found["leases"] = leases
    return leases


def covering(session: Session, job_id: str) -> tuple[Lease, Entry] | None:
    """The lease that holds this job, expired or not: of those that name it, the one it is not settled under."""
    for lease, entry in _naming(session, job_id):
        if not lease.is_settled(entry):
            return lease, entry
    return None


def _naming(session: Session, job_id: str) -> list[tuple[Lease, Entry]]:
    """There are few leases, so a write looks through them; a long list looks once and remembers."""
    found = session.found
    if found is None:
        return [(each, each.entries[job_id]) for each in all_leases(session) if job_id in each.entries]
    if "naming" not in found:
        found["naming"] = naming = defaultdict(list)
        for lease in all_leases(session):
            for entry in lease.entries.values():
                naming[entry.id].append((lease, entry))
    named: list[tuple[Lease, Entry]] = found["naming"].get(job_id, [])
    return named


def first_named(session: Session, job_ids: set[str]) -> dict[str, int]:
    """Of these jobs, the first attempt that a live lease names, settled or not."""
    first: dict[str, int] = {}
    for lease in all_leases(session):
        for job_id in job_ids & lease.entries.keys():
            number = lease.entries[job_id].number
            first[job_id] = min(number, first.get(job_id, number))
    return first


def strike(session: Session, job_ids: set[str]) -> None:
    """Take jobs that are about to be deleted out of live leases.

    Leases still name settled jobs, and without its attempt row the collector would revive such a job.
    """
    for lease in all_leases(session):
        named = job_ids & lease.entries.keys()
        for job_id in named:
            del lease.entries[job_id]
        if named:
            lease.store_entries()


# -- claim ---------------------------------------------------------------------------------------


def claim(session: Session, request: ClaimRequest) -> Claim:
    aside: list[str] = []  # what could not be read
    queues, beside, holds = _served_queues(session, request, aside)
    lanes = open_lanes(queues, (None, *request.aside), holds) if request.aside else queues
    existing = find(session, request.token)
    if existing is not None:
        taken, more = _claimed(session, existing.unsettled()), False
        expires_at, max_losses = existing.expires_at, existing.max_losses
    else:
        if request.recall:
            recall(session, request, open_lanes(queues, request.recall, holds))
        taking = _take(session, request, lanes, aside)
        taken, more = taking.jobs, taking.more
        if request.aside:  # what the rows call their queue is their lane
            taken = [replace(job, queue=queue_of(job.queue)) for job in taken]
        expires_at, max_losses = session.now + request.lease, request.max_losses
        if taken:
            _store_lease(session, request, expires_at, taken)
    return Claim(
        now=session.now,
        expires_at=expires_at,
        jobs=taken,
        next_due=None if more or len(taken) >= request.limit else _next_due(session, request.suspects, lanes),
        suspects_waiting=not request.suspects and _suspects_waiting(session, lanes),
        more=more,
        unreadable=tuple(aside),
        max_losses=max_losses,
        aside=labels_of(beside, holds),
        holds=holds,
    )


def _served_queues(
    session: Session, request: ClaimRequest, aside: list[str]
) -> tuple[list[str], list[str], frozenset[str]]:
    """The queues that are served, their lanes aside that have a job at the begin of this claim, and the holds."""
    asked = request.queues
    named = "[]" if asked is None else as_json(asked)
    stops = session.execute(CLAIM["stops"], (named,)).fetchall()
    paused = {name for kind, name in stops if kind == "queue"}
    holds = frozenset(hold_label(kind, name) for kind, name in stops if kind in HOLD_KINDS)
    if asked is not None:
        queues = sorted({queue for queue in asked if queue not in paused})
        beside = sorted({name for kind, name in stops if kind == "aside" and name not in paused})
        return queues, list(lanes_of(session, beside)), holds
    lanes = {*_queues_of(session, 0, aside), *_queues_of(session, 1, aside)}
    served = [lane for lane in lanes if queue_of(lane) not in paused]
    return sorted({queue_of(lane) for lane in served}), served, holds


def _queues_of(session: Session, suspect: int, aside: list[str]) -> Iterator[str]:
    before = ""
    while (row := session.one(CLAIM["next_queue"], (suspect, before))) is not None:
        if type(row[0]) is str and is_text(row[0]):
            before = row[0]
            yield before
        elif not _set_odd_keys_aside(session, aside, row[0]):
            return


def _ranks_of(session: Session, suspect: int, queue: str) -> Iterator[int]:
    row = session.one(CLAIM["next_rank"], (suspect, queue, -1000))
    while row is not None and type(row[0]) is int:  # (anything else comes after all of the numbers)
        yield row[0]
        row = session.one(CLAIM["next_rank"], (suspect, queue, row[0]))


def _take(session: Session, request: ClaimRequest, queues: Sequence[str], aside: list[str]) -> _Taking:
    """The first due jobs over all the queues: rank by rank, and within one by due time."""
    suspect = int(request.suspects)
    queues_at: dict[int, list[str]] = {}
    for queue in queues:
        for rank in _ranks_of(session, suspect, queue):
            queues_at.setdefault(rank, []).append(queue)
    taking = _Taking(request)
    for rank in sorted(queues_at):
        if not taking.left:
            break
        first = len(taking.jobs)
        for due, size in _due(session, suspect, rank, queues_at[rank], taking.left, aside):
            taking.take(due, size)
            if taking.is_over:
                break
        _delete_taken(session, suspect, rank, taking.jobs[first:])
        if taking.is_over:
            break
    return taking


class _Taking:
    """What a claim has taken along the line, and what else it has room for."""

    def __init__(self, request: ClaimRequest) -> None:
        self.jobs: list[Claimed] = []
        self.is_over = False  # what comes next in the line does not fit, and nothing may overtake it
        self.more = False  # … because of its size
        self._limit = request.limit
        self._once_left = request.once_limit  # counted as `drivers.memory.leases._choose` counts it
        self._bytes_limit = request.bytes_limit
        self._bytes_at_most = 0
        self._bytes: int | None = None  # counted only once there may be too many

    @property
    def left(self) -> int:
        return self._limit - len(self.jobs)

    def take(self, due: list[Claimed], size: int) -> None:
        """Take the next ones of the line as far as there is room; `size` is how many bytes they have at most."""
        self._bytes_at_most += size
        if self._bytes is None and self._bytes_at_most > self._bytes_limit:
            self._bytes = sum(map(claimed_size, self.jobs))
        for index, job in enumerate(due):
            if job.delivery is not None and job.delivery == Delivery.AT_MOST_ONCE:
                if not self._once_left:
                    self._end_with(due[:index])
                    return
                self._once_left -= 1
            if self._bytes is not None:
                self._bytes += claimed_size(job)
                if self._bytes > self._bytes_limit and (index or self.jobs):
                    self.more = True
                    self._end_with(due[:index])
                    return
        self.jobs += due

    def _end_with(self, due: list[Claimed]) -> None:
        self.jobs += due
        self.is_over = True


def _due(
    session: Session, suspect: int, rank: int, queues: Sequence[str], limit: int, aside: list[str]
) -> Iterator[tuple[list[Claimed], int]]:
    """At most `limit` due jobs of these queues in their order, a few at a time; with the bytes they have at most."""
    if len(queues) == 1:
        yield from _due_of(session, suspect, rank, queues[0], limit, DUE_AT_ONCE, aside)
        return
    # Each queue is read as far as it is needed, the more of them the fewer jobs at a time.
    at_once = max(1, DUE_AT_ONCE // len(queues))
    lines = (
        (job for due, _ in _due_of(session, suspect, rank, queue, limit, at_once, aside) for job in due)
        for queue in queues
    )
    for job in islice(heapq.merge(*lines, key=_place), limit):
        yield [job], claimed_size(job)


def _due_of(
    session: Session, suspect: int, rank: int, queue: str, limit: int, at_once: int, aside: list[str]
) -> Iterator[tuple[list[Claimed], int]]:
    run_at, job_id = FIRST_PLACE
    fitting = DUE_AT_FIRST
    while limit > 0:
        asked = min(limit, at_once, fitting)
        where = (suspect, queue, rank, session.now, run_at, job_id, asked)
        try:
            text, claimable = session.one(CLAIM["due_rows"], where)
            due = _decode_claimed(text)
        except (sqlite3.OperationalError, msgspec.DecodeError, UnicodeError):
            if not _set_due_aside(session, where, aside):
                raise
            continue
        if claimable == 0 and _set_due_aside(session, where, aside):
            continue
        size = text_size(text)  # written as JSON, no text gets shorter
        if due:
            yield due, size
        if len(due) < asked:
            return
        limit -= asked
        fitting = max(1, DUE_BYTES * len(due) // size)
        run_at, job_id = _place(due[-1])


# -- what cannot be read --


def _set_due_aside(session: Session, where: tuple[Any, ...], aside: list[str]) -> int:
    """Make those of the rows there dead that cannot be handed out, and keep them as they were; how many there were."""
    found = 0
    for row in session.execute(CLAIM["due_values"], where).fetchall():
        key, place, job = row[:5], row[5:11], row[11:]
        if not _is_readable(key, place, job):
            session.execute(CLAIM["delete_place"], (*key[:4], _bytes_of(key[4]).hex().upper()))
            _set_aside(session, key, place, aside)
            found += 1
    return found


def _is_readable(key: tuple[Any, ...], place: tuple[Any, ...], job: tuple[Any, ...]) -> bool:
    task, payload, priority, enqueued_at, options, version, meta = job
    number, attempts, first_number, due_at, expires_at, delivery = place
    read = Reading()
    read.text("id", key[4])
    read.instant("run_at", key[3])
    read.integer("number", number)
    read.integer("attempts", attempts)
    read.integer("first_number", first_number, most=FIRST_NUMBER_MAX)
    read.optional_instant("due_at", due_at)
    read.optional_instant("expires_at", expires_at)
    read.one_of("delivery", delivery, DELIVERIES)
    read.text("task", task)
    read.text("payload", payload)
    read.integer("priority", priority, -(2**63), 2**63)
    read.instant("enqueued_at", enqueued_at)
    read.optional_text("options", options)
    read.integer("version", version, -(2**63), 2**63)
    read.optional_text("meta", meta)
    return not read.odd


def _set_odd_keys_aside(session: Session, aside: list[str], queue: Any) -> int:
    """Take rows out of the order whose place in it cannot be one; `queue` is such a one that was met."""
    rows = session.execute(CLAIM["odd_keys"], (_bytes_of(queue), ODD_AT_ONCE)).fetchall()
    for row in rows:
        session.execute(CLAIM["delete_odd_key"], row[:5])
        _set_aside(session, row[5:10], row[10:], aside)
    return len(rows)


def _bytes_of(value: Any) -> bytes:
    """What is stored: text of any bytes, or bytes."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogateescape")


def _set_aside(session: Session, key: tuple[Any, ...], place: tuple[Any, ...], aside: list[str]) -> None:
    """Make the job of this row dead, reason `unreadable`, if the row names one."""
    job_id = key[4]
    if type(job_id) is not str or not is_text(job_id):
        return
    job = session.one(SETTLE["job_place"], (job_id,))
    if job is None:
        return
    number, attempts, *_, delivery = place
    read = Reading()
    raw = dict(zip(READY_COLUMNS, map(as_told, (*key, *place)), strict=True))
    to = Standing(
        State.DEAD,
        0,
        read.integer("number", number),
        read.integer("attempts", attempts),
        delivery=read.one_of("delivery", delivery, DELIVERIES),
        reason=Reason.UNREADABLE,
        finished_at=session.now,
    )
    if endings.set_aside(session, job_id, to, as_json(raw)):
        session.execute(SETTLE["add_to_tally"], (read.text("queue", job[0]), State.DEAD, 1))
        aside.append(job_id)


def _place(job: Claimed) -> tuple[int, str]:
    return job.run_at, job.id


def _delete_taken(session: Session, suspect: int, rank: int, taken: list[Claimed]) -> None:
    last_of = {job.queue: job for job in taken}
    for queue, last in last_of.items():
        session.execute(CLAIM["delete_ready_up_to"], (suspect, queue, rank, last.run_at, last.id))


def _store_lease(session: Session, request: ClaimRequest, expires_at: int, taken: list[Claimed]) -> None:
    token = request.token
    about = (int(request.suspects), int(request.supervised), request.max_losses)
    session.execute(CLAIM["insert_lease"], (token, token, worker_of(token), expires_at, *about, len(taken)))
    session.execute(CLAIM["insert_entries"], (token, as_json(Columns.of(taken))))


def _next_due(session: Session, suspects: bool, queues: Sequence[str]) -> int | None:
    suspect = int(suspects)
    ahead = [
        row[0]
        for queue in queues
        for rank in _ranks_of(session, suspect, queue)
        if (row := session.one(CLAIM["next_run_at"], (suspect, queue, rank, session.now)))
        and type(row[0]) is int
    ]
    return min(ahead, default=None)


def _suspects_waiting(session: Session, queues: Sequence[str]) -> bool:
    due = {row[0] for row in session.execute(CLAIM["suspects_due"], (session.now,)) if type(row[0]) is str}
    return not due.isdisjoint(queues)


def _claimed(session: Session, entries: list[Entry]) -> list[Claimed]:
    """Claimed jobs as their lease remembers them, without those that a hand has deleted."""
    jobs = []
    for e in entries:
        row = session.one(CLAIM["job_for_claim"], (e.id,))
        if row is None:
            continue
        task, payload, queue, priority, enqueued_at, options, version, meta = row
        read = Reading()
        jobs.append(
            Claimed(
                e.id,
                read.text("task", task),
                read.text("payload", payload),
                read.text("queue", queue),
                read.integer("priority", priority, PRIORITY_MIN, PRIORITY_MAX),
                e.number,
                e.attempts,
                e.first_number,
                e.run_at,
                read.instant("enqueued_at", enqueued_at),
                e.due_at,
                e.expires_at,
                e.delivery,
                read.optional_text("options", options),
                read.integer("version", version),
                read.meta(meta),
            )
        )
    return jobs


def paused_queues(session: Session) -> frozenset[str]:
    return frozenset(row[0] for row in session.execute(CLAIM["paused_queues"]) if type(row[0]) is str)


# -- heartbeat -----------------------------------------------------------------------------------


def extend(session: Session, extensions: Sequence[Extension]) -> Heartbeat:
    answers = [_extend_one(session, extension) for extension in extensions]
    mark_survived(session, {each.token for each in answers if proves_survival(each.answer)})
    return Heartbeat(session.now, answers, paused_queues(session), hold_labels(session))


def _extend_one(session: Session, extension: Extension) -> Extended:
    lease = find(session, extension.token)
    if lease is None:
        return Extended(extension.token, SettleAnswer.NOT_RUNNING)
    if lease.is_expired():
        return Extended(extension.token, SettleAnswer.LEASE_EXPIRED)
    if extension.at_most_once:
        _mark_at_most_once(session, lease, extension.at_most_once)
    expires_at = session.now + extension.lease
    session.execute(CLAIM["extend_lease"], (expires_at, as_json(dict(extension.running)), extension.token))
    return Extended(extension.token, SettleAnswer.DONE, expires_at, lease.cancel_requested())


def _mark_at_most_once(session: Session, lease: Lease, job_ids: Sequence[str]) -> None:
    """Mark the lease, for its collector, and the job, for readers after it has succeeded."""
    for job_id in job_ids:
        entry = lease.entries.get(job_id)
        if entry is not None and not lease.is_settled(entry):
            entry.delivery = Delivery.AT_MOST_ONCE
            session.execute(CLAIM["mark_at_most_once"], (job_id,))
    lease.store_entries()


def cancel_requests(session: Session, tokens: Sequence[str]) -> dict[str, tuple[str, ...]]:
    rows = session.execute(CLAIM["leases_with_cancels"], (as_json(list(tokens)),)).fetchall()
    asked = {lease.token: lease.cancel_requested() for lease in (Lease(session, row) for row in rows)}
    return {token: jobs for token, jobs in asked.items() if jobs}


def request_cancel(session: Session, lease: Lease, job_id: str) -> None:
    if job_id not in lease.cancels:
        lease.cancels.append(job_id)
        session.execute(CLAIM["request_cancel"], (as_json(lease.cancels), lease.token))


# -- collecting ----------------------------------------------------------------------------------


def take_expired(session: Session, token: str, duration: int) -> ExpiredLease | None:
    lease = find(session, token)
    if lease is None:
        row = session.one(CLAIM["first_expired"], (session.now,))
        if row is None:
            return None
        session.execute(CLAIM["retoken_lease"], (token, session.now + duration, row[0]))
        session.execute(CLAIM["retoken_entries"], (token, row[0]))
        lease = find(session, token)
        assert lease is not None, "the lease was renamed in this transaction"
    jobs = _claimed(session, [entry for entry in lease.entries.values() if not lease.is_settled(entry)])
    if not jobs:  # a job that had been settled was put back by hand, say
        session.execute(SETTLE["delete_lease"], (token,))
        session.execute(SETTLE["delete_entries"], (token,))
    return ExpiredLease(
        token=token,
        now=session.now,
        expires_at=lease.expires_at,
        worker=lease.worker,
        alone=bool(lease.alone),
        supervised=bool(lease.supervised),
        worker_survived=bool(lease.worker_survived),
        jobs=jobs,
        running=lease.still_running(),
        expired_at=lease.expires_at if lease.expired_at is None else lease.expired_at,
        max_losses=lease.max_losses,
    )


# -- workers that survive their leases -----------------------------------------------------------


def mark_survived(session: Session, tokens: Iterable[str]) -> None:
    """Mark the leases of these claims that are over, and the losses that collectors have settled from them."""
    for token in tokens:
        session.execute(CLAIM["mark_survived_lease"], (token, session.now))
        session.execute(CLAIM["mark_survived_attempts"], (token,))


def as_json(value: object) -> str:
    return _encode(value).decode()
