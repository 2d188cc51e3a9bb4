"""`make_context`: the context of a handler that a test calls itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.client.options import new_ids
from taskharbor.client.task import Signature
from taskharbor.codec import decode_result, encode_payload
from taskharbor.context import Context
from taskharbor.drivers.base import Claimed
from taskharbor.records import Options, Progress, StepRecord, StopReason
from taskharbor.testing.checks import check_harbor, check_number
from taskharbor.testing.clock import TestingClock
from taskharbor.worker.handlers.steps import Steps
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import HeldLease, StoreTime

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


class HandlerContext(Context):
    """A context that no worker made. It keeps what the handler did with it.

    `reported` are the calls of `progress`, `enqueued` the signatures given to `enqueue`, `step_results` the results of
    steps by name, and `slept` the seconds of each `sleep`, which returns at once.
    """

    __slots__ = ("enqueued", "reported", "slept")

    _execution: _OwnExecution

    def __init__(self, execution: _OwnExecution) -> None:
        super().__init__(execution)
        self.reported: list[Progress] = execution.reported
        self.enqueued: list[Signature[Any]] = []
        self.slept: dict[str, float] = {}

    @property
    def step_results(self) -> dict[str, Any]:
        return {name: decode_result(kept.result) for name, kept in self._execution.kept.items()}

    def enqueue(self, signature: Signature[Any]) -> str:
        job_id = super().enqueue(signature)
        self.enqueued.append(signature)
        return job_id

    def sleep(self, name: str, seconds: float) -> Awaitable[None]:
        self.slept[name] = seconds
        slept: Awaitable[None] = _nothing() if asyncio._get_running_loop() is not None else None  # type: ignore[assignment]
        return slept

    def ask_to_stop(self, reason: StopReason) -> None:
        """Ask the handler to stop, as a worker does: `stop_requested` is this from now on."""
        self._execution.ask_to_stop(reason)


def make_context(
    harbor: Harbor | None = None,
    *,
    task: str = "task",
    payload: Mapping[str, Any] | None = None,
    attempt: int = 1,
    retry_count: int | None = None,
    correlation_id: str | None = None,
    stop_requested: StopReason | None = None,
    steps: Mapping[str, Any] | None = None,
) -> HandlerContext:
    """Make a context to call a handler with: `send(make_context(), "ada@example.com")`.

    `steps` are results that earlier attempts stored, by name. No job is stored anywhere.
    """
    from taskharbor.client.harbor import Harbor
    from taskharbor.testing.stage import current_stage

    check_number(attempt, "make_context(attempt=…)", 1)
    if retry_count is not None:
        check_number(retry_count, "make_context(retry_count=…)", 0)
    if harbor is not None:
        check_harbor(harbor, "make_context()")
    stage = current_stage()
    if harbor is None:
        harbor = stage.harbor if stage is not None else Harbor("memory://", clock=TestingClock())
    time = StoreTime(harbor.driver.clock)
    now = time.now()
    [job_id] = new_ids(1)
    claimed = Claimed(
        id=job_id,
        task=task,
        payload=encode_payload(dict(payload or {})),
        queue="default",
        priority=0,
        number=attempt,
        attempts=attempt - 1 if retry_count is None else retry_count,
        first_number=1,
        run_at=now,
        enqueued_at=now,
    )
    execution = _OwnExecution(
        claimed,
        HeldLease("test/1", now + 30_000_000),
        harbor,
        time,
        None,  # type: ignore[arg-type]  # nothing of it is asked for
        harbor.tasks.get(task),
        Options(correlation_id=correlation_id),
    )
    execution.begin(now)
    for name, result in (steps or {}).items():
        execution.kept[name] = StepRecord(msgspec.json.encode(result).decode(), 1)
    if stop_requested is not None:
        execution.ask_to_stop(stop_requested)
    return HandlerContext(execution)


class _OwnExecution(Execution):
    """An execution without a worker: what it would store is kept here."""

    reported: list[Progress] = msgspec.field(default_factory=list)
    kept: dict[str, StepRecord] = msgspec.field(default_factory=dict)

    @property
    def steps(self) -> Steps:
        if self.kept_steps is None:
            self.kept_steps = _OwnSteps(self, _KeptSteps(self.kept), self.time)
        return self.kept_steps

    def report(self, progress: Progress) -> None:
        self.reported.append(progress)


class _OwnSteps(Steps):
    def __init__(self, execution: Execution, store: _KeptSteps, time: StoreTime) -> None:
        super().__init__(execution, store, time)
        self._has_read = False

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)


class _KeptSteps:
    def __init__(self, kept: dict[str, StepRecord]) -> None:
        self._kept = kept

    async def read(self) -> dict[str, StepRecord]:
        return dict(self._kept)

    async def write(self, name: str, result: str) -> None:
        self._kept[name] = StepRecord(result, 1)


async def _nothing() -> None:
    pass
