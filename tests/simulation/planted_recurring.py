"""Bugs that are planted in recurring jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor.drivers.memory import enqueue, settle
from taskharbor.drivers.memory.store import Store
from taskharbor.records import Misfire, State
from taskharbor.rules import operating, recurrence, settling
from taskharbor.schedule import parse
from taskharbor.worker.pipeline import executor, preflight
from taskharbor.worker.pipeline import recurring as rearming
from tests.simulation.planted import _both
from tests.simulation.planted_story import plant
from tests.simulation.recurring_world import HecticWorld, RecurringWorld


def _armed(change: Callable[[Any, Any, Any], Any]) -> Any:
    """Whoever arms a worker's transition is followed by a change to what came out."""
    armed = recurrence.armed

    def changed(transition: Any, job: Any, options: Any, version: int, **more: Any) -> Any:
        return change(armed(transition, job, options, version, **more), transition, options)

    return mock.patch.object(rearming, "armed", changed)


def _rearmed(change: Callable[[Any, Any, Any], None]) -> Any:
    """The store's re-arming, and a change to the job afterwards, which sees it as it was before."""
    rearm = Store.rearm

    def changed(store: Any, job: Any, to: Any) -> None:
        before = {"steps": dict(job.steps), "attempts": job.at.attempts}
        rearm(store, job, to)
        change(job, before, to)

    return mock.patch.object(Store, "rearm", changed)


@plant("an occurrence that failed for good ends the schedule", RecurringWorld, "re-arming")
def failure_ends_it() -> Any:
    def bare(armed: Any, transition: Any, options: Any) -> Any:
        return transition if transition.to is State.DEAD else armed

    return _armed(bare)


@plant("the next run has the steps of the last one", RecurringWorld, "steps")
def steps_stay() -> Any:
    return _rearmed(lambda job, before, _: job.steps.update(before["steps"]))


@plant("the next run has the failures of the last one", RecurringWorld, "re-arming")
def failures_stay() -> Any:
    return _rearmed(lambda job, before, to: setattr(job, "at", replace(to, attempts=before["attempts"])))


@plant("an interval is counted from the end of a run", RecurringWorld, "next due")
def drifts() -> Any:
    def late(recurrence: Any, run: Any, now: int) -> int:
        return parse(recurrence.schedule).next_micros(now)

    return mock.patch.object(recurrence, "next_due", late)


@plant("a missed occurrence is not made up for", RecurringWorld, "next due")
def not_made_up() -> Any:
    due = recurrence.next_due

    def skipping(recurrence: Any, run: Any, now: int) -> int:
        return due(replace(recurrence, misfire=Misfire.SKIP), run, now)

    return mock.patch.object(recurrence, "next_due", skipping)


@plant("every missed occurrence is made up for", RecurringWorld, "next due")
def all_made_up() -> Any:
    def one_by_one(recurrence: Any, run: Any, now: int) -> int:
        return parse(recurrence.schedule).next_micros(run.due_at, run.due_at)

    return mock.patch.object(recurrence, "next_due", one_by_one)


@plant("an occurrence that is too late is run anyway", HecticWorld, "misfire")
def late_ones_run() -> Any:
    return _both(
        mock.patch.object(executor, "is_missed", return_value=False),
        mock.patch.object(preflight, "is_missed", return_value=False),
    )


@plant("a run that has begun is dropped as missed", HecticWorld, "misfire")
def begun_ones_dropped() -> Any:
    return mock.patch.object(rearming, "has_begun", return_value=False)


@plant("a settle ignores that the schedule was changed", RecurringWorld, "")
def version_unheeded() -> Any:
    settle_one = settle._settle

    def heedless(store: Any, transition: Any, now: int) -> Any:
        job = store.jobs.get(transition.job_id)
        if job is not None and transition.occurrence is not None:
            occurrence = replace(transition.occurrence, version=job.row.version)
            transition = replace(transition, occurrence=occurrence)
        return settle_one(store, transition, now)

    return mock.patch.object(settle, "_settle", heedless)


@plant("an extra run consumes an occurrence", RecurringWorld, "next due")
def extra_consumes() -> Any:
    of = recurrence.Run.of.__func__  # type: ignore[attr-defined]

    def ordinary(cls: Any, *args: Any) -> Any:
        return replace(of(cls, *args), is_extra=False)

    return mock.patch.object(recurrence.Run, "of", classmethod(ordinary))


@plant("a request to run now is forgotten if the schedule is running", RecurringWorld, "run now")
def again_forgotten() -> Any:
    def once(armed: Any, transition: Any, options: Any) -> Any:
        asked = options.recurrence is not None and armed.occurrence is not None
        if asked and not options.recurrence.paused:
            return replace(armed, occurrence=replace(armed.occurrence, run_at=None))
        return armed

    return _armed(once)


@plant("the retry of a paused schedule is not parked", HecticWorld, "pause")
def retry_not_parked() -> Any:
    def delayed(armed: Any, transition: Any, options: Any) -> Any:
        return replace(armed, delay=transition.delay) if armed.to is State.READY else armed

    return _armed(delayed)


@plant("an occurrence that was to be cancelled is retried", HecticWorld, "")
def cancel_unheeded() -> Any:
    return mock.patch.object(settling, "cancel_wins", return_value=False)


@plant("an operator's verb that relies on an earlier run is not refused", HecticWorld, "")
def stale_view() -> Any:
    return mock.patch.object(operating, "has_moved_on", return_value=False)


@plant("a failed occurrence leaves no dead letter", RecurringWorld, "dead letter")
def no_dead_letter() -> Any:
    return mock.patch.object(settle, "insert_dead", return_value=None)


@plant("a cancelled occurrence leaves a dead letter", RecurringWorld, "dead letter")
def too_many_dead_letters() -> Any:
    insert = enqueue.insert_dead

    def twice(store: Any, new: Any, *more: Any) -> None:
        insert(store, new, *more)
        insert(store, replace(new, id=f"{new.id[:-1]}f"), *more)

    return mock.patch.object(settle, "insert_dead", twice)


@plant("a schedule that was deleted while it ran goes on", HecticWorld, "delete")
def deleted_goes_on() -> Any:
    by_the_schedule = rearming.Recurring.by_the_schedule_now

    async def by_its_own(self: Any, execution: Any, bare: Any) -> Any:
        [record] = await self._store.get([execution.claimed.id])
        if record is None or record.options.recurrence is not None:
            return await by_the_schedule(self, execution, bare)
        return await self._armed(execution, bare, execution.options, record.version)

    return mock.patch.object(rearming.Recurring, "by_the_schedule_now", by_its_own)
