"""The store under test, in words short enough for a test to read as its rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

import pytest

from taskharbor.clock import MICROS_PER_SECOND, ManualClock
from taskharbor.drivers.base import (
    ActionFilter,
    CancelRequests,
    Claim,
    Claimed,
    ClaimRequest,
    Driver,
    Enqueued,
    ExpiredLease,
    Extended,
    Extension,
    Heartbeat,
    LeaseRecord,
    Operation,
    OperationVerdict,
    PlainSuccesses,
    ProgressNote,
    SettleAnswer,
    SettleResult,
    StepNote,
    Transition,
    WorkflowEnqueued,
    member_id,
)
from taskharbor.drivers.capabilities import (
    CAPABILITIES,
    Audit,
    Capability,
    Holds,
    Records,
    Steps,
    Upkeep,
    Workflows,
)
from taskharbor.drivers.contract.audit import Action
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.records import (
    AttemptRecord,
    AttemptStatus,
    JobFilter,
    JobRecord,
    MemberResult,
    NewJob,
    NewWorkflow,
    Progress,
    Reason,
    State,
    WorkflowRecord,
)

T = TypeVar("T")

Made: TypeAlias = Driver | AbstractContextManager[Driver] | AbstractAsyncContextManager[Driver]
Factory: TypeAlias = Callable[[ManualClock], Made]
Another: TypeAlias = Callable[[Any, ManualClock], Driver]

SECOND = MICROS_PER_SECOND
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LEASE = 30 * SECOND
STILL_SECONDS = 0.2  # of real time without a change
# An instant with all six digits after the second, so that a store which rounds is found out by every test.
START = 1_767_225_600 * SECOND + 123_457


@dataclass(frozen=True)
class Held:
    """A job under a lease: what a worker that claimed it can prove."""

    token: str
    job: Claimed

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def number(self) -> int:
        return self.job.number


class Store:
    """A driver, a clock that stands still, and the verbs with everything a rule is not about left out."""

    def __init__(self, driver: Driver, clock: ManualClock, runner: asyncio.Runner) -> None:
        self.driver = driver
        self.clock = clock
        self.runner = runner
        self.capabilities = {each for each in CAPABILITIES if isinstance(driver, each)}
        self._jobs = 0
        self._tokens = 0

    @property
    def now(self) -> int:
        return self.clock.now()

    def need(self, capability: type[Capability]) -> None:
        """Skip the test if the store does not offer what it is about."""
        if capability not in self.capabilities:
            pytest.skip(f"the store has no {capability.CAPABILITY}")

    # What the driver offers, for a test that is about it; a test of a store without it is skipped.

    @property
    def workflows(self) -> Workflows:
        self.need(Workflows)
        return Workflows.of(self.driver)

    @property
    def stepping(self) -> Steps:
        self.need(Steps)
        return Steps.of(self.driver)

    @property
    def upkeep(self) -> Upkeep:
        self.need(Upkeep)
        return Upkeep.of(self.driver)

    def pass_time(self, micros: int) -> None:
        self.clock.advance(micros / SECOND)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # The runner's own `run` sets a signal handler each time, and formats the whole answer which no test reads.
        return self.runner.get_loop().run_until_complete(coroutine)

    # -- enqueue --

    def new_id(self) -> str:
        """A UUIDv7, later than every one before it."""
        self._jobs += 1
        return f"019b76da-a800-7000-8000-{self._jobs:012x}"

    def new(self, **fields: Any) -> NewJob:
        if fields.get("depends_on"):
            self.need(Workflows)
        return NewJob(**{"id": fields.get("id") or self.new_id(), "task": "test:task", **fields})

    def enqueue(self, **fields: Any) -> str:
        """Enqueue one new job; its id."""
        [answer] = self.enqueue_all(self.new(**fields))
        return answer.id

    def enqueue_all(self, *jobs: NewJob) -> list[Enqueued]:
        return self.run(self.driver.enqueue(jobs, now=self.now))

    def new_workflow(self, *dependencies: Sequence[int], **fields: Any) -> tuple[NewWorkflow, list[NewJob]]:
        """A workflow with a job for each of the arguments, which says at what indexes its dependencies are."""
        workflow = NewWorkflow(self.new_id(), fields.pop("about", "{}"), fields.pop("idempotency_key", None))
        jobs = [
            self.new(
                **fields,
                id=member_id(workflow.id, index),
                depends_on=tuple(member_id(workflow.id, other) for other in others),
            )
            for index, others in enumerate(dependencies)
        ]
        self._jobs += len(jobs)
        return workflow, jobs

    def enqueue_workflow(self, workflow: NewWorkflow, jobs: Sequence[NewJob]) -> WorkflowEnqueued:
        return self.run(self.workflows.enqueue_workflow(workflow, jobs, now=self.now))

    def workflow(self, *dependencies: Sequence[int], **fields: Any) -> list[str]:
        """Store a workflow; its id, and those of its jobs."""
        workflow, jobs = self.new_workflow(*dependencies, **fields)
        answer = self.enqueue_workflow(workflow, jobs)
        assert not answer.existed
        return [workflow.id, *(job.id for job in jobs)]

    # -- claim --

    def new_token(self) -> str:
        self._tokens += 1
        return f"worker-{self._tokens}/1"

    def ask(self, token: str | None = None, **fields: Any) -> Claim:
        """Claim; the whole answer."""
        request = {
            "token": token or self.new_token(),
            "lease": LEASE,
            "limit": 10,
            "once_limit": 10,
            **fields,
        }
        return self.run(self.driver.claim(ClaimRequest(**request), now=self.now))

    def claim(self, token: str | None = None, **fields: Any) -> list[Held]:
        token = token or self.new_token()
        return [Held(token, job) for job in self.ask(token, **fields).jobs]

    def claim_one(self, token: str | None = None, **fields: Any) -> Held:
        [held] = self.claim(token, **fields)
        return held

    def two_under_one_lease(self) -> tuple[Held, Held]:
        self.enqueue_all(self.new(), self.new())
        first, second = self.claim("worker/1")
        return first, second

    def claimed_ids(self, **fields: Any) -> list[str]:
        return [held.id for held in self.claim(**fields)]

    def running(self, **fields: Any) -> Held:
        """A new job, claimed before any other."""
        job_id = self.enqueue(priority=100, **fields)
        held = self.claim_one(limit=1)
        assert held.id == job_id
        return held

    # -- leases --

    def beat(self, *extensions: Extension) -> Heartbeat:
        return self.run(self.driver.extend(extensions, now=self.now))

    def extend(self, token: str, **fields: Any) -> Extended:
        [extended] = self.beat(Extension(**{"token": token, "lease": LEASE, **fields})).leases
        return extended

    def look(self, *tokens: str, since: int | None = None) -> CancelRequests:
        return self.run(self.driver.cancel_requests(tokens, since))

    def take_expired(self, token: str | None = None, lease: int = LEASE) -> ExpiredLease | None:
        return self.run(self.driver.take_expired(token or self.new_token(), lease, now=self.now))

    def collected(self, token: str | None = None) -> ExpiredLease:
        """The expired lease that must be there."""
        expired = self.take_expired(token)
        assert expired is not None, "a lease has expired, so there is one to collect"
        return expired

    def collect(self, token: str | None = None) -> list[Held]:
        expired = self.collected(token)
        return [Held(expired.token, job) for job in expired.jobs]

    def collect_one(self, token: str | None = None) -> Held:
        [held] = self.collect(token)
        return held

    def let_expire(self) -> None:
        self.pass_time(LEASE)

    # -- settle --

    def transition(self, held: Held, status: AttemptStatus, to: State, **fields: Any) -> Transition:
        proof = {"token": held.token, "job_id": held.id, "number": held.number}
        return Transition(**{**proof, "status": status, "to": to, "attempts": held.job.attempts, **fields})

    def settle_all(self, *transitions: Transition) -> list[SettleResult]:
        """Settle a batch; plain successes as columns, which is how a worker hands them over."""
        batch = PlainSuccesses.of(transitions) or transitions
        return self.run(self.driver.settle(batch, now=self.now))

    def settle(self, held: Held, status: AttemptStatus, to: State, **fields: Any) -> SettleResult:
        [settled] = self.settle_all(self.transition(held, status, to, **fields))
        return settled

    def succeed(self, held: Held, **fields: Any) -> SettleResult:
        fields = {"started_at": self.now, **fields}
        return self.settle(held, AttemptStatus.SUCCEEDED, State.SUCCEEDED, **fields)

    def fail(self, held: Held, **fields: Any) -> SettleResult:
        """A failure that is retried."""
        fields = {
            "attempts": held.job.attempts + 1,
            "started_at": self.now,
            "error": "boom",
            "delay": 0,
            **fields,
        }
        return self.settle(held, AttemptStatus.FAILED, State.READY, **fields)

    def bury(self, held: Held, **fields: Any) -> SettleResult:
        """The last failure: into the dead-letter queue."""
        fields = {"attempts": held.job.attempts + 1, "started_at": self.now, "error": "boom", **fields}
        fields = {"reason": Reason.EXHAUSTED, **fields}
        return self.settle(held, AttemptStatus.FAILED, State.DEAD, **fields)

    def hand_back(self, held: Held, **fields: Any) -> SettleResult:
        return self.settle(held, AttemptStatus.RELEASED, State.READY, **fields)

    def hand_back_all(self, jobs: Sequence[Held]) -> None:
        self.settle_all(
            *(self.transition(held, AttemptStatus.RELEASED, State.READY) for held in jobs),
        )

    def put_aside(self, held: Held, label: str, **fields: Any) -> SettleResult:
        """Hand it back into a place aside."""
        self.need(Holds)
        return self.hand_back(held, aside=label, **fields)

    def lose(self, held: Held, **fields: Any) -> SettleResult:
        """What a collector says of a job whose worker vanished."""
        return self.settle(held, AttemptStatus.LOST, State.READY, **fields)

    def sleep(self, held: Held, delay: int) -> SettleResult:
        return self.settle(held, AttemptStatus.SLEPT, State.READY, started_at=self.now, delay=delay)

    def end_cancelled(self, held: Held, **fields: Any) -> SettleResult:
        fields = {"started_at": self.now, "reason": Reason.CANCELLED, **fields}
        return self.settle(held, AttemptStatus.CANCELLED, State.CANCELLED, **fields)

    # -- notes --

    def report(
        self, held: Held, fraction: float, message: str = "", value_json: str | None = None, **fields: Any
    ) -> SettleAnswer:
        proof = {"token": held.token, "job_id": held.id, "number": held.number, **fields}
        note = ProgressNote(progress=Progress(fraction, message, value_json), **proof)
        [answer] = self.run(self.stepping.note([note], now=self.now))
        return answer

    def step(self, held: Held, name: str, result: str, **fields: Any) -> SettleAnswer:
        proof = {"token": held.token, "job_id": held.id, "number": held.number, **fields}
        [answer] = self.run(self.stepping.note([StepNote(name=name, result=result, **proof)], now=self.now))
        return answer

    # -- reads --

    def find(self, job_id: str) -> JobRecord | None:
        [record] = self.run(self.driver.get([job_id], now=self.now))
        return record

    def job(self, job_id: str) -> JobRecord:
        record = self.find(job_id)
        assert record is not None, f"job {job_id} should be in the store"
        return record

    def state(self, job_id: str) -> State:
        return self.job(job_id).state

    def history(self, job_id: str, limit: int = 100) -> list[AttemptRecord]:
        return self.run(self.driver.history(job_id, limit))

    def last_attempt(self, job_id: str) -> AttemptRecord:
        return self.history(job_id)[0]

    def steps(self, job_id: str) -> dict[str, str]:
        """The results of its steps, by name."""
        return {name: step.result for name, step in self.run(self.stepping.steps(job_id)).items()}

    def results(self, job_id: str) -> list[MemberResult]:
        [results] = self.run(self.workflows.results([job_id]))
        return results

    def find_workflow(self, workflow_id: str) -> WorkflowRecord | None:
        [record] = self.run(self.workflows.get_workflows([workflow_id]))
        return record

    def numbers(self, workflow_id: str) -> tuple[int, int, int, int, int]:
        """How many of a workflow's jobs are succeeded, dead, cancelled, waiting, active."""
        record = self.find_workflow(workflow_id)
        assert record is not None, f"workflow {workflow_id} should be in the store"
        return (record.succeeded, record.dead, record.cancelled, record.waiting, record.active)

    def listed_workflows(self, page_size: int = 100) -> list[WorkflowRecord]:
        listed: list[WorkflowRecord] = []
        cursor: str | None = None
        while True:
            page = self.run(self.workflows.list_workflows(cursor=cursor, limit=page_size))
            listed += page.workflows
            cursor = page.next_cursor
            if cursor is None:
                return listed

    def counts(self, queue: str | None = None) -> dict[State, int]:
        return self.run(self.driver.counts(queue, now=self.now))

    def pages(self, page_size: int = 100, **where: Any) -> Iterator[list[JobRecord]]:
        cursor: str | None = None
        while True:
            page = self.run(
                self.driver.list(JobFilter(**where), cursor=cursor, limit=page_size, now=self.now)
            )
            yield page.jobs
            cursor = page.next_cursor
            if cursor is None:
                return

    def listed(self, page_size: int = 100, **where: Any) -> list[JobRecord]:
        """All of the pages, one after the other."""
        return [job for page in self.pages(page_size, **where) for job in page]

    def leases(self) -> list[LeaseRecord]:
        return sorted(self.run(self.driver.leases(now=self.now)), key=lambda lease: lease.token)

    def listed_ids(self, page_size: int = 100, **where: Any) -> list[str]:
        return [job.id for job in self.listed(page_size, **where)]

    def counted(self, **where: Any) -> int:
        return self.run(self.driver.count(JobFilter(**where), now=self.now)).jobs

    def everything(self) -> dict[str, Any]:
        """All that can be read: two stores, or two moments, are the same when this is."""
        driver, now, jobs = self.driver, self.now, self.listed()

        async def read() -> dict[str, Any]:
            found: dict[str, Any] = {
                "jobs": jobs,
                "history": {job.id: await driver.history(job.id) for job in jobs},
                "counts": await driver.counts(now=now),
                "queues": await driver.queues(now=now),
                "leases": sorted(await driver.leases(now=now), key=lambda lease: lease.token),
            }
            if Steps in self.capabilities:
                found["steps"] = {job.id: await Steps.of(driver).steps(job.id) for job in jobs}
            if Holds in self.capabilities:
                found["holds"] = await Holds.of(driver).holds()
            if Audit in self.capabilities:
                found["actions"] = await Audit.of(driver).actions(ActionFilter(), limit=1000)
            if Workflows in self.capabilities:
                found["results"] = await Workflows.of(driver).results([job.id for job in jobs])
            return found

        found = self.run(read())
        return found | {"workflows": self.listed_workflows()} if Workflows in self.capabilities else found

    # -- operators --

    def operate(self, operation: Operation, *ids: str) -> list[OperationVerdict]:
        return [answer.verdict for answer in self.run(self.driver.operate(operation, ids, now=self.now))]

    def do(self, operation: Operation, job_id: str) -> OperationVerdict:
        [verdict] = self.operate(operation, job_id)
        return verdict

    def pause(self, queue: str) -> None:
        self.run(self.driver.pause(queue, True))

    def resume(self, queue: str) -> None:
        self.run(self.driver.pause(queue, False))

    def hold(self, kind: HoldKind, name: str, by: str | None = None) -> bool:
        self.need(Holds)
        action = None if by is None else Action(self.new_id(), "task.hold", by, subject=name)
        return self.run(Holds.of(self.driver).hold(kind, name, now=self.now, action=action))

    def release(self, kind: HoldKind, name: str) -> bool:
        return self.run(Holds.of(self.driver).release(kind, name, now=self.now))

    def holds(self) -> list[HoldRecord]:
        return self.run(Holds.of(self.driver).holds())

    def expire(self, limit: int = 100) -> list[str]:
        return self.run(self.upkeep.expire(limit, now=self.now))

    def prune(self, before: dict[State, int], limit: int = 100) -> int:
        return self.run(self.upkeep.prune(before, limit, now=self.now))

    def prune_history(self, *ids: str, keep: int = 100, before: int = 0) -> int:
        return self.run(self.upkeep.prune_history(ids, keep, before, now=self.now))

    # -- records --

    def put_records(self, kind: RecordKind, about: dict[str, str], lasts: int | None = None) -> None:
        self.need(Records)
        self.run(Records.of(self.driver).put_records(kind, about, lasts, now=self.now))

    def records(self, kind: RecordKind) -> list[Record]:
        return self.run(Records.of(self.driver).records(kind, now=self.now))

    def drop_records(self, kind: RecordKind, *keys: str) -> int:
        return self.run(Records.of(self.driver).drop_records(kind, keys))

    # -- a job in any state --

    def job_in(self, state: State, **fields: Any) -> str:
        """A new job in the state asked for; nothing else in the store becomes runnable by it."""
        match state:
            case State.WAITING:
                return self.enqueue(depends_on=(self.enqueue(delay=1000 * DAY),), **fields)
            case State.SCHEDULED:
                return self.enqueue(delay=HOUR, **fields)
            case State.READY:
                return self.enqueue(**fields)
        held = self.running(**fields)
        match state:
            case State.SUCCEEDED:
                self.succeed(held, result='"done"')
            case State.DEAD:
                self.bury(held)
            case State.CANCELLED:
                self.end_cancelled(held)
        return held.id


@contextmanager
def opened(factory: Factory) -> Iterator[Store]:
    """A new, empty store for one test, closed and cleaned up after it."""
    clock = ManualClock(START)
    with asyncio.Runner() as runner, ExitStack() as cleanup:
        driver = _enter(factory(clock), runner, cleanup)
        cleanup.callback(lambda: runner.run(driver.close()))
        runner.run(driver.migrate())
        runner.run(driver.open())
        yield Store(driver, clock, runner)


def _enter(made: Made, runner: asyncio.Runner, cleanup: ExitStack) -> Driver:
    if isinstance(made, Driver):
        return made
    if isinstance(made, AbstractContextManager):
        return cleanup.enter_context(made)

    async def enter() -> Driver:
        return await made.__aenter__()

    async def leave() -> None:
        await made.__aexit__(None, None, None)

    driver = runner.run(enter())
    cleanup.callback(lambda: runner.run(leave()))
    return driver


class Chapter:
    """One chapter of the contract: its tests get a new `store` each."""

    factory: ClassVar[Factory]
    another: ClassVar[Another | None]
    threads: ClassVar[bool]
    needs: ClassVar[type[Capability] | None] = (
        None  # the chapter is left out for a store that does not offer it
    )

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Iterator[Store]:
        chapter: type[Chapter] = next(
            each for each in type(self).__mro__ if request.function.__name__ in vars(each)
        )
        with opened(type(self).factory) as store:
            if chapter.needs is not None:
                store.need(chapter.needs)
            yield store


async def waiting_for_change(driver: Driver) -> asyncio.Future[None]:
    """Start a wait that the driver's own affairs do not end, such as that it has begun to listen.

    A driver may report more changes than there are. The wait then ends now and then, and that is as still as it gets.
    """
    for _ in range(10):
        waiting = asyncio.ensure_future(driver.wait_for_change(driver.change_token(), 3600))
        done, _ = await asyncio.wait([waiting], timeout=STILL_SECONDS)
        if not done:
            return waiting
    return asyncio.ensure_future(driver.wait_for_change(driver.change_token(), 3600))


def ids(held: Sequence[Held | Claimed]) -> list[str]:
    return [one.id for one in held]


def large_text(number: int) -> str:
    """A JSON object of some 300,000 bytes, another one for each number, full of what JSON escapes."""
    return f'{{"number":{number},"text":"' + '\\"é' * 75_000 + '"}'
