"""Ending attempts: the fence, and what a transition does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from taskharbor.drivers.base import Answer, Note, Occurrence, ProgressNote, Settled, Transition
from taskharbor.drivers.sqlite import leases, workflows
from taskharbor.drivers.sqlite.enqueue import ENQUEUE, enqueue, store_dead
from taskharbor.drivers.sqlite.leases import SETTLE, Entry, Lease
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.stored import DELIVERIES, NUMBER_MAX, Reading, is_text
from taskharbor.job import PRIORITY_MAX, PRIORITY_MIN, AttemptStatus, NewJob, Reason, State


def settle(session: Session, transitions: Sequence[Transition]) -> list[Settled]:
    return _settle_successes(session, transitions) or _Settling(session).settle(transitions)


def _settle_successes(session: Session, transitions: Sequence[Transition]) -> list[Settled] | None:
    """A batch of plain successes under live leases, nobody depending on any: nearly every batch there is.

    None, with nothing done, if anything about it is not plain: then each is looked at by itself.
    """
    open_leases: dict[str, Lease | None] = {}
    closed: Counter[str] = Counter()
    succeeded: Counter[str] = Counter()
    rows = []
    for t in transitions:
        token = t.token
        if token not in open_leases:
            open_leases[token] = leases.find(session, token)
        lease = open_leases[token]
        if lease is None or not _is_plain(t) or lease.is_expired():
            return None
        entry = lease.entries.get(t.job_id)
        if entry is None or entry.number != t.number:
            return None
        rows.append(
            (
                t.job_id,
                t.number,
                entry.attempts,
                t.attempts,
                token,
                t.worker,
                t.started_at,
                session.now,
                t.result,
            )
        )
        closed[token] += 1
        succeeded[entry.queue] += 1
    if session.one(SETTLE["somebody_depends"])[0]:
        return None
    session.execute("SAVEPOINT successes")
    if session.insert(SETTLE["insert_success"], rows) != len(rows):
        # Some were settled before, or came twice.
        session.execute("ROLLBACK TO successes")
        session.execute("RELEASE successes")
        return None
    session.execute("RELEASE successes")
    for token, count in closed.items():
        _close(session, open_leases[token], count)
    for queue, count in succeeded.items():
        add_to_tally(session, queue, State.SUCCEEDED, count)
    done = Settled(Answer.DONE, State.SUCCEEDED, at=session.now)
    return [done] * len(rows)


def _is_plain(t: Transition) -> bool:
    if t.to is not State.SUCCEEDED or t.inserts or t.occurrence or t.version is not None:
        return False
    return t.error is None and t.traceback is None and t.detail is None and not t.outlived


class _Settling:
    """One settle call; leases are read once and kept as the batch changes them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._leases: dict[str, Lease | None] = {}

    def settle(self, transitions: Sequence[Transition]) -> list[Settled]:
        return [self._settle_one(t) for t in transitions]

    def fence(self, token: str, job_id: str, number: int) -> tuple[Lease, Entry] | Settled:
        """The lease and its entry if they prove this attempt; else the refusal."""
        session = self._session
        recorded = session.one(SETTLE["recorded"], (job_id, number))
        if recorded is not None:
            return Settled(Answer.NOT_RUNNING, recorded=AttemptStatus(recorded[1]), at=session.now)
        lease = self._lease(token)
        entry = lease.entries.get(job_id) if lease else None
        if lease is None or entry is None or entry.number != number:
            covered = leases.covering(session, job_id)
            return Settled(Answer.LEASE_MISMATCH if covered else Answer.NOT_RUNNING, at=session.now)
        if lease.is_expired():
            return Settled(Answer.LEASE_EXPIRED, at=session.now)
        return lease, entry

    def _settle_one(self, t: Transition) -> Settled:
        session = self._session
        recorded = session.one(SETTLE["recorded"], (t.job_id, t.number))
        if recorded is not None and recorded == (t.token, t.status):
            return Settled(Answer.DONE, recorded=t.status, at=session.now)
        proof = self.fence(t.token, t.job_id, t.number)
        if isinstance(proof, Settled):
            return proof
        lease, entry = proof
        relied = t.relies_on
        if relied is not None and relied != session.one(SETTLE["job_place"], (t.job_id,))[3]:
            return Settled(Answer.CHANGED, at=session.now)
        settled = self._apply(t, lease, entry)
        if _close(session, lease, 1):
            self._leases[lease.token] = None
        return settled

    def _apply(self, t: Transition, lease: Lease, entry: Entry) -> Settled:
        session = self._session
        cancelled = t.to is not State.SUCCEEDED and t.job_id in lease.cancels
        target = State.CANCELLED if cancelled else t.to
        if target is State.READY:
            settled = self._go_on(t, entry)
        elif t.occurrence is not None:
            self._record(
                t, entry, t.occurrence.due_at if t.occurrence.run_at is None else t.occurrence.run_at
            )
            if t.dead_letter is not None and target is State.DEAD:
                self._leave_dead_letter(t, entry, t.dead_letter)
            settled = self._runnable_at(rearm(session, t.job_id, t.number, t.occurrence))
        else:
            settled = self._end(t, entry, target, Reason.CANCELLED if cancelled else t.reason)
        if t.inserts and not cancelled:
            enqueue(session, t.inserts)
        return settled

    def _go_on(self, t: Transition, entry: Entry) -> Settled:
        """Runnable again: after a delay, or in the place it had."""
        run_at = entry.run_at if t.delay is None else self._session.now + t.delay
        began = t.started_at is not None or t.status is AttemptStatus.LOST
        self._record(t, entry, run_at)
        insert_ready(
            self._session,
            t.job_id,
            run_at=run_at,
            number=t.number,
            attempts=t.attempts,
            first_number=entry.first_number,
            due_at=entry.due_at,
            expires_at=None if began else entry.expires_at,
            delivery=entry.delivery,
            suspect=t.suspect,
        )
        return self._runnable_at(run_at)

    def _leave_dead_letter(self, t: Transition, entry: Entry, copy: NewJob) -> None:
        """A copy of the run that has just ended, dead from the start."""
        session = self._session
        if not store_dead(session, copy):
            return
        session.execute(SETTLE["copy_attempts"], (t.job_id, copy.id, entry.first_number))
        row = (copy.id, State.DEAD, t.reason, session.now, t.number, t.attempts, copy.delivery)
        session.execute(SETTLE["insert_ended"], row)
        add_to_tally(session, copy.queue, State.DEAD, 1)

    def _end(self, t: Transition, entry: Entry, state: State, reason: Reason | None) -> Settled:
        session = self._session
        self._record(t, entry, None)
        released: list[str] = []
        cancelled: tuple[str, ...] = ()
        if state is State.SUCCEEDED:
            released = release_dependants(session, t.job_id)
        else:
            row = (t.job_id, state, reason, session.now, t.number, t.attempts, entry.delivery)
            session.execute(SETTLE["insert_ended"], row)
            cancelled = workflows.cancel_dependants(session, [t.job_id])
        queue = session.one(SETTLE["job_place"], (t.job_id,))[0]  # it may have been moved while it ran
        add_to_tally(session, Reading().text("queue", queue), state, 1)
        return Settled(Answer.DONE, state, released=tuple(released), at=session.now, cancelled=cancelled)

    def _record(self, t: Transition, entry: Entry, next_at: int | None) -> None:
        lease = self._lease(t.token)
        # Its worker may have shown itself alive while the collector was deciding.
        outlived = t.outlived or (
            t.status is AttemptStatus.LOST and lease is not None and bool(lease.outlived)
        )
        self._session.execute(
            SETTLE["insert_attempt"],
            (t.job_id, t.number, t.status, entry.attempts, t.attempts, t.token, t.worker, t.started_at,
             self._session.now, next_at, t.result, t.error, t.traceback, t.detail, int(outlived)),
        )  # fmt: skip

    def _runnable_at(self, run_at: int) -> Settled:
        now = self._session.now
        return Settled(Answer.DONE, State.READY if run_at <= now else State.SCHEDULED, run_at, at=now)

    def _lease(self, token: str) -> Lease | None:
        if token not in self._leases:
            self._leases[token] = leases.find(self._session, token)
        return self._leases[token]


def note(session: Session, notes: Sequence[Note]) -> list[Answer]:
    settling = _Settling(session)
    answers = []
    for n in notes:
        proof = settling.fence(n.token, n.job_id, n.number)
        if isinstance(proof, Settled):
            answers.append(proof.answer)
            continue
        if isinstance(n, ProgressNote):
            session.execute(SETTLE["put_progress"], (n.job_id, n.progress.fraction, n.progress.message))
        else:
            session.execute(SETTLE["put_step"], (n.job_id, n.name, n.result, n.number))
        answers.append(Answer.DONE)
    return answers


def release_dependants(session: Session, member_id: str) -> list[str]:
    """Those for whom this was the last job to wait for leave `waiting`."""
    session.execute(SETTLE["mark_member_done"], (member_id,))
    satisfied = session.execute(SETTLE["satisfied_dependants"], (member_id,)).fetchall()
    dependants = [row[0] for row in satisfied if type(row[0]) is str and is_text(row[0])]
    for job_id in dependants:
        number, attempts, first_number, expires_at, delivery = session.one(SETTLE["waiting"], (job_id,))
        session.execute(SETTLE["delete_waiting"], (job_id,))
        read = Reading()  # whatever a hand wrote there is no fault of the job that has succeeded
        insert_ready(
            session,
            job_id,
            number=read.integer("number", number),
            attempts=read.integer("attempts", attempts),
            first_number=read.integer("first_number", first_number, most=NUMBER_MAX + 1),
            expires_at=read.optional_instant("expires_at", expires_at),
            delivery=read.one_of("delivery", delivery, DELIVERIES),
        )
    return dependants


def rearm(session: Session, job_id: str, number: int, occurrence: Occurrence) -> int:
    """The run is over and the next occurrence is set, in one transaction; the place it has."""
    run_at = occurrence.due_at if occurrence.run_at is None else occurrence.run_at
    session.execute(SETTLE["delete_steps"], (job_id,))
    session.execute(SETTLE["delete_progress"], (job_id,))
    insert_ready(
        session,
        job_id,
        run_at=run_at,
        number=number,
        attempts=0,
        first_number=number + 1,
        due_at=occurrence.due_at,
        delivery=DELIVERIES.get(session.one(SETTLE["job_place"], (job_id,))[4]),
    )
    return run_at


def insert_ready(
    session: Session,
    job_id: str,
    *,
    number: int,
    attempts: int,
    first_number: int,
    run_at: int | None = None,
    due_at: int | None = None,
    expires_at: int | None = None,
    delivery: str | None = None,
    suspect: bool = False,
) -> None:
    """Put a job into the order; without `run_at`, at its own."""
    found = session.one(SETTLE["job_place"], (job_id,))
    read = Reading()
    queue = read.text("queue", found[0])
    priority = read.integer("priority", found[1], PRIORITY_MIN, PRIORITY_MAX)
    place = read.instant("run_at", found[2]) if run_at is None else run_at
    session.execute(
        ENQUEUE["insert_ready"],
        (
            int(suspect),
            queue,
            -priority,
            place,
            job_id,
            number,
            attempts,
            first_number,
            due_at,
            expires_at,
            delivery,
        ),
    )


def add_to_tally(session: Session, queue: str, state: State, count: int) -> None:
    session.execute(SETTLE["add_to_tally"], (queue, state, count))


def _close(session: Session, lease: Lease | None, count: int) -> bool:
    """Count jobs off a lease; whether it went with the last one."""
    assert lease is not None, "only a lease that was found can be closed"
    lease.open -= count
    if lease.open:
        session.execute(SETTLE["close_some"], (count, lease.token))
        return False
    session.execute(SETTLE["delete_lease"], (lease.token,))
    session.execute(SETTLE["delete_entries"], (lease.token,))
    return True
