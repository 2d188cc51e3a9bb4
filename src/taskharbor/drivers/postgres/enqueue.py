"""Storing new jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import TypeVar

import asyncpg

from taskharbor.drivers.base import AlikeJobs, Enqueued, have_keys, pieces, text_size, unknown_dependency
from taskharbor.drivers.contract.ingesting import AlikeMessages
from taskharbor.drivers.postgres import places
from taskharbor.drivers.postgres.connections import STATEMENT_BYTES, Session
from taskharbor.drivers.postgres.places import Found
from taskharbor.errors import StoreUnavailable, TaskHarborError
from taskharbor.records import NewJob, State, encode_options
from taskharbor.rules.idempotency import ResolvedBatch, resolve_batch
from taskharbor.rules.standing import first_run_at, runnable_state

T = TypeVar("T")

BATCH_MAX = 1_000  # jobs of one call that a statement carries, when others follow it
GROUP_MIN = 20  # messages that are alike, from which on a statement for each group is the quicker way
RACES_MAX = 50  # how often others may be quicker before the caller has to try again


# -- the fast path -------------------------------------------------------------------------------


async def enqueue_plain(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
    """All at once, when each must be new; None, with nothing stored, if one is not."""
    try:
        if len(jobs) == 1:
            now = await _insert_one(session, jobs[0])
        elif isinstance(jobs, AlikeJobs) or _are_alike(jobs):
            session.expect(len(jobs))
            now = await session.value("enqueue_alike", *alike_arguments(jobs, session.given_now))
        else:
            now = await _insert_all(session, jobs)
    except asyncpg.UniqueViolationError:
        return None
    return fresh_answers(jobs, now)


class NotNew(TaskHarborError):
    """A job of a batch exists already, so that each has to be looked at by itself."""


async def enqueue_in_turn(session: Session, jobs: AlikeJobs) -> list[Enqueued]:
    """One batch after the other, inside a transaction, when each job must be new.

    While the server stores a batch, the next one is made.
    """
    answers: list[Enqueued] = []
    turn = _Turn(jobs)
    while (batch := turn.next()) is not None:
        session.expect(len(batch[0]))
        # By the loop, once the statement is on its way.
        asyncio.get_running_loop().call_soon(turn.prepare)
        try:
            async with session.carrying(sum(map(text_size, batch[1]))):
                now: int = await session.value(
                    "enqueue_alike", *_alike_arguments(*batch, jobs.shared, session.given_now)
                )
        except asyncpg.UniqueViolationError as error:
            raise NotNew("one of them exists already") from error
        if session.given_now is None:
            session = session.at(now)
        answers += _alike_answers(batch[0], jobs.shared, now)
    return answers


class _Turn:
    """The batches of one call, each made when it is asked for, or before."""

    def __init__(self, jobs: AlikeJobs) -> None:
        self._jobs = jobs
        self._next = 0
        self._error: Exception | None = None

    def prepare(self) -> None:
        """Make the next batch already. `next` raises what is wrong with it."""
        try:
            self._jobs.made_until(self._stop())
        except Exception as error:  # noqa: BLE001 - of the arguments, or of a model; `next` raises it
            self._error = error

    def next(self) -> tuple[list[str], list[str]] | None:
        if self._error is not None:
            raise self._error
        start, stop = self._next, self._stop()
        if start == stop:
            return None
        ids, payloads = self._jobs.columns(start, stop)
        fits = len(next(pieces(payloads, text_size, STATEMENT_BYTES)))
        self._next = start + fits
        return ids[:fits], payloads[:fits]

    def _stop(self) -> int:
        return min(self._next + BATCH_MAX, len(self._jobs))


async def enqueue_announced(
    session: Session, job: NewJob, channel: str, sender: str
) -> tuple[list[Enqueued] | None, bool]:
    """One plain job, announced by its own commit: the answer as of `enqueue_plain`, and whether it was announced."""
    try:
        stored = await session.row("enqueue_announced", *_arguments(session, job), channel, sender)
    except asyncpg.UniqueViolationError:
        return None, False
    except (asyncpg.InsufficientPrivilegeError, asyncpg.ProgramLimitExceededError):
        # The right to announce is missing, or the server has no room for more notifications: the job comes first.
        return await enqueue_plain(session, [job]), False
    assert stored is not None, "an insert that succeeds returns its row"
    return [fresh_answer(job, stored["enqueued_at"])], stored["announced"]


async def _insert_one(session: Session, job: NewJob) -> int:
    now: int = await session.value("enqueue_one", *_arguments(session, job))
    return now


def _arguments(session: Session, job: NewJob) -> tuple[object, ...]:
    return (
        job.id, job.queue, job.task, job.payload, job.priority, job.run_at, job.delay,
        job.expires_at, job.idempotency_key, job.delivery, encode_options(job.options), job.meta,
        session.given_now,
    )  # fmt: skip


_shared = attrgetter(
    "queue", "task", "priority", "run_at", "delay", "expires_at", "idempotency_key", "delivery", "options",
    "meta",
)  # fmt: skip


def _are_alike(jobs: Sequence[NewJob]) -> bool:
    """Whether they differ in their ids and payloads only, as those of one `enqueue_many` do."""
    wanted = _shared(jobs[0])
    return jobs[0].idempotency_key is None and all(_shared(job) == wanted for job in jobs)


def alike_arguments(jobs: Sequence[NewJob], now: int | None) -> tuple[object, ...]:
    """Of the statement for jobs that differ in their ids and payloads only."""
    if isinstance(jobs, AlikeJobs):
        return _alike_arguments(jobs.ids, jobs.payloads, jobs.shared, now)
    return _alike_arguments([job.id for job in jobs], [job.payload for job in jobs], jobs[0], now)


def _alike_arguments(ids: list[str], payloads: list[str], one: NewJob, now: int | None) -> tuple[object, ...]:
    return (
        ids, one.queue, one.task, payloads, one.priority, one.run_at, one.delay, one.expires_at, one.delivery,
        encode_options(one.options), one.meta, now,
    )  # fmt: skip


async def _insert_all(session: Session, jobs: Sequence[NewJob]) -> int:
    ordered = _in_lock_order(jobs)
    session.expect(len(jobs))
    now: int = await session.value(
        "enqueue",
        [job.id for job in ordered],
        [job.queue for job in ordered],
        [job.task for job in ordered],
        [job.payload for job in ordered],
        [job.priority for job in ordered],
        [job.run_at for job in ordered],
        [job.delay for job in ordered],
        [job.expires_at for job in ordered],
        [job.idempotency_key for job in ordered],
        [job.delivery for job in ordered],
        [encode_options(job.options) for job in ordered],
        [job.meta for job in ordered],
        session.given_now,
    )
    return now


def _in_lock_order(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Inserting a key that another client is inserting waits for that one: two batches must not wait crosswise."""
    if not have_keys(jobs):
        return jobs
    return sorted(jobs, key=lambda job: (job.queue, job.idempotency_key or "", job.id))


def fresh_answers(jobs: Sequence[NewJob], now: int) -> list[Enqueued]:
    if isinstance(jobs, AlikeJobs):
        return _alike_answers(jobs.ids, jobs.shared, now)
    return [fresh_answer(job, now) for job in jobs]


def _alike_answers(ids: list[str], shared: NewJob, now: int) -> list[Enqueued]:
    one = fresh_answer(shared, now)
    state, run_at = one.state, one.run_at
    return [Enqueued(job_id, False, state, run_at, now) for job_id in ids]


def fresh_answer(job: NewJob, now: int) -> Enqueued:
    run_at = first_run_at(job, now)
    return Enqueued(job.id, False, runnable_state(run_at, now), run_at, now)


# -- one by one ----------------------------------------------------------------------------------


async def enqueue(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Inside a transaction: what exists stands for what was given, the rest is stored."""
    session.expect(len(jobs))
    for _ in range(RACES_MAX):
        batch = await _resolve(session, jobs)
        members = await _hold_members(session, batch)
        if members is None:
            continue
        now = await session.now()
        savepoint = session.savepoint()
        await savepoint.start()
        if await _insert_jobs(session, batch.fresh, now):
            waiting = await _place(session, batch, members, now)
            wanted = {job_id for job_id, existed in batch.answers if existed}
            existing = await places.find(session, sorted(wanted))
            if existing.keys() >= wanted:
                await savepoint.commit()
                break
        # Another transaction has stored or deleted one of them since this one looked: look again.
        await savepoint.rollback()
    else:
        raise outrun()
    fresh = {job.id: fresh_answer(job, now) for job in batch.fresh}
    answers = []
    for job_id, existed in batch.answers:
        if job_id in fresh and not existed:
            answer = fresh[job_id]
            state = State.WAITING if job_id in waiting else answer.state
            answers.append(Enqueued(job_id, False, state, answer.run_at, now))
        else:
            answers.append(existing_answer(existing[job_id]))
    return answers


def outrun() -> StoreUnavailable:
    return StoreUnavailable(
        f"other transactions stored, moved or deleted the same jobs {RACES_MAX} times while this one looked; try again"
    )


def existing_answer(found: Found) -> Enqueued:
    return Enqueued(found.id, True, found.at.state, found.at.run_at, found.job.enqueued_at)


async def _resolve(session: Session, jobs: Sequence[NewJob]) -> ResolvedBatch:
    known_ids = {row["id"] for row in await session.rows("known_ids", [job.id for job in jobs])}
    keys = [(job.queue, key) for job in jobs if (key := job.idempotency_key) is not None]
    known_keys: dict[tuple[str, str], str] = {}
    if keys:
        rows = await session.rows("known_keys", [queue for queue, _ in keys], [key for _, key in keys])
        known_keys = {keys[row["position"] - 1]: row["id"] for row in rows}
    return resolve_batch(jobs, known_ids, known_keys)


async def _insert_jobs(session: Session, fresh: Sequence[NewJob], now: int) -> bool:
    """Whether all of them were new."""
    if not fresh:
        return True
    stored = await _store_jobs(session, [(job, first_run_at(job, now)) for job in _in_lock_order(fresh)], now)
    return len(stored) == len(fresh)


async def _store_jobs(session: Session, jobs: Sequence[tuple[NewJob, int]], now: int) -> set[str]:
    """The jobs rows of those that are new, each with its place; their ids."""
    rows = [
        (j.id, j.queue, j.task, j.payload, j.priority, run_at, j.expires_at, j.idempotency_key, j.delivery,
         encode_options(j.options), j.meta)
        for j, run_at in jobs
    ]  # fmt: skip
    return {row["id"] for row in await store_rows(session, "insert_jobs", rows, _payload_size, now)}


def _payload_size(row: tuple[object, ...]) -> int:
    return text_size(str(row[3]))


async def _place(session: Session, batch: ResolvedBatch, members: dict[str, Found], now: int) -> set[str]:
    """Into the order, or, if some that a job depends on have not succeeded, to those that wait: which ones."""
    dependencies: list[tuple[object, ...]] = []
    waiting: list[NewJob] = []
    ready: list[NewJob] = []
    for job in batch.fresh:
        satisfied = True
        for position, given in enumerate(job.depends_on):
            member = batch.stands_for.get(given, given)
            state = members[member].at.state if member in members else None  # None: stored just now
            done = state is State.SUCCEEDED
            late = state is not None and not done  # it may end before anybody can see who waits for it
            was_ended = state in (State.DEAD, State.CANCELLED)
            dependencies.append((job.id, position, member, done, job.ends_with_members, late, was_ended))
            satisfied = satisfied and done
        (ready if satisfied else waiting).append(job)
    if dependencies:
        await session.do("insert_dependencies", *columns(dependencies))
    if waiting:
        rows = [(job.id, 0, 0, 1, job.expires_at, job.delivery) for job in waiting]
        await session.do("insert_waiting", *columns(rows))
    if ready:
        placed = [
            (job.id, first_run_at(job, now), 0, 0, 1, job.due_at, job.expires_at, job.delivery, False)
            for job in ready
        ]
        await session.do("insert_ready", *columns(placed))
    tags = sorted({(tag, job.id) for job in batch.fresh for tag in job.options.tags})
    if tags:
        await session.do("insert_tags", *columns(tags))
    return {job.id for job in waiting}


async def enqueue_messages(session: Session, groups: Sequence[AlikeMessages]) -> None:
    """Inside a transaction: jobs with new ids, in groups that differ in nothing but ids, payloads and metas."""
    few = sum(len(group.ids) for group in groups) < GROUP_MIN * len(groups)
    if few or not all(group.shared.is_plain for group in groups):
        await enqueue(session, [job for group in groups for job in group.jobs()])
        return
    for group in groups:
        session.expect(len(group.ids))
        one = group.shared
        rows = list(zip(group.ids, group.payloads, group.metas, strict=True))
        async with in_statements(session, rows, lambda row: text_size(row[1])) as statements:
            for some in statements:
                ids, payloads, metas = columns(some)
                await session.do(
                    "enqueue_messages", ids, one.queue, one.task, payloads, one.priority, one.run_at, one.delay,
                    one.expires_at, one.delivery, encode_options(one.options), metas, session.given_now,
                )  # fmt: skip


async def insert_rows_alone(session: Session, jobs: Sequence[NewJob], now: int) -> set[str]:
    """The rows of jobs whose places the caller writes; the ids that are new."""
    ordered = _in_lock_order(jobs)
    stored = await _store_jobs(session, [(job, first_run_at(job, now)) for job in ordered], now)
    tags = sorted({(tag, job.id) for job in jobs if job.id in stored for tag in job.options.tags})
    if tags:
        await session.do("insert_tags", *columns(tags))
    return stored


def columns(rows: Sequence[tuple[object, ...]]) -> Iterable[list[object]]:
    """Rows as the arrays that `unnest` takes."""
    return [list(column) for column in zip(*rows, strict=True)]


async def store_rows(
    session: Session,
    name: str,
    rows: Sequence[tuple[object, ...]],
    size_of: Callable[[tuple[object, ...]], int],
    *rest: object,
) -> list[asyncpg.Record]:
    """Inside a transaction, a statement for many rows that may be large; repeated, each time for what it can carry."""
    answers: list[asyncpg.Record] = []
    async with in_statements(session, rows, size_of) as statements:
        for some in statements:
            answers += await session.rows(name, *columns(some), *rest)
    return answers


@asynccontextmanager
async def in_statements(
    session: Session, batch: Sequence[T], size_of: Callable[[T], int]
) -> AsyncIterator[Sequence[Sequence[T]]]:
    """Inside a transaction: what each of several statements carries of a batch."""
    statements = list(pieces(batch, size_of, STATEMENT_BYTES))
    async with session.carrying(max((sum(map(size_of, some)) for some in statements), default=0)):
        yield statements


# -- whom a job depends on -----------------------------------------------------------------------


async def _hold_members(session: Session, batch: ResolvedBatch) -> dict[str, Found] | None:
    """Find the stored jobs that fresh ones depend on, once this transaction keeps them from being deleted.

    None if one that stands for a job of the batch has been deleted since the batch was resolved.

    Nothing else waits for this transaction. A member may go on and end meanwhile, and cannot see who depends on it:
    such a dependency is marked as late, and a worker's sweep looks at it again (`catch_up`).
    """
    fresh = {job.id for job in batch.fresh}
    wanted = sorted({batch.stands_for.get(m, m) for job in batch.fresh for m in job.depends_on} - fresh)
    if not wanted:
        return {}
    # By a function of the schema's owner: locking takes a right to change things, which no producer has.
    await session.do("hold_members", [job_id for job_id in wanted if places.is_id(job_id)])
    members = await places.find(session, wanted)
    if not members.keys() >= set(batch.stands_for.values()).intersection(wanted):
        return None
    _refuse_unknown(batch, members, fresh)
    return members


def _refuse_unknown(batch: ResolvedBatch, members: dict[str, Found], fresh: set[str]) -> None:
    for job in batch.fresh:
        for given in job.depends_on:
            member = batch.stands_for.get(given, given)
            if member not in members and member not in fresh:
                raise unknown_dependency(job.id, member)
