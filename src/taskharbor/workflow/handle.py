"""`Workflow`: a graph that a caller builds step by step, or a stored workflow as it was read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import msgspec
from msgspec import Struct

from taskharbor.client.handle import Job
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.waiting import Pending, until_ended
from taskharbor.clock import from_micros
from taskharbor.codec import agreeing, counted, shorten
from taskharbor.drivers.base import member_id
from taskharbor.drivers.capabilities import Workflows
from taskharbor.errors import (
    ConfigurationError,
    JobNotFound,
    WorkflowCancelled,
    WorkflowNotFound,
    WorkflowStuck,
)
from taskharbor.records import FailureTask, JobFilter, JobRecord, State, WorkflowRecord
from taskharbor.sync import run_inline, run_on_loop_thread
from taskharbor.workflow.graph import Part, Woven, filled, indexes_in, value_of
from taskharbor.workflow.parts import Composition, Node, Weaving, Written

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

PAGE = 500
NAMED_MAX = 5  # members that an error's text names


class WorkflowState(StrEnum):
    """The state of a workflow as a whole."""

    RUNNING = "running"
    STUCK = "stuck"  # members are dead or cancelled: it cannot end until they are retried
    SUCCEEDED = "succeeded"
    CANCELLED = (
        "cancelled"  # by an operator, or because a member failed and the others were cancelled with it
    )


WorkflowStateName = Literal["running", "stuck", "succeeded", "cancelled"]


def checked_state(value: object) -> WorkflowState:
    try:
        return WorkflowState(str(value))
    except ValueError:
        raise ConfigurationError(
            f"no state of a workflow is called {shorten(value)}; the states are {', '.join(WorkflowState)}"
        ) from None


UNREADABLE_MAX = 200  # characters that are shown of it


class About(Struct, frozen=True, omit_defaults=True):
    """The part of a workflow that the store keeps without reading it."""

    shape: Any
    on_failure: Literal["wait", "cancel"] = "wait"
    failure_task: FailureTask | None = None

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> About:
        """Decode it. Text that cannot be read, from a newer version or a manual edit, gives an unknown shape."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (ValueError, RecursionError):
            return cls({"unreadable": text[:UNREADABLE_MAX]})


class WorkflowProgress(Struct, frozen=True):
    """How many of its jobs have succeeded."""

    done: int
    total: int

    @property
    def fraction(self) -> float:
        return self.done / self.total if self.total else 1.0

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,}"


def state_of(record: WorkflowRecord, on_failure: str) -> WorkflowState:
    if record.succeeded == record.total:
        return WorkflowState.SUCCEEDED
    if on_failure == "wait" and (record.dead or (record.cancelled and record.waiting)):
        return WorkflowState.STUCK
    if record.active:
        return WorkflowState.RUNNING
    return WorkflowState.STUCK if record.waiting else WorkflowState.CANCELLED


class Workflow(Composition):
    """A graph of jobs: built with `add`, and stored by `enqueue`.

        workflow = Workflow()
        load = workflow.add(load_orders.s("2026-01"))
        check = workflow.add(check_stock.s(), after=load)
        workflow.add(report.s(), after=[load, check])
        stored = workflow.enqueue()

    What comes `after` one step takes its result; what comes after a list of steps takes a list of their results.
    A stored workflow is as it was when it was read; `refresh()` returns a newer one.
    """

    def __init__(self) -> None:
        self._weaving: Weaving | None = Weaving()
        self._kept: tuple[WorkflowRecord, Harbor] | None = None
        self.existed = False  # it was stored before, under the same id or key

    @classmethod
    def _stored(cls, record: WorkflowRecord, harbor: Harbor, *, existed: bool = True) -> Workflow:
        workflow = cls()
        workflow._weaving = None
        workflow._kept = (record, harbor)
        workflow.existed = existed
        return workflow

    def __repr__(self) -> str:
        if self._kept is None:
            return f"<workflow of {counted(len(self._woven.parts), 'step')}, not enqueued>"
        return f"Workflow(id={self.id!r}, state={str(self.state)!r}, progress={str(self.progress)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workflow) and self._kept is not None and self._kept == other._kept

    def __hash__(self) -> int:
        return hash(self._kept[0].id) if self._kept is not None else id(self)

    # -- building --

    def add(
        self,
        step: Written,
        after: Node | str | Iterable[Node | str] | None = None,
        *,
        name: str | None = None,
    ) -> Node:
        """Add a step after others; a name may be that of a step added later."""
        return self._woven.add(step, after, name)

    @property
    def _woven(self) -> Weaving:
        if self._weaving is None:
            raise ConfigurationError(
                f"workflow {self.id} is stored already; put another one together with Workflow()"
            )
        return self._weaving

    def _part(self) -> Part:
        if not self._woven.parts:
            raise ConfigurationError("a Workflow() needs at least one step; workflow.add(task.s(…))")
        return Woven(self._woven.parts, self._woven.after)

    def _copy(self) -> Self:
        copy = type(self)()
        copy._weaving = self._woven.copy()
        return copy

    # -- what it is --

    @property
    def _record(self) -> WorkflowRecord:
        return self._stored_parts[0]

    @property
    def _harbor(self) -> Harbor:
        return self._kept[1] if self._kept is not None else super()._harbor

    @property
    def _stored_parts(self) -> tuple[WorkflowRecord, Harbor]:
        if self._kept is None:
            raise ConfigurationError(
                "this workflow is not enqueued yet; what enqueue() gives is the stored one"
            )
        return self._kept

    @property
    def _about(self) -> About:
        return About.decode(self._record.about)

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def idempotency_key(self) -> str | None:
        return self._record.idempotency_key

    @property
    def enqueued_at(self) -> datetime:
        return from_micros(self._record.enqueued_at)

    @property
    def on_failure(self) -> str:
        return self._about.on_failure

    @property
    def shape(self) -> Any:
        """How it was composed, in JSON: chains, groups and chords of the indexes of its jobs."""
        return self._about.shape

    @property
    def state(self) -> WorkflowState:
        return state_of(self._record, self._about.on_failure)

    @property
    def progress(self) -> WorkflowProgress:
        return WorkflowProgress(self._record.succeeded, self._record.total)

    @property
    def counts(self) -> dict[str, int]:
        """How many of its jobs are succeeded, dead, cancelled, waiting, and active: scheduled, ready or running."""
        r = self._record
        return {
            "succeeded": r.succeeded,
            "dead": r.dead,
            "cancelled": r.cancelled,
            "waiting": r.waiting,
            "active": r.active,
        }

    @property
    def jobs(self) -> WorkflowJobs:
        """Its jobs, in order; iterating reads them from the store."""
        record, harbor = self._stored_parts
        return WorkflowJobs(record.id, record.total, harbor)

    # -- reading and changing it --

    async def arefresh(self) -> Workflow:
        """Read the workflow again."""
        return await self._harbor.workflows.aget(self.id)

    refresh = sync_method(arefresh)

    async def acancel(self) -> Workflow:
        """Cancel the members that have not begun, and ask running ones to stop."""
        return await self._harbor.workflows.acancel(self.id)

    cancel = sync_method(acancel)

    async def aretry(self, *, force: bool = False) -> Workflow:
        """Begin a new run of dead and cancelled members; see `harbor.workflows.retry`."""
        return await self._harbor.workflows.aretry(self.id, force=force)

    retry = sync_method(aretry)

    async def aresult(self, timeout: float | None = None) -> Any:
        """Wait for it to succeed, and return its result: the last step's, or the list of a group's.

        Raises WorkflowStuck, which names the members, when it cannot end by itself; WorkflowCancelled,
        WorkflowNotFound, and TimeoutError when `timeout` seconds have passed.
        """
        return await until_ended(self._driver, timeout, self._result)

    result = sync_method(aresult)

    async def _result(self) -> Any:
        [record] = await Workflows.of(self._driver).get_workflows([self.id])
        if record is None:
            raise not_found(self.id)
        state = state_of(record, self._about.on_failure)
        if state is WorkflowState.SUCCEEDED:
            return await self._read_result()
        if state is not WorkflowState.RUNNING:
            raise await self._ending(state, record)
        have = agreeing(record.succeeded, "has", "have")
        so_far = f"{record.succeeded:,} of {counted(record.total, 'job')} {have} succeeded"
        return Pending(f"workflow {self.id} is still running", f": {so_far}")

    async def _read_result(self) -> Any:
        value = value_of(self._about.shape)
        results: dict[int, Any] = {}
        indexes = indexes_in(value)
        for start in range(0, len(indexes), PAGE):
            page = indexes[start : start + PAGE]
            ids = [member_id(self.id, index) for index in page]
            for index, job_id, record in zip(page, ids, await self._driver.get(ids), strict=True):
                if record is None:
                    raise JobNotFound(
                        job_id, f"job {job_id} of workflow {self.id} was deleted, and its result with it"
                    )
                results[index] = self._harbor._decode_result(record)
        return filled(value, results)

    async def _ending(self, state: WorkflowState, now: WorkflowRecord) -> WorkflowStuck:
        failed = await self._failed()
        ids = [record.id for record in failed]
        named = "; ".join(
            f"{record.id} ({record.task}) is {record.state}, {record.reason}"
            + (f": {record.error}" if record.error else "")
            for record in failed[:NAMED_MAX]
        )
        named += f"; and {len(failed) - NAMED_MAX} more" if len(failed) > NAMED_MAX else ""
        deleted = now.total - (now.succeeded + now.dead + now.cancelled + now.waiting + now.active)
        if deleted:
            were = agreeing(deleted, "was", "were")
            named += f"{'; ' if named else ''}{deleted:,} of its {counted(now.total, 'job')} {were} deleted"
        if state is WorkflowState.STUCK:
            text = f"workflow {self.id} is stuck: {named}; retry it to go on, or cancel it"
            return WorkflowStuck(self.id, text, ids)
        how = "was cancelled" if failed or not deleted else "has no result any more"
        return WorkflowCancelled(self.id, f"workflow {self.id} {how}: {named}", ids)

    async def _failed(self) -> list[JobRecord]:
        """Return the members that are dead, or cancelled themselves rather than with a dependency; dead ones first."""
        failed: list[JobRecord] = []
        for state in (State.DEAD, State.CANCELLED):
            cursor: str | None = None
            while len(failed) < PAGE:
                where = JobFilter(state=state, workflow=self.id)
                page = await self._driver.list(where, cursor=cursor, limit=PAGE)
                failed += page.jobs
                cursor = page.next_cursor
                if cursor is None:
                    break
        own = [record for record in failed if record.reason != "dependency"]
        return own or failed


class WorkflowJobs(Sequence[Job[Any]]):
    """The jobs of a workflow, in the order of its graph. Iterating reads them, page by page; so does `async for`."""

    def __init__(self, workflow_id: str, total: int, harbor: Harbor) -> None:
        self._workflow_id = workflow_id
        self._total = total
        self._harbor = harbor

    def __len__(self) -> int:
        return self._total

    def __repr__(self) -> str:
        return f"<{counted(self._total, 'job')} of workflow {self._workflow_id}>"

    @property
    def ids(self) -> list[str]:
        return [member_id(self._workflow_id, index) for index in range(self._total)]

    @overload
    def __getitem__(self, index: int) -> Job[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job[Any]]: ...
    def __getitem__(self, index: int | slice) -> Job[Any] | list[Job[Any]]:
        indexes = range(self._total)[index]
        if isinstance(indexes, range):
            return [
                job
                for start in range(0, len(indexes), PAGE)
                for job in self._now(indexes[start : start + PAGE])
            ]
        return self._now([indexes])[0]

    def __iter__(self) -> Iterator[Job[Any]]:
        for start in range(0, self._total, PAGE):
            yield from self._now(range(start, min(start + PAGE, self._total)))

    async def __aiter__(self) -> AsyncIterator[Job[Any]]:
        for start in range(0, self._total, PAGE):
            for job in await self._read(range(start, min(start + PAGE, self._total))):
                yield job

    def _now(self, indexes: Sequence[int]) -> list[Job[Any]]:
        run = run_inline if self._harbor.driver.inline else run_on_loop_thread
        return run(self._read(indexes))

    async def _read(self, indexes: Sequence[int]) -> list[Job[Any]]:
        ids = [member_id(self._workflow_id, index) for index in indexes]
        jobs: list[Job[Any]] = []
        for job_id, record in zip(ids, await self._harbor.driver.get(ids), strict=True):
            if record is None:
                raise JobNotFound(
                    job_id, f"job {job_id} of workflow {self._workflow_id} was deleted or pruned"
                )
            jobs.append(Job(record, self._harbor))
        return jobs


def not_found(workflow_id: str) -> WorkflowNotFound:
    return WorkflowNotFound(
        workflow_id, f"no workflow has the id {workflow_id}; it never existed, or it was pruned"
    )
