"""What operators do to jobs, and what age does.

A change of a job that is not running holds the lock of its `jobs` row, and rewrites the row of its place:
a claim, which takes no such lock, takes the place's row instead, so that one of the two finds it gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

from msgspec import UNSET

from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import (
    NOT_BEGUN,
    OPERATOR,
    Action,
    Cancel,
    DeadLetter,
    Delete,
    Discard,
    Operation,
    OperationResult,
    OperationVerdict,
    Requeue,
    Update,
    with_dependants,
)
from taskharbor.drivers.postgres import audit, moving, places, workflows
from taskharbor.drivers.postgres.connections import Lane, Session
from taskharbor.drivers.postgres.enqueue import columns
from taskharbor.drivers.postgres.moving import add_tallies
from taskharbor.drivers.postgres.opened_store import OpenedStore
from taskharbor.drivers.postgres.places import Found
from taskharbor.errors import StoreUnavailable
from taskharbor.records import State
from taskharbor.rules import operating as rules

OPERATED_AT_ONCE = 200  # jobs changed in one transaction
CANCELLED_AT_ONCE = 5_000  # that takes no more statements than one does
OPERATE_ROUNDS_MAX = 100


def rounds(operation: Operation, ids: Sequence[str], size: int) -> list[list[int]]:
    """The positions in `ids` that are done together, in one transaction each.

    An id that is given twice is done twice, one after the other. The order between jobs counts only for
    deleting, since a job goes only after those that depend on it; everything else is done in the order of
    locking, which keeps two operators from waiting for each other.
    """
    positions = list(range(len(ids)))
    if not isinstance(operation, Delete):
        positions.sort(key=lambda position: ids[position])
    chunks: list[list[int]] = []
    met: set[str] = set()
    for position in positions:
        if not chunks or ids[position] in met or len(chunks[-1]) == size:
            chunks.append([])
            met = set()
        chunks[-1].append(position)
        met.add(ids[position])
    return chunks


async def in_rounds(
    store: OpenedStore,
    operation: Operation,
    ids: Sequence[str],
    action: Action | None,
    now: int | None,
) -> list[OperationResult]:
    """Operate on any number of jobs, a bounded number in each transaction."""
    answers: dict[int, OperationResult] = {}
    size = CANCELLED_AT_ONCE if isinstance(operation, Cancel) else OPERATED_AT_ONCE
    for chunk in rounds(operation, ids, size):
        await _until_answered(store, operation, ids, chunk, answers, now, action)
    return [answers[position] for position in range(len(ids))]


async def _until_answered(
    store: OpenedStore,
    operation: Operation,
    ids: Sequence[str],
    chunk: list[int],
    answers: dict[int, OperationResult],
    now: int | None,
    action: Action | None,
) -> None:
    """Until each has an answer: one that moved while we looked is looked for again, in a new transaction."""
    left = chunk
    for _ in range(OPERATE_ROUNDS_MAX):
        wanted = [ids[position] for position in left]
        done = await store.transact(
            Lane.REST, partial(operate, operation=operation, ids=wanted, action=action), now
        )
        answers.update({position: done[ids[position]] for position in left if ids[position] in done})
        left = [position for position in left if position not in answers]
        if not left:
            return
        await asyncio.sleep(0)
        if isinstance(operation, Delete):
            held = [ids[position] for position in left]
            await store.run(Lane.REST, lambda s, h=held: s.rows("wait_for_jobs", h))  # type: ignore[misc]
    they = agreeing(len(left), "it", "they")
    raise StoreUnavailable(
        f"{counted(len(left), 'job')} moved faster than {they} could be changed; try again"
    )


async def operate(
    session: Session, operation: Operation, ids: Sequence[str], action: Action | None = None
) -> dict[str, OperationResult]:
    """Inside a transaction, to distinct ids; the ones that moved while we looked are missing from the answer."""
    answers = await _Operating(session, operation).operate(ids)
    if action is not None:
        await audit.record_operation(session, action, answers.values())
    return answers


class _Operating:
    def __init__(self, session: Session, operation: Operation) -> None:
        self._session = session
        self._operation = operation
        self._now = 0
        self._locked: set[str] = set()  # tokens
        self._held: set[str] | None = None  # jobs, if only some could be had
        self._tally: Counter[tuple[str, str]] = Counter()
        self._kept = workflows.Kept(session)
        self._needed: set[str] = set()  # jobs that others depended on when we began
        # Tokens of the leases that name an ended one; None if not all of them are locked.
        self._named: set[str] | None = None
        self._doomed: list[Found] = []  # ended jobs to erase, all at once: there may be thousands

    async def operate(self, ids: Sequence[str]) -> dict[str, OperationResult]:
        session = self._session
        if isinstance(self._operation, Cancel) and self._operation.occurrence is None:
            return await self._cancel(ids)
        await self._lock(ids)
        self._now = await session.now()
        found = await places.find(Session(session.connection, session.sql, self._now), ids)
        if isinstance(self._operation, Delete):
            await self._look_who_stays(found)
        begun, waits = await self._begun(found), await self._waiting(found)
        answers: dict[str, OperationResult] = {}
        changes: dict[str, tuple[Found, rules.Change]] = {}
        for job_id in ids:
            if job_id not in found:
                answers[job_id] = OperationResult(job_id, OperationVerdict.NOT_FOUND)
                continue
            if self._held is not None and job_id not in self._held:
                continue  # another transaction is about to depend on it, or is changing it
            job, at = found[job_id].job, found[job_id].at
            answer: rules.Change | OperationVerdict | None = rules.change(
                self._operation, job, at, self._now, has_begun=job_id in begun, waits=job_id in waits
            )
            # One that is nowhere can be brought back or deleted; there is nothing to discard.
            if found[job_id].is_nowhere and isinstance(self._operation, Discard):
                answer = OperationVerdict.CONFLICT
            if isinstance(answer, rules.Change):
                changes[job_id] = (found[job_id], answer)
                continue
            if answer is OperationVerdict.REQUESTED:
                answer = await self._request_cancel(found[job_id])
            elif isinstance(self._operation, Delete) and answer is OperationVerdict.DONE:
                answer = await self._delete(found[job_id])
            if answer is not None:
                answers[job_id] = OperationResult(job_id, answer, at.state)
        for job_id in await self._move(changes):
            answers[job_id] = OperationResult(job_id, OperationVerdict.DONE, found[job_id].at.state)
        await self._erase_doomed()
        await add_tallies(session, self._tally)
        if isinstance(self._operation, Requeue):
            # When all that was asked for has been done: what is named has what was asked, not what follows.
            await workflows.restore_dependants(session, _done(answers), self._now)
        if isinstance(self._operation, DeadLetter):
            cancelled = await workflows.cancel_dependants_of(session, _done(answers), self._now)
            return {answer.job_id: answer for answer in with_dependants(answers.values(), cancelled)}
        return answers

    async def _move(self, changes: dict[str, tuple[Found, rules.Change]]) -> set[str]:
        moved = await moving.move(self._session, changes, self._now)
        rows = [
            (job_id, change.to.number, found.at.attempts, change.to.run_at)
            for job_id, (found, change) in changes.items()
            if change.is_rearmed and job_id in moved
        ]
        if rows:
            await self._session.do("cancelled_occurrences", *columns(rows), OPERATOR, self._now, NOT_BEGUN)
        return moved

    async def _begun(self, found: dict[str, Found]) -> set[str]:
        """Those whose run has begun, where an expiry is to be set."""
        if not isinstance(self._operation, Update) or self._operation.expires_at is UNSET or not found:
            return set()
        runs = [(job.id, job.at.first_number) for job in found.values()]
        return {row["id"] for row in await self._session.rows("runs_begun", *columns(runs))}

    async def _waiting(self, found: dict[str, Found]) -> set[str]:
        """Those that have to wait again. A settle of their members needs the locks that are held here."""
        if not isinstance(self._operation, Requeue) or not found:
            return set()
        return {row["id"] for row in await self._session.rows("unfinished_members", sorted(found))}

    async def _cancel(self, ids: Sequence[str]) -> dict[str, OperationResult]:
        """All at once: there may be thousands."""
        session = self._session
        self._now = await session.now()
        known = sorted(job_id for job_id in ids if places.is_id(job_id))
        answers = {
            job_id: OperationResult(job_id, OperationVerdict.NOT_FOUND)
            for job_id in ids
            if not places.is_id(job_id)
        }
        for row in await session.rows("cancel_jobs", known, session.given_now):
            state = None if row["state"] is None else State(row["state"])
            answers[row["id"]] = OperationResult(row["id"], OperationVerdict(row["verdict"]), state)
        missed = [job_id for job_id in known if job_id not in answers]
        for job_id, job in (await places.find(session, missed)).items():
            if job.is_nowhere:  # the others have moved, and are looked for again
                answers[job_id] = OperationResult(job_id, OperationVerdict.CONFLICT, job.at.state)
        cancelled = await workflows.cancel_dependants_of(session, _done(answers), self._now)
        return {answer.job_id: answer for answer in with_dependants(answers.values(), cancelled)}

    async def _lock(self, ids: Sequence[str]) -> None:
        """Leases by token, then jobs by id. Only deleting (and cancelling) writes to a lease."""
        session = self._session
        known = sorted({job_id for job_id in ids if places.is_id(job_id)})
        if not known:
            return
        if isinstance(self._operation, Cancel | Delete):
            tokens = [row["token"] for row in await session.rows("leases_naming", known)]
            if tokens:
                self._locked = {row["token"] for row in await session.rows("lock_leases", sorted(tokens))}
        if isinstance(self._operation, Delete):
            self._held = {row["id"] for row in await session.rows("try_lock_jobs", known)}
        else:
            await session.rows("lock_jobs", known)

    async def _request_cancel(self, job: Found) -> OperationVerdict | None:
        """None if a worker claimed it between the locking and the looking."""
        if job.token not in self._locked:
            return None
        await self._session.do("request_cancel", job.token, job.id)
        return OperationVerdict.REQUESTED

    async def _look_who_stays(self, found: dict[str, Found]) -> None:
        """Once for all of them: which ones others depend on, and which leases still name one that has ended."""
        session, ids = self._session, sorted(found)
        ended = [job_id for job_id in ids if found[job_id].at.is_finished]
        await self._kept.look(ids)
        self._needed = {row["id"] for row in await session.rows("needed", ids)}
        named = {row["token"] for row in await session.rows("leases_naming", ended)}
        self._named = named if named <= self._locked else None

    async def _delete(self, job: Found) -> OperationVerdict | None:
        """In the order given, since a job goes only after those that depend on it."""
        session = self._session
        if job.id in self._needed:
            await self._erase_doomed()  # perhaps those that depended on it
            if await session.rows("needed", [job.id]):
                return OperationVerdict.CONFLICT
        if await self._kept.holds(job.id):
            return OperationVerdict.CONFLICT
        if job.is_nowhere:
            await session.do("take_strays", [job.id])
        if job.at.is_finished and self._named is not None:
            self._doomed.append(job)  # it can wait: under the lock of its row no claim takes it from there
        else:
            naming = {row["token"] for row in await session.rows("leases_naming", [job.id])}
            if not naming <= self._locked or not await moving.leave(session, job):
                return None
            await erase(session, [job], naming)
        if job.at.is_finished and not job.is_nowhere:
            self._tally[job.job.queue, job.at.state] -= 1
        return OperationVerdict.DONE

    async def _erase_doomed(self) -> None:
        doomed, self._doomed = self._doomed, []
        if doomed:
            assert self._named is not None, "no job is doomed otherwise"
            await erase(self._session, doomed, self._named)


def _done(answers: dict[str, OperationResult]) -> list[str]:
    return sorted(job_id for job_id, answer in answers.items() if answer.verdict is OperationVerdict.DONE)


# -- erasing ---------------------------------------------------------------------------------------


async def erase(session: Session, jobs: Sequence[Found], naming: set[str]) -> None:
    """Remove jobs that are in no place any more, out of the leases that still name them first."""
    ids = sorted(job.id for job in jobs)
    if naming:
        await session.do("strike", sorted(naming), ids)
        await session.do("mark_struck", sorted(naming))
    await delete_tags(session, jobs)
    await session.do("erase", ids)


async def delete_tags(session: Session, jobs: Sequence[Found]) -> None:
    tags = sorted({(tag, job.id) for job in jobs for tag in job.job.options.tags})
    if tags:
        await session.do("delete_tags", *columns(tags))


# -- age -------------------------------------------------------------------------------------------


async def overdue(session: Session, limit: int) -> tuple[list[str], int]:
    """What was not begun by its expires_at, and the time by which that is so."""
    rows = await session.rows("overdue", session.given_now, max(limit, 0))
    return [row["id"] for row in rows], rows[0]["now"] if rows else 0


async def expire(session: Session, ids: Sequence[str], at: int) -> list[str]:
    """Inside a transaction: cancel those that are still overdue."""
    expired = {row["id"] for row in await session.rows("expire", ids, at)}
    cancelled = await workflows.cancel_dependants(session, sorted(expired), at)
    return [*(job_id for job_id in ids if job_id in expired), *cancelled]


async def prune(session: Session, before: dict[State, int], limit: int) -> int:
    """Small batches that wait for no lock, and that only an operator of the same jobs waits for."""
    await workflows.forget(session, before)
    bounds = [before.get(state) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)]
    candidates = [row["id"] for row in await session.rows("prunable", *bounds, max(limit, 0))]
    if not candidates:
        return 0
    naming = sorted({row["token"] for row in await session.rows("leases_naming", candidates)})
    locked = {row["token"] for row in await session.rows("lock_leases", naming)} if naming else set()
    held = [row["id"] for row in await session.rows("try_lock_jobs", candidates)]
    # Looked at again under their locks: another client may have requeued one, or made another depend on it.
    found = await places.find(session, held)
    needed = {row["id"] for row in await session.rows("needed", held)}
    doomed = [
        job
        for job in found.values()
        if job.id not in needed
        and job.at.finished_at is not None
        and job.at.finished_at < before.get(job.at.state, 0)
    ]
    named_by = {row["token"] for row in await session.rows("leases_naming", [job.id for job in doomed])}
    if not named_by <= locked:
        return 0  # settled under a new lease while we looked; the next round will find them
    if doomed:
        await erase(session, doomed, named_by)
        await add_tallies(session, Counter(_less(doomed)))
    return len(doomed)


async def prune_history(session: Session, ids: Sequence[str], keep: int, before: int) -> int:
    found = await places.find(session, ids)
    runs = [(job.id, job.at.first_number) for job in found.values() if not job.at.is_finished]
    if not runs:
        return 0
    return int(await session.value("prune_history", *columns(sorted(runs)), max(keep, 0), before))


def _less(doomed: Sequence[Found]) -> dict[tuple[str, str], int]:
    tally: Counter[tuple[str, str]] = Counter()
    for job in doomed:
        tally[job.job.queue, job.at.state] -= 1
    return dict(tally)
