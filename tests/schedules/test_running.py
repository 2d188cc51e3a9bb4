"""Recurring jobs at work: what each ending of a run leads to, and what becomes of what was missed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import Context, Harbor, RetryPolicy, Unrecoverable, Worker
from taskharbor.client.schedule import schedule_id
from taskharbor.clock import ManualClock, to_micros
from taskharbor.drivers.base import ClaimRequest
from taskharbor.records import State
from taskharbor.schedule import every
from tests.schedules.stage import STEADY, at, pass_time, statuses, the, work
from tests.worker.stage import said, until

MINUTE, HOUR = 60, 3600
LEASE = 30_000_000


def declare(harbor: Harbor, do: Any = None, **options: Any) -> list[float]:
    """A task `tick` that recurs and notes when it ran, in seconds since the beginning."""
    ran: list[float] = []
    clock = harbor.driver.clock

    @harbor.task(name="tick", **({"schedule": "* * * * *"} | options))
    async def tick(ctx: Context) -> None:
        ran.append((clock.now() - to_micros(at(0))) / 1_000_000)
        if do is not None:
            await do(ctx)

    return ran


async def claimed_by_one_who_dies(harbor: Harbor, clock: ManualClock) -> None:
    claim = await harbor.driver.claim(ClaimRequest(f"dead/{clock.now()}", LEASE, 10, once_limit=10))
    assert len(claim.jobs) == 1
    clock.advance(30)


# -- the next occurrence ---------------------------------------------------------------------------


async def test_an_occurrence_runs_when_it_is_due_and_the_next_one_is_set(harbor: Harbor, clock: ManualClock):
    ran = declare(harbor, schedule="*/10 * * * * *", timezone="Europe/Berlin")
    await work(harbor)
    assert (ran, (await the(harbor)).due_at) == ([], at(10))
    await pass_time(harbor, clock, 35, step=5)
    assert (ran, (await the(harbor)).due_at) == ([10, 20, 30], at(40))
    schedule = await the(harbor)
    assert (schedule.state, schedule.last_status, schedule.last_finished_at) == (
        "scheduled",
        "succeeded",
        at(30),
    )
    assert await harbor.jobs.acounts() == dict.fromkeys(State, 0) | {"scheduled": 1}


async def test_every_ending_of_a_run_sets_the_next_occurrence(harbor: Harbor, clock: ManualClock):
    """Success, last permitted failure, unrecoverable, timeout, cancelled on request."""
    told: list[str] = []
    endings = iter(["succeed", "fail", "unrecoverable", "time out", "cancel", "succeed"])

    async def end(ctx: Context) -> None:
        how = next(endings)
        told.append(how)
        match how:
            case "fail":
                raise ValueError("broken")
            case "unrecoverable":
                raise Unrecoverable("never")
            case "time out":
                clock.advance(20)
            case "cancel":
                await harbor.jobs.acancel(ctx.job.id)
                raise ValueError("the request makes this the end")

    ran = declare(harbor, end, max_attempts=1, timeout=10)
    await work(harbor)
    for minute in range(1, 7):
        clock.advance(MINUTE - (20 if minute == 5 else 0))
        if minute == 5:  # time passed in the handler that timed out
            assert (await the(harbor)).due_at == at(5 * MINUTE)
        await work(harbor)
    assert told == ["succeed", "fail", "unrecoverable", "time out", "cancel", "succeed"]
    assert ran == [60, 120, 180, 240, 300, 360]
    assert await statuses(harbor) == ["succeeded", "failed", "failed", "timed_out", "failed", "succeeded"]
    assert (await the(harbor)).attempts == 0
    assert await harbor.jobs.acounts() == dict.fromkeys(State, 0) | {"scheduled": 1}


@pytest.mark.parametrize("kind", ["lost", "poison"])
async def test_a_lost_occurrence_is_followed_by_the_next(harbor: Harbor, clock: ManualClock, kind: str):
    declare(harbor, delivery="at_most_once" if kind == "lost" else None)
    await harbor.schedules._reconcile()
    clock.advance(MINUTE)
    await claimed_by_one_who_dies(harbor, clock)
    if kind == "lost":
        await harbor._collect_all_expired()
    else:
        from taskharbor.rescue import rescue_expired_leases

        await rescue_expired_leases(
            harbor.driver
        )  # does not count: the job may have been lost because of another
        for _ in range(2):
            for suspects in (True, False):
                token = f"dead/{clock.now()}-{suspects}"
                request = ClaimRequest(token, LEASE, 10, suspects=suspects, max_losses=1)
                if (await harbor.driver.claim(request)).jobs:
                    break
            clock.advance(30)
            await rescue_expired_leases(harbor.driver)
    schedule = await the(harbor)
    assert schedule.state in ("scheduled", "ready")
    assert schedule.due_at is not None
    assert schedule.due_at > at(MINUTE)
    assert set(await statuses(harbor)) == {"lost"}
    assert (await harbor.jobs.acounts())["dead"] == 0


async def test_a_lost_run_of_at_least_once_runs_again_and_keeps_its_due_time(
    harbor: Harbor, clock: ManualClock
):
    ran = declare(harbor)
    await harbor.schedules._reconcile()
    clock.advance(MINUTE)
    await claimed_by_one_who_dies(harbor, clock)
    await work(harbor)
    assert (ran, await statuses(harbor)) == ([90], ["lost", "succeeded"])
    assert (await the(harbor)).due_at == at(2 * MINUTE)


async def test_retries_do_not_make_it_drift(harbor: Harbor, clock: ManualClock):
    fails = iter([True, True, False, False])

    async def end(ctx: Context) -> None:
        assert ctx.job.due_at == at(MINUTE) or ctx.retry_count == 0
        if next(fails):
            raise ValueError("broken")

    ran = declare(harbor, end, schedule=every(MINUTE))
    await work(harbor)
    clock.advance(MINUTE)
    await work(harbor)
    schedule = await the(harbor)
    assert (schedule.due_at, schedule.next_run_at, schedule.attempts) == (at(60), at(61), 1)
    for seconds in (1, 2, 57):
        await pass_time(harbor, clock, seconds, step=seconds)
    assert ran == [60, 61, 63, 120]
    assert (await the(harbor)).due_at == at(180)


async def test_an_interval_is_anchored_at_its_own_last_due_time(harbor: Harbor, clock: ManualClock):
    clock.advance(3)
    ran = declare(harbor, schedule=every(10))
    await work(harbor)
    clock.advance(14)  # late, by four
    await work(harbor)
    for seconds in (6, 10, 10):
        await pass_time(harbor, clock, seconds, step=seconds)
    assert ran == [17, 23, 33, 43]


async def test_steps_attempts_and_losses_are_those_of_one_occurrence(harbor: Harbor, clock: ManualClock):
    seen: list[tuple[int, int]] = []

    async def end(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.retry_count))
        raise ValueError("broken")

    declare(harbor, end, max_attempts=2)
    await work(harbor)
    for seconds in (60, 1, 59, 1):
        await pass_time(harbor, clock, seconds, step=seconds)
    assert seen == [(1, 0), (2, 1), (1, 0), (2, 1)]


# -- what was missed -------------------------------------------------------------------------------


@pytest.mark.parametrize(("misfire", "runs"), [("run_once", 1), ("skip", 0)])
async def test_six_hours_of_downtime_with_a_minute_schedule(
    harbor: Harbor, clock: ManualClock, misfire: str, runs: int
):
    ran = declare(harbor, misfire=misfire)
    await work(harbor)
    clock.advance(6 * HOUR + 90)  # later than the grace, in the midst of a minute
    await work(harbor)
    await work(harbor)
    assert len(ran) == runs
    assert (await the(harbor)).due_at == at(6 * HOUR + 120)
    assert await statuses(harbor) == (["succeeded"] if runs else ["cancelled"])
    await pass_time(harbor, clock, 60, step=30)
    assert len(ran) == runs + 1


async def test_skip_runs_what_is_late_within_its_grace(harbor: Harbor, clock: ManualClock):
    ran = declare(harbor, schedule="0 * * * *", misfire="skip", misfire_grace=90)
    await work(harbor)
    clock.advance(HOUR + 90)
    await work(harbor)
    assert ran == [HOUR + 90]
    clock.advance(HOUR + 1)
    await work(harbor)
    assert ran == [HOUR + 90]
    [dropped, *_] = await harbor.jobs.ahistory(schedule_id("default", "tick"))
    assert (str(dropped.status), dropped.started_at) == ("cancelled", None)
    assert dropped.detail == "missed: 91 s late, and its misfire_grace is 90 s"


@pytest.mark.parametrize(("misfire", "then"), [("run_once", [60, 210, 240]), ("skip", [60, 240])])
async def test_an_overrun_is_made_up_by_one_run_or_dropped(
    harbor: Harbor, clock: ManualClock, misfire: str, then: list[float]
):
    async def end(ctx: Context) -> None:
        if len(ran) == 1:
            clock.advance(150)  # two occurrences come due meanwhile

    ran = declare(harbor, end, misfire=misfire)
    await work(harbor, lease_seconds=600)
    clock.advance(MINUTE)
    await work(harbor, lease_seconds=600)
    await pass_time(harbor, clock, 30, step=30, lease_seconds=600)
    assert ran == then


async def test_a_begun_run_is_brought_to_its_end_however_late(harbor: Harbor, clock: ManualClock):
    """Skip drops occurrences that nobody has begun; a claimed one that was lost is executed again."""
    ran = declare(harbor, misfire="skip", misfire_grace=5)
    await harbor.schedules._reconcile()
    clock.advance(MINUTE)
    await claimed_by_one_who_dies(harbor, clock)
    clock.advance(6 * HOUR)
    await work(harbor)
    assert (len(ran), await statuses(harbor)) == (1, ["lost", "succeeded"])


async def test_one_that_was_handed_back_has_not_begun(harbor: Harbor, clock: ManualClock):
    from taskharbor.drivers.base import Occurrence, Transition
    from taskharbor.records import AttemptStatus

    ran = declare(harbor, misfire="skip", misfire_grace=5)
    await harbor.schedules._reconcile()
    clock.advance(MINUTE)
    claim = await harbor.driver.claim(ClaimRequest("one/1", LEASE, 10))
    [job] = claim.jobs
    back = Transition(
        "one/1", job.id, job.number, AttemptStatus.RELEASED, State.READY, occurrence=Occurrence(0, 1)
    )
    await harbor.driver.settle([back])
    clock.advance(HOUR)
    await work(harbor)
    assert (ran, await statuses(harbor)) == ([], ["released", "cancelled"])


# -- failing ---------------------------------------------------------------------------------------


async def test_a_failed_occurrence_leaves_a_one_off_copy_in_the_dlq(harbor: Harbor, clock: ManualClock):
    async def end(ctx: Context) -> None:
        if len(ran) < 3:
            raise ValueError(f"broken {len(ran)}")

    ran = declare(
        harbor, end, max_attempts=2, dead_letter=True, tags=["nightly"], priority=3, meta={"a": "b"}
    )
    await work(harbor)
    clock.advance(MINUTE)
    await work(harbor)
    clock.advance(1)
    await work(harbor)
    [dead] = await harbor.dlq.alist()
    assert (dead.task, dead.reason, dead.attempts, dead.error) == (
        "tick",
        "exhausted",
        2,
        "ValueError: broken 2",
    )
    assert (dead.tags, dead.priority, dead.due_at, dead.meta) == (("nightly",), 3, None, {"a": "b"})
    assert [row.error for row in await dead.ahistory()] == ["ValueError: broken 2", "ValueError: broken 1"]
    assert (await the(harbor)).due_at == at(2 * MINUTE)
    await harbor.dlq.arequeue(dead.id)
    await work(harbor)
    assert (await dead.arefresh()).state is State.SUCCEEDED
    assert (await the(harbor)).due_at == at(2 * MINUTE)
    assert len(await harbor.schedules.alist()) == 1


async def test_without_dead_letter_the_dlq_stays_empty(harbor: Harbor, clock: ManualClock):
    async def end(ctx: Context) -> None:
        raise Unrecoverable("never")

    declare(harbor, end)
    await work(harbor)
    clock.advance(MINUTE)
    await work(harbor)
    schedule = await the(harbor)
    assert (schedule.last_status, schedule.last_error) == ("failed", "Unrecoverable: never")
    assert await harbor.dlq.alist() == []


async def test_log_lines_of_a_failing_one(
    memory: Harbor, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    """They carry the job, the retry number of the maximum, the delay and the time of the next run."""

    async def end(ctx: Context) -> None:
        raise ValueError("broken")

    declare(memory, end, max_attempts=2)
    await work(memory)
    clock.advance(MINUTE)
    with caplog.at_level("INFO", "taskharbor"):
        await work(memory)
        clock.advance(1)
        await work(memory)
    retried, failed = (record for record in caplog.records if record.levelname in ("WARNING", "ERROR"))
    job = (await the(memory)).id
    assert said(retried) == f"Job {job} failed, scheduling retry 1/1 in 1s (at 2026-01-01T00:01:01.000Z)"
    assert said(failed) == (
        f"Job {job} failed after 1 retry, rescheduled for next occurrence: 2026-01-01T00:02:00Z"
    )
    fields = failed.fields  # type: ignore[attr-defined]
    assert fields["job"] == job
    assert (fields["retry"], fields["max_retries"], fields["delay"]) == (1, 1, 59)
    assert (fields["next_run"], fields["reason"]) == ("2026-01-01T00:02:00Z", "exhausted")


async def test_events_tell_how_an_occurrence_ended(memory: Harbor, clock: ManualClock):
    told: list[tuple[str, str | None]] = []
    for name in ("succeeded", "failed", "retried", "dead", "cancelled"):
        memory.on(name)(lambda event: told.append((event.name, event.reason)))

    async def end(ctx: Context) -> None:
        if len(ran) == 1:
            raise Unrecoverable("never")

    ran = declare(memory, end, misfire="skip")
    await work(memory)
    for seconds in (60, 60, 3 * HOUR + 90):
        clock.advance(seconds)
        await work(memory)
    await until(lambda: len(told) == 4)
    assert told == [
        ("failed", None), ("dead", "unrecoverable"), ("succeeded", None), ("cancelled", "expired"),
    ]  # fmt: skip


# -- together with the rest ------------------------------------------------------------------------


async def test_one_run_at_a_time(memory: Harbor, clock: ManualClock):
    """By construction: while it runs, it is nowhere to be claimed, however many workers look."""
    running, most = 0, 0
    go_on = asyncio.Event()

    async def end(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1

    ran = declare(memory, end, schedule="* * * * * *")
    async with Worker(memory), Worker(memory), Worker(memory):
        await clock.jump(10)
        assert (len(ran), most) == (1, 1)
        go_on.set()
        await clock.jump(3)
    assert most == 1


async def test_unrunnable_occurrences_are_put_back_and_then_closed(harbor: Harbor, clock: ManualClock):
    """A task that nobody knows: after the grace the occurrence is over, and the schedule is not."""
    await harbor.schedules.aadd("tick", "unknown", schedule="0 * * * *")
    clock.advance(HOUR)
    for _ in range(14):
        await work(harbor, unrunnable_grace_seconds=60)
        clock.advance(30)
    assert (await the(harbor)).due_at == at(2 * HOUR)
    assert (await statuses(harbor))[-1] == "failed"


async def test_options_that_only_a_newer_version_can_read_end_nothing(memory: Harbor, clock: ManualClock):
    declare(memory)
    await work(memory)
    job = memory.driver._store.jobs[schedule_id("default", "tick")]  # type: ignore[attr-defined]
    job.row = replace(job.row, unreadable_options='{"recurrence": {"schedule": "@fullmoon", "name": "tick"}}')
    clock.advance(MINUTE)
    for _ in range(20):
        await work(memory, unrunnable_grace_seconds=60)
        clock.advance(30)
    assert job.state is State.READY
    assert set(await statuses(memory)) == {"released"}


async def test_history_of_recurring_jobs_has_its_own_retention(driver, clock: ManualClock):
    await driver.migrate()
    async with Harbor(driver=driver, retention={"history_count": 3, "history": 3600}) as harbor:
        declare(harbor, schedule=every(10))
        await work(harbor)
        await pass_time(harbor, clock, 60, step=10)
        assert await harbor._prune_schedules() == 3
        rows = await harbor.jobs.ahistory(schedule_id("default", "tick"))
        assert [row.number for row in rows] == [6, 5, 4]
        clock.advance(2 * HOUR)
        assert await harbor._prune_schedules() == 2
        await work(harbor)
        assert len(await statuses(harbor)) == 2


async def test_the_worker_prunes_history_by_itself(clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskharbor.worker.upkeep.maintenance.PRUNE_HISTORY_EVERY", 10)  # some five seconds
    async with Harbor("memory://", clock=clock, retention={"history_count": 2}) as harbor:
        ran = declare(harbor, schedule=every(2))
        async with Worker(harbor, retry=STEADY):
            await clock.jump(40)
        assert len(ran) == 20
        assert len(await statuses(harbor)) < 10


async def test_a_policy_of_its_own_governs_each_occurrence(harbor: Harbor, clock: ManualClock):
    async def end(ctx: Context) -> None:
        raise ValueError("broken")

    ran = declare(harbor, end, retry=RetryPolicy(max_attempts=3, initial=5, multiplier=1, jitter=None))
    await work(harbor)
    for seconds in (60, 5, 5, 50, 5):
        await pass_time(harbor, clock, seconds, step=seconds)
    assert ran == [60, 65, 70, 120, 125]
