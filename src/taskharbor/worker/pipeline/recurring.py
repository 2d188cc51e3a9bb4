"""Adds the next occurrence to the settle of a recurring job, computed anew if its schedule has changed."""

from __future__ import annotations

from msgspec.structs import replace

from taskharbor.client.options import new_id
from taskharbor.clock import seconds_to_micros
from taskharbor.drivers.base import Transition
from taskharbor.records import AttemptRecord, AttemptStatus, Options, State
from taskharbor.rules.policy import UNRUNNABLE_DELAY_MAX_SECONDS
from taskharbor.rules.recurrence import DELETED, armed, has_begun
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import StoreTime
from taskharbor.worker.pipeline.patient_store import PatientStore

ROWS_MAX = 1_000  # of a run's attempts; the limits allow fewer


class Recurring:
    """Computes the occurrence that follows an attempt of a recurring job."""

    def __init__(self, store: PatientStore, time: StoreTime) -> None:
        self._store = store
        self._time = time

    async def armed(self, execution: Execution, transition: Transition) -> Transition:
        """Return the transition with the next occurrence, by the schedule as it was when the job was claimed."""
        if execution.unreadable is not None:
            return _kept(transition)
        return await self._armed(execution, transition, execution.options, execution.claimed.version)

    async def by_the_schedule_now(self, execution: Execution, bare: Transition) -> Transition | None:
        """Do the same by the schedule as it is now; return None if the job is deleted."""
        [record] = await self._store.get([execution.claimed.id])
        if record is None:
            return None
        # A newer version wrote the schedule: use the one this worker knows until a newer worker has the job.
        if record.unreadable_options is not None:
            return await self._armed(execution, bare, execution.options, record.version)
        if record.options.recurrence is None:
            return replace(bare, detail=bare.detail or DELETED, version=record.version)
        return await self._armed(execution, bare, record.options, record.version)

    async def has_begun(self, execution: Execution) -> bool:
        return has_begun(execution.claimed, await self._rows(execution))

    async def _armed(
        self, execution: Execution, transition: Transition, options: Options, version: int
    ) -> Transition:
        now, rows = self._time.now(), await self._rows(execution)
        return armed(transition, execution.claimed, options, version, now=now, rows=rows, copy_id=new_id())

    async def _rows(self, execution: Execution) -> list[AttemptRecord]:
        """Return the earlier attempts of this run. Most runs have none, and then nothing is read."""
        claimed = execution.claimed
        earlier = claimed.number - claimed.first_number
        return await self._store.history(claimed.id, min(earlier, ROWS_MAX)) if earlier > 0 else []


def _kept(transition: Transition) -> Transition:
    """Put back a recurring job whose options only a newer version can read, and never end it here."""
    if transition.to is State.READY:
        return transition
    delay = seconds_to_micros(UNRUNNABLE_DELAY_MAX_SECONDS)
    return replace(
        transition, status=AttemptStatus.RELEASED, to=State.READY, reason=None, delay=delay, started_at=None
    )


__all__ = ["Recurring"]
