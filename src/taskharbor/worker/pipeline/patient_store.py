"""The store as a worker's stages see it: they repeat each call until the store answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from taskharbor.drivers.base import JobSource, SettleAnswer, SettleResult, StepNote, Transition
from taskharbor.drivers.capabilities import Steps, Workflows
from taskharbor.errors import OperationRefused
from taskharbor.records import AttemptRecord, JobRecord, MemberResult, StepRecord, WorkflowRecord
from taskharbor.worker.upkeep.retrying import Outages

T = TypeVar("T")


class PatientStore:
    """A driver whose calls wait while the store is away. Every call can be repeated, so nothing is lost or doubled.

    It raises errors that are no outage: `OperationRefused`, and what the store objects to in the content.
    Calls that must not wait, such as a heartbeat, use `driver`.
    """

    def __init__(self, driver: JobSource, outages: Outages) -> None:
        self.driver = driver
        self.outages = outages

    async def repeat(
        self, ask: Callable[[], Coroutine[Any, Any, T]], complaint: str, fields: dict[str, Any] | None = None
    ) -> T:
        """Call `ask` until the store answers, and log the complaint while it is away."""
        return await self.outages.retry_until_available(ask, complaint, fields, raised=(OperationRefused,))

    async def settle(self, transitions: Sequence[Transition]) -> list[SettleResult]:
        return await self.repeat(lambda: self.driver.settle(transitions), "the store cannot settle")

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._read(lambda: self.driver.get(ids))

    async def get_workflows(self, ids: Sequence[str]) -> list[WorkflowRecord | None]:
        return await self._read(lambda: Workflows.of(self.driver).get_workflows(ids))

    async def history(self, job_id: str, limit: int) -> list[AttemptRecord]:
        return await self._read(lambda: self.driver.history(job_id, limit))

    async def steps(self, job_id: str) -> dict[str, StepRecord]:
        steps = Steps.of(self.driver)
        return await self._read(lambda: steps.steps(job_id))

    async def results(self, ids: Sequence[str], *, bytes_limit: int) -> list[list[MemberResult]]:
        return await self._read(lambda: Workflows.of(self.driver).results(ids, bytes_limit=bytes_limit))

    async def _read(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.repeat(read, "the store cannot be read")

    async def keep_step(self, note: StepNote, fields: dict[str, Any]) -> SettleAnswer:
        """Store a step, however long an outage lasts: a step that is done must not be lost."""
        steps = Steps.of(self.driver)
        [answer] = await self.repeat(lambda: steps.note([note]), "the store cannot keep a step", fields)
        return answer
