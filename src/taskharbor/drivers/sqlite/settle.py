"""Ending attempts: the fence, and what a transition does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.base import Note, ProgressNote, SettleAnswer, SettleResult, Transition
from taskharbor.drivers.contract.settling import PlainSuccesses
from taskharbor.drivers.sqlite import leases, workflows
from taskharbor.drivers.sqlite.endings import Ending
from taskharbor.drivers.sqlite.enqueue import enqueue, store_row_alone
from taskharbor.drivers.sqlite.leases import SETTLE, Entry, Lease
from taskharbor.drivers.sqlite.moving import add_to_tally, insert_ended, insert_ready
from taskharbor.drivers.sqlite.places import waiting_standing
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.stored import DELIVERIES, Reading, is_text
from taskharbor.records import PRIORITY_MAX, PRIORITY_MIN, AttemptStatus, Delivery, NewJob, State
from taskharbor.rules import settling as rules
from taskharbor.rules.settling import Move
from taskharbor.rules.standing import Standing

SHARED_MIN = 8  # successes of one settle; what fewer share takes less room in their own rows


def settle(session: Session, transitions: Sequence[Transition]) -> list[SettleResult]:
    return _settle_successes(session, transitions) or _Settling(session).settle(transitions)


def _settle_successes(session: Session, transitions: Sequence[Transition]) -> list[SettleResult] | None:
    """A batch of plain successes under live leases, without dependants: nearly every batch.

    None, with nothing done, if anything about it is not plain: then each is looked at by itself. A request to cancel
    is not looked at: a success wins, as `rules.settling.cancel_wins` says.
    """
    batch = PlainSuccesses.of(transitions)
    successes = None if batch is None else _successes(session, batch)
    if successes is None or session.one(SETTLE["has_dependants"])[0]:
        return None
    session.execute("SAVEPOINT successes")
    if not all(_record_successes(session, each) for each in successes):
        # Some were settled before, or came twice.
        session.execute("ROLLBACK TO successes")
        session.execute("RELEASE successes")
        return None
    session.execute("RELEASE successes")
    succeeded: Counter[str] = Counter()
    for each in successes:
        _close(session, each.lease, len(each.ids))
        succeeded.update(each.queues)
    for queue, count in succeeded.items():
        add_to_tally(session, queue, State.SUCCEEDED, count)
    done = SettleResult(SettleAnswer.DONE, State.SUCCEEDED, at=session.now)
    return [done] * len(transitions)


class _Successes(Struct):
    """Plain successes under one lease, as columns."""

    lease: Lease
    ids: list[str]
    numbers: list[int]
    started_at: list[int | None]
    retry_counts: list[int]
    attempts: list[int]
    results: list[str | None]
    queues: dict[str, int]  # how many of each

    @property
    def columns(self) -> tuple[list[Any], ...]:
        return self.ids, self.numbers, self.started_at, self.retry_counts, self.attempts, self.results

    @property
    def are_bare(self) -> bool:
        """Whether they leave nothing but the fact: no result, no failures before."""
        return not (any(self.retry_counts) or any(self.attempts)) and self.results.count(None) == len(
            self.ids
        )


def _successes(session: Session, batch: PlainSuccesses) -> list[_Successes] | None:
    """Sort them by lease; None if a lease does not prove all of its own."""
    found = []
    for token, ended in batch.by_token().items():
        lease = leases.find(session, token)
        if lease is None or lease.is_expired():
            return None
        proof = lease.columns.proof(ended.ids, ended.numbers)
        if proof is None:
            return None
        results = ended.results or [None] * len(ended)
        found.append(
            _Successes(
                lease, ended.ids, ended.numbers, ended.started_ats, proof.attempts, ended.attempts, results,
                proof.queues,
            )
        )  # fmt: skip
    return found


def _record_successes(session: Session, successes: _Successes) -> bool:
    """Write their rows of history; False if one of them had its row already."""
    token, ids = successes.lease.token, successes.ids
    if len(ids) < SHARED_MIN:
        shared = (token, session.now)
        return session.insert_columns(SETTLE["insert_success"], shared, successes.columns) == len(ids)
    settle_id = session.execute(SETTLE["insert_settle"], (token, session.now, len(ids))).lastrowid
    session.execute(SETTLE["insert_settled"], (settle_id, leases.as_json(ids)))
    if successes.are_bare:
        bare = (ids, successes.numbers, successes.started_at)
        return session.insert_columns(SETTLE["insert_bare_success"], (settle_id,), bare) == len(ids)
    return session.insert_columns(SETTLE["insert_shared_success"], (settle_id,), successes.columns) == len(
        ids
    )


class _Settling:
    """One settle call; leases are read once and kept as the batch changes them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._leases: dict[str, Lease | None] = {}

    def settle(self, transitions: Sequence[Transition]) -> list[SettleResult]:
        answers = [self._settle_one(t) for t in transitions]
        pairs = zip(transitions, answers, strict=True)
        alive = {t.token for t, settled in pairs if rules.proves_survival(settled.answer, t.worker)}
        leases.mark_survived(self._session, alive)
        repeated = [
            (index, job_id, bool(was_released))
            for index, (t, settled) in enumerate(zip(transitions, answers, strict=True))
            if settled.recorded is not None and settled.answer is SettleAnswer.DONE
            for job_id, was_released in self._dependants_of(t)
        ]
        return rules.report_each_once(answers, repeated) if repeated else answers

    def _dependants_of(self, t: Transition) -> list[tuple[str, int]]:
        attempt = {"job_id": t.job_id, "number": t.number}
        rows = self._session.execute(SETTLE["dependants_of"], attempt).fetchall()
        return [row for row in rows if type(row[0]) is str and is_text(row[0])]

    def fence(
        self, token: str, job_id: str, number: int, *, is_recorded: bool
    ) -> tuple[Lease, Entry] | SettleAnswer:
        """The lease and its entry if they prove this attempt; else the refusal."""
        session = self._session
        lease = self._lease(token)
        entry = lease.entries.get(job_id) if lease else None
        proves = entry is not None and entry.number == number
        answer = rules.fence(
            number,
            session.now,
            is_recorded=is_recorded,
            held_number=entry.number if entry else None,
            expires_at=lease.expires_at if lease else 0,
            is_covered=proves or leases.covering(session, job_id) is not None,
        )
        if answer is not SettleAnswer.DONE:
            return answer
        assert lease is not None, "the fence says so"
        assert entry is not None, "the fence says so"
        return lease, entry

    def _settle_one(self, t: Transition) -> SettleResult:
        session = self._session
        recorded = session.one(SETTLE["recorded"], (t.job_id, t.number))
        if recorded is not None:
            return rules.repeated(t, recorded[0], AttemptStatus(recorded[1]), session.now)
        proof = self.fence(t.token, t.job_id, t.number, is_recorded=False)
        if isinstance(proof, SettleAnswer):
            return SettleResult(proof, at=session.now)
        lease, entry = proof
        # Its queue or its priority may have been changed while it ran.
        place = _job_place(session, t.job_id)
        if t.relies_on not in (None, place.version):
            return SettleResult(SettleAnswer.CHANGED, at=session.now)
        move = rules.settle_move(
            entry.standing,
            t,
            session.now,
            cancel_requested=t.job_id in lease.cancels,
            declared=place.delivery,
        )
        self._record(t, entry, move, lease)
        settled = self._move(t, entry, move, place)
        if move.inserts:
            enqueue(session, move.inserts)
        if _close(session, lease, 1):
            self._leases[lease.token] = None
        return settled

    def _move(self, t: Transition, entry: Entry, move: Move, place: _JobPlace) -> SettleResult:
        session, to = self._session, move.to
        answer = move.answer(session.now)
        if to.state is State.SUCCEEDED:
            add_to_tally(session, place.queue, to.state, 1)
            return replace(answer, released=tuple(release_dependants(session, t.job_id)))
        if to.is_finished:
            about = Ending(place.queue, place.task, t.fingerprint, t.error, t.code_version)
            insert_ended(session, t.job_id, place.queue, to, about)
            return replace(answer, cancelled=workflows.cancel_dependants(session, [t.job_id]))
        if move.dead_letter is not None:
            self._leave_dead_letter(t, entry, move.dead_letter)
        if move.is_rearmed:
            session.execute(SETTLE["delete_steps"], (t.job_id,))
            session.execute(SETTLE["delete_progress"], (t.job_id,))
        insert_ready(session, t.job_id, place.queue, place.priority, to)
        return answer

    def _leave_dead_letter(self, t: Transition, entry: Entry, copy: NewJob) -> None:
        """A copy of the run that has just ended, dead from the start."""
        session = self._session
        if store_row_alone(session, copy):
            session.execute(SETTLE["copy_attempts"], (t.job_id, copy.id, entry.first_number))
            ended = Standing(State.READY, 0, t.number, t.attempts, delivery=copy.delivery)
            insert_ended(
                session, copy.id, copy.queue, rules.finished(ended, State.DEAD, t.reason, session.now)
            )

    def _record(self, t: Transition, entry: Entry, move: Move, lease: Lease) -> None:
        survived = rules.worker_survived(t, bool(lease.worker_survived))
        origin = rules.collected_from(t, lease.token, lease.origin)
        self._session.execute(
            SETTLE["insert_attempt"],
            (t.job_id, t.number, t.status, entry.attempts, t.attempts, t.token, t.worker, t.started_at,
             self._session.now, move.to.next_at, rules.retry_delay(t, move), t.result, t.error, t.traceback, t.detail,
             int(survived), origin, t.fingerprint, t.code_version, move.to.aside),
        )  # fmt: skip

    def _lease(self, token: str) -> Lease | None:
        if token not in self._leases:
            self._leases[token] = leases.find(self._session, token)
        return self._leases[token]


def note(session: Session, notes: Sequence[Note]) -> list[SettleAnswer]:
    settling = _Settling(session)
    answers = []
    for n in notes:
        is_recorded = session.one(SETTLE["recorded"], (n.job_id, n.number)) is not None
        proof = settling.fence(n.token, n.job_id, n.number, is_recorded=is_recorded)
        if isinstance(proof, SettleAnswer):
            answers.append(proof)
            continue
        if isinstance(n, ProgressNote):
            given = n.progress
            session.execute(
                SETTLE["put_progress"], (n.job_id, given.fraction, given.message, given.value_json)
            )
        else:
            session.execute(SETTLE["put_step"], (n.job_id, n.name, n.result, n.number))
        answers.append(SettleAnswer.DONE)
    alive = {n.token for n, answer in zip(notes, answers, strict=True) if rules.proves_survival(answer)}
    leases.mark_survived(session, alive)
    return answers


def release_dependants(session: Session, member_id: str) -> list[str]:
    """Move jobs out of `waiting` for which this was the last dependency."""
    session.execute(SETTLE["mark_member_done"], (member_id,))
    satisfied = session.execute(SETTLE["satisfied_dependants"], (member_id,)).fetchall()
    dependants = [row[0] for row in satisfied if type(row[0]) is str and is_text(row[0])]
    for job_id in dependants:
        waiting = session.one(SETTLE["waiting"], (job_id,))
        place = _job_place(session, job_id)
        session.execute(SETTLE["delete_waiting"], (job_id,))
        to = waiting_standing(place.run_at, waiting, Reading())
        insert_ready(session, job_id, place.queue, place.priority, to)
    return dependants


class _JobPlace(NamedTuple):
    """What of the job's row its place is made of."""

    queue: str
    priority: int
    run_at: int
    version: int
    delivery: Delivery | None
    task: str


def _job_place(session: Session, job_id: str) -> _JobPlace:
    """Read them. What a hand wrote there is no fault of the job that is settled."""
    queue, priority, run_at, version, delivery, task = session.one(SETTLE["job_place"], (job_id,))
    read = Reading()
    return _JobPlace(
        read.text("queue", queue),
        read.integer("priority", priority, PRIORITY_MIN, PRIORITY_MAX),
        read.instant("run_at", run_at),
        version,
        read.one_of("delivery", delivery, DELIVERIES),
        read.text("task", task),
    )


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
