"""What operators do to jobs, and what age does.

Whoever changes a job that is not running holds the lock of its `jobs` row, and rewrites the row of its place:
a claim, which takes no such lock, takes the place's row instead, so that one of the two finds it gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import UNSET, structs

from taskharbor.drivers.base import (
    NOT_BEGUN,
    OPERATOR,
    Cancel,
    Delete,
    Discard,
    Occurrence,
    Operated,
    Operation,
    Requeue,
    RunNow,
    Seen,
    Update,
    Verdict,
    with_dependants,
)
from taskharbor.drivers.postgres import places, workflows
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.enqueue import columns
from taskharbor.drivers.postgres.places import Found, Place, encoded_options
from taskharbor.drivers.postgres.settle import add_tallies
from taskharbor.job import State
from taskharbor.lifecycle import TERMINAL, allows


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


async def operate(session: Session, operation: Operation, ids: Sequence[str]) -> dict[str, Operated]:
    """Inside a transaction, to distinct ids; the ones that moved while we looked are missing from the answer."""
    return await _Operating(session, operation).operate(ids)


class _Operating:
    def __init__(self, session: Session, operation: Operation) -> None:
        self._session = session
        self._operation = operation
        self._now = 0
        self._locked: set[str] = set()  # tokens
        self._held: set[str] | None = None  # jobs, if only some could be had
        self._tally: Counter[tuple[str, str]] = Counter()
        self._kept = workflows.Kept(session)
        self._needed: set[str] = set()  # jobs that somebody depended on when we began
        # Tokens of the leases that name an ended one; None if not all of them are locked.
        self._named: set[str] | None = None
        self._doomed: list[Found] = []  # ended jobs to erase, all at once: there may be thousands

    async def operate(self, ids: Sequence[str]) -> dict[str, Operated]:
        session = self._session
        if isinstance(self._operation, Cancel) and self._operation.occurrence is None:
            return await self._cancel(ids)
        await self._lock(ids)
        self._now = await session.now()
        found = await places.find(Session(session.connection, session.sql, self._now), ids)
        if isinstance(self._operation, Delete):
            await self._look_who_stays(found)
        answers: dict[str, Operated] = {}
        for job_id in ids:
            if job_id not in found:
                answers[job_id] = Operated(job_id, Verdict.NOT_FOUND)
                continue
            if self._held is not None and job_id not in self._held:
                continue  # another transaction makes jobs depend on it, or changes it
            place = found[job_id].place
            state = place.state
            verdict: Verdict | None = Verdict.CONFLICT
            # One that is nowhere can be brought back, or deleted; there is nothing to discard.
            if allows(state, self._operation) and not (
                place.nowhere and isinstance(self._operation, Discard)
            ):
                verdict = await self._do(found[job_id])
            if verdict is not None:
                answers[job_id] = Operated(job_id, verdict, state)
        await self._erase_doomed()
        await add_tallies(session, self._tally)
        if isinstance(self._operation, Requeue):
            # When all that was asked for has been done: what is named has what was asked, not what follows.
            await workflows.restore_dependants(session, _done(answers), self._now)
        return answers

    async def _cancel(self, ids: Sequence[str]) -> dict[str, Operated]:
        """All at once: there may be thousands."""
        session = self._session
        self._now = await session.now()
        known = sorted(job_id for job_id in ids if places.is_id(job_id))
        answers = {job_id: Operated(job_id, Verdict.NOT_FOUND) for job_id in ids if not places.is_id(job_id)}
        for row in await session.rows("cancel_jobs", known, session.given_now):
            state = None if row["state"] is None else State(row["state"])
            answers[row["id"]] = Operated(row["id"], Verdict(row["verdict"]), state)
        missed = [job_id for job_id in known if job_id not in answers]
        for job_id, job in (await places.find(session, missed)).items():
            if job.place.nowhere:  # the others have moved, and are looked for again
                answers[job_id] = Operated(job_id, Verdict.CONFLICT, job.place.state)
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

    async def _do(self, job: Found) -> Verdict | None:
        """None, with nothing done, if the job is no longer where it was found."""
        match self._operation:
            case Cancel() as cancel:
                return await self._cancel_one(job, cancel)
            case Discard():
                return await self._discard(job)
            case Delete():
                return await self._delete(job)
            case RunNow():
                return await self._run_now(job)
            case Requeue() as requeue:
                return await self._requeue(job, requeue)
            case Update() as update:
                return await self._update(job, update)

    async def _cancel_one(self, job: Found, cancel: Cancel) -> Verdict | None:
        """An occurrence: the next one takes its place."""
        place = job.place
        if place.token is not None:
            if place.token not in self._locked:
                return None  # claimed between our locking and our looking
            await self._session.do("request_cancel", place.token, job.id)
            return Verdict.REQUESTED
        assert cancel.occurrence is not None, "the others are cancelled all at once"
        if place.state is State.WAITING:
            return Verdict.CONFLICT
        if cancel.occurrence.version != job.row["version"] or _has_moved_on(place, cancel.seen):
            return Verdict.CHANGED
        if not await self._leave_place(job):
            return None
        await self._cancel_occurrence(job, cancel.occurrence)
        return Verdict.DONE

    async def _cancel_occurrence(self, job: Found, next_one: Occurrence) -> None:
        session, place = self._session, job.place
        number = place.number + 1
        run_at = next_one.due_at if next_one.run_at is None else next_one.run_at
        row = (job.id, number, place.attempts, OPERATOR, self._now, run_at, NOT_BEGUN)
        await session.do("cancelled_occurrence", *row)
        await session.do("delete_steps", [job.id])
        await session.do("delete_progress", [job.id])
        delivery = job.row["delivery"]
        ready = (job.id, run_at, number, 0, number + 1, next_one.due_at, None, delivery, False)
        await session.do("insert_ready", *columns([ready]))

    async def _discard(self, job: Found) -> Verdict | None:
        if not await self._session.value("discard", job.id, self._now):
            return None
        self._tally[job.row["queue"], State.DEAD] -= 1
        self._tally[job.row["queue"], State.CANCELLED] += 1
        return Verdict.DONE

    async def _look_who_stays(self, found: dict[str, Found]) -> None:
        """Once for all of them: which ones somebody depends on, and which leases still name one that has ended."""
        session, ids = self._session, sorted(found)
        ended = [job_id for job_id in ids if found[job_id].place.state in TERMINAL]
        await self._kept.look(ids)
        self._needed = {row["id"] for row in await session.rows("needed", ids)}
        named = {row["token"] for row in await session.rows("leases_naming", ended)}
        self._named = named if named <= self._locked else None

    async def _delete(self, job: Found) -> Verdict | None:
        """In the order given, since a job goes only after those that depend on it."""
        session = self._session
        if job.id in self._needed:
            await self._erase_doomed()  # perhaps those that depended on it
            if await session.rows("needed", [job.id]):
                return Verdict.CONFLICT
        if await self._kept.holds(job.id):
            return Verdict.CONFLICT
        if job.place.nowhere:
            await session.do("take_strays", job.id)
        if job.place.state in TERMINAL and self._named is not None:
            self._doomed.append(job)  # it can wait: under the lock of its row nobody takes it from there
        else:
            naming = {row["token"] for row in await session.rows("leases_naming", [job.id])}
            if not naming <= self._locked or not await self._leave_place(job):
                return None
            await erase(session, [job], naming)
        if job.place.state in TERMINAL and not job.place.nowhere:
            self._tally[job.row["queue"], job.place.state] -= 1
        return Verdict.DONE

    async def _erase_doomed(self) -> None:
        doomed, self._doomed = self._doomed, []
        if doomed:
            assert self._named is not None, "nobody is doomed otherwise"
            await erase(self._session, doomed, self._named)

    async def _run_now(self, job: Found) -> Verdict | None:
        if not await self._leave_place(job):
            return None
        await self._session.do("set_run_at", job.id, self._now, job.row["expires_at"])
        await self._enter(job, structs.replace(job.place, run_at=self._now))
        return Verdict.DONE

    async def _requeue(self, job: Found, requeue: Requeue) -> Verdict | None:
        """A new run: the attempt number goes on, the failures begin anew."""
        session, place, now = self._session, job.place, self._now
        if place.nowhere:
            await session.do("take_strays", job.id)
        elif not await session.value("take_ended", job.id):
            return None
        run_at = now if requeue.run_at is None else requeue.run_at
        stored = job.row["expires_at"]
        expires_at = stored if stored is None or stored > now else None
        await session.do("set_run_at", job.id, run_at, expires_at)
        await session.do("delete_progress", [job.id])
        if not place.nowhere:
            self._tally[job.row["queue"], place.state] -= 1
        new = structs.replace(
            place,
            run_at=run_at,
            attempts=0 if requeue.reset_attempts else place.attempts,
            first_number=place.number + 1,
            expires_at=expires_at,
        )
        # Under the lock of its row, which a settle of its members needs as well: it cannot miss the last one.
        if await session.value("waits_for_somebody", job.id):
            await session.do("move_latest_attempt", job.id, run_at)
            row = (job.id, new.number, new.attempts, new.first_number, new.expires_at, new.delivery)
            await session.do("insert_waiting", *columns([row]))
        else:
            await self._enter(job, new)
        return Verdict.DONE

    async def _update(self, job: Found, update: Update) -> Verdict | None:
        session, row = self._session, job.row
        if update.version not in (None, row["version"]) or _has_moved_on(job.place, update.seen):
            return Verdict.CHANGED
        if update.queue not in (UNSET, row["queue"]) and row["idempotency_key"] is not None:
            return Verdict.CONFLICT
        running = job.place.state is State.RUNNING
        if running:  # it stays where it is
            update = structs.replace(update, run_at=UNSET, due_at=UNSET, expires_at=UNSET, at_due=False)
        elif update.at_due and (due_at := _updated_due_at(job, update)) is not None:
            update = structs.replace(update, run_at=due_at)
        new_place = await self._updated_place(job, update)
        if running:
            pass
        elif job.place.state is State.WAITING:
            if not await session.value("update_waiting", job.id, new_place.expires_at, new_place.delivery):
                return None
        elif not await self._leave_place(job):
            return None
        changed_options = _given(update, "max_attempts", "timeout", "tags")
        new_options = job.options if update.options is UNSET else update.options
        new_options = structs.replace(new_options, **changed_options)
        options = encoded_options(new_options)
        # What cannot be read stays as it is, unless it is said what shall stand there.
        if not changed_options and update.options is UNSET and job.unreadable_options is not None:
            options = job.unreadable_options
        names = ("queue", "task", "delivery", "priority", "run_at", "payload", "expires_at")
        changed = {name: row[name] for name in names}
        changed |= _given(update, *changed)
        await session.do("update_job", job.id, *changed.values(), options)
        if new_options.tags != job.options.tags:
            await delete_tags(session, [job])
            tags = [(tag, job.id) for tag in sorted(set(new_options.tags))]
            if tags:
                await session.do("insert_tags", *columns(tags))
        if running:
            pass
        elif job.place.state is State.WAITING:
            await session.do("move_latest_attempt", job.id, new_place.run_at)
        else:
            await self._enter(job, new_place)
        return Verdict.DONE

    async def _updated_place(self, job: Found, update: Update) -> Place:
        place = job.place
        if update.run_at is not UNSET:
            place = structs.replace(place, run_at=update.run_at)
        if update.due_at is not UNSET:
            place = structs.replace(place, due_at=update.due_at)
        if update.delivery is not UNSET:
            place = structs.replace(place, delivery=update.delivery)
        # An expiry concerns only the first begin of a run.
        if update.expires_at is not UNSET and not await self._session.value(
            "run_has_begun", job.id, place.first_number
        ):
            place = structs.replace(place, expires_at=update.expires_at)
        return place

    # -- moving --

    async def _leave_place(self, job: Found) -> bool:
        """Take a job that is not running out of wherever it is; whether it was still there."""
        place = job.place
        if place.state is State.WAITING:
            return bool(await self._session.value("take_waiting", job.id))
        if place.state in (State.READY, State.SCHEDULED):
            key = (place.suspect, job.row["queue"], -job.row["priority"], place.run_at, job.id)
            return bool(await self._session.value("take_ready", *key))
        return True  # ended: nobody but an operator, who would hold the lock we hold, takes it from there

    async def _enter(self, job: Found, to: Place) -> None:
        """Into the order, under the key that can be computed again."""
        await self._session.do("move_latest_attempt", job.id, to.run_at)
        row = (
            job.id, to.run_at, to.number, to.attempts, to.first_number, to.due_at, to.expires_at, to.delivery,
            to.suspect,
        )  # fmt: skip
        await self._session.do("insert_ready", *columns([row]))


def _has_moved_on(place: Place, seen: Seen | None) -> bool:
    return seen is not None and seen != Seen(place.number, place.state is State.RUNNING)


def _updated_due_at(job: Found, update: Update) -> int | None:
    if update.due_at is UNSET or job.place.state is State.WAITING:
        return job.place.due_at
    return update.due_at


def _done(answers: dict[str, Operated]) -> list[str]:
    return sorted(job_id for job_id, answer in answers.items() if answer.verdict is Verdict.DONE)


def _given(update: Update, *names: str) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(update, name)) is not UNSET}


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
    tags = sorted({(tag, job.id) for job in jobs for tag in job.options.tags})
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
    """Small batches that wait for nobody, and that nobody but an operator of the same jobs waits for."""
    await workflows.forget(session, before)
    bounds = [before.get(state) for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)]
    candidates = [row["id"] for row in await session.rows("prunable", *bounds, max(limit, 0))]
    if not candidates:
        return 0
    naming = sorted({row["token"] for row in await session.rows("leases_naming", candidates)})
    locked = {row["token"] for row in await session.rows("lock_leases", naming)} if naming else set()
    held = [row["id"] for row in await session.rows("try_lock_jobs", candidates)]
    # Looked at again under their locks: somebody may have requeued one, or made another depend on it.
    found = await places.find(session, held)
    needed = {row["id"] for row in await session.rows("needed", held)}
    doomed = [
        job
        for job in found.values()
        if job.id not in needed
        and job.place.state in before
        and job.place.finished_at is not None
        and job.place.finished_at < before[job.place.state]
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
    runs = [(job.id, job.place.first_number) for job in found.values() if job.place.state not in TERMINAL]
    if not runs:
        return 0
    return int(await session.value("prune_history", *columns(sorted(runs)), max(keep, 0), before))


def _less(doomed: Sequence[Found]) -> dict[tuple[str, str], int]:
    tally: Counter[tuple[str, str]] = Counter()
    for job in doomed:
        tally[job.row["queue"], str(job.place.state)] -= 1
    return dict(tally)
