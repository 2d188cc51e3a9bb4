"""What the fixtures of the pytest plugin do: time, jobs, results, outages and transactions."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import (
    AttemptStatus,
    ConfigurationError,
    Context,
    Harbor,
    RetryPolicy,
    State,
    StoreUnavailable,
    chain,
)
from taskharbor.testing import (
    Drain,
    HandlersWait,
    RunInline,
    TestingClock,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
    make_context,
    outage,
    staged,
)
from taskharbor.testing.stage import named_harbor
from tests.postgres import store

THREE_TRIES = RetryPolicy(max_attempts=3, initial=60, maximum=3600, multiplier=2, jitter=None)


def test_drain_runs_what_is_due_in_order_and_nothing_else(harbor: Harbor, clock: TestingClock, drain: Drain):
    done: list[str] = []

    @harbor.task
    def note(text: str) -> None:
        done.append(text)

    note.using(delay=60).enqueue("later")
    note.enqueue("second")
    note.using(priority=9).enqueue("first")
    before = clock.now()

    ran = drain()

    assert [each.status for each in ran] == [AttemptStatus.SUCCEEDED] * 2
    assert done == ["first", "second"]
    assert clock.now() == before
    clock.tick("1m")
    drain()
    assert done[-1] == "later"


def test_plain_handlers_run_in_the_thread_of_the_test(harbor: Harbor, drain: Drain):
    threads: list[threading.Thread] = []

    @harbor.task
    def where() -> None:
        threads.append(threading.current_thread())

    where.enqueue()
    drain()
    assert threads == [threading.current_thread()]


def test_a_schedule_of_thirty_days_runs_each_day(harbor: Harbor, clock: TestingClock, drain: Drain):
    days: list[datetime] = []

    @harbor.task(schedule="0 9 * * *")
    def report() -> None:
        days.append(clock.datetime)

    ran = drain.through("30d")

    assert len(ran) == 30
    assert days == [datetime(2026, 1, 1 + day, 9, tzinfo=UTC) for day in range(30)]
    assert clock.datetime == datetime(2026, 1, 31, tzinfo=UTC)


def test_retries_run_when_their_backoff_is_over(harbor: Harbor, clock: TestingClock, drain: Drain):
    @harbor.task(retry=THREE_TRIES)
    def fails() -> None:
        raise ValueError("no")

    job = fails.enqueue()
    [first] = drain()
    assert (first.status, str(first.error)) == (AttemptStatus.FAILED, "no")
    assert drain() == []
    clock.tick("59s")
    assert drain() == []
    clock.tick("1s")
    assert [each.number for each in drain()] == [2]
    assert [each.number for each in drain.through("2m")] == [3]
    assert job.refresh().state is State.DEAD


def test_waiting_takes_no_time_and_timeouts_fire(harbor: Harbor, clock: TestingClock, drain: Drain):
    @harbor.task(timeout=30, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(3000)

    @harbor.task(timeout=300)
    async def in_time() -> str:
        await asyncio.sleep(200)
        return "done"

    late, fine = slow.enqueue(), in_time.enqueue()
    began = clock.now()
    drain()

    [attempt] = late.refresh().history()
    assert attempt.status is AttemptStatus.TIMED_OUT
    assert fine.refresh().result(timeout=0) == "done"
    assert clock.now() - began == 230_000_000


def test_a_handler_that_waits_without_end_fails_the_test(harbor: Harbor, drain: Drain):
    @harbor.task(name="stuck")
    async def stuck() -> None:
        await asyncio.Event().wait()

    job = stuck.enqueue()
    with pytest.raises(HandlersWait, match="stuck"):
        drain(skip="5m")
    assert job.refresh().state is not State.RUNNING  # the worker has released it


def test_a_thread_that_a_handler_awaits_is_not_skipped(harbor: Harbor, clock: TestingClock, drain: Drain):
    def work() -> str:
        threading.Event().wait(0.05)
        return "worked"

    @harbor.task(timeout=5)
    async def computes() -> str:
        return await asyncio.to_thread(work)

    job = computes.enqueue()
    before = clock.now()
    drain()
    assert job.result(timeout=0) == "worked"
    assert clock.now() == before


def test_run_inline_returns_the_result_or_raises_the_handlers_error(harbor: Harbor, run_inline: RunInline):
    others: list[int] = []

    @harbor.task
    def other(x: int) -> None:
        others.append(x)

    @harbor.task
    async def divide(a: int, b: int) -> float:
        return a / b

    other.enqueue(1)
    assert run_inline(divide, 6, b=3) == 2
    with pytest.raises(ZeroDivisionError):
        run_inline(divide, 1, b=0)
    assert others == []


def test_steps_and_sleeps_of_a_plain_handler_work(harbor: Harbor, clock: TestingClock, drain: Drain):
    calls: list[str] = []

    def charge() -> int:
        calls.append("charge")
        return 7

    @harbor.task
    def order(ctx: Context) -> str:
        number = ctx.step("charge", charge)
        ctx.sleep("a-day", 86_400)
        return f"order {number}"

    job = order.enqueue()
    drain()
    assert job.refresh().state is State.SCHEDULED
    clock.tick("1d")
    drain()
    assert (job.result(timeout=0), calls) == ("order 7", ["charge"])


def test_workflows_and_expiries_follow_the_clock(harbor: Harbor, clock: TestingClock, drain: Drain):
    @harbor.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    flow = chain(add.s(1), add.s()).enqueue()
    gone = add.using(delay=3600, expires_in=1800).enqueue(5)
    drain()
    assert flow.result(timeout=0) == 3
    clock.tick("2h")
    drain()
    assert gone.refresh().state is State.CANCELLED


@pytest.mark.parametrize("end", [KeyboardInterrupt, pytest.fail.Exception])
def test_a_ctrl_c_or_a_failure_in_a_handler_ends_the_test(
    harbor: Harbor, drain: Drain, end: type[BaseException]
):
    @harbor.task
    def ends() -> None:
        raise end("seen in the handler")

    ends.enqueue()
    with pytest.raises(end, match="seen in the handler"):
        drain()


# -- what was enqueued --


def test_assertions_say_what_is_there_instead(harbor: Harbor):
    @harbor.task(name="send")
    def send(to: str, at: datetime | None = None, size: int = 1) -> None: ...

    @harbor.task(name="other")
    def other() -> None: ...

    assert_not_enqueued()
    other.enqueue()
    send.enqueue("grace@example.com", size=2)
    send.enqueue("ada@example.com", size=2, at=datetime(2026, 1, 1, tzinfo=UTC))

    assert assert_enqueued(send, to="ada@example.com", at=datetime(2026, 1, 1, tzinfo=UTC)).queue == "default"
    assert [job.payload["to"] for job in enqueued(send, size=2)] == ["grace@example.com", "ada@example.com"]
    assert_enqueued("other")
    assert_not_enqueued(send, to="bob@example.com")
    with pytest.raises(AssertionError) as failure:
        assert_enqueued(send, to="ada@example.com", size=3)
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("send(to='ada@example.com', size=3) was not enqueued")
    assert "ada@example.com" in lines[1]
    assert lines[2].strip() == "size: wanted 3, found 2"
    assert [line.split("(")[0].strip() for line in lines if "in queue" in line] == ["send", "send", "other"]
    with pytest.raises(AssertionError, match="no send.* should have been enqueued"):
        assert_not_enqueued(send, size=2)
    with pytest.raises(AssertionError, match="can have these arguments.*colour"):
        assert_enqueued(send, colour="red")


def test_a_slip_in_a_test_is_an_error(harbor: Harbor, run_inline: RunInline):
    """A test that cannot fail is worse than none."""

    @harbor.task(name="send")
    def send() -> None: ...

    def plain() -> None: ...

    anything: Any = plain
    text: Any = "x"
    for check in (enqueued, assert_enqueued, assert_not_enqueued, run_inline):
        with pytest.raises(ConfigurationError, match=r"takes a task, .* not the plain function .*plain"):
            check(anything)
    with pytest.raises(ConfigurationError, match="no task called 'sent' .it has send."):
        assert_not_enqueued("sent")
    assert_not_enqueued("send")
    assert enqueued("sent") == []
    with pytest.raises(ConfigurationError, match=r"run_inline.* not 'x'"):
        run_inline(text)
    for wrong in ("x", 0, True):
        with pytest.raises(ConfigurationError, match=r"attempt=…. takes a whole number of at least 1, not"):
            make_context(attempt=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="retry_count"):
        make_context(retry_count=-1)
    with pytest.raises(ConfigurationError, match=r"make_context.* takes a Harbor"):
        make_context(text)
    with pytest.raises(ConfigurationError, match=r"outage.* takes a Harbor, .* not 'x'"), outage(text):
        pass
    with pytest.raises(ConfigurationError, match="calls=…. takes a whole number"), outage(harbor, calls=-1):
        pass
    with pytest.raises(ConfigurationError, match=r"staged.* takes a Harbor, .* not 'x'"), staged(text):
        pass
    with pytest.raises(ConfigurationError, match="takes a TestingClock"), staged(None, text):
        pass


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:harbor", "module no_such_module cannot be imported: ModuleNotFoundError"),
        ("taskharbor:nothing", "taskharbor has no nothing"),
        ("taskharbor:Harbor", "is a type; name a Harbor"),
        ("taskharbor", "takes module:object"),
    ],
)
def test_a_setting_that_names_no_harbor_is_named(name: str, said: str):
    with pytest.raises(ConfigurationError, match=rf"taskharbor_app in pytest's settings .*{said}"):
        named_harbor(name)


# -- outages and transactions --


def test_an_outage_fails_callers_and_a_worker_outlasts_it(harbor: Harbor, drain: Drain):
    @harbor.task
    def work() -> str:
        return "done"

    with outage(harbor), pytest.raises(StoreUnavailable):
        work.enqueue()
    job = work.enqueue()
    with outage(harbor, "settle", calls=3):
        drain()
    assert job.result(timeout=0) == "done"
    with outage(harbor), pytest.raises(HandlersWait):
        drain(skip="1m")
    with pytest.raises(ConfigurationError, match="no verb"), outage(harbor, "flush"):
        pass


def test_a_callers_transaction_takes_its_jobs_back(harbor: Harbor):
    import sqlite3

    import sqlalchemy

    @harbor.task
    def work(x: int) -> None: ...

    with closing(sqlite3.connect(":memory:")) as connection:
        with harbor.transaction(connection):
            work.enqueue(1)
        with pytest.raises(ZeroDivisionError), harbor.transaction(connection):
            work.enqueue(2)
            chain(work.si(3), work.si(4)).enqueue()
            raise ZeroDivisionError
    assert [job.payload["x"] for job in enqueued(work)] == [1]

    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as sql:
        with harbor.transaction(sql):
            sql.execute(sqlalchemy.text("SELECT 1"))
            work.enqueue(5)
        sql.rollback()
        with harbor.transaction(sql):
            sql.execute(sqlalchemy.text("SELECT 1"))
            work.enqueue(6)
        sql.commit()
        sql.execute(sqlalchemy.text("SELECT 1"))
        sql.rollback()
    engine.dispose()
    assert [job.payload["x"] for job in enqueued(work)] == [1, 6]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_real_store_is_drained_by_the_same_means(kind: str, tmp_path: Path):
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else stack.enter_context(store.database())
        harbor = stack.enter_context(Harbor(url, clock=TestingClock()))
        harbor.migrate()

        @harbor.task(retry=THREE_TRIES)
        def work(x: int) -> int:
            return 10 // x

        job, failing = work.enqueue(5), work.enqueue(0)
        ran = Drain(harbor).through("10m")
        assert [each.number for each in ran] == [1, 1, 2, 3]
        assert (job.result(timeout=0), failing.refresh().state) == (2, State.DEAD)
        assert RunInline(harbor)(work, 2) == 5
        assert len(enqueued(work)) == 3


# -- contexts --


def test_a_handler_can_be_called_with_a_made_context(harbor: Harbor):
    @harbor.task
    def child(x: int) -> None: ...

    @harbor.task
    def parent(ctx: Context, x: int) -> int:
        ctx.progress(0.5, "half")
        ctx.enqueue(child.s(x))
        ctx.sleep("a-while", 60)
        doubled: int = ctx.step("double", lambda: 2 * x)
        return doubled + ctx.retry_count

    ctx = make_context(attempt=2)
    assert parent(ctx, 5) == 11
    assert ([each.message for each in ctx.reported], len(ctx.enqueued)) == (["half"], 1)
    assert (ctx.step_results, ctx.slept) == ({"double": 10}, {"a-while": 60})
    assert parent(make_context(steps={"double": 100}), 5) == 100
    assert make_context(stop_requested="cancel").stop_requested == "cancel"
    assert_not_enqueued(child)


async def test_an_async_handler_can_be_called_with_a_made_context(harbor: Harbor):
    @harbor.task
    async def parent(ctx: Context) -> Any:
        await ctx.sleep("a-while", 60)
        return await ctx.step("three", lambda: 3)

    assert await parent(make_context()) == 3


# -- asynchronous tests --


async def test_async_tests_drain_on_their_own_loop(
    harbor: Harbor, clock: TestingClock, drain: Drain, run_inline: RunInline
):
    loop = asyncio.get_running_loop()

    @harbor.task(timeout=30, max_attempts=1)
    async def slow() -> None:
        assert asyncio.get_running_loop() is loop
        await asyncio.Event().wait()

    @harbor.task
    async def double(x: int) -> int:
        return 2 * x

    job = await slow.aenqueue()
    [[ran], _] = await asyncio.gather(drain.async_(), clock.atick("31s"))
    assert ran.status is AttemptStatus.TIMED_OUT
    assert (await job.arefresh()).state is State.DEAD
    assert await run_inline.async_(double, 4) == 8
    await double.using(delay=timedelta(hours=1)).aenqueue(1)
    assert [each.status for each in await drain.through_async("1h")] == [AttemptStatus.SUCCEEDED]
    with pytest.raises(ConfigurationError, match="await drain.async_"):
        drain()
