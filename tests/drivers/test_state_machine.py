"""Every driver of ours against the memory reference, and the machine itself against drivers with planted bugs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import Phase, seed
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from taskharbor import conformance
from taskharbor.clock import Clock
from taskharbor.conformance.machine import bound, machine_settings
from taskharbor.drivers.base import (
    Action,
    Claim,
    ClaimRequest,
    Delete,
    Enqueued,
    Operation,
    OperationResult,
    OperationVerdict,
    SettleAnswer,
    SettleResult,
    Transition,
)
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.records import NewJob, StepRecord
from tests.drivers.test_conformance import fresh_sqlite

# A failure is shrunk to its shortest story before it is told, which may take minutes.
pytestmark = pytest.mark.timeout(900)

# Compared with itself: this proves only that the machine tells no story that the reference cannot follow.
TestMemoryMachine = conformance.state_machine(MemoryDriver, examples=25)
# Enough to meet every verb in many orders; `make faults` tells many more.
STORIES = int(os.environ.get("TASKHARBOR_CONFORMANCE_EXAMPLES", "30"))
TestSQLiteMachine = conformance.state_machine(fresh_sqlite, examples=STORIES)


# -- the machine can fail ------------------------------------------------------------------------


class ForgetsNumbers(MemoryDriver):
    """Settles whatever attempt is current, and not the one that was named."""

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        records = await self.get([each.job_id for each in transitions], now=now)
        pairs = zip(transitions, records, strict=True)
        current = [replace(each, number=record.number) if record else each for each, record in pairs]
        return await super().settle(current, now=now)


class IgnoresPause(MemoryDriver):
    """Shows that a queue is paused, and hands out its jobs all the same."""

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Claim:
        paused = [queue.name for queue in await self.queues(now=now) if queue.paused]
        for queue in paused:
            await self.pause(queue, False)
        claim = await super().claim(request, now=now)
        for queue in paused:
            await self.pause(queue, True)
        return claim


class KeepsKeysOfTheDeleted(MemoryDriver):
    """Answers a key with a job that is gone."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ghosts: dict[tuple[str, str], str] = {}

    async def operate(
        self,
        operation: Operation,
        ids: Sequence[str],
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> list[OperationResult]:
        records = await self.get(ids, now=now)
        answers = await super().operate(operation, ids, now=now, action=action)
        for record, answer in zip(records, answers, strict=True):
            if isinstance(operation, Delete) and answer.verdict is OperationVerdict.DONE and record:
                self._ghosts[record.queue, record.idempotency_key or ""] = record.id
        return answers

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        ghosts = [self._ghosts.get((job.queue, job.idempotency_key or "no")) for job in jobs]
        return [
            replace(answer, id=ghost, existed=True) if ghost else answer
            for ghost, answer in zip(ghosts, await super().enqueue(jobs, now=now), strict=True)
        ]


class LosesThePlace(MemoryDriver):
    """Sends a job that is handed back to the end of the line."""

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        return await super().settle([replace(each, delay=each.delay or 0) for each in transitions], now=now)


class BelievesEveryOutcome(MemoryDriver):
    """Answers done to a second outcome of an attempt that is over."""

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        answers = await super().settle(transitions, now=now)
        return [replace(each, answer=SettleAnswer.DONE) if each.recorded else each for each in answers]


class RemembersStepsForEver(MemoryDriver):
    """Shows the steps of an occurrence that is over."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._steps: dict[str, dict[str, StepRecord]] = {}

    async def steps(self, job_id: str) -> dict[str, StepRecord]:
        return self._steps.setdefault(job_id, {}) | await super().steps(job_id)

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        for each in transitions:
            self._steps[each.job_id] = await self.steps(each.job_id)
        return await super().settle(transitions, now=now)


@pytest.mark.parametrize(
    "broken",
    [
        ForgetsNumbers,
        IgnoresPause,
        KeepsKeysOfTheDeleted,
        LosesThePlace,
        BelievesEveryOutcome,
        RemembersStepsForEver,
    ],
)
def test_state_machine_finds_planted_bugs(broken: type[MemoryDriver]) -> None:
    """A seed that is unlucky goes on for minutes, and another finds it at once: a little of each."""
    settings = machine_settings(50, database=None, phases=[Phase.generate])
    for number in range(20):
        try:
            run_state_machine_as_test(seed(number)(bound(broken)), settings=settings)
        except AssertionError as error:
            assert "the driver differs from the reference" in str(error)  # noqa: PT017 - most seeds raise nothing
            return
    pytest.fail("the machine does not find it")
