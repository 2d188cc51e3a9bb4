"""What can be done to a schedule, by name: also while it runs, and by two at once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from taskharbor import ConfigurationError, Context, Harbor, JobConflict, JobNotFound, Worker, presets
from taskharbor.client.schedule import schedule_id
from taskharbor.clock import ManualClock, from_micros
from taskharbor.records import State
from taskharbor.schedule import every
from tests.schedules.stage import at, pass_time, statuses, the, work
from tests.worker.stage import soon

MINUTE, HOUR = 60, 3600


@pytest.fixture
def ran(harbor: Harbor) -> list[dict[str, Any]]:
    """Payloads of what ran: the task `note` notes them."""
    notes: list[dict[str, Any]] = []

    @harbor.task(name="note")
    async def note(n: int = 0, wait: bool = False) -> int:
        notes.append({"n": n})
        return n

    return notes


async def in_the_midst_of_a_run(harbor: Harbor, clock: ManualClock, do: Any, **options: Any) -> list[int]:
    """Run the schedule `tick` (every minute) once, and do something while it runs; the numbers it was given."""
    numbers: list[int] = []

    @harbor.task(name="tock")
    async def tock(ctx: Context, n: int = 0, fail: bool = False) -> None:
        numbers.append(n)
        if len(numbers) == 1:
            await do()
            if fail:
                raise ValueError("broken")

    await harbor.schedules.aadd("tick", "tock", **({"schedule": "* * * * *"} | options))
    clock.advance(MINUTE)
    await work(harbor)
    return numbers


# -- adding and changing ---------------------------------------------------------------------------


async def test_a_schedule_is_added_once_whatever_is_added_again(harbor: Harbor, ran):
    added = await harbor.schedules.aadd(
        "tick", "note", {"n": 1}, schedule="0 7 * * MON-FRI", timezone="Europe/Berlin", misfire="skip",
        misfire_grace=5, dead_letter=True, queue="q", priority=2, max_retries=3, timeout=9, tags=["t"],
        retry=presets.SCHEDULE, delivery="at_most_once", meta={"tenant": "acme"},
    )  # fmt: skip
    assert (added.name, added.task, added.payload, added.queue) == ("tick", "note", {"n": 1}, "q")
    assert (added.schedule, added.timezone, added.misfire) == ("0 7 * * MON-FRI", "Europe/Berlin", "skip")
    assert (added.misfire_grace, added.dead_letter, added.tags) == (5, True, ("t",))
    assert (added.declared, added.paused, added.due_at) == (False, False, at(6 * HOUR))
    job = await harbor.jobs.aget(added.id)
    assert (job.max_attempts, job.timeout, job.tags, job.state) == (4, 9, ("t",), "scheduled")
    assert (job.meta, added.meta) == ({"tenant": "acme"}, {"tenant": "acme"})
    assert [each.id for each in await harbor.jobs.alist(tag="t")] == [added.id]

    again = await harbor.schedules.aadd("tick", "note", {"n": 2}, schedule="@hourly")
    assert (again.id, again.payload, again.due_at) == (added.id, {"n": 2}, at(HOUR))
    assert (again.queue, again.priority, again.tags) == ("default", 0, ())
    assert [each.name for each in await harbor.schedules.alist()] == ["tick"]
    assert await harbor.jobs.alist(tag="t") == []


async def test_the_same_name_in_two_applications_is_two_schedules(harbor: Harbor, ran):
    await harbor.schedules.aadd("tick", "note", schedule="@hourly")
    await harbor.schedules.aadd("tick", "note", schedule="@daily", application="another")
    assert [(s.application, s.schedule) for s in await harbor.schedules.alist()] == [
        ("another", "@daily"),
        ("default", "@hourly"),
    ]
    assert [s.application for s in await harbor.schedules.alist("another")] == ["another"]
    assert (await harbor.schedules.aget("tick", application="another")).schedule == "@daily"


async def test_ten_at_once_add_one(harbor: Harbor, ran):
    adding = [harbor.schedules.aadd("tick", "note", schedule="@hourly") for _ in range(10)]
    assert len({each.id for each in await asyncio.gather(*adding)}) == 1
    assert await harbor.jobs.acounts() == dict.fromkeys(State, 0) | {"scheduled": 1}


async def test_of_ten_at_once_that_must_not_replace_one_adds(harbor: Harbor, ran):
    adding = [
        harbor.schedules.aadd("tick", "note", {"n": n}, schedule="* * * * *", replace=False)
        for n in range(10)
    ]
    answers = await asyncio.gather(*adding, return_exceptions=True)
    [added] = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert [type(answer) for answer in answers if answer is not added] == [JobConflict] * 9
    assert (await harbor.schedules.aget("tick")).payload == added.payload


async def test_a_change_keeps_what_is_not_given(harbor: Harbor, clock: ManualClock, ran):
    await harbor.schedules.aadd("tick", "note", {"n": 1}, schedule="@hourly", priority=3, tags=["t"])
    changed = await harbor.schedules.aupdate("tick", payload={"n": 2})
    assert (changed.payload, changed.schedule, changed.priority, changed.due_at) == (
        {"n": 2},
        "@hourly",
        3,
        at(HOUR),
    )
    changed = await harbor.schedules.aupdate("tick", schedule="30 * * * *", queue="elsewhere", misfire="skip")
    assert (changed.due_at, changed.queue, changed.misfire) == (at(1800), "elsewhere", "skip")
    assert (changed.payload, changed.tags) == ({"n": 2}, ("t",))
    clock.advance(1800)
    await work(harbor, queues=["elsewhere"])
    assert ran == [{"n": 2}]


async def test_a_change_while_it_runs_wins(harbor: Harbor, clock: ManualClock):
    async def change() -> None:
        await harbor.schedules.aupdate("tick", schedule="@hourly", payload={"n": 7})

    numbers = await in_the_midst_of_a_run(harbor, clock, change)
    assert ((await the(harbor)).due_at, await statuses(harbor)) == (at(HOUR), ["succeeded"])
    clock.advance(HOUR)
    await work(harbor)
    assert numbers == [0, 7]


async def test_a_change_during_a_retry_lets_the_run_go_on(harbor: Harbor, clock: ManualClock):
    async def nothing() -> None: ...

    numbers = await in_the_midst_of_a_run(harbor, clock, nothing, payload={"fail": True})
    changed = await harbor.schedules.aupdate("tick", schedule="@hourly")
    assert (changed.attempts, changed.next_run_at) == (1, at(MINUTE + 1))
    clock.advance(1)
    await work(harbor)
    assert (len(numbers), (await the(harbor)).due_at) == (2, at(HOUR))


# -- pausing ---------------------------------------------------------------------------------------


async def test_a_paused_schedule_is_reported_scheduled_and_never_claimed(
    harbor: Harbor, clock: ManualClock, ran
):
    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    paused = await harbor.schedules.apause("tick")
    assert (paused.paused, paused.state, paused.due_at, paused.next_run_at) == (
        True,
        "scheduled",
        at(60),
        None,
    )
    await pass_time(harbor, clock, 300, step=60)
    assert ran == []
    assert (await the(harbor)).state == "scheduled"
    assert (await harbor.schedules.apause("tick")).paused  # again: nothing to do


@pytest.mark.parametrize(("misfire", "runs"), [("run_once", 1), ("skip", 0)])
async def test_resuming_treats_what_came_due_as_missed(
    harbor: Harbor, clock: ManualClock, ran, misfire, runs
):
    await harbor.schedules.aadd("tick", "note", schedule="* * * * *", misfire=misfire)
    await harbor.schedules.apause("tick")
    clock.advance(10 * MINUTE + 5)
    assert not (await harbor.schedules.aresume("tick")).paused
    await work(harbor)
    assert (len(ran), (await the(harbor)).due_at) == (runs, at(11 * MINUTE))


async def test_pausing_a_running_one_lets_it_end_and_parks_it(harbor: Harbor, clock: ManualClock):
    async def pause() -> None:
        await harbor.schedules.apause("tick")

    numbers = await in_the_midst_of_a_run(harbor, clock, pause)
    assert await statuses(harbor) == ["succeeded"]
    await pass_time(harbor, clock, 300, step=60)
    assert (len(numbers), (await the(harbor)).state) == (1, "scheduled")
    await harbor.schedules.aresume("tick")
    await work(harbor)
    assert len(numbers) == 2


async def test_a_retry_of_a_paused_one_waits_until_it_is_resumed(harbor: Harbor, clock: ManualClock):
    async def pause() -> None:
        await harbor.schedules.apause("tick")

    numbers = await in_the_midst_of_a_run(harbor, clock, pause, payload={"fail": True})
    await pass_time(harbor, clock, 120, step=30)
    assert (len(numbers), (await the(harbor)).attempts, (await the(harbor)).state) == (1, 1, "scheduled")
    await harbor.schedules.aresume("tick")
    await work(harbor)
    # the retry, and one run for what came due while its run was under way
    assert await statuses(harbor) == ["failed", "succeeded", "succeeded"]


async def test_paused_and_resumed_while_it_runs_is_as_if_nothing_had_been(harbor: Harbor, clock: ManualClock):
    async def both() -> None:
        await harbor.schedules.apause("tick")
        await harbor.schedules.aresume("tick")

    numbers = await in_the_midst_of_a_run(harbor, clock, both)
    schedule = await the(harbor)
    assert (len(numbers), schedule.due_at, schedule.next_run_at) == (1, at(120), at(120))


# -- running now -----------------------------------------------------------------------------------


async def test_run_now_is_an_extra_run_that_consumes_no_occurrence(harbor: Harbor, clock: ManualClock, ran):
    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    clock.advance(20)
    extra = await harbor.schedules.arun_now("tick")
    assert (extra.due_at, extra.next_run_at, extra.state) == (at(60), at(20), "ready")
    await work(harbor)
    assert (len(ran), (await the(harbor)).due_at, (await the(harbor)).next_run_at) == (1, at(60), at(60))
    clock.advance(40)
    await work(harbor)
    assert (len(ran), (await the(harbor)).due_at) == (2, at(120))


async def test_an_extra_run_whose_worker_comes_too_late_consumes_none_either(
    harbor: Harbor, clock: ManualClock, ran
):
    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    await harbor.schedules.arun_now("tick")
    clock.advance(70)
    await work(harbor)
    assert (len(ran), (await the(harbor)).due_at) == (2, at(120))


async def test_a_retried_extra_run_consumes_no_occurrence(harbor: Harbor, clock: ManualClock):
    attempts: list[int] = []

    @harbor.task(name="note")
    async def note() -> None:
        attempts.append(1)
        if len(attempts) <= 2:
            raise ValueError("broken")

    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    clock.advance(58)
    await harbor.schedules.arun_now("tick")
    await pass_time(harbor, clock, 4)
    # at 58, 59 and, past the occurrence of 60, at 61: the extra run; then the occurrence itself
    assert await statuses(harbor) == ["failed", "failed", "succeeded", "succeeded"]
    assert (await the(harbor)).due_at == at(120)


async def extra_run(harbor: Harbor, clock: ManualClock, do: Any, **options: Any) -> list[float]:
    """An extra run of `tick` at 20 seconds, something done meanwhile, and the seconds at which it was executed."""
    ran: list[float] = []

    @harbor.task(name="note")
    async def note() -> None:
        ran.append((from_micros(clock.now()) - at(0)).total_seconds())
        if len(ran) == 1:
            await do()

    await harbor.schedules.aadd("tick", "note", **({"schedule": "* * * * *"} | options))
    clock.advance(20)
    await harbor.schedules.arun_now("tick")
    await work(harbor, lease_seconds=HOUR)
    return ran


@pytest.mark.parametrize("misfire", ["run_once", "skip"])
async def test_an_extra_run_that_outlasts_the_occurrence_does_not_consume_it(
    harbor: Harbor, clock: ManualClock, misfire: str
):
    async def outlast() -> None:
        clock.advance(45)

    ran = await extra_run(harbor, clock, outlast, misfire=misfire)
    assert (ran, (await the(harbor)).due_at) == ([20, 65], at(120))


async def test_an_occurrence_that_is_too_late_after_an_extra_run_is_dropped_as_it_would_be_without(
    harbor: Harbor, clock: ManualClock
):
    async def outlast() -> None:
        clock.advance(150)

    ran = await extra_run(harbor, clock, outlast, misfire="skip")
    assert (ran, (await the(harbor)).due_at) == ([20], at(180))
    assert await statuses(harbor) == ["succeeded", "cancelled"]
    [dropped, *_] = await harbor.jobs.ahistory(schedule_id("default", "tick"))
    assert dropped.detail == "missed: 110 s late, and its misfire_grace is 60 s"


@pytest.mark.parametrize("misfire", ["run_once", "skip"])
async def test_a_schedule_that_is_changed_during_an_extra_run_is_due_by_its_new_times(
    harbor: Harbor, clock: ManualClock, misfire: str
):
    async def change() -> None:
        await harbor.schedules.aupdate("tick", schedule="30 * * * *")

    ran = await extra_run(harbor, clock, change, schedule="@hourly", misfire=misfire)
    assert (ran, (await the(harbor)).due_at) == ([20], at(1800))


async def test_a_cancelled_occurrence_stays_cancelled_when_a_schedule_is_changed_otherwise_during_an_extra_run(
    harbor: Harbor, clock: ManualClock
):
    async def change() -> None:
        await harbor.schedules.aupdate("tick", priority=5)

    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    await harbor.jobs.acancel((await the(harbor)).id)
    await extra_run(harbor, clock, change)
    assert (await the(harbor)).due_at == at(120)


async def test_run_now_while_it_runs_comes_right_after(harbor: Harbor, clock: ManualClock):
    async def run_now() -> None:
        await harbor.schedules.arun_now("tick")

    numbers = await in_the_midst_of_a_run(harbor, clock, run_now)
    assert (len(numbers), (await the(harbor)).due_at) == (2, at(120))
    clock.advance(MINUTE)
    await work(harbor)
    assert (len(numbers), (await the(harbor)).due_at) == (3, at(180))


async def test_run_now_of_a_job_is_the_same(harbor: Harbor, clock: ManualClock, ran):
    schedule = await harbor.schedules.aadd("tick", "note", schedule="@hourly")
    await harbor.jobs.arun_now(schedule.id)
    await work(harbor)
    assert (len(ran), (await the(harbor)).due_at) == (1, at(HOUR))


async def test_run_now_is_refused_where_it_means_nothing(harbor: Harbor, clock: ManualClock, ran):
    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    clock.advance(60)
    with pytest.raises(JobConflict, match="due already"):
        await harbor.schedules.arun_now("tick")
    await harbor.schedules.apause("tick")
    with pytest.raises(JobConflict, match="paused"):
        await harbor.schedules.arun_now("tick")


# -- cancelling and deleting -----------------------------------------------------------------------


async def test_cancel_ends_the_occurrence(harbor: Harbor, clock: ManualClock, ran):
    schedule = await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    clock.advance(70)
    job = await harbor.jobs.acancel(schedule.id)
    assert (job.state, job.due_at) == ("scheduled", at(120))
    await work(harbor)
    assert ran == []
    assert await statuses(harbor) == ["cancelled"]
    assert await harbor.jobs.acancel_all() == 1
    assert ((await the(harbor)).due_at, await statuses(harbor)) == (at(180), ["cancelled", "cancelled"])


async def test_cancelling_an_extra_run_leaves_the_occurrence(harbor: Harbor, clock: ManualClock, ran):
    schedule = await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    await harbor.schedules.arun_now("tick")
    await harbor.jobs.acancel(schedule.id)
    await work(harbor)
    assert (ran, (await the(harbor)).due_at) == ([], at(60))


async def test_delete_removes_the_schedule_and_its_history(harbor: Harbor, clock: ManualClock, ran):
    await harbor.schedules.aadd("tick", "note", schedule="* * * * *")
    clock.advance(60)
    await work(harbor)
    await harbor.schedules.adelete("tick")
    assert (await harbor.schedules.alist(), sum((await harbor.jobs.acounts()).values())) == ([], 0)
    with pytest.raises(JobNotFound, match="no schedule of this application is called 'tick'"):
        await harbor.schedules.adelete("tick")


async def test_deleting_a_running_one_lets_it_end_as_the_last(harbor: Harbor, clock: ManualClock):
    async def delete() -> None:
        await harbor.schedules.adelete("tick")
        assert await harbor.schedules.alist() == []

    numbers = await in_the_midst_of_a_run(harbor, clock, delete)
    await pass_time(harbor, clock, 120, step=60)
    job = await harbor.jobs.aget(schedule_id("default", "tick"))
    assert (len(numbers), job.state) == (1, "succeeded")
    assert (await job.ahistory())[0].detail == "its schedule was deleted while it ran"
    # and its name is free again
    added = await harbor.schedules.aadd("tick", "tock", schedule="@hourly")
    assert (added.id, added.state, await statuses(harbor)) == (job.id, "scheduled", [])


async def test_deleted_and_added_again_while_it_runs_goes_on(harbor: Harbor, clock: ManualClock):
    async def again() -> None:
        await harbor.schedules.adelete("tick")
        await harbor.schedules.aadd("tick", "tock", schedule="@hourly")

    numbers = await in_the_midst_of_a_run(harbor, clock, again)
    assert (len(numbers), (await the(harbor)).due_at) == (1, at(HOUR))


async def test_bulk_deletion_leaves_schedules(harbor: Harbor, ran):
    await harbor.schedules.aadd("tick", "note", schedule="@hourly")
    await harbor.aenqueue("note")
    assert await harbor.jobs.adelete_all() == 1
    assert len(await harbor.schedules.alist()) == 1


async def test_the_job_of_a_schedule_is_changed_through_the_schedule(harbor: Harbor, ran):
    schedule = await harbor.schedules.aadd("tick", "note", schedule="@hourly")
    with pytest.raises(JobConflict, match=r"harbor\.schedules\.update\('tick'"):
        await harbor.jobs.aupdate(schedule.id, priority=1)


# -- what the code declares ------------------------------------------------------------------------


def declare(driver, schedule: Any = "@hourly", **options: Any) -> Harbor:
    """Another version of the application, on the same store."""
    harbor = Harbor(driver=driver)

    @harbor.task(name="tick", schedule=schedule, **options)
    async def tick() -> None: ...

    return harbor


async def test_declaring_again_changes_it_and_never_doubles_it(harbor: Harbor, driver):
    await work(declare(driver))
    first = await the(harbor)
    assert (first.declared, first.due_at, first.queue) == (True, at(HOUR), "default")
    await work(declare(driver))  # a restart: nothing changes
    assert (await harbor.jobs.aget(first.id)).record.version == 1
    await work(declare(driver, every(60), queue="q", misfire="skip"))
    changed = await the(harbor)
    assert (changed.id, changed.schedule, changed.due_at) == (first.id, "@every 60s", at(60))
    assert (changed.queue, changed.misfire, len(await harbor.schedules.alist())) == ("q", "skip", 1)


async def test_workers_that_start_at_once_declare_it_once(harbor: Harbor, driver):
    await soon(asyncio.gather(*(work(declare(driver, f"{n} * * * *")) for n in (7, 8, 9))))
    [schedule] = await harbor.schedules.alist()
    assert schedule.schedule in ("7 * * * *", "8 * * * *", "9 * * * *")
    assert schedule.due_at == at(60 * int(schedule.schedule[0]))


async def test_a_pause_outlasts_a_new_declaration(harbor: Harbor, driver):
    await work(declare(driver))
    await harbor.schedules.apause("tick")
    await work(declare(driver, "@daily"))
    schedule = await the(harbor)
    assert (schedule.paused, schedule.schedule, schedule.state) == (True, "@daily", "scheduled")
    assert (await harbor.schedules.aresume("tick")).next_run_at == at(24 * HOUR)


async def test_what_is_no_longer_declared_is_reported_and_goes_on(
    harbor: Harbor, driver, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    await work(declare(driver))
    await harbor.schedules.aadd("by hand", "tick", schedule="@daily")
    newer = Harbor(driver=driver)

    @newer.task(name="tick")
    async def tick() -> None: ...

    with caplog.at_level("WARNING", "taskharbor"):
        await work(newer)
    assert "schedules that are no longer declared go on: tick;" in caplog.text
    assert {s.name: s.orphaned for s in await newer.schedules.alist()} == {"by hand": False, "tick": True}
    clock.advance(HOUR)
    await work(newer)
    assert await statuses(newer) == ["succeeded"]
    await newer.schedules.adelete("tick")
    caplog.clear()
    await work(newer)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_another_applications_schedules_are_no_orphans(driver, caplog: pytest.LogCaptureFixture):
    await driver.migrate()
    await work(declare(driver))
    async with Harbor(driver=driver, application="another") as another:

        @another.task(name="other", schedule="@daily")
        async def other() -> None: ...

        await work(another)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
        listed = {(s.application, s.name): s.orphaned for s in await another.schedules.alist()}
        assert listed == {("another", "other"): False, ("default", "tick"): None}


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"schedule": "nonsense"}, "no cron expression"),
        ({"schedule": "0 0 30 2 *"}, "no cron expression"),
        ({"schedule": "@daily", "timezone": "Mars"}, "no time zone"),
        ({"schedule": "@daily", "misfire": "sometimes"}, "misfire must be"),
        ({"schedule": "@daily", "misfire_grace": -1}, "misfire_grace must be"),
        ({"schedule": "@daily", "dead_letter": "yes"}, "dead_letter must be"),
        ({"misfire": "skip"}, "not when"),
        ({"timezone": "Europe/Berlin"}, "not when"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_where_it_is_written(declared, told):
    with pytest.raises(ConfigurationError, match=told):

        @Harbor("memory://").task(name="tick", **declared)
        def tick() -> None: ...


def test_a_task_that_needs_arguments_cannot_be_declared_to_recur():
    with pytest.raises(ConfigurationError, match=r"called without arguments.*harbor\.schedules\.add"):

        @Harbor("memory://").task(schedule="@daily")
        def tick(n: int) -> None: ...


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"delay": 5}, "belongs to one job"),
        ({"id": "x"}, "belongs to one job"),
        ({"idempotency_key": "x"}, "belongs to one job"),
        ({"weather": "x"}, "unknown option"),
        ({"tags": ["taskharbor:x"]}, "TaskHarbor's own"),
        ({"priority": 1000}, "priority must be"),
        ({"payload": {"m": 1}}, "note"),
    ],
)
def test_what_cannot_be_given_to_a_schedule_is_refused(given, told):
    with Harbor("memory://") as harbor:

        @harbor.task(name="note")
        def note(n: int = 0) -> None: ...

        with pytest.raises(ValueError, match=told):
            harbor.schedules.add("tick", "note", schedule="@daily", **given)
        harbor.schedules.add("tick", "note", schedule="@daily")
        with pytest.raises(ValueError, match=told):
            harbor.schedules.update("tick", **given)
        with pytest.raises(ConfigurationError, match="nothing to change"):
            harbor.schedules.update("tick")


def test_both_forms_of_every_method_are_there():
    with Harbor("memory://") as harbor:
        schedules = harbor.schedules
        schedules.add("tick", "note", schedule=every(60))
        assert schedules.get("tick").schedule == "@every 60s"
        assert schedules.update("tick", schedule="@daily").schedule == "@daily"
        assert schedules.pause("tick").paused
        assert not schedules.resume("tick").paused
        assert schedules.run_now("tick").state == "ready"
        assert [each.name for each in schedules.list()] == ["tick"]
        schedules.delete("tick")
        assert schedules.list() == []


async def test_a_worker_with_the_built_in_tasks_alone_knows_of_no_orphans(driver):
    from taskharbor.builtin_tasks import register

    await driver.migrate()
    await work(declare(driver))
    async with Harbor(driver=driver) as harbor:
        register(harbor)
        async with Worker(harbor):
            assert (await the(harbor)).orphaned is None
