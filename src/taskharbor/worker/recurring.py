"""What the committer adds for recurring jobs: the next occurrence, computed anew when the schedule has changed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from taskharbor.client.options import new_id
from taskharbor.clock import seconds_to_micros
from taskharbor.drivers.base import Answer, Claimed, Settled, Transition
from taskharbor.job import AttemptRecord, AttemptStatus, JobRecord, Options, State
from taskharbor.policy import UNFIT_DELAY_MAX_SECONDS
from taskharbor.recurring import DELETED, armed, has_begun
from taskharbor.worker.execution import Execution
from taskharbor.worker.live import StoreTime

ROWS_MAX = 1_000  # of a run's attempts; more than any limit allows between two of its ends


class Recurring:
    """Asks the store through the committer, which does not give up while the store is away."""

    def __init__(
        self,
        time: StoreTime,
        *,
        settle: Callable[[list[Transition]], Coroutine[Any, Any, list[Settled]]],
        history: Callable[[Claimed, int], Coroutine[Any, Any, list[AttemptRecord]]],
        get: Callable[[str], Coroutine[Any, Any, JobRecord | None]],
    ) -> None:
        self._time = time
        self._settle = settle
        self._history = history
        self._get = get

    async def armed(self, execution: Execution, transition: Transition) -> Transition:
        """With the occurrence that follows, by the schedule as it was when the job was claimed."""
        if execution.unreadable is not None:
            return _kept(transition)
        return await self._armed(execution, transition, execution.options, execution.claimed.version)

    async def settle_changed(
        self, execution: Execution, bare: Transition, settled: Settled
    ) -> tuple[Transition, Settled]:
        """The schedule was changed, paused or deleted meanwhile, and that wins over what this attempt knew."""
        transition = bare
        while settled.answer is Answer.CHANGED:
            record = await self._get(execution.claimed.id)
            if record is None:
                return transition, Settled(Answer.NOT_RUNNING, at=settled.at)
            if (
                record.unreadable_options is not None
            ):  # of a newer version: by what we know, until that one has it
                transition = await self._armed(execution, bare, execution.options, record.version)
            elif record.options.recurrence is None:
                transition = replace(bare, detail=bare.detail or DELETED, version=record.version)
            else:
                transition = await self._armed(execution, bare, record.options, record.version)
            [settled] = await self._settle([transition])
        return transition, settled

    async def has_begun(self, execution: Execution) -> bool:
        return has_begun(execution.claimed, await self._rows(execution))

    async def _armed(
        self, execution: Execution, transition: Transition, options: Options, version: int
    ) -> Transition:
        now, rows = self._time.now(), await self._rows(execution)
        return armed(transition, execution.claimed, options, version, now=now, rows=rows, copy_id=new_id())

    async def _rows(self, execution: Execution) -> list[AttemptRecord]:
        """The earlier attempts of this run; mostly there are none, and nothing is read."""
        claimed = execution.claimed
        earlier = claimed.number - claimed.first_number
        return await self._history(claimed, min(earlier, ROWS_MAX)) if earlier > 0 else []


def _kept(transition: Transition) -> Transition:
    """What recurs by options that only a newer version can read is put back for that one, and never ended here."""
    if transition.to is State.READY:
        return transition
    delay = seconds_to_micros(UNFIT_DELAY_MAX_SECONDS)
    return replace(
        transition, status=AttemptStatus.RELEASED, to=State.READY, reason=None, delay=delay, started_at=None
    )


__all__ = ["Recurring"]
