"""Whoever looked at a schedule, and is overtaken before acting on it: by a worker, or by somebody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taskharbor import Context, Harbor, JobConflict
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import Driver
from tests.schedules.stage import at, statuses, the, work

HOUR = 3600


@pytest.fixture
def ran(harbor: Harbor, clock: ManualClock) -> list[str]:
    """When the task `note` ran."""
    times: list[str] = []

    @harbor.task(name="note")
    async def note() -> None:
        times.append(f"{clock.now()}")

    return times


def overtake(
    monkeypatch: pytest.MonkeyPatch,
    driver: Driver,
    meanwhile: Callable[[], Awaitable[Any]],
    verb: str = "operate",
) -> None:
    """Before the next call of this verb takes effect, something else does."""
    original = getattr(driver, verb)

    async def overtaken(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(driver, verb, original)
        await meanwhile()
        return await original(*args, **more)

    monkeypatch.setattr(driver, verb, overtaken)


async def test_cancel_that_is_overtaken_by_runs_never_brings_one_back(
    harbor: Harbor, driver: Driver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, ran
):
    """No double fire: the occurrences of 60 and 120 have had their runs."""
    schedule = await harbor.schedules.aadd("tick", "note", schedule="* * * * *")

    async def two_runs() -> None:
        for _ in range(2):
            clock.advance(60)
            await work(harbor)

    overtake(monkeypatch, driver, two_runs)
    job = await harbor.jobs.acancel(schedule.id)
    assert (len(ran), job.due_at) == (2, at(240))
    assert await statuses(harbor) == ["succeeded", "succeeded", "cancelled"]


async def test_run_now_that_is_overtaken_by_a_pause_is_refused(
    harbor: Harbor, driver: Driver, monkeypatch: pytest.MonkeyPatch, ran
):
    """A paused schedule is never claimed."""
    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    overtake(monkeypatch, driver, lambda: harbor.schedules.apause("tick"))
    with pytest.raises(JobConflict, match="is paused"):
        await harbor.schedules.arun_now("tick")
    await work(harbor)
    assert (ran, (await the(harbor)).state) == ([], "scheduled")


async def test_cancel_that_is_overtaken_by_run_now_ends_the_extra_run_alone(
    harbor: Harbor, driver: Driver, monkeypatch: pytest.MonkeyPatch, ran
):
    schedule = await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    overtake(monkeypatch, driver, lambda: harbor.schedules.arun_now("tick"))
    await harbor.jobs.acancel(schedule.id)
    await work(harbor)
    assert (ran, (await the(harbor)).due_at) == ([], at(60))


async def test_run_now_while_it_runs_is_not_lost_to_the_run_that_follows(
    harbor: Harbor, driver: Driver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """It was asked for during one run and arrives during the next: then it comes right after that one."""
    runs: list[int] = []
    asked: list[Any] = []

    @harbor.task(name="long")
    async def long(ctx: Context) -> None:
        runs.append(ctx.job.number)
        if len(runs) == 1:
            # Read here, in the midst of the first run; written in the midst of the second.
            asked.append(await harbor.schedules._record(ctx.job.id, "tick"))
        elif len(runs) == 2:
            record, _ = asked[0]
            real = driver.get

            async def once(ids: Any, **more: Any) -> Any:
                monkeypatch.setattr(driver, "get", real)
                return [record]

            monkeypatch.setattr(harbor, "_collect_expired", _nothing)
            monkeypatch.setattr(driver, "get", once)
            await harbor.schedules.arun_now("tick")

    await harbor.schedules.aadd("tick", "long", schedule="* * * * *")
    clock.advance(60)
    await work(harbor)
    clock.advance(60)
    await work(harbor)
    assert len(runs) == 3
    assert (await the(harbor)).due_at == at(180)


async def _nothing(*_: Any) -> None: ...


async def test_a_change_while_a_run_is_asleep_lets_it_go_on(harbor: Harbor, clock: ManualClock):
    """It wakes up when it wanted to, and its occurrence has one run."""
    woke: list[int] = []

    @harbor.task(name="sleeper")
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep("nap", 5)
        woke.append(ctx.job.number)

    await harbor.schedules.aadd("tick", "sleeper", schedule="* * * * *")
    clock.advance(60)
    await work(harbor)
    changed = await harbor.schedules.aupdate("tick", schedule="@hourly")
    assert (changed.due_at, changed.next_run_at) == (at(60), at(65))
    clock.advance(5)
    await work(harbor)
    assert (woke, (await the(harbor)).due_at) == ([2], at(HOUR))


async def test_an_extra_run_that_sleeps_past_the_occurrence_consumes_none(harbor: Harbor, clock: ManualClock):
    @harbor.task(name="sleeper")
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep("nap", 5)

    await harbor.schedules.aadd("tick", "sleeper", schedule="* * * * *")
    clock.advance(58)
    await harbor.schedules.arun_now("tick")
    clock.advance(4)  # nobody was free before
    await work(harbor)
    clock.advance(5)
    await work(harbor)
    clock.advance(5)
    await work(harbor)
    # the extra run of 58, then the occurrence of 60
    assert await statuses(harbor) == ["slept", "succeeded", "slept", "succeeded"]
    assert (await the(harbor)).due_at == at(120)


async def test_added_again_while_what_was_deleted_runs_for_the_last_time_goes_on(
    harbor: Harbor, clock: ManualClock
):
    """Also if that attempt was claimed when there was no schedule any more."""
    attempts: list[int] = []

    @harbor.task(name="tock")
    async def tock() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            await harbor.schedules.adelete("tick")
            raise ValueError("broken")
        if len(attempts) == 2:
            await harbor.schedules.aadd("tick", "tock", schedule="@hourly")

    await harbor.schedules.aadd("tick", "tock", schedule="* * * * *")
    clock.advance(60)
    await work(harbor)
    clock.advance(1)
    await work(harbor)
    assert (len(attempts), (await the(harbor)).due_at) == (2, at(HOUR))
