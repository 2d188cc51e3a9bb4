"""Storing new jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.base import AlikeJobs, Enqueued, unknown_dependency
from taskharbor.drivers.contract.ingesting import AlikeMessages
from taskharbor.drivers.sqlite import places
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.records import NewJob, State, encode_options
from taskharbor.rules.standing import first_run_at, runnable_state

ENQUEUE = statements("enqueue")


def enqueue(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    if isinstance(jobs, AlikeJobs) and _is_plain(jobs.shared):
        stored = _all_or_none(session, lambda: _enqueue_alike(session, jobs.shared, jobs.ids, jobs.payloads))
    else:
        stored = _enqueue_plain_first(session, jobs) if len(jobs) > 1 else None
    return stored or _enqueue_each(session, jobs)


def _enqueue_plain_first(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
    """The plain jobs at once and the others after them; None, with nothing done, if that makes a difference."""
    plain = [job for job in jobs if _is_plain(job)]
    are_all = len(plain) == len(jobs)
    if len(plain) < 2 or not (are_all or len({job.id for job in jobs}) == len(jobs)):
        return None
    stored = _enqueue_plain(session, plain)
    if stored is None or are_all:
        return stored
    answers = {answer.id: answer for answer in stored}
    others = [job for job in jobs if job.id not in answers]
    for job, answer in zip(others, _enqueue_each(session, others, set(answers)), strict=True):
        answers[job.id] = answer
    return [answers[job.id] for job in jobs]


def _is_plain(job: NewJob) -> bool:
    return job.is_plain and job.idempotency_key is None


# What jobs of one call usually have in common.
_shared = attrgetter(
    "queue", "task", "priority", "run_at", "delay", "expires_at", "delivery", "options", "meta"
)


def _enqueue_plain(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
    """All at once, when nothing can exist already but an id; None, with nothing done, if one did."""

    def store() -> list[Enqueued] | None:
        answers: list[Enqueued] = []
        for _, group in groupby(jobs, _shared):
            alike = list(group)
            ids, payloads = [job.id for job in alike], [job.payload for job in alike]
            stored = _enqueue_alike(session, alike[0], ids, payloads)
            if stored is None:
                return None
            answers += stored
        return answers

    return _all_or_none(session, store)


def _all_or_none(session: Session, store: Callable[[], list[Enqueued] | None]) -> list[Enqueued] | None:
    """Undo what was stored if the answer is None."""
    session.execute("SAVEPOINT bulk")
    answers = store()
    if answers is None:
        session.execute("ROLLBACK TO bulk")
    session.execute("RELEASE bulk")
    return answers


def _enqueue_alike(
    session: Session, shared: NewJob, ids: list[str], payloads: list[str]
) -> list[Enqueued] | None:
    """Jobs that differ in nothing but ids and payloads; None if an id existed."""
    now = session.now
    run_at = first_run_at(shared, now)
    inserted = session.insert_alike(
        ENQUEUE["insert_alike_jobs"],
        (shared.queue, shared.task, shared.priority, run_at, now, shared.expires_at, shared.delivery,
         encode_options(shared.options), shared.meta),
        list(zip(ids, payloads, strict=True)),
    )  # fmt: skip
    if inserted != len(ids):
        return None
    session.insert_alike(
        ENQUEUE["insert_alike_ready"],
        (shared.queue, -shared.priority, run_at, shared.expires_at, shared.delivery),
        list(zip(ids, strict=True)),
    )
    state = runnable_state(run_at, now)
    return [Enqueued(job_id, False, state, run_at, now) for job_id in ids]


def enqueue_messages(session: Session, group: AlikeMessages) -> None:
    """Jobs with new ids that differ in nothing but ids, payloads and metas."""
    shared, now = group.shared, session.now
    if not _is_plain(shared):
        enqueue(session, list(group.jobs()))
        return
    run_at = first_run_at(shared, now)
    session.insert_columns(
        ENQUEUE["insert_alike_messages"],
        (shared.queue, shared.task, shared.priority, run_at, now, shared.expires_at, shared.delivery,
         encode_options(shared.options)),
        [group.ids, group.payloads, group.metas],
    )  # fmt: skip
    session.insert_columns(
        ENQUEUE["insert_alike_ready"],
        (shared.queue, -shared.priority, run_at, shared.expires_at, shared.delivery),
        [group.ids],
    )


def _enqueue_each(
    session: Session, jobs: Sequence[NewJob], just_stored: Set[str] = frozenset()
) -> list[Enqueued]:
    """One by one: first all the jobs, then their places, since a job may depend on a later one."""
    fresh: dict[int, Enqueued] = {}
    existing: dict[int, str] = {}
    stands_for: dict[str, str] = {}  # the id given → the id of the job that a dependency on it means
    for index, job in enumerate(jobs):
        stored = _store_job(session, job)
        if stored is None:
            existing[index] = _existing_id(session, job)
            stands_for.setdefault(job.id, existing[index])
        else:
            fresh[index] = stored
            stands_for[job.id] = job.id
    new_ids = just_stored | {answer.id for answer in fresh.values()}
    for index, stored in fresh.items():
        fresh[index] = _place(session, jobs[index], stored, stands_for, new_ids)
    return [fresh.get(index) or _existing(session, existing[index]) for index in range(len(jobs))]


def _store_job(session: Session, job: NewJob) -> Enqueued | None:
    """None, with nothing done, if a job of this id or key is kept already."""
    now = session.now
    run_at = first_run_at(job, now)
    if session.execute(ENQUEUE["insert_job"], _job_row(job, run_at, now)).rowcount == 0:
        return None
    if job.options.tags:
        session.executemany(ENQUEUE["insert_tag"], [(tag, job.id) for tag in job.options.tags])
    return Enqueued(job.id, False, runnable_state(run_at, now), run_at, now)


def _place(
    session: Session, job: NewJob, answer: Enqueued, stands_for: dict[str, str], new_ids: Set[str]
) -> Enqueued:
    """Put the job into the claim order, or, if a dependency has not succeeded, among the waiting jobs."""
    if job.depends_on and not _depend(session, job, stands_for, new_ids):
        session.execute(ENQUEUE["insert_waiting"], (job.id, 0, 0, 1, job.expires_at, job.delivery))
        return replace(answer, state=State.WAITING)
    key = (0, job.queue, -job.priority, answer.run_at, job.id)
    session.execute(ENQUEUE["insert_ready"], (*key, 0, 0, 1, job.due_at, job.expires_at, job.delivery))
    return answer


def store_row_alone(session: Session, job: NewJob) -> bool:
    """Store the row of a job whose place the caller writes; True if it is new."""
    return _store_job(session, job) is not None


def _depend(session: Session, job: NewJob, stands_for: dict[str, str], new_ids: Set[str]) -> bool:
    """Store the job's dependencies; True if all of them have succeeded already."""
    satisfied = True
    fatal = int(job.ends_with_members)
    rows: list[tuple[Any, ...]] = []
    for position, given in enumerate(job.depends_on):
        member, done = stands_for.get(given, given), False
        if member not in new_ids:
            if not session.one(ENQUEUE["job_exists"], (member,))[0]:
                raise unknown_dependency(job.id, member)
            done = bool(session.one(ENQUEUE["has_succeeded"], (member,))[0])
        rows.append((job.id, member, position, done, fatal))
        satisfied = satisfied and done
    session.insert(ENQUEUE["insert_dependency"], rows)
    return satisfied


def _existing_id(session: Session, job: NewJob) -> str:
    # The rule of `rules.idempotency.resolve_batch`, asked after the insert was refused.
    if session.one(ENQUEUE["job_exists"], (job.id,))[0]:
        return job.id
    return str(session.one(ENQUEUE["job_by_key"], (job.queue, job.idempotency_key))[0])


def _existing(session: Session, job_id: str) -> Enqueued:
    record = places.record(session, job_id)
    assert record is not None, "it was met in the same transaction"
    return Enqueued(record.id, True, record.state, record.run_at, record.enqueued_at)


def _job_row(job: NewJob, run_at: int, now: int) -> tuple[Any, ...]:
    return (
        job.id, job.queue, job.task, job.payload, job.priority, run_at, now, job.expires_at,
        job.idempotency_key, job.delivery, encode_options(job.options), job.meta,
    )  # fmt: skip
