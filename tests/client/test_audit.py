"""harbor.audit: every action is recorded once, with who did it; what carries values is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskharbor import ConfigurationError, Harbor, JobConflict, JobFilter, JobNotFound, Worker, chain
from taskharbor.acting import current_actor, user_at_host
from taskharbor.clock import ManualClock
from taskharbor.drivers.contract import audit as contract
from taskharbor.server.tokens import create_token, revoke_token
from taskharbor.sync import run_inline
from tests.drivers.core_only import offering

CANARY = "canary-4242"
NO_JOB = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"


@pytest.fixture
def task(timed: Harbor) -> Any:
    @timed.task(name="t", retry=None)
    def t(fails: bool = False, text: str = "") -> None:
        if fails:
            raise ValueError("it failed")

    return t


def recorded(harbor: Harbor) -> list[tuple[str, str | None, str | None, int]]:
    """What the audit says, the oldest first."""
    entries = harbor.audit.list(limit=1000)
    return [(each.verb, each.job_id, each.subject, each.count) for each in reversed(entries)]


# -- what is recorded ------------------------------------------------------------------------------


def test_every_action_on_a_job_is_recorded_once(timed: Harbor, task: Any) -> None:
    """Each with its verb and the job, which names the latest one."""
    job = task.using(delay=3600).enqueue()
    dead = task.enqueue(fails=True)
    Worker(timed).drain_sync()
    timed.jobs.update(job.id, priority=3)
    timed.jobs.run_now(job.id)
    timed.jobs.cancel(job.id)
    timed.jobs.retry(job.id)
    timed.jobs.delete(job.id)
    timed.dlq.requeue(dead.id)
    Worker(timed).drain_sync()
    latest = timed.dlq.discard(dead.id).latest_action()
    assert recorded(timed) == [
        ("job.update", job.id, None, 1),
        ("job.run-now", job.id, None, 1),
        ("job.cancel", job.id, None, 1),
        ("job.requeue", job.id, None, 1),
        ("job.delete", job.id, None, 1),
        ("job.requeue", dead.id, None, 1),
        ("job.discard", dead.id, None, 1),
    ]
    assert latest == timed.audit.list(limit=1)[0]
    assert latest is not None
    assert latest.id == timed.jobs.get(dead.id).action_id


def test_bulk_action_is_one_row_with_its_filter_and_count(
    timed: Harbor, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pages it takes; each job that it changed names it."""
    monkeypatch.setattr("taskharbor.client.operating.BULK_PAGE", 2)
    jobs = [task.using(queue="a").enqueue(fails=True) for _ in range(5)]
    task.using(queue="b").enqueue(fails=True)
    Worker(timed).drain_sync()
    assert timed.dlq.requeue_all(queue="a") == 5
    [entry] = timed.audit.list()
    assert (entry.verb, entry.filter, entry.count) == ("job.requeue", {"state": "dead", "queue": "a"}, 5)
    assert {timed.jobs.get(job.id).action_id for job in jobs} == {entry.id}
    assert timed.jobs.cancel_all(JobFilter(queue="a")) == 5
    assert timed.jobs.delete_all(task="t") == 6
    assert [(each.verb, each.filter, each.count) for each in timed.audit.list(limit=2)] == [
        ("job.delete", {"task": "t"}, 6),
        ("job.cancel", {"queue": "a"}, 5),
    ]


def test_bulk_action_that_changes_nothing_is_not_recorded(timed: Harbor, task: Any) -> None:
    task.enqueue()
    assert timed.dlq.discard_all() == 0
    assert timed.jobs.cancel_all(queue="other") == 0
    assert recorded(timed) == []


def test_refused_action_is_not_recorded(timed: Harbor, task: Any) -> None:
    """What the store refused left no change, and so no action."""
    job = task.enqueue()
    with pytest.raises(JobConflict):
        timed.dlq.discard(job.id)
    with pytest.raises(JobNotFound):
        timed.jobs.cancel(NO_JOB)
    assert (recorded(timed), timed.jobs.get(job.id).latest_action()) == ([], None)


def test_forced_requeue_says_so(timed: Harbor) -> None:
    """An operator who runs an at_most_once job again takes a decision that others want to find."""

    @timed.task(name="once", delivery="at_most_once")
    def once() -> None:
        raise ValueError

    job = once.enqueue()
    Worker(timed).drain_sync()
    timed.dlq.requeue(job.id, force=True, reset_attempts=False)
    [entry] = timed.audit.list()
    assert entry.details == {"reset_attempts": False, "force": True}


def test_workflows_are_recorded_as_a_whole(timed: Harbor, task: Any) -> None:
    """One row for all members, under the id of the workflow."""
    workflow = chain(task.s(), task.s()).enqueue()
    timed.workflows.cancel(workflow.id)
    timed.workflows.retry(workflow.id)
    assert recorded(timed) == [
        ("workflow.cancel", None, workflow.id, 2),
        ("workflow.retry", None, workflow.id, 2),
    ]


def test_schedules_are_recorded_and_their_declaration_is_not(timed: Harbor, clock: ManualClock) -> None:
    """What an operator does to a schedule is an action; what a worker stores from the code is none."""

    @timed.task(name="nightly", schedule="0 3 * * *")
    def nightly() -> None: ...

    Worker(timed).drain_sync()
    run_inline(timed.schedules._reconcile())
    assert recorded(timed) == []
    job = timed.schedules.get("nightly").id
    timed.schedules.update("nightly", priority=3, payload={})
    timed.schedules.pause("nightly")
    timed.schedules.pause("nightly")  # it is, so nothing changes
    timed.schedules.resume("nightly")
    timed.schedules.run_now("nightly")
    timed.schedules.delete("nightly")
    assert recorded(timed) == [
        ("schedule.update", job, "nightly", 1),
        ("schedule.pause", job, "nightly", 1),
        ("schedule.resume", job, "nightly", 1),
        ("schedule.run-now", job, "nightly", 1),
        ("schedule.delete", job, "nightly", 1),
    ]
    assert timed.audit.list()[-1].details == {"priority": 3, "payload": "***"}


def test_queues_say_who_paused_them_and_since_when(timed: Harbor, clock: ManualClock) -> None:
    with timed.acting_as("ana"):
        timed.queues.pause("mail")
    since = timed.audit.list()[0].at
    clock.advance(60)
    with timed.acting_as("ben"):
        timed.queues.pause("mail")
    [queue] = timed.queues.list()
    assert (queue.paused, queue.paused_by, queue.paused_since) == (True, "ana", since)
    timed.queues.resume("mail")
    assert recorded(timed) == [("queue.pause", None, "mail", 0), ("queue.resume", None, "mail", 0)]


def test_tokens_are_recorded_without_their_secret(timed: Harbor) -> None:
    """Under the token's id, with its name; creating and revoking."""
    token, record = run_inline(create_token(timed.driver, "deployment", "write"))
    assert run_inline(revoke_token(timed.driver, record.id))
    assert not run_inline(revoke_token(timed.driver, record.id))
    created, revoked = reversed(timed.audit.list())
    assert (created.verb, created.subject) == ("token.create", record.id)
    assert created.details == {"name": "deployment", "role": "write"}
    assert (revoked.verb, revoked.subject, revoked.details) == (
        "token.revoke",
        record.id,
        {"name": "deployment"},
    )
    text = msgspec.json.encode([created, revoked]).decode()
    assert token not in text
    assert token.split("_", 2)[2] not in text
    assert record.digest not in text


def test_no_value_of_a_payload_comes_into_the_audit(timed: Harbor, task: Any) -> None:
    """An update names the fields that change; only values that say when, where and how often are recorded."""
    job = task.using(delay=3600, tags=[CANARY], meta={"a": CANARY}).enqueue(text=CANARY)
    run_at = datetime(2030, 1, 1, tzinfo=UTC)
    timed.jobs.update(job.id, payload={"text": CANARY}, tags=[CANARY], priority=7, run_at=run_at)
    timed.schedules.add("nightly", "t", {"text": CANARY}, schedule="0 3 * * *")
    timed.schedules.add("nightly", "t", {"text": CANARY + "2"}, schedule="0 3 * * *")
    timed.schedules.update("nightly", payload={"text": CANARY}, tags=[CANARY], meta={"a": CANARY})
    timed.jobs.cancel_all()
    entries = timed.audit.list()
    assert entries[-1].details == {
        "priority": 7,
        "run_at": run_at.isoformat(),
        "payload": "***",
        "tags": "***",
    }
    assert [each.verb for each in entries] == [
        "job.cancel",
        "schedule.update",
        "schedule.update",
        "job.update",
    ]
    assert CANARY not in msgspec.json.encode(entries).decode()


# -- who acts --------------------------------------------------------------------------------------


def test_innermost_name_counts_and_ends_with_its_block(timed: Harbor) -> None:
    assert current_actor() == user_at_host()
    assert "@" in user_at_host()
    with timed.acting_as("ana"):
        with timed.acting_as("ben"):
            timed.queues.pause("a")
        timed.queues.pause("b")
    timed.queues.pause("c")
    assert [entry.actor for entry in reversed(timed.audit.list())] == ["ben", "ana", user_at_host()]


async def test_name_belongs_to_its_coroutine(timed: Harbor) -> None:
    """Two tasks on one loop do not take each other's names, also where each waits inside its block."""
    inside = asyncio.Event()

    async def pause(name: str, first: bool) -> None:
        with timed.acting_as(name):
            if first:
                await inside.wait()
            else:
                inside.set()
            await timed.queues.apause(name)

    await asyncio.gather(pause("ana", True), pause("ben", False))
    entries = await timed.audit.alist()
    assert {(entry.actor, entry.subject) for entry in entries} == {("ana", "ana"), ("ben", "ben")}


def test_name_belongs_to_its_thread(timed: Harbor) -> None:
    with timed.acting_as("ana"):
        thread = threading.Thread(target=timed.queues.pause, args=("a",))
        thread.start()
        thread.join()
    assert timed.audit.list()[0].actor == user_at_host()


@pytest.mark.parametrize("name", ["", " ana", "a\nb", "x" * 256, 7, None])
def test_name_that_cannot_be_shown_is_refused(timed: Harbor, name: Any) -> None:
    with pytest.raises(ConfigurationError, match="actor"), timed.acting_as(name):
        pytest.fail("it was accepted")


# -- reading ---------------------------------------------------------------------------------------


def test_list_takes_filters_and_goes_on_from_a_cursor(timed: Harbor, task: Any, clock: ManualClock) -> None:
    job = task.using(delay=3600).enqueue()
    with timed.acting_as("ana"):
        timed.jobs.update(job.id, priority=1)
    clock.advance(60)
    timed.jobs.cancel_all()
    audit = timed.audit
    assert [each.verb for each in audit.list(job=job.id)] == ["job.cancel", "job.update"]
    assert [each.verb for each in audit.list(actor="ana")] == ["job.update"]
    assert [each.verb for each in audit.list(verb="job.cancel")] == ["job.cancel"]
    latest = audit.list(limit=1)
    assert [each.verb for each in audit.list(before=latest[0].at)] == ["job.update"]
    assert [each.verb for each in audit.list(after=latest[0].at)] == ["job.cancel"]
    assert audit.list(after=latest[0].at + timedelta(seconds=1)) == []
    [rest] = audit.list(cursor=latest.next_cursor)
    assert (rest.verb, audit.get(rest.id)) == ("job.update", rest)
    assert audit.get(NO_JOB) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"verb": "job.explode"}, "no action is called 'job.explode'; the verbs are job.cancel, "),
        ({"actor": ""}, "an actor"),
        ({"job": "7"}, "7"),
        ({"cursor": "7"}, "next_cursor"),
        ({"limit": 0}, "limit"),
        ({"after": datetime(2026, 1, 1)}, "after"),  # noqa: DTZ001
    ],
)
def test_wrong_filter_is_refused(timed: Harbor, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        timed.audit.list(**wrong)


def test_newest_actions_are_kept(timed: Harbor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond are deleted now and then, the oldest first, so that the store keeps little more."""
    monkeypatch.setattr(contract, "ACTIONS_KEPT", 20)
    monkeypatch.setattr(contract, "TRIM_EVERY", 5)
    for number in range(33):
        timed.queues.pause(f"q{number}")
        kept = [entry.subject for entry in timed.audit.list()]
        newest = [f"q{each}" for each in range(number, -1, -1)]
        assert kept == newest[: len(kept)]
        assert len(kept) >= min(number + 1, 20)
        assert len(kept) <= 25


def test_action_that_is_no_longer_kept_leaves_the_job_as_it_is(
    timed: Harbor, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job names it still, and there is nothing to be said about it."""
    monkeypatch.setattr(contract, "ACTIONS_KEPT", 1)
    monkeypatch.setattr(contract, "TRIM_EVERY", 1)
    job = timed.jobs.cancel(task.enqueue().id)
    for name in "abc":
        timed.queues.pause(name)
    assert job.action_id is not None
    assert timed.jobs.get(job.id).latest_action() is None


# -- stores without an audit -----------------------------------------------------------------------


class Old(offering()):  # type: ignore[misc]
    """A third-party driver from before there were actions: it takes none."""

    async def operate(self, operation: Any, ids: Any, *, now: int | None = None) -> Any:
        return await self.memory.operate(operation, ids, now=now)

    async def pause(self, queue: str, paused: bool) -> None:
        await self.memory.pause(queue, paused)


def test_store_without_an_audit_goes_on_working(work: Callable[[Harbor], None]) -> None:
    """It is never given an action, and says what it lacks when it is asked for the audit."""
    with Harbor(driver=Old()) as harbor:
        harbor.queues.pause("a")
        assert [(queue.paused, queue.paused_by) for queue in harbor.queues.list()] == [(True, None)]
        job = harbor.enqueue("t")
        assert harbor.jobs.cancel(job.id).latest_action() is None
        assert harbor.jobs.delete_all() == 1
        with pytest.raises(ConfigurationError, match="has no audit"):
            harbor.audit.list()
