"""What a dead child leaves behind, settled with its own tokens."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, chain
from taskharbor.client.handle import Job
from taskharbor.drivers.base import ClaimRequest, Transition
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.telemetry.events import Event
from taskharbor.telemetry.reports import Reports
from taskharbor.worker.supervisor.crash_recovery import (
    ProcessExit,
    RecoveredJobs,
    settle_orphaned_jobs,
)
from taskharbor.worker.supervisor.shared_memory import PublishedLease

LEASE = 30_000_000
DEATH = ProcessExit("w", "was killed by SIGKILL")


@pytest.fixture(params=["memory", "sqlite"])
async def harbor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harbor]:
    async with Harbor("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/h.db") as harbor:
        yield harbor


class Dead:
    """A child that has claimed everything in one lease, and died."""

    def __init__(self, harbor: Harbor, serial: int = 1, *, alone: bool = False) -> None:
        self.harbor = harbor
        self.token = f"w/x-{serial}"
        self.held = PublishedLease(serial, alone)
        self.told: list[str] = []
        self.events: list[tuple[str, str, str | None]] = []

    async def claims(self, limit: int = 100, **more: Any) -> Dead:
        request = ClaimRequest(self.token, LEASE, limit, None, limit, self.held.alone, True, **more)
        claim = await self.harbor.driver.claim(request)
        self.numbers = {job.id: job.number for job in claim.jobs}
        return self

    async def settled(self, process_exit: ProcessExit = DEATH, **more: Any) -> RecoveredJobs:
        return await settle_orphaned_jobs(
            self.harbor.driver,
            [(self.token, self.held)],
            process_exit,
            lease=LEASE,
            reports=Reports(self, logging.getLogger("test")),
            **more,
        )

    # -- its subscribers --

    def wanted(self, name: str) -> bool:
        return True

    def emit(self, event: Event) -> None:
        self.events.append((event.name, event.job_id, event.reason))
        if event.name in ("lost", "cancelled"):
            self.told.append(event.job_id)


async def enqueued(harbor: Harbor, count: int, **options: Any) -> list[Job[Any]]:
    return [await harbor.aenqueue("t", **options) for _ in range(count)]


async def test_what_had_begun_is_lost_and_the_rest_is_handed_back_uncounted(harbor: Harbor):
    begun, ended, unbegun, settled = await enqueued(harbor, 4)
    dead = await Dead(harbor).claims()
    dead.held.begun = {begun.id: 7, ended.id: 8}
    dead.held.ended = {ended.id}
    success = Transition(
        dead.token, settled.id, dead.numbers[settled.id], AttemptStatus.SUCCEEDED, State.SUCCEEDED
    )
    await harbor.driver.settle([success])

    recovered = await dead.settled()
    assert (recovered.lost, recovered.handed_back, recovered.suspects) == (2, 1, False)
    assert sorted(dead.told) == sorted([begun.id, ended.id])
    rows = {job.id: (await job.ahistory())[0] for job in (begun, ended, unbegun, settled)}
    assert [(str(rows[j.id].status), rows[j.id].detail) for j in (begun, ended, unbegun)] == [
        ("lost", "together"),
        ("lost", "ended"),
        ("released", None),
    ]
    assert rows[begun.id].error == "lost: worker w was killed by SIGKILL"
    assert rows[begun.id].worker == "w"
    assert str(rows[settled.id].status) == "succeeded"
    assert {(await job.arefresh()).state for job in (begun, ended, unbegun)} == {State.READY}
    assert [(await job.arefresh()).attempts for job in (begun, ended, unbegun)] == [0, 0, 0]


async def test_settled_again_nothing_happens(harbor: Harbor):
    await enqueued(harbor, 2)
    dead = await Dead(harbor).claims()
    await dead.settled()
    before = await harbor.jobs.acounts()
    assert await dead.settled() == RecoveredJobs()
    assert await harbor.jobs.acounts() == before


async def test_a_claim_that_never_reached_the_store_claims_nothing_now(harbor: Harbor):
    [job] = await enqueued(harbor, 1)
    assert await Dead(harbor).settled() == RecoveredJobs()
    assert ((await job.arefresh()).state, (await job.arefresh()).number) == (State.READY, 0)


async def test_the_second_loss_with_others_makes_a_suspect_and_only_losses_alone_condemn(harbor: Harbor):
    [job] = await enqueued(harbor, 1)
    for serial in (1, 2):
        dead = await Dead(harbor, serial).claims()
        dead.held.begun = {job.id: 5}
        recovered = await dead.settled()
        assert recovered.suspects is (serial == 2)
    for serial in range(3, 8):
        assert (await job.arefresh()).state is State.READY
        assert not (await Dead(harbor, 100 + serial).claims()).numbers  # it waits in a place of its own
        dead = await Dead(harbor, serial, alone=True).claims(1)
        dead.held.begun = {job.id: 5}
        await dead.settled()
    found = await job.arefresh()
    assert (found.state, found.reason) == (State.DEAD, Reason.POISON)
    assert all("SIGKILL" in str(row.error) for row in await job.ahistory(limit=20))


async def test_a_loss_is_weighed_by_the_max_losses_of_the_worker_that_died(harbor: Harbor):
    [job] = await enqueued(harbor, 1)
    for serial, alone in ((1, False), (2, False), (3, True), (4, True)):
        assert (await job.arefresh()).state is State.READY
        dead = await Dead(harbor, serial, alone=alone).claims(1, max_losses=2)
        dead.held.begun = {job.id: 5}
        await dead.settled()
    found = await job.arefresh()
    assert (found.state, found.reason) == (State.DEAD, Reason.POISON)


async def test_a_suspect_that_had_not_begun_is_one_still(harbor: Harbor):
    [job] = await enqueued(harbor, 1)
    for serial in (1, 2):
        dead = await Dead(harbor, serial).claims()
        dead.held.begun = {job.id: 5}
        await dead.settled()
    await (await Dead(harbor, 3, alone=True).claims(1)).settled()
    assert (await job.ahistory())[0].status == "released"
    assert (await Dead(harbor, 4, alone=True).claims(1)).numbers == {job.id: 4}


async def test_at_most_once_is_lost_if_it_had_begun_and_handed_back_if_not(harbor: Harbor):
    begun, unbegun = await enqueued(harbor, 2, delivery="at_most_once")
    dead = await Dead(harbor).claims()
    dead.held.begun = {begun.id: 5}
    await dead.settled()
    assert ((await begun.arefresh()).state, (await begun.arefresh()).reason) == (State.DEAD, Reason.LOST)
    assert (await unbegun.arefresh()).state is State.READY


async def test_a_child_that_did_not_stop_in_time_has_its_jobs_released(harbor: Harbor):
    [often] = await enqueued(harbor, 1)
    [once] = await enqueued(harbor, 1, delivery="at_most_once")
    dead = await Dead(harbor).claims()
    dead.held.begun = {often.id: 5, once.id: 5}
    recovered = await dead.settled(ProcessExit("w", "was killed by SIGKILL", interrupted=True))
    assert (recovered.lost, recovered.handed_back) == (0, 2)
    assert (await often.arefresh()).state is State.READY
    assert (await often.ahistory())[0].status == "released"
    assert ((await once.arefresh()).state, (await once.arefresh()).reason) == (State.DEAD, Reason.INTERRUPTED)


async def test_a_job_that_a_shutdown_ends_for_good_is_told_of_as_every_other_end(harbor: Harbor):
    [often, asked] = await enqueued(harbor, 2)
    [once] = await enqueued(harbor, 1, delivery="at_most_once")
    dead = await Dead(harbor).claims()
    dead.held.begun = {often.id: 5, asked.id: 5, once.id: 5}
    await harbor.jobs.acancel(asked.id)
    await dead.settled(ProcessExit("w", "was killed by SIGKILL", interrupted=True))
    assert sorted(dead.events) == [("cancelled", asked.id, "cancelled"), ("dead", once.id, "interrupted")]
    assert (await asked.arefresh()).state is State.CANCELLED


async def test_those_that_end_with_a_lost_job_are_told_of(harbor: Harbor):
    @harbor.task(name="t", delivery="at_most_once")
    def once() -> None: ...

    workflow = await chain(once.si(), once.si(), once.si()).using(on_failure="cancel").aenqueue()
    dead = await Dead(harbor).claims()
    first, *others = workflow.jobs.ids
    dead.held.begun = {first: 7}
    await dead.settled()
    assert dead.told == [first, *others]
    await dead.settled()  # repeated, there is nothing left to tell
    assert dead.told == [first, *others]


async def test_a_schedule_whose_occurrence_ends_with_its_worker_goes_on(harbor: Harbor):
    """at_most_once: the loss ends the run, and with it comes the next occurrence; the schedule does not die."""
    await harbor.schedules.aadd("tick", "t", schedule="@every 1h", delivery="at_most_once")
    await harbor.schedules.arun_now("tick")
    dead = await Dead(harbor).claims()
    [job_id] = dead.numbers
    dead.held.begun = {job_id: 7}
    assert (await dead.settled()).lost == 1
    job = await harbor.jobs.aget(job_id)
    assert job.state is State.SCHEDULED
    assert [str(attempt.status) for attempt in await job.ahistory()] == ["lost"]


async def test_an_occurrence_that_had_not_begun_is_handed_back(harbor: Harbor):
    await harbor.schedules.aadd("tick", "t", schedule="@every 1h")
    await harbor.schedules.arun_now("tick")
    dead = await Dead(harbor).claims()
    [job_id] = dead.numbers
    assert (await dead.settled()).handed_back == 1
    assert (await harbor.jobs.aget(job_id)).state is State.READY
