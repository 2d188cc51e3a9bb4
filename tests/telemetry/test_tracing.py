"""Tracing: a span for each enqueue and each attempt, whichever way it ends, and the context that connects them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from taskharbor import ConfigurationError, Context, Harbor, RetryPolicy, Unrecoverable, Worker, chain, group
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SQLiteDriver
from taskharbor.records import NO_OPTIONS, State
from taskharbor.rules.meta import read_meta
from taskharbor.telemetry.tracing import Tracing, instrument
from taskharbor.worker.handlers.slot import Slot
from taskharbor.worker.handlers.threads import Interruption
from tests.postgres import store as postgres
from tests.telemetry import traced
from tests.telemetry.attempts import job as a_job
from tests.telemetry.spans import Spans
from tests.worker import isolated
from tests.worker.apart import apart
from tests.worker.stage import FaultyDriver, soon, statuses, until, until_state, working

THRICE = RetryPolicy(max_attempts=3, initial=1, jitter=None)
W3C = TraceContextTextMapPropagator()
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARENT_TRACE = 0x0AF7651916CD43DD8448EB211C80319C


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def driver(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "memory":
        yield MemoryDriver(clock)
    elif request.param == "sqlite":
        yield SQLiteDriver(str(tmp_path / "harbor.db"), clock=clock, synchronous="normal")
    else:
        with postgres.fresh(clock) as driver:
            yield driver


@pytest.fixture
async def harbor(driver: Driver, spans: Spans) -> AsyncIterator[Harbor]:
    async with Harbor(driver=driver, worker_retry=THRICE) as harbor:
        instrument(harbor, tracer_provider=spans.provider)
        yield harbor


@pytest.fixture
async def memory(spans: Spans, clock: ManualClock) -> AsyncIterator[Harbor]:
    async with Harbor("memory://", clock=clock, worker_retry=THRICE) as harbor:
        instrument(harbor, tracer_provider=spans.provider)
        yield harbor


async def drain(harbor: Harbor) -> None:
    await soon(Worker(harbor).drain())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def outcome(span: ReadableSpan) -> tuple[Any, Any]:
    return attributes(span)["taskharbor.outcome"], attributes(span).get("error.type")


def ids(span: Any) -> tuple[int, int]:
    context = span.get_span_context()
    return context.trace_id, context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


# -- what the spans say ----------------------------------------------------------------------------


async def test_a_job_is_sent_by_one_span_and_processed_by_another_that_links_to_it(harbor, spans):
    @harbor.task(name="greet", queue="mail")
    async def greet() -> None: ...

    job = await greet.using(correlation_id="order-7").aenqueue()
    await drain(harbor)
    send, process = spans.all()
    common = {
        "messaging.system": "taskharbor",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "messaging.message.conversation_id": "order-7",
        "taskharbor.task": "greet",
    }
    assert (send.name, send.kind) == ("send mail", SpanKind.PRODUCER)
    assert attributes(send) == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert (process.name, process.kind) == ("process mail", SpanKind.CONSUMER)
    assert attributes(process) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "taskharbor.attempt": 1,
        "taskharbor.outcome": "succeeded",
    }
    assert process.parent is None
    assert links(process) == [ids(send)]
    assert ids(process)[0] != ids(send)[0]
    assert process.status.status_code is StatusCode.UNSET


async def test_every_attempt_links_to_the_enqueue(harbor, spans, clock):
    @harbor.task(name="t")
    async def fail() -> None:
        raise ValueError("no")

    await fail.aenqueue()
    for _ in range(3):
        await drain(harbor)
        clock.advance(10)
    attempts = spans.all("process")
    assert [attributes(span)["taskharbor.attempt"] for span in attempts] == [1, 2, 3]
    assert [links(span) for span in attempts] == [[ids(spans.one("send"))]] * 3
    assert len({ids(span)[0] for span in attempts}) == 3


async def test_with_trace_child_an_attempt_is_a_child_of_the_enqueue(harbor, spans):
    instrument(harbor, trace="child", tracer_provider=spans.provider)

    @harbor.task(name="t")
    async def t() -> None: ...

    await t.aenqueue()
    await drain(harbor)
    send, process = spans.all()
    assert (ids(process)[0], process.parent.span_id) == ids(send)
    assert process.links == ()


async def test_an_enqueue_is_a_child_of_the_span_around_it(harbor, spans):
    with spans.current.start_as_current_span("request") as request:
        await harbor.aenqueue("t")
    send = spans.one("send")
    assert (ids(send)[0], send.parent.span_id) == ids(request)


async def test_a_batch_is_sent_by_one_span(harbor, spans):
    @harbor.task(name="t")
    async def t(n: int) -> None: ...

    await t.aenqueue_many([{"n": n} for n in range(3)])
    send = spans.one("send")
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(send)
    await drain(harbor)
    assert [links(span) for span in spans.all("process")] == [[ids(send)]] * 3


async def test_a_batch_names_only_what_its_jobs_have_in_common(harbor, spans):
    @harbor.task(name="t", queue="one")
    async def t() -> None: ...

    @harbor.task(name="u", queue="two")
    async def u() -> None: ...

    await harbor.aenqueue_many([t.s(), u.s()])
    send = spans.one("send")
    assert send.name == "send"
    assert not {"messaging.destination.name", "taskharbor.task"} & attributes(send).keys()


async def test_an_empty_batch_has_no_span(harbor, spans):
    await harbor.aenqueue_many([])
    assert spans.all() == []


async def test_a_workflow_is_sent_by_one_span_and_its_jobs_name_it(harbor, spans):
    @harbor.task(name="t")
    async def t() -> None: ...

    stored = await chain(t.si(), group(t.si(), t.si())).aenqueue()
    send = spans.one("send")
    assert attributes(send)["taskharbor.workflow.id"] == stored.id
    assert attributes(send)["messaging.batch.message_count"] == 3
    await drain(harbor)
    processed = spans.all("process")
    assert [attributes(span)["taskharbor.workflow.id"] for span in processed] == [stored.id] * 3
    assert [links(span) for span in processed] == [[ids(send)]] * 3


async def test_an_enqueue_that_fails_names_the_error_type(spans):
    class Broken(FaultyDriver):
        async def enqueue(self, jobs: Any, *, now: int | None = None) -> Any:
            raise RuntimeError("the store is away")

    async with Harbor(driver=Broken()) as harbor:
        instrument(harbor, tracer_provider=spans.provider)
        with pytest.raises(RuntimeError):
            await harbor.aenqueue("t")
    send = spans.one("send")
    assert attributes(send)["error.type"] == "RuntimeError"
    assert send.status.status_code is StatusCode.ERROR


# -- the context that a job carries ----------------------------------------------------------------


async def test_a_context_that_the_caller_gives_is_kept(harbor, spans):
    job = await harbor.aenqueue("t", meta={"traceparent": PARENT, "tenant": "acme"})
    assert read_meta(job.record.meta) == {"traceparent": PARENT, "tenant": "acme"}
    assert [trace_id for trace_id, _ in links(spans.one("send"))] == [PARENT_TRACE]


async def test_the_state_of_a_trace_travels_along(harbor, spans):
    @harbor.task(name="t")
    async def t() -> None: ...

    around = W3C.extract({"traceparent": PARENT, "tracestate": "vendor=7"})
    token = context.attach(around)
    try:
        job = await t.aenqueue()
    finally:
        context.detach(token)
    assert job.meta["tracestate"] == "vendor=7"
    await drain(harbor)
    [link] = spans.one("process").links
    assert link.context.trace_state == {"vendor": "7"}


async def test_entries_of_the_users_own_stay(harbor, spans):
    job = await harbor.aenqueue("t", meta={"tenant": "acme"})
    meta = read_meta(job.record.meta)
    assert meta.pop("traceparent").split("-")[1:3] == [
        f"{part:0{width}x}" for part, width in zip(ids(spans.one("send")), (32, 16), strict=True)
    ]
    assert meta == {"tenant": "acme"}


async def test_a_full_meta_keeps_out_the_context_and_not_the_job(harbor):
    full = {f"key{n}": "x" for n in range(32)}
    job = await harbor.aenqueue("t", meta=full)
    assert read_meta(job.record.meta) == full


async def test_a_state_that_does_not_fit_stays_out_and_the_context_does_not(harbor):
    nearly_full = {f"key{n}": "x" * 500 for n in range(7)} | {"last": "x" * 200}
    around = W3C.extract({"traceparent": PARENT, "tracestate": "vendor=" + "7" * 250})
    token = context.attach(around)
    try:
        job = await harbor.aenqueue("t", meta=nearly_full)
    finally:
        context.detach(token)
    assert read_meta(job.record.meta).keys() - nearly_full.keys() == {"traceparent"}


async def test_a_state_that_was_inherited_does_not_stay_with_another_context(harbor, spans):
    """The trace of an attempt is a new one: the state of the trace before says nothing of it."""

    @harbor.task(name="parent")
    async def parent() -> None:
        await harbor.aenqueue("t", queue="later")

    token = context.attach(W3C.extract({"traceparent": PARENT, "tracestate": "vendor=7"}))
    try:
        await parent.aenqueue()
    finally:
        context.detach(token)
    await soon(Worker(harbor, queues=["default"]).drain())
    [child] = await harbor.jobs.alist(queue="later")
    assert child.meta.keys() == {"traceparent"}


async def test_a_worker_that_runs_within_a_span_makes_attempts_with_traces_of_their_own(harbor, spans):
    @harbor.task(name="t")
    async def t() -> None: ...

    await t.aenqueue()
    with spans.current.start_as_current_span("around") as around:
        await drain(harbor)
    process = spans.one("process")
    assert process.parent is None
    assert ids(process)[0] != ids(around)[0]


@pytest.mark.parametrize("broken", ["", "nonsense", "00-0-0-00", "x" * 512])
async def test_a_context_that_cannot_be_read_makes_an_attempt_without_a_link(harbor, spans, broken):
    @harbor.task(name="t")
    async def t() -> None: ...

    await t.using(meta={"traceparent": broken}).aenqueue()
    await drain(harbor)
    process = spans.one("process")
    assert (process.parent, process.links, outcome(process)) == (None, (), ("succeeded", None))


async def test_a_child_links_to_the_attempt_that_made_it(harbor, spans):
    @harbor.task(name="child")
    async def child() -> None: ...

    @harbor.task(name="parent")
    async def parent(ctx: Context) -> None:
        ctx.enqueue(child.s())

    await parent.aenqueue()
    await drain(harbor)
    of_parent, of_child = spans.all("process")
    create = spans.one("create")
    assert (create.name, create.kind) == ("create default", SpanKind.PRODUCER)
    assert (ids(create)[0], create.parent.span_id) == ids(of_parent)
    assert links(of_child) == [ids(create)]


async def test_a_job_enqueued_by_a_handler_links_to_its_attempt(harbor, spans):
    @harbor.task(name="next")
    async def following() -> None: ...

    @harbor.task(name="first")
    async def first() -> None:
        await following.aenqueue()

    await first.aenqueue()
    await drain(harbor)
    _, inner = spans.all("send")
    of_first, of_next = spans.all("process")
    assert (ids(inner)[0], inner.parent.span_id) == ids(of_first)
    assert links(of_next) == [ids(inner)]


async def test_a_synchronous_enqueue_takes_the_callers_span(spans, tmp_path):
    async with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        instrument(harbor, tracer_provider=spans.provider)

        def produce() -> tuple[int, int]:
            with spans.current.start_as_current_span("request") as request:
                harbor.enqueue("t")
            return ids(request)

        request = await asyncio.to_thread(produce)
    send = spans.one("send")
    assert (ids(send)[0], send.parent.span_id) == request


# -- inside a handler ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_span_is_current_inside_a_handler_and_nowhere_else(harbor, spans, kind):
    seen = []

    def look() -> None:
        seen.append(ids(trace.get_current_span()))
        with spans.current.start_as_current_span("inside"):
            pass

    async def look_async() -> None:
        await asyncio.sleep(0)
        look()

    task = harbor.task(name="t")(look_async if kind == "async" else look)
    await task.aenqueue()
    await drain(harbor)
    process, inside = spans.one("process"), spans.one("inside")
    assert seen == [ids(process)]
    assert (ids(inside)[0], inside.parent.span_id) == ids(process)
    assert not trace.get_current_span().get_span_context().is_valid


async def test_handlers_that_run_at_once_do_not_see_each_others_spans(memory, spans):
    arrived = asyncio.Barrier(3)
    seen = {}

    @memory.task(name="t")
    async def t(ctx: Context) -> None:
        await arrived.wait()
        seen[ctx.job.id] = ids(trace.get_current_span())

    await t.aenqueue_many([{}] * 3)
    await drain(memory)
    assert seen == {attributes(span)["messaging.message.id"]: ids(span) for span in spans.all("process")}


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_step_is_a_child_span_and_a_remembered_step_has_none(harbor, spans, clock, kind):
    def charge() -> int:
        with spans.current.start_as_current_span("inside"):
            return 3

    after = []

    async def charge_async(ctx: Context) -> None:
        await ctx.step("charge", charge)
        after.append(ids(trace.get_current_span()))
        raise ValueError("no")

    def charge_sync(ctx: Context) -> None:
        ctx.step("charge", charge)
        after.append(ids(trace.get_current_span()))
        raise ValueError("no")

    task = harbor.task(name="t")(charge_async if kind == "async" else charge_sync)
    await task.aenqueue()
    await drain(harbor)
    clock.advance(10)
    await drain(harbor)
    first, second = spans.all("process")
    assert [attributes(span)["taskharbor.attempt"] for span in (first, second)] == [1, 2]
    assert after == [ids(first), ids(second)]
    step, inside = spans.one("step"), spans.one("inside")
    assert attributes(step) == {"taskharbor.step": "charge"}
    assert (ids(step)[0], step.parent.span_id) == ids(first)
    assert (ids(inside)[0], inside.parent.span_id) == ids(step)


async def test_a_step_that_fails_names_the_error_type(memory, spans):
    def charge() -> None:
        raise LookupError("no such card")

    @memory.task(name="t")
    async def t(ctx: Context) -> None:
        await ctx.step("charge", charge)

    await t.aenqueue()
    await drain(memory)
    step = spans.one("step")
    assert attributes(step)["error.type"] == "LookupError"
    assert step.status.status_code is StatusCode.ERROR


async def test_a_handler_in_a_process_continues_the_attempts_trace(memory, spans):
    job = await apart(memory, traced.traceparent).aenqueue()
    await drain(memory)
    process = spans.one("process")
    assert (await job.aresult()).startswith("00-{:032x}-{:016x}-".format(*ids(process)))
    assert outcome(process) == ("succeeded", None)


async def test_a_child_of_a_handler_in_a_process_links_to_the_attempt(spans):
    instrument(traced.harbor, tracer_provider=spans.provider)
    job = await traced.parent.aenqueue()
    await drain(traced.harbor)
    of_parent, of_child = spans.all("process")
    assert (await job.aresult()).startswith("00-{:032x}-{:016x}-".format(*ids(of_parent)))
    assert links(of_child) == [
        ids(of_parent)
    ]  # that process has no provider, so there is no span between them


# -- every way out of an attempt -------------------------------------------------------------------


async def test_a_hundred_failing_jobs_are_a_hundred_traces(harbor, spans):
    @harbor.task(name="t")
    async def fail(n: int) -> None:
        if n % 2:
            await asyncio.sleep(0)
        raise ValueError("no")

    await fail.aenqueue_many([{"n": n} for n in range(100)])
    await drain(harbor)
    processed = spans.all("process")
    assert len(processed) == 100
    assert len({ids(span)[0] for span in processed}) == 100
    assert {span.parent for span in processed} == {None}
    assert {outcome(span) for span in processed} == {("failed", "ValueError")}
    assert {span.status.status_code for span in processed} == {StatusCode.ERROR}
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (object, ("failed", "Unrecoverable")),  # the result cannot be stored
        (lambda: _raise(SystemExit(3)), ("failed", "SystemExit")),
        (lambda: _raise(Unrecoverable("no")), ("failed", "Unrecoverable")),
        (lambda: _raise(asyncio.CancelledError()), ("failed", "CancelledError")),
    ],
    ids=["unstorable", "exit", "unrecoverable", "cancelled-by-itself"],
)
async def test_what_a_handler_returns_or_raises_ends_its_span(memory, spans, kind, ending, expected):
    def run() -> Any:
        return ending()

    async def run_async() -> Any:
        return ending()

    task = memory.task(name="t")(run_async if kind == "async" else run)
    job = await task.aenqueue()
    await drain(memory)
    assert await statuses(job) == [expected[0]]
    assert outcome(spans.one("process")) == expected


async def test_a_handler_that_raises_generator_exit_fails(memory, spans):
    @memory.task(name="t")
    async def t() -> None:
        raise GeneratorExit

    job = await t.aenqueue()
    await drain(memory)
    assert await statuses(job) == ["failed"]
    assert spans.one("process").end_time is not None


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_ends_the_span(memory, spans, clock, kind):
    begin, end = threading.Event(), threading.Event()

    def wait() -> None:
        begin.set()
        end.wait(60)

    async def wait_async() -> None:
        begin.set()
        await asyncio.Event().wait()

    task = memory.task(name="t", timeout=5, max_attempts=1)(wait_async if kind == "async" else wait)
    job = await task.aenqueue()
    async with working(memory):
        await until(begin.is_set)
        clock.advance(6)
        end.set()
        await until_state(job, State.DEAD)
    assert await statuses(job) == ["timed_out"]
    assert outcome(spans.one("process")) == ("timed_out", "TimeoutError")


async def test_a_cancelled_job_ends_its_span(memory, spans, clock):
    begin = asyncio.Event()

    @memory.task(name="t")
    async def wait() -> None:
        begin.set()
        await asyncio.Event().wait()

    job = await wait.aenqueue()
    async with working(memory):
        await soon(begin.wait())
        await memory.jobs.acancel(job.id)
        await clock.jump(10)  # the next heartbeat
        await until_state(job, State.CANCELLED)
    assert outcome(spans.one("process")) == ("cancelled", None)
    assert spans.one("process").status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("delivery", "expected"), [("at_least_once", "released"), ("at_most_once", "cancelled")]
)
async def test_a_shutdown_ends_the_span(memory, spans, delivery, expected):
    begin = asyncio.Event()

    @memory.task(name="t", delivery=delivery)
    async def wait() -> None:
        begin.set()
        await asyncio.Event().wait()

    job = await wait.aenqueue()
    async with working(memory, grace_seconds=0):
        await soon(begin.wait())
    assert await statuses(job) == [expected]
    assert outcome(spans.one("process")) == (expected, None)


async def test_a_thread_that_does_not_end_is_left_behind_and_its_span_is_not(memory, spans, clock):
    begin, release = threading.Event(), threading.Event()

    @memory.task(name="t")
    def deaf() -> None:
        begin.set()
        while not release.is_set():
            try:
                release.wait(0.001)
            except Interruption:
                continue

    job = await deaf.aenqueue()
    worker = Worker(memory, grace_seconds=5)
    running = asyncio.ensure_future(worker.run())
    await until(begin.is_set)
    worker.stop()
    await clock.jump(5)
    await clock.jump(1)
    await soon(running)
    release.set()
    assert await statuses(job) == ["released"]
    assert outcome(spans.one("process")) == ("released", None)


async def test_a_handler_that_returns_after_its_deadline_timed_out(memory, spans, clock):
    @memory.task(name="t", timeout=5, max_attempts=1)
    async def block() -> str:
        clock.advance(6)  # and the loop has no turn in which the timer could fire
        return "late"

    job = await block.aenqueue()
    await drain(memory)
    assert await statuses(job) == ["timed_out"]
    assert outcome(spans.one("process")) == ("timed_out", "TimeoutError")


@pytest.mark.parametrize(
    ("delivery", "expected"), [("at_least_once", "released"), ("at_most_once", "cancelled")]
)
async def test_an_attempt_that_other_code_cancels_did_not_fail(memory, spans, delivery, expected):
    begin = asyncio.Event()

    @memory.task(name="t", delivery=delivery)
    async def wait() -> None:
        if begin.is_set():
            return  # executed again
        begin.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise ValueError("cancelled") from error

    job = await wait.aenqueue()
    async with working(memory):
        await soon(begin.wait())
        for task in asyncio.all_tasks():
            if isinstance(task, Slot) and task.execution is not None:
                task.cancel()
        await until_state(job, State.SUCCEEDED if expected == "released" else State.DEAD)
    again = ["succeeded"] if expected == "released" else []
    assert await statuses(job) == [expected, *again]
    assert [outcome(span) for span in spans.all("process")] == [(each, None) for each in [expected, *again]]


async def test_a_sleep_ends_the_span_and_the_next_attempt_has_its_own(harbor, spans, clock):
    @harbor.task(name="t")
    async def nap(ctx: Context) -> None:
        await ctx.sleep("nap", 60)

    await nap.aenqueue()
    await drain(harbor)
    clock.advance(61)
    await drain(harbor)
    assert [outcome(span) for span in spans.all("process")] == [("slept", None), ("succeeded", None)]


async def test_a_lost_lease_ends_the_span(memory, spans):
    begin = asyncio.Event()

    @memory.task(name="t")
    async def wait(ctx: Context) -> None:
        begin.set()
        ctx._execution.lose_lease()
        await asyncio.Event().wait()

    await wait.aenqueue()
    async with working(memory, grace_seconds=0):
        await soon(begin.wait())
        await until(lambda: spans.all("process"))
    assert outcome(spans.all("process")[0]) == ("lost", "lease_lost")


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (isolated.odd, (), ("failed", "OddError")),
        (isolated.die, ("kill",), ("lost", "process_crashed")),
    ],
    ids=["failed", "crashed"],
)
async def test_a_handlers_process_that_fails_or_dies_ends_the_span(
    memory, spans, function, arguments, expected
):
    job = await apart(memory, function).aenqueue(*arguments)
    await drain(memory)
    assert (await statuses(job))[0] == expected[0]
    assert outcome(spans.all("process")[0]) == expected


@pytest.mark.parametrize("error", [None, ValueError, asyncio.CancelledError, SystemExit])
def test_every_way_out_of_a_span_detaches_its_context(spans, error):
    """An attempt and a step make their span the current one in the same way."""
    tracing = Tracing(spans.current, is_child=False, is_on=True)
    before = context.get_current()
    with contextlib.suppress(BaseException), tracing.step("s"):
        assert context.get_current() != before
        if error is not None:
            raise error
    assert context.get_current() == before
    assert spans.one("step").end_time


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError, StatusCode.ERROR), (asyncio.CancelledError, StatusCode.UNSET)],
)
def test_what_only_ends_the_work_of_a_span_is_no_error(spans, error, status):
    tracing = Tracing(spans.current, is_child=False, is_on=True)
    with pytest.raises(error), tracing.step("s"):
        raise error
    assert spans.one("step").status.status_code is status
    assert ("error.type" in attributes(spans.one("step"))) is (status is StatusCode.ERROR)


def test_the_context_of_a_request_ends_with_it(spans):
    tracing = Tracing(spans.current, is_child=False, is_on=True)
    before = context.get_current()
    with contextlib.suppress(ValueError), tracing.within({"traceparent": PARENT}):
        assert trace.get_current_span().get_span_context().trace_id == PARENT_TRACE
        raise ValueError
    assert context.get_current() == before


def test_an_attempt_that_is_closed_outside_of_its_context_ends_its_span(spans, caplog):
    """The loop ends and leaves the attempt behind. To detach there would log an error."""

    @types.coroutine
    def forever() -> Iterator[None]:
        while True:
            yield

    execution = SimpleNamespace(claimed=a_job(), options=NO_OPTIONS)
    ctx: Any = SimpleNamespace(_execution=execution)
    attempt = Tracing(spans.current, is_child=False, is_on=True).attempt(ctx, forever)
    contextvars.copy_context().run(attempt.send, None)
    attempt.close()
    assert outcome(spans.one("process")) == ("lost", None)
    assert caplog.text == ""


async def test_a_worker_that_is_cancelled_leaves_no_span_open(memory, spans):
    begin = asyncio.Event()

    @memory.task(name="t")
    async def wait() -> None:
        begin.set()
        await asyncio.Event().wait()

    await wait.aenqueue()
    running = asyncio.ensure_future(Worker(memory).run())
    await soon(begin.wait())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert outcome(spans.one("process")) == ("released", None)


# -- switching it on -------------------------------------------------------------------------------


async def test_without_a_provider_no_span_is_made_and_no_job_changes(clock):
    async with Harbor("memory://", clock=clock) as harbor:
        instrument(harbor)
        seen = []

        @harbor.task(name="t")
        async def t(ctx: Context) -> None:
            await ctx.step("s", int)
            seen.append(trace.get_current_span())

        job = await t.aenqueue()
        await drain(harbor)
        assert (await job.arefresh()).state is State.SUCCEEDED
        assert job.record.meta is None
        assert [span.is_recording() for span in seen] == [False]
        assert not seen[0].get_span_context().is_valid


async def test_without_a_provider_no_attempt_is_wrapped_and_one_that_is_set_later_counts(
    clock, spans, monkeypatch
):
    async with Harbor("memory://", clock=clock) as harbor:
        instrument(harbor)
        calls = []
        attempt = Tracing.attempt

        def seen(self, ctx, call):
            calls.append(ctx._execution.claimed.id)
            return attempt(self, ctx, call)

        monkeypatch.setattr(Tracing, "attempt", seen)

        @harbor.task(name="t")
        async def t() -> None: ...

        first = await t.aenqueue()
        await drain(harbor)
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
        second = await t.aenqueue()
        await drain(harbor)
    assert (calls, first.meta, "traceparent" in second.meta) == ([second.id], {}, True)
    assert [span.name for span in spans.all()] == ["send default", "process default"]


async def test_a_harbor_that_is_not_instrumented_is_not_traced(clock):
    harbor = Harbor("memory://", clock=clock)
    assert (harbor.tracing, harbor.middlewares) == (None, [])


async def test_instrumenting_twice_is_the_same_as_once(harbor, spans):
    instrument(harbor, tracer_provider=spans.provider)

    @harbor.task(name="t")
    async def t() -> None: ...

    await t.aenqueue()
    await drain(harbor)
    assert [span.name for span in spans.all()] == ["send default", "process default"]


async def test_tracing_is_around_every_other_middleware(memory, spans):
    seen = []

    @memory.middleware
    async def look(ctx, call):
        seen.append(ids(trace.get_current_span()))
        return await call()

    instrument(memory, tracer_provider=spans.provider)

    @memory.task(name="t")
    async def t() -> None: ...

    await t.aenqueue()
    await drain(memory)
    assert seen == [ids(spans.one("process"))]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigurationError, match='trace must be "link" or "child", not \'parent\''):
        instrument(Harbor("memory://"), trace="parent")  # type: ignore[arg-type]


class FailingProcessor(SpanProcessor):
    def __init__(self, verb: str) -> None:
        setattr(self, verb, self._fail)

    def _fail(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the collector is away")


@pytest.mark.parametrize("verb", ["on_start", "on_end"])
async def test_a_processor_that_fails_does_not_fail_the_job(clock, verb):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(FailingProcessor(verb))
    async with Harbor("memory://", clock=clock) as harbor:
        instrument(harbor, tracer_provider=provider)

        @harbor.task(name="t")
        async def t(ctx: Context) -> str:
            await ctx.step("s", str)
            return "done"

        job = await t.aenqueue()
        await drain(harbor)
        assert (await job.arefresh()).state is State.SUCCEEDED


def _raise(error: BaseException) -> Any:
    raise error
