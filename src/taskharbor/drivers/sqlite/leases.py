"""Leases and what they cover: reading, extending and collecting them, and the workers that survive them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from taskharbor.drivers.base import (
    Claimed,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    SettleAnswer,
)
from taskharbor.drivers.sqlite.aside import hold_labels
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import Reading
from taskharbor.records import PRIORITY_MAX, PRIORITY_MIN, Delivery, State
from taskharbor.rules.settling import proves_survival
from taskharbor.rules.standing import Standing

T = TypeVar("T")

CLAIM = statements("claim")
SETTLE = statements("settle")


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


def claimed_under(session: Session, entries: list[Entry]) -> list[Claimed]:
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
    jobs = claimed_under(session, [entry for entry in lease.entries.values() if not lease.is_settled(entry)])
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
