"""The built-in task that replays dead jobs with a brake: `harbor.dlq.replay(…)`.

It requeues the jobs that were dead before it was enqueued in slices of 1, 10, 100 and then 1,000. Each slice is stored
as a durable step before any of it is requeued, and how it fared as another: after a crash it goes on where it was, and
requeues nothing twice. Between two looks it sleeps, without a slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from taskharbor.acting import acting_as
from taskharbor.builtin_tasks import REPLAY
from taskharbor.client.actions import new_action
from taskharbor.clock import MICROS_PER_SECOND, to_micros
from taskharbor.codec import counted
from taskharbor.context import Context
from taskharbor.drivers.base import OperationVerdict, Requeue, Verb
from taskharbor.drivers.capabilities import Audit
from taskharbor.errors import Unrecoverable
from taskharbor.records import JobFilter, JobRecord, State
from taskharbor.rules import replaying as rules
from taskharbor.rules.operating import needs_force
from taskharbor.rules.replaying import Slice, Tally
from taskharbor.rules.retry import RetryPolicy

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Task

HISTORY_ROWS = 100  # of a job that has had more attempts in its new run, the first may be missing
RETRY = RetryPolicy(
    max_attempts=100, initial=1, maximum=60, multiplier=2, jitter=0.1
)  # of outages of the store


class Replayed(Struct, frozen=True):
    """What a replay did: its result."""

    total: int  # dead jobs that matched when it began
    requeued: int
    succeeded: int
    failed_same: int  # again, with the fingerprint that they had died of
    failed_other: dict[str, int]  # how many with each other fingerprint
    gone: int  # cancelled, discarded or deleted meanwhile
    skipped: int  # at_most_once jobs
    slices: int
    stopped: bool  # by the brake
    unjudged: int  # jobs of the last slice that had not ended when the brake stopped it
    more: bool  # there were more jobs than one replay takes; replay again


def replay_task(harbor: Harbor) -> Task[Any, Any, Any, Any]:
    """The task of a harbor."""
    from taskharbor.client.task import Task

    async def replay(ctx: Context, where: dict[str, Any], brake: float, actor: str) -> dict[str, Any]:
        """Replay dead jobs in slices, and stop when too many fail again with the same fingerprint."""
        try:
            dead = msgspec.convert(where, JobFilter)
        except msgspec.ValidationError as error:
            raise Unrecoverable(f"the filter cannot be read: {error}") from None
        with acting_as(actor):
            done = await _Replay(ctx, harbor, dead, brake).run()
        return msgspec.to_builtins(done)  # type: ignore[no-any-return]

    return Task(harbor, replay, name=REPLAY, options={"retry": RETRY, "max_attempts": RETRY.max_attempts})


class _Replay:
    def __init__(self, ctx: Context, harbor: Harbor, where: JobFilter, brake: float) -> None:
        self._ctx = ctx
        self._harbor = harbor
        self._driver = harbor.driver
        self._began_at = to_micros(ctx.job.enqueued_at)
        self._where = msgspec.structs.replace(
            where, state=State.DEAD, finished_before=_earlier(where.finished_before, self._began_at + 1)
        )
        self._brake = brake
        self._tally = Tally()

    async def run(self) -> Replayed:
        total = await self._ctx.step("total", self._count)
        cursor: str | None = None
        requeued = skipped = slices = 0
        stopped, more = False, True
        while slices < rules.SLICES_MAX:
            part = await self._ctx.step(f"slice-{slices}", self._select, cursor, rules.size_of(slices))
            skipped, cursor = skipped + part.skipped, part.cursor
            if part.seats:
                fared = await self._ctx.step(f"fared-{slices}", self._judge, part, requeued, total)
                requeued, slices = requeued + len(part.seats), slices + 1
                self._tally.join(fared)
                stopped = fared.must_stop(len(part.seats), self._brake)
                self._tell(requeued, total, stopped=stopped)
                if stopped:
                    self._warn(fared.same, len(part.seats))
            if stopped or cursor is None:
                more = False
                break
        tally = self._tally
        return Replayed(
            total, requeued, tally.succeeded, tally.same, tally.others, tally.gone, skipped, slices, stopped,
            tally.pending, more,
        )  # fmt: skip

    # -- the steps --

    async def _count(self) -> int:
        found, cursor = 0, None
        while True:
            counted = await self._driver.count(self._where, cursor=cursor)
            found, cursor = found + counted.jobs, counted.next_cursor
            if cursor is None:
                return found

    async def _select(self, cursor: str | None, size: int) -> Slice:
        """Choose the next jobs. None is requeued while the queue of one of them is paused."""
        jobs: list[JobRecord] = []
        skipped = 0
        while len(jobs) < size:
            page = await self._driver.list(self._where, cursor=cursor, limit=size - len(jobs))
            free = [job for job in page.jobs if not needs_force(job)]
            jobs += free
            skipped += len(page.jobs) - len(free)
            cursor = page.next_cursor
            if cursor is None:
                break
        if paused := await self._paused() & {job.queue for job in jobs}:
            self._ctx.progress(0, f"waits: queue {min(paused)} is paused")
            self._sleep("paused", rules.PAUSED_SECONDS)
        return rules.slice_of(jobs, await self._driver.now(), cursor, skipped)

    async def _judge(self, part: Slice, before: int, total: int) -> Tally:
        """Requeue what of the slice still has to be, and look how it fares until that is decided."""
        records = await self._driver.get([seat.id for seat in part.seats])
        dead = [
            seat.id
            for seat, job in zip(part.seats, records, strict=True)
            if job is not None and rules.is_still_dead(job, seat.number, self._began_at)
        ]
        if dead:
            await self._requeue(dead)
            records = await self._driver.get([seat.id for seat in part.seats])
        tally = Tally()
        for seat, job in zip(part.seats, records, strict=True):
            died_of = part.fingerprints[seat.fingerprint]
            fate = rules.fared(job, seat.number, died_of)
            if fate is None:
                assert job is not None, "a job that is gone has fared so"
                rows = await self._driver.history(seat.id, HISTORY_ROWS)
                fate = rules.fared_by_history(job, rows, seat.number, died_of)
            tally.add(fate, died_of)
        size = len(part.seats)
        if not tally.is_decided(size, self._brake):
            self._tell(before + size - tally.pending, total, tally)
            age = (await self._driver.now() - part.at) / MICROS_PER_SECOND
            self._sleep(f"{tally.pending} of {size} jobs", rules.wait_seconds(age, size))
        return tally

    async def _requeue(self, ids: list[str]) -> None:
        action = new_action(Verb.REQUEUE, where=self._where, details={"replay": self._ctx.job.id})
        answers = await self._harbor.dlq._apply(Requeue(only_dead=True), ids, action)
        done = sum(answer.verdict is OperationVerdict.DONE for answer in answers)
        self._ctx.logger.info("requeued %s", counted(done, "dead job"))

    # -- waiting and telling --

    async def _paused(self) -> set[str]:
        audit = Audit.offered_by(self._driver)
        if audit is not None:
            return {pause.queue for pause in await audit.pauses()}
        return {queue.name for queue in await self._driver.queues() if queue.paused}

    def _sleep(self, name: str, seconds: float) -> None:
        """End this attempt, uncounted, and begin another after a while. No step is stored: there may be many."""
        from taskharbor.worker.handlers.steps import FallAsleep

        raise FallAsleep(name, seconds)

    def _warn(self, same: int, size: int) -> None:
        self._ctx.logger.warning(
            "the brake stopped this replay: %d of %s failed again for the same cause, more than %g%%; "
            "the rest stays dead",
            same, counted(size, "job"), self._brake * 100,
        )  # fmt: skip

    def _tell(self, done: int, total: int, now: Tally | None = None, *, stopped: bool = False) -> None:
        told = Tally()
        told.join(self._tally)
        if now is not None:
            told.join(now)
        fraction = min(done / total, 1.0) if total else 1.0
        message = f"{done:,} of {total:,}: {told.succeeded:,} succeeded, {told.same:,} failed again"
        if others := sum(told.others.values()):
            message += f", {others:,} failed otherwise"
        if stopped:
            message += "; stopped by the brake"
        self._ctx.progress(fraction, message)


def _earlier(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)
