"""Calls as users write them: what they give is asserted, and what is wrong about them is ignored by its code.

mypy proves both here, since an ignore that is not needed is an error. `test_types` takes the ignores away.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_type

from taskharbor import (
    Attempt,
    Context,
    Delivery,
    Event,
    EventName,
    Harbor,
    Job,
    JobFailed,
    JobFilter,
    Progress,
    ReasonName,
    RetryPolicy,
    Signature,
    State,
    StateName,
    Worker,
    Workflow,
    WorkflowState,
    chain,
    chord,
    group,
    presets,
)
from taskharbor.records import Misfire

harbor = Harbor("memory://")


@dataclass
class Receipt:
    number: int


@harbor.task
def add(x: int, y: int = 2) -> int:
    return x + y


@harbor.task(name="email:send", queue="mail", max_attempts=5, timeout=30, retry=presets.EMAIL)
async def send(ctx: Context, to: str, *, subject: str = "hi") -> Receipt:
    return Receipt(1)


@harbor.task
async def nothing() -> None: ...


@harbor.task(priority=3)
def with_context(ctx: Context, x: list[int]) -> dict[str, int]:
    return {}


@harbor.task(isolation="process")
def apart(x: int) -> str:
    return str(x)


# -- signatures and steps ---------------------------------------------------------------------------

assert_type(add.s(), Signature[int])  # loosely: what comes before it may fill the rest
assert_type(add.si(1, y=3), Signature[int])
assert_type(chain(add.s(1), add.s()).enqueue(), Workflow)
assert_type(chord([add.s(1)], add.s()).enqueue().state, WorkflowState)
add.si()  # type: ignore[call-arg]
add.si("1")  # type: ignore[arg-type]
group(add)  # type: ignore[arg-type]


async def steps(ctx: Context) -> None:
    async def charge(amount: int) -> Receipt:
        return Receipt(amount)

    assert_type(await ctx.step("charge", charge, 5), Receipt)
    assert_type(await ctx.step("sync", lambda: 5), Any)
    await ctx.sleep("nap", 5)
    await ctx.step("charge", charge, "5")  # type: ignore[call-overload]


# -- right calls pass, and their results are known ---------------------------------------------------

assert_type(add.enqueue(1), Job[int])
assert_type(add.enqueue(x=1, y=3), Job[int])
assert_type(add.enqueue(1).result(timeout=10), int)
assert_type(add.enqueue(1).refresh(), Job[int])
assert_type(send.enqueue("a@b.c", subject="hi").result(), Receipt)
assert_type(nothing.enqueue(), Job[None])
assert_type(with_context.enqueue([1]).result(), dict[str, int])
assert_type(apart.enqueue(1).result(), str)
assert_type(add.enqueue_many([{"x": 1}]), list[Job[int]])
assert_type(add.using(priority=1).enqueue(1), Job[int])
assert_type(add.using(delay=1).using(tags=["x"]).enqueue(1, 2), Job[int])
assert_type(add.s(), Signature[int])
assert_type(harbor.enqueue("add", {"x": 1}), Job[Any])
assert_type(harbor.enqueue_many([add.s(1), send.s("x")]), list[Job[Any]])


async def asynchronously() -> None:
    assert_type(await add.aenqueue(1), Job[int])
    assert_type(await (await send.aenqueue("x")).aresult(), Receipt)
    assert_type(await send.using(queue="vip").aenqueue("x"), Job[Receipt])
    assert_type(await harbor.jobs.acounts(), dict[str, int])


# -- wrong calls do not ------------------------------------------------------------------------------

add.enqueue("1")  # type: ignore[arg-type]
add.enqueue()  # type: ignore[call-arg]
add.enqueue(1, 2, 3)  # type: ignore[call-arg]
add.enqueue(1, z=3)  # type: ignore[call-arg]
send.enqueue(5)  # type: ignore[arg-type]
send.enqueue("x", "positional subject")  # type: ignore[call-arg]
nothing.enqueue(1)  # type: ignore[call-arg]
add.using(priority=1).enqueue("1")  # type: ignore[arg-type]
add.using(priority=1).enqueue()  # type: ignore[call-arg]


async def asynchronously_wrong() -> None:
    await add.aenqueue("1")  # type: ignore[arg-type]
    await send.aenqueue()  # type: ignore[call-arg]
    await add.using(priority=1).aenqueue(1, z=3)  # type: ignore[call-arg]


# -- the context is injected, never enqueued ---------------------------------------------------------


def the_context_is_no_argument(ctx: Context) -> None:
    send.enqueue(ctx, "x")  # type: ignore[call-arg, arg-type]
    send.enqueue(ctx=ctx, to="x")  # type: ignore[call-arg]
    with_context.enqueue(ctx, [1])  # type: ignore[call-arg, arg-type]


# -- calling is calling the function -----------------------------------------------------------------

assert_type(add(1, y=2), int)
add("1")  # type: ignore[arg-type]
add()  # type: ignore[call-arg]


async def calling(ctx: Context) -> None:
    assert_type(await send(ctx, "x", subject="y"), Receipt)
    assert_type(with_context(ctx, [1]), dict[str, int])
    await send("x")  # type: ignore[call-arg, arg-type]
    await send(ctx)  # type: ignore[call-arg]
    with_context([1])  # type: ignore[call-arg, arg-type]


# -- options have names and types --------------------------------------------------------------------

add.using(
    queue="q",
    run_at=datetime.now(UTC),
    priority=5,
    max_attempts=3,
    timeout=0.5,
    expires_at=None,
    idempotency_key="k",
    delivery="at_most_once",
    retry=RetryPolicy(max_attempts=3),
    correlation_id="c",
    tags=("a", "b"),
    meta={"tenant": "acme"},
    id=None,
)
add.using(priority="high")  # type: ignore[arg-type]
add.using(prioritty=5)  # type: ignore[call-arg]
add.using(run_at="tomorrow")  # type: ignore[arg-type]
add.using(timeout="5")  # type: ignore[arg-type]
add.using(tags="abc")  # type: ignore[arg-type]
add.using(meta={"n": 5})  # type: ignore[dict-item]
add.using(retry="EMAIL")  # type: ignore[arg-type]
add.using(isolation="process")  # type: ignore[call-arg]
harbor.enqueue("t", {}, delay=5, queue="q")
harbor.enqueue("t", {}, delayed=5)  # type: ignore[call-arg]
harbor.enqueue("t", {}, priority="1")  # type: ignore[arg-type]
harbor.enqueue(5)  # type: ignore[arg-type]
harbor.task(priority="high")  # type: ignore[call-overload]
harbor.task(nonsense=1)  # type: ignore[call-overload]
harbor.task(cron="@daily")  # type: ignore[call-overload]
harbor.task(schedule="@daily", misfire="skip")
harbor.task(schedule="@daily", misfire=Misfire.SKIP)
harbor.task(schedule="@daily", misfire="never")  # type: ignore[call-overload]
add.using(delivery=Delivery.AT_MOST_ONCE)
add.using(delivery="exactly_once")  # type: ignore[arg-type]


# -- states, events and reasons have names -------------------------------------------------------------


def names(job: Job[int], states: list[StateName]) -> None:
    harbor.jobs.list(state="dead")
    harbor.jobs.list(state=State.DEAD)
    harbor.jobs.list(state=states[0])
    harbor.jobs.list(state="ded")  # type: ignore[arg-type]
    harbor.jobs.cancel_all(state="ready", queue="q")
    harbor.jobs.cancel_all(state="redy")  # type: ignore[arg-type]
    harbor.workflows.list(state="stuck")
    harbor.workflows.list(state="dead")  # type: ignore[arg-type]


@harbor.on("dead")
def told(event: Event) -> None:
    assert_type(event.name, EventName)
    assert_type(event.reason, ReasonName | None)
    poison = event.reason == "poison"
    poisoned = event.reason == "poisoned"  # type: ignore[comparison-overlap]
    deaded = event.name == "deaded"  # type: ignore[comparison-overlap]
    assert not (poison and poisoned and deaded)


harbor.on("deaded")  # type: ignore[arg-type]


def failed(error: JobFailed) -> None:
    assert_type(error.reason, ReasonName | None)


# -- keywords of what acts on jobs have names and types ------------------------------------------------

harbor.jobs.update("id", priority=5, tags=["a"], expires_at=None, payload={"x": 1})
harbor.jobs.update("id", prio=5)  # type: ignore[call-arg]
harbor.jobs.update("id", priority="5")  # type: ignore[arg-type]
harbor.jobs.list(quue="mail")  # type: ignore[call-arg]
harbor.jobs.delete_all(quue="mail")  # type: ignore[call-arg]
harbor.dlq.list(state="dead")  # type: ignore[call-arg]
harbor.dlq.requeue_all(queue="mail", task=None, run_at=datetime.now(UTC))
harbor.dlq.requeue_all(quue="mail")  # type: ignore[call-arg]
harbor.dlq.requeue_all(queue=5)  # type: ignore[arg-type]
harbor.dlq.discard_all(tagg="old")  # type: ignore[call-arg]
harbor.schedules.add("n", "add", {"x": 1}, schedule="@daily", queue="q", misfire="skip")
harbor.schedules.add("n", "add", schedule="@daily", cron="@daily")  # type: ignore[call-arg]
harbor.schedules.update("n", schedule="@daily", payload={})
harbor.schedules.update("n", cron="@daily")  # type: ignore[call-arg]
harbor.schedules.update("n", misfire="never")  # type: ignore[arg-type]


async def asynchronous_keywords() -> None:
    await harbor.jobs.aupdate("id", prio=5)  # type: ignore[call-arg]
    await harbor.jobs.alist(quue="mail")  # type: ignore[call-arg]
    await harbor.dlq.arequeue_all(quue="mail")  # type: ignore[call-arg]
    await harbor.schedules.aupdate("n", cron="@daily")  # type: ignore[call-arg]


# -- the rest of the surface -------------------------------------------------------------------------


def takes_floats(job: Job[float]) -> None: ...
def takes_texts(job: Job[str]) -> None: ...


def job_is_a_record(job: Job[int]) -> None:
    job.state = "dead"  # type: ignore[misc, assignment]
    assert_type(job.payload, dict[str, Any])
    assert_type(job.progress, Progress | None)
    assert_type(job.history(limit=3), list[Attempt])
    assert_type(harbor.jobs.list(state="dead")[0], Job[Any])
    assert_type(harbor.jobs.list().next_cursor, str | None)
    assert_type(harbor.jobs.cancel_all(JobFilter(queue="q")), int)
    assert_type(harbor.dlq.requeue(job.id), Job[Any])
    harbor.jobs.list(limit="5")  # type: ignore[arg-type]
    takes_floats(job)  # a job of int is a job of float
    takes_texts(job)  # type: ignore[arg-type]


def contexts(anything: Any) -> None:
    with harbor as entered:
        assert_type(entered, Harbor)
    with harbor.transaction(anything):
        add.enqueue(1)

    async def asynchronous() -> None:
        async with harbor.transaction(anything):
            await add.aenqueue(1)

    assert_type(Worker(harbor, concurrency=3), Worker)
