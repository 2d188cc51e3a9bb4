"""Claiming: the first due jobs of the queues that are served, under a new lease."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.base import Claim, Claimed, ClaimRequest, claimed_size, text_size, worker_of
from taskharbor.drivers.sqlite.aside import HOLD_KINDS, labels_of, lanes_of, open_lanes, recall
from taskharbor.drivers.sqlite.leases import Columns, as_json, claimed_under, find
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.sqlite.unreadable import set_due_aside, set_odd_keys_aside
from taskharbor.drivers.stored import is_text
from taskharbor.records import Delivery
from taskharbor.rules.aside import hold_label, queue_of

CLAIM = statements("claim")

# Jobs that one statement reads, into one text, which may have twice the bytes of their payloads: JSON escapes what
# payloads are full of. Large ones are read a few at a time, and how large they are is known only afterwards.
DUE_AT_FIRST = 8
DUE_AT_ONCE = 64
DUE_BYTES = 1_048_576
FIRST_PLACE = (-(2**63), "")  # before every job of a line
RANK_BEFORE_ALL = -1_000

_decode_claimed = msgspec.json.Decoder(list[Claimed]).decode


def claim(session: Session, request: ClaimRequest) -> Claim:
    aside: list[str] = []  # what could not be read
    queues, beside, holds = _served_queues(session, request, aside)
    lanes = open_lanes(queues, (None, *request.aside), holds) if request.aside else queues
    existing = find(session, request.token)
    if existing is not None:
        taken, more = claimed_under(session, existing.unsettled()), False
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
        elif not set_odd_keys_aside(session, aside, row[0]):
            return


def ranks_of(session: Session, suspect: int, queue: str) -> Iterator[int]:
    """The priorities, as ranks, that this queue has a job of; the first of the line comes first."""
    row = session.one(CLAIM["next_rank"], (suspect, queue, RANK_BEFORE_ALL))
    while row is not None and type(row[0]) is int:  # (anything else comes after all of the numbers)
        yield row[0]
        row = session.one(CLAIM["next_rank"], (suspect, queue, row[0]))


def _take(session: Session, request: ClaimRequest, queues: Sequence[str], aside: list[str]) -> _Taking:
    """The first due jobs over all the queues: rank by rank, and within one by due time."""
    suspect = int(request.suspects)
    queues_at: dict[int, list[str]] = {}
    for queue in queues:
        for rank in ranks_of(session, suspect, queue):
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
            if not set_due_aside(session, where, aside):
                raise
            continue
        if claimable == 0 and set_due_aside(session, where, aside):
            continue
        size = text_size(text)  # written as JSON, no text gets shorter
        if due:
            yield due, size
        if len(due) < asked:
            return
        limit -= asked
        fitting = max(1, DUE_BYTES * len(due) // size)
        run_at, job_id = _place(due[-1])


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
        for rank in ranks_of(session, suspect, queue)
        if (row := session.one(CLAIM["next_run_at"], (suspect, queue, rank, session.now)))
        and type(row[0]) is int
    ]
    return min(ahead, default=None)


def _suspects_waiting(session: Session, queues: Sequence[str]) -> bool:
    due = {row[0] for row in session.execute(CLAIM["suspects_due"], (session.now,)) if type(row[0]) is str}
    return not due.isdisjoint(queues)
