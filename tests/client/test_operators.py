"""harbor.jobs, harbor.dlq, harbor.queues: every verb, in every state."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from taskharbor import (
    ConfigurationError,
    Harbor,
    Job,
    JobConflict,
    JobFilter,
    JobNotFound,
    PayloadError,
    Reason,
    RetryPolicy,
    State,
    Worker,
    presets,
)
from taskharbor.clock import ManualClock
from taskharbor.records import NewJob
from taskharbor.sync import run_inline

Making = Callable[..., Job[Any]]
NOBODY = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"


@pytest.fixture
def task(timed: Harbor) -> Any:
    @timed.task(name="t", retry=None)
    def t(fails: bool = False, x: int = 0) -> int:
        if fails:
            raise ValueError("it failed")
        return x

    return t


@pytest.fixture
def make(timed: Harbor, task: Any, claim: Callable[..., Any]) -> Making:
    """A job in the state asked for."""

    def make(state: str, **options: Any) -> Job[Any]:
        if state == "scheduled":
            scheduled: Job[Any] = task.using(delay=3600, **options).enqueue()
            return scheduled
        job: Job[Any] = task.using(**options).enqueue(fails=state == "dead")
        if state == "running":
            claim(timed, limit=1000)
        elif state == "cancelled":
            timed.jobs.cancel(job.id)
        elif state != "ready":
            Worker(timed).drain_sync()
        job = job.refresh()
        assert job.state == state
        return job

    return make


# In an order in which making one does not move another.
STATES = ["succeeded", "dead", "cancelled", "running", "scheduled", "ready"]
VERBS: dict[str, tuple[Callable[[Harbor, str], Any], set[str]]] = {
    "cancel": (lambda h, i: h.jobs.cancel(i), {"scheduled", "ready", "running"}),
    "delete": (lambda h, i: h.jobs.delete(i), {"scheduled", "ready", "succeeded", "dead", "cancelled"}),
    "retry": (lambda h, i: h.jobs.retry(i), {"dead", "cancelled"}),
    "requeue": (lambda h, i: h.dlq.requeue(i), {"dead", "cancelled"}),
    "discard": (lambda h, i: h.dlq.discard(i), {"dead"}),
    "run_now": (lambda h, i: h.jobs.run_now(i), {"scheduled"}),
    "update": (lambda h, i: h.jobs.update(i, priority=50), {"scheduled", "ready"}),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_works_in_the_states_that_allow_it_and_is_a_conflict_in_others(
    timed: Harbor, make: Making, verb: str, state: str, everything: Callable[[Harbor], Any]
):
    do, allowed = VERBS[verb]
    job = make(state)
    before = everything(timed)
    if state in allowed:
        do(timed, job.id)
        assert everything(timed) != before
    else:
        with pytest.raises(JobConflict, match=f"job {job.id} is {state}, so it cannot be") as caught:
            do(timed, job.id)
        assert caught.value.job_id == job.id
        assert everything(timed) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_for_a_job_that_nobody_knows_is_not_found(timed: Harbor, verb: str):
    with pytest.raises(JobNotFound, match=f"no job has the id {NOBODY}"):
        VERBS[verb][0](timed, NOBODY)


@pytest.mark.parametrize("id", ["", "5", 5, None, b"x", NOBODY + "0", "x" * 100_000, "\0", "\ud800"])
@pytest.mark.parametrize("verb", [*VERBS, "get", "history"])
def test_a_bad_id_is_one_clear_error(timed: Harbor, verb: str, id: Any):
    do = VERBS[verb][0] if verb in VERBS else lambda h, i: getattr(h.jobs, verb)(i)
    with pytest.raises(ConfigurationError, match="a job's id is a UUID such as"):
        do(timed, id)


def test_a_bad_workflow_id_is_named_as_one(timed: Harbor):
    with pytest.raises(ConfigurationError, match="a workflow's id is a UUID such as .*, not 'x'"):
        timed.jobs.list(workflow="x")


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_an_error_text_that_no_store_keeps_is_refused(timed: Harbor, text: str):
    with pytest.raises(
        ConfigurationError, match="holds a NUL or a lone surrogate, which no stored error has"
    ):
        timed.dlq.count(error=text)


def test_a_bulk_update_names_filters_and_changes_where_a_word_is_neither(timed: Harbor):
    update_all: Any = timed.jobs.update_all
    with pytest.raises(ConfigurationError, match="unknown argument prioritee: did you mean priority"):
        update_all(prioritee=3)
    with pytest.raises(ConfigurationError, match="or 'declared' to follow the code, not 'bogus'"):
        update_all(retry="bogus")


def test_a_fingerprint_may_be_in_upper_case(timed: Harbor, make: Making):
    job = make("dead")
    assert [each.id for each in timed.dlq.list(fingerprint=str(job.fingerprint).upper())] == [job.id]


def test_an_id_may_be_spelt_as_any_uuid(timed: Harbor, make: Making):
    job = make("ready")
    for given in (job.id, job.id.upper(), uuid.UUID(job.id), job.id.replace("-", "")):
        assert timed.jobs.get(given).id == job.id


def test_cancelling_ends_what_has_not_begun(timed: Harbor, make: Making):
    job = timed.jobs.cancel(make("scheduled").id)
    assert (job.state, job.reason) == (State.CANCELLED, Reason.CANCELLED)
    assert job.finished_at is not None


def test_cancelling_a_running_job_is_a_request(timed: Harbor, make: Making):
    job = timed.jobs.cancel(make("running").id)
    assert (job.state, job.cancel_requested) == (State.RUNNING, True)
    assert timed.jobs.cancel(job.id).cancel_requested  # asking again is no conflict


def test_a_retried_job_begins_a_new_run(timed: Harbor, make: Making):
    job = make("dead")
    again = timed.jobs.retry(job.id)
    assert (again.state, again.attempts, again.number, again.reason) == (State.READY, 0, 1, None)
    assert len(again.history()) == 1


def test_requeueing_at_a_time_makes_it_scheduled(timed: Harbor, make: Making, clock: ManualClock):
    later = datetime(2026, 1, 2, tzinfo=UTC)
    job = timed.dlq.requeue(make("dead").id, run_at=later)
    assert (job.state, job.run_at) == (State.SCHEDULED, later)


def test_requeueing_may_keep_the_attempts(timed: Harbor, make: Making):
    dead = make("dead")
    assert dead.attempts == 1
    assert timed.dlq.requeue(dead.id, reset_attempts=False).attempts == 1


def test_discarding_cancels_with_that_reason(timed: Harbor, make: Making):
    job = timed.dlq.discard(make("dead").id)
    assert (job.state, job.reason) == (State.CANCELLED, Reason.DISCARDED)
    assert timed.dlq.list() == []


def test_run_now_makes_a_scheduled_job_ready(timed: Harbor, make: Making):
    assert timed.jobs.run_now(make("scheduled").id).state is State.READY


def test_deleting_removes_the_job_with_its_history(timed: Harbor, make: Making):
    job = make("dead", tags=["x"])
    timed.jobs.delete(job.id)
    with pytest.raises(JobNotFound):
        timed.jobs.history(job.id)
    assert timed.jobs.list(tag="x") == []
    assert sum(timed.jobs.counts().values()) == 0


def test_update_changes_what_is_given_and_nothing_else(timed: Harbor, make: Making):
    job = make("ready", priority=1, timeout=5, max_attempts=3, tags=["a"], correlation_id="c")
    later = datetime(2026, 1, 2, tzinfo=UTC)
    changed = timed.jobs.update(
        job.id,
        priority=9,
        run_at=later,
        payload={"x": 3},
        max_retries=6,
        timeout=None,
        tags=["b", "c"],
        expires_at=later + timedelta(days=1),
    )
    assert (changed.priority, changed.run_at, changed.payload) == (9, later, {"x": 3})
    assert (changed.max_attempts, changed.timeout, changed.tags) == (7, None, ("b", "c"))
    assert (changed.state, changed.correlation_id) == (State.SCHEDULED, "c")
    assert changed.expires_at == later + timedelta(days=1)
    assert timed.jobs.list(tag="a") == []
    assert [j.id for j in timed.jobs.list(tag="c")] == [job.id]
    assert timed.jobs.update(job.id, expires_at=None, max_attempts=None).expires_at is None
    assert (
        timed.jobs.update(job.id, expires_in=60).record.expires_at
        == run_inline(timed.driver.now()) + 60_000_000
    )


def test_update_gives_a_job_a_policy_of_its_own_or_takes_it_away(timed: Harbor, make: Making):
    job = make("ready", max_attempts=3)
    policy = RetryPolicy(max_attempts=9, initial=7)
    changed = timed.jobs.update(
        job.id, retry=policy
    )  # with its limit: the one before belonged to another policy
    assert (changed.record.options.retry, changed.max_attempts) == (policy.to_dict(), 9)
    changed = timed.jobs.update(job.id, retry=presets.EMAIL, max_attempts=2)
    assert (changed.record.options.retry, changed.max_attempts) == (presets.EMAIL.to_dict(), 2)
    changed = timed.jobs.update(job.id, retry=None)
    assert (changed.record.options.retry, changed.max_attempts) == (None, 2)
    changed = timed.jobs.update(job.id, retry="declared", priority=3)
    assert (changed.record.options.retry, changed.max_attempts, changed.priority) == (UNSET, 2, 3)


def test_update_all_changes_those_that_wait_and_match(timed: Harbor, make: Making):
    jobs = {state: make(state, tags=["x"], timeout=5) for state in ("dead", "running", "scheduled", "ready")}
    other = make("ready", tags=["y"], timeout=5)
    timed.task(name="recurs")(lambda: None)
    timed.schedules.add("s", "recurs", schedule="@every 1h", tags=["x"], timeout=5)
    assert timed.jobs.update_all(tag="x", timeout=9, dry_run=True) == 2
    assert jobs["ready"].refresh().timeout == 5
    assert timed.jobs.update_all(tag="x", timeout=9, tags=["x", "z"], retry=presets.EMAIL) == 2
    assert {state: job.refresh().timeout for state, job in jobs.items()} == {
        "dead": 5.0, "running": 5.0, "scheduled": 9.0, "ready": 9.0,
    }  # fmt: skip
    assert (other.refresh().timeout, timed.schedules.get("s").timeout) == (5.0, 5.0)
    assert jobs["ready"].refresh().tags == ("x", "z")
    assert timed.jobs.update_all(state="scheduled", run_at=datetime(2020, 1, 1, tzinfo=UTC)) == 1
    assert jobs["scheduled"].refresh().state is State.READY


def test_update_all_refuses_what_it_cannot_change(timed: Harbor):
    for given, said in (
        ({"tag": "x"}, "nothing to change was given; give expires_at, expires_in, max_attempts"),
        ({"payload": {}, "timeout": 3}, "payload takes 1 to 10 values"),
        ({"priority": 1000}, "priority must be a whole number"),
        ({"expires_in": 5, "expires_at": datetime(2030, 1, 1, tzinfo=UTC)}, "say the same thing"),
        ({"retry": "often"}, "retry must be a RetryPolicy"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            timed.jobs.update_all(**given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "nothing to change was given"),
        ({"queue": "other"}, "unknown option queue; the options are"),
        ({"state": "dead"}, "unknown option state"),
        ({"priority": 101}, "priority must be"),
        ({"priority": None}, "priority must be"),
        ({"run_at": None}, "run_at must be an aware datetime"),
        ({"run_at": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": -1}, "timeout must be a number"),
        ({"tags": "abc"}, "tags must be a list"),
        ({"max_attempts": 1, "max_retries": 1}, "both given"),
        ({"max_attempts": -1}, "max_attempts must be"),
        ({"max_attempts": 10**5000}, "max_attempts cannot be an integer of"),
        ({"payload": {"x": "three"}}, "at x: expected `int`, got `str`"),
        ({"payload": {"y": 1}}, "y"),
        ({"payload": [1]}, "a payload is a JSON object"),
        ({"payload": {"x": float("nan")}}, "no number in JSON"),
    ],
)
def test_an_update_that_does_not_fit_changes_nothing(
    timed: Harbor, make: Making, changes: dict[str, Any], said: str, everything: Callable[[Harbor], Any]
):
    job = make("ready")
    before = everything(timed)
    with pytest.raises((ConfigurationError, PayloadError), match=said):
        timed.jobs.update(job.id, **changes)
    assert everything(timed) == before


def test_at_most_once_is_requeued_only_by_force(timed: Harbor, make: Making):
    job = make("dead", delivery="at_most_once")
    for attempt in (timed.dlq.requeue, timed.jobs.retry):
        with pytest.raises(JobConflict, match=r"at_most_once and may have been executed.*force=True"):
            attempt(job.id)
    assert timed.dlq.requeue_all() == 0
    assert job.refresh().state is State.DEAD
    assert timed.dlq.requeue(job.id, force=True).state is State.READY


def test_at_most_once_that_was_cancelled_after_it_began_is_requeued_only_by_force(
    timed: Harbor, make: Making, clock: ManualClock
):
    job = make("running", delivery="at_most_once")
    timed.jobs.cancel(job.id)
    clock.advance(31)
    with pytest.raises(JobConflict, match="force=True"):
        timed.jobs.retry(job.id)
    assert job.refresh().state in (State.CANCELLED, State.DEAD)


def test_at_most_once_that_was_cancelled_before_it_began_is_retried_freely(timed: Harbor, make: Making):
    assert timed.jobs.retry(make("cancelled", delivery="at_most_once").id).state is State.READY


# -- expired leases ------------------------------------------------------------------------------


def test_an_expired_lease_is_shown_and_counted_as_running(timed: Harbor, make: Making, clock: ManualClock):
    job = make("running")
    assert not job.lease_expired
    clock.advance(31)
    job = job.refresh()
    assert (job.state, job.lease_expired, timed.jobs.counts()["running"]) == (State.RUNNING, True, 1)


@pytest.mark.parametrize(("verb", "state"), [("cancel", "cancelled"), ("delete", None), ("update", "ready")])
def test_operator_verbs_collect_an_expired_lease_first(
    timed: Harbor, make: Making, clock: ManualClock, verb: str, state: str | None
):
    job = make("running")
    clock.advance(31)
    VERBS[verb][0](timed, job.id)
    if state is None:
        with pytest.raises(JobNotFound):
            job.refresh()
    else:
        assert job.refresh().state == state
        assert [str(a.status) for a in job.history()] == ["lost"]


@pytest.mark.parametrize("verb", ["retry", "discard", "run_now"])
def test_what_collecting_made_ready_conflicts_as_ready(
    timed: Harbor, make: Making, clock: ManualClock, verb: str
):
    job = make("running")
    clock.advance(31)
    with pytest.raises(JobConflict, match="is ready, so it cannot be"):
        VERBS[verb][0](timed, job.id)


def test_at_most_once_that_was_lost_needs_force_also_when_nobody_had_collected_it(
    timed: Harbor, make: Making, clock: ManualClock
):
    job = make("running", delivery="at_most_once")
    clock.advance(31)
    with pytest.raises(JobConflict, match="force=True"):
        timed.dlq.requeue(job.id)
    assert (job.refresh().state, job.refresh().reason) == (State.DEAD, Reason.LOST)


def test_bulk_verbs_collect_expired_leases_first(timed: Harbor, make: Making, clock: ManualClock):
    make("running")
    lost = make("running", delivery="at_most_once")
    clock.advance(31)
    assert timed.jobs.delete_all(task="t", dry_run=True) == 2
    assert timed.jobs.delete_all(task="t") == 2
    with pytest.raises(JobNotFound):
        lost.refresh()


def test_dry_run_of_a_discard_counts_what_dies_with_an_expired_lease(
    timed: Harbor, make: Making, clock: ManualClock
):
    make("running", delivery="at_most_once")
    clock.advance(31)
    assert timed.dlq.discard_all(dry_run=True) == 1


def test_however_many_leases_expired_the_one_asked_for_is_collected(
    timed: Harbor, task: Any, clock: ManualClock, claim: Callable[..., Any]
):
    jobs = task.enqueue_many([{}] * 230)
    for _ in jobs:
        claim(timed, limit=1)
        clock.advance(0.001)
    clock.advance(60)
    last = max(jobs, key=lambda job: job.refresh().lease_expires_at)
    assert timed.jobs.cancel(last.id).state is State.CANCELLED


# -- lists, counts, filters ------------------------------------------------------------------------


def test_a_list_is_newest_first_and_pages_join_without_gap_or_overlap(timed: Harbor, task: Any):
    ids = sorted((job.id for job in task.enqueue_many([{}] * 25)), reverse=True)
    found: list[str] = []
    cursor = None
    while True:
        page = timed.jobs.list(limit=10, cursor=cursor)
        found += [job.id for job in page]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == ids


async def test_a_list_by_the_async_form(timed: Harbor, task: Any):
    job = await task.aenqueue()
    assert [found.id for found in await timed.jobs.alist()] == [job.id]
    assert await timed.dlq.alist() == []
    assert [queue.name for queue in await timed.queues.alist()] == ["default"]


def test_a_list_can_be_narrowed_by_state_queue_task_and_tag(timed: Harbor, make: Making):
    jobs = {state: make(state, queue=f"q-{state}", tags=["all", state]) for state in STATES}
    for state, job in jobs.items():
        for where in (
            {"state": state},
            {"queue": f"q-{state}"},
            {"tag": state},
            {"state": State(state), "tag": "all"},
        ):
            assert [found.id for found in timed.jobs.list(**where)] == [job.id], where  # type: ignore[arg-type]
    assert len(timed.jobs.list(task="t", tag="all")) == len(STATES)
    assert timed.jobs.list(task="other") == []
    assert timed.jobs.list(state="dead", tag="ready") == []


def test_counts_name_all_seven_states_in_all_and_by_queue(timed: Harbor, make: Making):
    assert timed.jobs.counts() == dict.fromkeys(
        ["waiting", "scheduled", "ready", "running", "succeeded", "dead", "cancelled"], 0
    )
    make("dead", queue="mail")
    make("ready", queue="mail")
    make("ready")
    assert {k: v for k, v in timed.jobs.counts().items() if v} == {"ready": 2, "dead": 1}
    assert {k: v for k, v in timed.jobs.counts(queue="mail").items() if v} == {"ready": 1, "dead": 1}
    assert not any(timed.jobs.counts("nobody").values())


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"state": "lost"}, "no state is called 'lost'; the states are waiting, scheduled"),
        ({"state": ""}, "no state is called ''"),
        ({"state": 5}, "no state is called 5"),
        ({"queue": ""}, "cannot be a queue: it is empty"),
        ({"queue": 5}, "a queue is text, not 5"),
        ({"task": "a\0"}, "control character"),
        ({"tag": "\ud800"}, "lone surrogate"),
        ({"tag": "x" * 10_000}, "the limit is 255"),
        ({"cursor": "x"}, "a cursor is the next_cursor of an earlier page"),
        ({"cursor": 5}, "a cursor is the next_cursor"),
        ({"limit": 0}, "limit must be a whole number from 1 to 1000"),
        ({"limit": -1}, "limit must be"),
        ({"limit": 1001}, "limit must be"),
        ({"limit": 1.0}, "limit must be"),
        ({"limit": True}, "limit must be"),
        ({"limit": None}, "limit must be"),
        ({"limit": 10**5000}, "limit must be"),
    ],
)
def test_a_list_asked_for_wrongly_is_one_clear_error(timed: Harbor, where: dict[str, Any], said: str):
    with pytest.raises(ConfigurationError, match=said):
        timed.jobs.list(**where)


@pytest.mark.parametrize("limit", [0, -1, 1001, True, "5", None])
def test_a_limit_of_history_is_checked_too(timed: Harbor, make: Making, limit: Any):
    with pytest.raises(ConfigurationError, match="limit must be"):
        timed.jobs.history(make("ready").id, limit=limit)


@pytest.mark.parametrize("queue", ["", 5, "a\0b", "\udfff", "x" * 10_000])
def test_counting_a_queue_with_a_bad_name_is_an_error(timed: Harbor, queue: Any):
    with pytest.raises(ConfigurationError):
        timed.jobs.counts(queue=queue)


def test_many_are_cancelled_by_filter(timed: Harbor, make: Making):
    jobs = {
        (state, queue): make(state, queue=queue) for state in STATES if state != "running" for queue in "ab"
    }
    assert timed.jobs.cancel_all(JobFilter(queue="a")) == 2
    for (state, queue), job in jobs.items():
        cancelled = queue == "a" and state in ("scheduled", "ready")
        assert job.refresh().state == ("cancelled" if cancelled else state)


def test_many_are_deleted_by_filter_whatever_their_number(timed: Harbor, task: Any, make: Making):
    task.using(queue="bulk").enqueue_many([{}] * 1234)
    other = make("ready", queue="other")
    assert timed.jobs.delete_all(queue="bulk") == 1234
    assert other.refresh().state is State.READY
    assert timed.jobs.delete_all() == 1
    assert timed.jobs.delete_all() == 0


def test_running_jobs_are_asked_to_end_by_a_bulk_cancel_and_left_by_a_bulk_delete(
    timed: Harbor, make: Making
):
    job = make("running")
    assert timed.jobs.delete_all() == 0
    assert timed.jobs.cancel_all() == 1
    assert job.refresh().cancel_requested


def test_many_are_requeued_by_filter(timed: Harbor, make: Making):
    dead = [make("dead", queue=queue) for queue in ("a", "a", "b")]
    make("cancelled", queue="a")
    assert timed.dlq.requeue_all(JobFilter(queue="a")) == 2
    assert [job.refresh().state for job in dead] == ["ready", "ready", "dead"]
    assert timed.dlq.requeue_all(task="t", run_at=datetime(2027, 1, 1, tzinfo=UTC)) == 1
    assert dead[2].refresh().state is State.SCHEDULED
    assert timed.jobs.counts()["cancelled"] == 1


def test_many_are_discarded_by_filter(timed: Harbor, make: Making):
    heard: list[str] = []
    timed.on("cancelled")(lambda event: heard.append(event.job_id))
    dead = [make("dead", queue=queue) for queue in ("a", "a", "b")]
    ready = make("ready", queue="a")
    assert timed.dlq.discard_all(queue="a") == 2
    assert [job.refresh().state for job in [*dead, ready]] == ["cancelled", "cancelled", "dead", "ready"]
    assert {job.refresh().reason for job in dead[:2]} == {"discarded"}
    assert timed.dlq.discard_all(JobFilter(task="t")) == 1
    timed.events.close()
    assert sorted(heard) == sorted(job.id for job in dead)


async def test_bulk_verbs_by_the_async_form(timed: Harbor, task: Any):
    await task.aenqueue_many([{}] * 3)
    assert await timed.jobs.acancel_all(task="t") == 3
    assert await timed.jobs.adelete_all(JobFilter(state=State.CANCELLED)) == 3
    assert await timed.dlq.arequeue_all() == 0
    assert await timed.dlq.adiscard_all() == 0


@pytest.mark.parametrize(
    ("args", "where", "said"),
    [
        (("mail",), {}, "a filter is a JobFilter, not 'mail'"),
        (({"queue": "mail"},), {}, "a filter is a JobFilter"),
        ((JobFilter(),), {"queue": "mail"}, "both given"),
        (
            (),
            {"quue": "mail"},
            "unknown filter quue: did you mean queue\\? The filters are correlation_id, enqueued_after,",
        ),
        ((), {"queue": ""}, "cannot be a queue"),
        ((JobFilter(queue=""),), {}, "cannot be a queue"),
        ((), {"state": "gone"}, "no state is called 'gone'"),
        ((JobFilter(state="gone"),), {}, "no state is called 'gone'"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("verb", ["cancel_all", "delete_all", "requeue_all", "discard_all"])
def test_a_bulk_verb_with_a_wrong_filter_touches_nothing(
    timed: Harbor,
    make: Making,
    verb: str,
    args: Any,
    where: Any,
    said: str,
    everything: Callable[[Harbor], Any],
):
    make("dead", queue="mail")
    make("ready", queue="mail")
    before = everything(timed)
    do = getattr(timed.dlq if verb in ("requeue_all", "discard_all") else timed.jobs, verb)
    with pytest.raises(ConfigurationError, match=said):
        do(*args, **where)
    assert everything(timed) == before


def test_requeueing_many_that_are_not_dead_is_refused(timed: Harbor, make: Making):
    make("cancelled")
    with pytest.raises(ConfigurationError, match="only dead jobs are in the dead-letter queue"):
        timed.dlq.requeue_all(state="cancelled")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="only dead jobs are in the dead-letter queue"):
        timed.dlq.discard_all(state="ready")  # type: ignore[call-arg]


# -- the dead-letter queue and queues ----------------------------------------------------------------


def test_the_dead_letter_queue_keeps_everything_about_why(timed: Harbor, make: Making):
    job = make("dead", queue="mail", tags=["x"], correlation_id="c", priority=3)
    [found] = timed.dlq.list(queue="mail", task="t", tag="x")
    assert found.id == job.id
    assert (found.payload, found.correlation_id, found.priority) == ({"fails": True}, "c", 3)
    assert found.error is not None
    assert "it failed" in found.error
    [attempt] = found.history()
    assert attempt.traceback is not None
    assert "it failed" in attempt.traceback


def test_a_paused_queue_keeps_its_jobs_until_it_is_resumed(timed: Harbor, make: Making):
    job = make("ready", queue="mail")
    timed.queues.pause("mail")
    timed.queues.pause("mail")
    Worker(timed).drain_sync()
    assert job.refresh().state is State.READY
    [queue] = timed.queues.list()
    assert (queue.name, queue.paused, queue.depth) == ("mail", True, 1)
    timed.queues.resume("mail")
    timed.queues.resume("never paused")
    Worker(timed).drain_sync()
    assert job.refresh().state is State.SUCCEEDED
    assert timed.queues.list() == []


def test_queues_tell_their_depth_and_the_age_of_the_oldest(timed: Harbor, make: Making, clock: ManualClock):
    make("ready", queue="a")
    clock.advance(90)
    make("ready", queue="a")
    make("scheduled", queue="b")
    a, b = timed.queues.list()
    assert (a.name, a.depth, a.ready, a.scheduled, a.running) == ("a", 2, 2, 0, 0)
    assert a.oldest_ready_age == timedelta(seconds=90)
    assert a.oldest_ready_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert (b.name, b.depth, b.scheduled, b.oldest_ready_age) == ("b", 0, 1, None)


@pytest.mark.parametrize("name", ["", None, 5, "a\nb", "x" * 10_000, "\ud800", " x"])
def test_a_queue_with_a_bad_name_is_not_paused(timed: Harbor, name: Any):
    for verb in (timed.queues.pause, timed.queues.resume):
        with pytest.raises(ConfigurationError):
            verb(name)
    assert timed.queues.list() == []


@pytest.mark.parametrize(
    ("state", "verb", "advice"),
    [
        ("running", "delete", "is running, so it cannot be deleted; cancel it first"),
        ("running", "update", "cannot be changed; wait until its attempt has ended, or cancel it"),
        ("dead", "update", "cannot be changed; requeue it first"),
        ("dead", "cancel", "cannot be cancelled; discard it instead"),
        ("ready", "discard", "cannot be discarded: only a dead one can; cancel it instead"),
        ("dead", "run_now", "cannot be run now: only a scheduled one can; requeue it instead"),
        ("succeeded", "retry", "cannot be requeued: only a dead or cancelled one can; enqueue another one"),
    ],
)
def test_a_conflict_says_what_to_do(timed: Harbor, make: Making, state: str, verb: str, advice: str):
    job = make(state)
    with pytest.raises(JobConflict, match=f"{advice}$"):
        VERBS[verb][0](timed, job.id)


def test_deleting_what_an_unfinished_job_depends_on_says_so(timed: Harbor, make: Making):
    job = make("ready")
    dependant = NewJob("0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c11", "t", depends_on=(job.id,))
    run_inline(timed.driver.enqueue([dependant]))
    with pytest.raises(
        JobConflict, match="is ready, but an unfinished job depends on it, or .* so it cannot be deleted"
    ):
        timed.jobs.delete(job.id)


@pytest.mark.parametrize("verb", ["cancel", "delete", "retry", "run_now", "update"])
def test_a_verb_refused_inside_a_transaction_is_named(verb: str, tmp_path: Path):
    with Harbor(f"sqlite:///{tmp_path}/h.db") as harbor, closing(sqlite3.connect(tmp_path / "h.db")) as own:
        job = harbor.enqueue("t")
        with harbor.transaction(own):
            harbor.enqueue("t")
            with pytest.raises(
                ConfigurationError, match=rf"^jobs\.{verb}\(\) cannot take part in transaction"
            ):
                VERBS[verb][0](harbor, job.id)
        own.rollback()


# -- holds ---------------------------------------------------------------------------------------


def test_a_hold_says_what_it_holds_by_whom_and_since_when(timed: Harbor) -> None:
    with timed.acting_as("ann"):
        assert timed.holds.hold(task="mail:send")
    assert not timed.holds.hold(task="mail:send")
    [hold] = timed.holds.list()
    assert (str(hold.kind), hold.name, hold.by) == ("task", "mail:send", "ann")
    assert hold.since == timed.jobs.get(timed.enqueue("t").id).enqueued_at
    assert timed.holds.release(task="mail:send")
    assert not timed.holds.release(task="mail:send")


@pytest.mark.parametrize("given", [{}, {"task": "a", "tag": "b"}, {"task": ""}, {"tag": "a\nb"}])
def test_a_hold_of_nothing_or_of_two_things_is_refused(timed: Harbor, given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        timed.holds.hold(**given)
