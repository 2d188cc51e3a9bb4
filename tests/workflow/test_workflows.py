"""Workflows from end to end: results are handed on, and every ending is the documented one."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from taskharbor import (
    ConfigurationError,
    Context,
    Harbor,
    Unrecoverable,
    Worker,
    Workflow,
    WorkflowCancelled,
    WorkflowNotFound,
    WorkflowState,
    WorkflowStuck,
    chain,
    chord,
    group,
)
from taskharbor.drivers.base import ClaimRequest
from taskharbor.errors import JobConflict
from taskharbor.records import Reason, State
from taskharbor.worker.pipeline import dependency_results
from tests.worker.stage import until, working


class Tasks:
    """What the workflows here are made of."""

    def __init__(self, harbor: Harbor) -> None:
        self.ran: list[Any] = []
        self.failing: set[Any] = set()
        ran, failing = self.ran, self.failing

        @harbor.task(name="number")
        async def number(n: int) -> int:
            ran.append(n)
            if n in failing:
                raise Unrecoverable(f"no {n}")
            return n

        @harbor.task(name="add")
        def add(x: int, y: int = 1) -> int:
            ran.append(("add", x, y))
            return x + y

        @harbor.task(name="total")
        async def total(numbers: list[Any]) -> Any:
            ran.append(("total", numbers))
            return numbers

        @harbor.task(name="clean")
        async def clean() -> str:
            ran.append("clean")
            return "clean"

        @harbor.task(name="alert")
        async def alert(died: dict[str, Any], level: int = 1) -> None:
            ran.append(("alert", died, level))

        self.number, self.add, self.total, self.clean, self.alert = number, add, total, clean, alert


@pytest.fixture
def tasks(harbor: Harbor) -> Tasks:
    return Tasks(harbor)


async def ended(workflow: Workflow) -> tuple[str, dict[str, int]]:
    found = await workflow.arefresh()
    return str(found.state), {name: count for name, count in found.counts.items() if count}


# -- results are handed on -------------------------------------------------------------------------


async def test_chain_hands_each_result_to_the_next_step(harbor, tasks, drained):
    workflow = await chain(tasks.number.s(1), tasks.add.s(), tasks.add.s(y=10)).aenqueue()
    assert (workflow.state, str(workflow.progress)) == (WorkflowState.RUNNING, "0 of 3")
    assert [str(job.state) async for job in workflow.jobs] == ["ready", "waiting", "waiting"]
    await drained(harbor)
    assert await workflow.aresult(0) == 12
    assert tasks.ran == [1, ("add", 1, 1), ("add", 2, 10)]
    found = await workflow.arefresh()
    assert (found.state, found.progress.fraction) == (WorkflowState.SUCCEEDED, 1.0)


async def test_result_goes_to_the_first_parameter_not_given(harbor, tasks, drained):
    workflow = await chain(tasks.number.s(1), tasks.add.s(5)).aenqueue()
    await drained(harbor)
    assert (await workflow.aresult(0), tasks.ran[-1]) == (6, ("add", 5, 1))


async def test_si_waits_and_takes_nothing(harbor, tasks, drained):
    workflow = await chain(tasks.number.s(1), tasks.clean.si(), tasks.add.si(3, y=4)).aenqueue()
    await drained(harbor)
    assert (await workflow.aresult(0), tasks.ran) == (7, [1, "clean", ("add", 3, 4)])


async def test_group_results_come_in_its_order(harbor, tasks, drained):
    workflow = await group(tasks.number.using(priority=n % 3).s(n) for n in range(7)).aenqueue()
    await drained(harbor)
    assert await workflow.aresult(0) == list(range(7))
    assert tasks.ran != list(range(7))


async def test_chord_calls_its_finalizer_once_with_all_results_in_order(harbor, tasks, drained):
    workflow = await chord(
        [tasks.number.using(priority=n % 3).s(n) for n in range(7)], tasks.total.s()
    ).aenqueue()
    await drained(harbor)
    assert await workflow.aresult(0) == list(range(7))
    assert tasks.ran.count(("total", list(range(7)))) == 1
    assert tasks.ran[-1] == ("total", list(range(7)))


async def test_finalizer_of_many_gets_them_all(harbor, tasks, drained):
    workflow = await chord([tasks.number.s(n) for n in range(1_200)], tasks.total.s()).aenqueue()
    await drained(harbor)
    assert await workflow.aresult(0) == list(range(1_200))


@pytest.mark.parametrize(
    ("build", "result"),
    [
        # group in a chain: it fans in to what follows, and out of what comes before
        (lambda t: chain(t.number.s(1), group(t.add.s(y=2), t.add.s(y=3)), t.total.s()), [3, 4]),
        (lambda t: chain(group(t.number.s(1), t.number.s(2)), group(t.total.s(), t.total.s())), [[1, 2]] * 2),
        # chain of chords
        (
            lambda t: chain(
                chord([t.number.s(1), t.number.s(2)], t.total.s()),
                chord([t.total.s(), t.clean.si()], t.total.s()),
            ),
            [[1, 2], "clean"],
        ),
        # chord of chains, and of chords
        (lambda t: chord([chain(t.number.s(n), t.add.s()) for n in range(3)], t.total.s()), [1, 2, 3]),
        (lambda t: chord([chord([t.number.s(n)], t.total.s()) for n in range(2)], t.total.s()), [[0], [1]]),
        # groups of groups
        (lambda t: group(group(t.number.s(1), t.number.s(2)), t.number.s(3)), [[1, 2], 3]),
        (lambda t: chord([group(t.number.s(1), t.number.s(2)), t.number.s(3)], t.total.s()), [[1, 2], 3]),
        # a finalizer that is a chain, or a group
        (lambda t: chord([t.number.s(1)], chain(t.total.s(), t.total.s())), [1]),
        (lambda t: chord([t.number.s(1)], group(t.total.s(), t.clean.si())), [[1], "clean"]),
        # nothing and one
        (lambda t: chord([], t.total.s()), []),
        (lambda t: chord([t.number.s(1)], t.total.s()), [1]),
        (lambda t: chord(t.number.s(1), t.total.s()), [1]),
        (lambda t: chain(t.number.s(5)), 5),
        (lambda t: chain(t.number.s(1), group(), t.total.s()), []),
        (lambda t: chain(t.number.s(1), chord([], t.total.s())), []),
    ],
)
async def test_parts_nest_in_any_way(harbor, tasks, drained, build, result):
    workflow = await build(tasks).aenqueue()
    await drained(harbor)
    assert await workflow.aresult(0) == result
    assert (await ended(workflow))[0] == "succeeded"


async def test_what_follows_an_empty_group_still_waits_for_what_came_before_it(harbor, tasks, drained):
    await chain(tasks.number.s(1), group(), tasks.total.s()).aenqueue()
    await drained(harbor)
    assert tasks.ran == [1, ("total", [])]


async def test_workflow_of_nothing_has_succeeded(harbor, tasks):
    workflow = await harbor.workflows.aenqueue(group())
    assert (workflow.state, await workflow.aresult(0), len(workflow.jobs)) == ("succeeded", [], 0)
    with pytest.raises(ConfigurationError, match=r"harbor\.workflows\.enqueue"):
        await group().aenqueue()


async def test_graph_of_any_kind(harbor, tasks, drained):
    workflow = Workflow()
    one = workflow.add(tasks.number.s(1))
    two = workflow.add(tasks.number.s(2))
    both = workflow.add(tasks.total.s(), after=[one, two])
    more = workflow.add(tasks.add.s(), after=one)
    workflow.add(tasks.total.s(), after=[both, more, two], name="end")
    stored = await workflow.aenqueue()
    await drained(harbor)
    assert await stored.aresult(0) == [[1, 2], 2, 2]


async def test_graph_may_name_what_comes_later_and_end_in_several_places(harbor, tasks, drained):
    workflow = Workflow()
    workflow.add(tasks.add.s(), after="first", name="left")
    workflow.add(chord([tasks.add.s(y=5)], tasks.total.s()), after="first", name="right")
    workflow.add(tasks.number.s(1), name="first")
    stored = await workflow.aenqueue()
    await drained(harbor)
    assert await stored.aresult(0) == [2, [6]]


async def test_results_are_validated_as_every_payload_is(harbor, tasks, clock, drained):
    """What does not fit is put back for the grace period, as another version may take it; then it is dead."""
    workflow = await chain(tasks.clean.s(), tasks.add.s()).aenqueue()
    for _ in range(20):
        await drained(harbor)
        clock.advance(31)
    await drained(harbor)
    job = workflow.jobs.ids[1]
    found = await harbor.jobs.aget(job)
    assert (found.state, found.reason) == (State.DEAD, Reason.INVALID_PAYLOAD)
    assert "expected `int`" in str(found.error)
    assert (await ended(workflow))[0] == "stuck"


async def test_handler_that_returns_nothing_hands_on_none(memory, drained):
    tasks = Tasks(memory)

    @memory.task
    async def nothing() -> None: ...

    workflow = await chain(nothing.s(), group(tasks.total.si([1]), nothing.si()), tasks.total.s()).aenqueue()
    await drained(memory)
    assert await workflow.aresult(0) == [[1], None]


async def test_results_that_are_too_many_are_a_clear_failure(memory, drained, monkeypatch):
    monkeypatch.setattr(dependency_results, "RESULTS_LIMIT", 10)
    tasks = Tasks(memory)
    workflow = await chord([tasks.number.s(n) for n in range(100)], tasks.total.s()).aenqueue()
    await drained(memory)
    with pytest.raises(WorkflowStuck, match="the limit of 10 bytes"):
        await workflow.aresult(0)


async def test_missing_result_is_a_clear_failure(harbor, tasks, drained):
    """The workflow was over when a member was deleted; then somebody retries the one that takes its result."""

    @harbor.task(name="fail")
    async def fail(x: int) -> None:
        raise Unrecoverable("no")

    workflow = await chain(tasks.number.s(1), fail.s()).aenqueue()
    await drained(harbor)
    first, second = workflow.jobs.ids
    await harbor.jobs.adelete(first)
    await harbor.jobs.aretry(second)
    await drained(harbor)
    assert f"the result of job {first}, which this job takes, was deleted" in str(
        (await harbor.jobs.aget(second)).error
    )


# -- failure ---------------------------------------------------------------------------------------


async def test_failing_member_leaves_the_finalizer_waiting_and_the_workflow_stuck(harbor, tasks, drained):
    tasks.failing.add(1)
    workflow = await chord([tasks.number.s(n) for n in range(3)], tasks.total.s()).aenqueue()
    await drained(harbor)
    assert await ended(workflow) == ("stuck", {"succeeded": 2, "dead": 1, "waiting": 1})
    with pytest.raises(
        WorkflowStuck, match=r"\(number\) is dead, unrecoverable: Unrecoverable: no 1"
    ) as caught:
        await workflow.aresult(0)
    assert caught.value.job_ids == (workflow.jobs.ids[1],)
    assert caught.value.workflow_id == workflow.id


@pytest.mark.parametrize("how", ["workflow", "dlq", "requeue_all"])
@pytest.mark.parametrize("on_failure", ["wait", "cancel"])
async def test_retried_member_resumes_its_workflow_to_the_end(harbor, tasks, drained, how, on_failure):
    tasks.failing |= {1, 2}
    header = [chain(tasks.number.s(n), tasks.add.s(y=0)) for n in range(4)]
    workflow = (
        await chord(header, chain(tasks.total.s(), tasks.total.s())).using(on_failure=on_failure).aenqueue()
    )
    await drained(harbor)
    state, counts = await ended(workflow)
    assert (state, counts["dead"]) == ("stuck" if on_failure == "wait" else "cancelled", 2)
    tasks.failing.clear()
    if how == "workflow":
        assert (await workflow.aretry()).state == "running"
    elif how == "dlq":
        for job in await harbor.dlq.alist(workflow=workflow.id):
            await harbor.dlq.arequeue(job.id)
    else:
        assert await harbor.dlq.arequeue_all(workflow=workflow.id) == 2
    await drained(harbor)
    assert await workflow.aresult(0) == [0, 1, 2, 3]
    assert await ended(workflow) == ("succeeded", {"succeeded": 10})
    assert tasks.ran.count(("total", [0, 1, 2, 3])) == 2


async def test_on_failure_cancel_ends_what_depends_on_the_member(harbor, tasks, drained):
    tasks.failing.add(1)
    workflow = (
        await chord([tasks.number.s(n) for n in range(3)], tasks.total.s())
        .using(on_failure="cancel")
        .aenqueue()
    )
    await drained(harbor)
    assert await ended(workflow) == ("cancelled", {"succeeded": 2, "dead": 1, "cancelled": 1})
    assert (await harbor.jobs.aget(workflow.jobs.ids[-1])).reason is Reason.DEPENDENCY
    with pytest.raises(WorkflowCancelled, match="no 1") as caught:
        await workflow.aresult(0)
    assert caught.value.job_ids == (workflow.jobs.ids[1],)


async def test_result_of_a_workflow_with_deleted_jobs_says_that_they_were_deleted(harbor, tasks, drained):
    workflow = await chain(tasks.number.s(1), tasks.add.s()).aenqueue()
    await drained(harbor)
    await harbor.jobs.adelete(workflow.jobs.ids[0])
    with pytest.raises(WorkflowCancelled, match="has no result any more: 1 of its 2 jobs was deleted"):
        await workflow.aresult(0)


async def test_failure_task_is_told_what_died_once_for_the_workflow(harbor, tasks, drained):
    tasks.failing |= {0, 1, 2}
    header = [tasks.number.s(n) for n in range(3)]
    workflow = await chord(header, tasks.total.s()).using(failure_task=tasks.alert.s(level=3)).aenqueue()
    await drained(harbor)
    [(_, died, level)] = [each for each in tasks.ran if isinstance(each, tuple)]
    assert (died["workflow"], died["job"] in workflow.jobs.ids, level) == (workflow.id, True, 3)
    assert (died["task"], died["reason"]) == ("number", "unrecoverable")
    # A member that dies again after somebody retried it is news.
    await harbor.dlq.arequeue(workflow.jobs.ids[2])
    await drained(harbor)
    alerts = [each for each in tasks.ran if isinstance(each, tuple)]
    assert (len(alerts), alerts[1][1]["job"]) == (2, workflow.jobs.ids[2])


async def test_failure_task_that_wants_to_know_nothing(harbor, tasks, drained):
    tasks.failing.add(1)
    await chain(tasks.number.s(1), tasks.add.s()).using(failure_task=tasks.clean.si()).aenqueue()
    await drained(harbor)
    assert tasks.ran == [1, "clean"]


async def test_failure_task_is_run_for_a_member_whose_worker_vanished(harbor, tasks, clock, drained):
    workflow = (
        await group(tasks.number.using(delivery="at_most_once").s(1))
        .using(failure_task=tasks.alert.s())
        .aenqueue()
    )
    await harbor.driver.claim(ClaimRequest("gone/1", 1_000_000, 1, once_limit=1))
    clock.advance(5)
    await drained(harbor)
    [(_, died, _)] = tasks.ran
    assert (died["job"], died["reason"]) == (workflow.jobs.ids[0], "lost")


# -- cancelling ------------------------------------------------------------------------------------


async def test_cancel_ends_all_that_has_not_begun(harbor, tasks, drained):
    workflow = await chain(tasks.number.s(1), group(tasks.add.s(), tasks.add.s()), tasks.total.s()).aenqueue()
    cancelled = await workflow.acancel()
    assert (cancelled.state, cancelled.counts["cancelled"]) == ("cancelled", 4)
    await drained(harbor)
    assert tasks.ran == []
    with pytest.raises(WorkflowCancelled):
        await workflow.aresult(0)
    await workflow.aretry()
    await drained(harbor)
    assert await workflow.aresult(0) == [2, 2]


async def test_cancelled_member_leaves_the_workflow_stuck_until_it_is_retried(harbor, tasks, drained):
    workflow = await chain(tasks.number.s(1), tasks.add.s(), tasks.add.s()).aenqueue()
    await harbor.jobs.acancel(workflow.jobs.ids[1])
    await drained(harbor)
    assert await ended(workflow) == ("stuck", {"succeeded": 1, "cancelled": 1, "waiting": 1})
    with pytest.raises(WorkflowStuck, match="is cancelled, cancelled"):
        await workflow.aresult(0)
    await harbor.jobs.aretry(workflow.jobs.ids[1])
    await drained(harbor)
    assert await workflow.aresult(0) == 3


async def test_cancel_asks_what_is_running_to_end(memory, clock):
    began = asyncio.Event()

    @memory.task
    async def hang(ctx: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    workflow = await chain(hang.s(), hang.si()).aenqueue()
    async with working(memory):
        await asyncio.wait_for(began.wait(), 60)
        cancelled = await workflow.acancel()
        assert cancelled.counts == {"succeeded": 0, "dead": 0, "cancelled": 1, "waiting": 0, "active": 1}
        assert cancelled.state == "running"
        clock.advance(15)
        found = cancelled
        while found.state == "running":
            await asyncio.sleep(0.001)
            found = await workflow.arefresh()
    assert found.state == "cancelled"


# -- being one thing -------------------------------------------------------------------------------


async def test_same_key_or_id_is_the_same_workflow(harbor, tasks, drained):
    first = await chain(tasks.number.s(1), tasks.add.s()).using(idempotency_key="k").aenqueue()
    again = await group(tasks.number.s(9)).using(idempotency_key="k").aenqueue()
    by_id = await group(tasks.number.s(9)).using(id=first.id).aenqueue()
    assert (again.id, again.existed, by_id.id, by_id.existed) == (first.id, True, first.id, True)
    assert (first.existed, again.idempotency_key, again.progress.total) == (False, "k", 2)
    await drained(harbor)
    assert (tasks.ran, await again.aresult(0)) == ([1, ("add", 1, 1)], 2)


async def test_many_callers_of_one_key_make_one_workflow(harbor, tasks, drained):
    made = await asyncio.gather(
        *(chain(tasks.number.s(n), tasks.add.s()).using(idempotency_key="k").aenqueue() for n in range(20))
    )
    assert (len({each.id for each in made}), sum(not each.existed for each in made)) == (1, 1)
    await drained(harbor)
    assert len(tasks.ran) == 2


async def test_workflows_are_listed_and_found(harbor, tasks):
    made = [await chain(tasks.number.s(n)).aenqueue() for n in range(3)]
    page = await harbor.workflows.alist(limit=2)
    assert [each.id for each in page] == [made[2].id, made[1].id]
    [last] = await harbor.workflows.alist(limit=2, cursor=page.next_cursor)
    assert (last.id, (await harbor.workflows.aget(made[0].id)).id) == (made[0].id, made[0].id)
    with pytest.raises(WorkflowNotFound, match="no workflow has the id"):
        await harbor.workflows.aget("0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10")


async def test_members_know_their_workflow_and_are_kept_with_it(harbor, tasks, clock, drained):
    workflow = await chain(tasks.number.s(1), tasks.add.s()).aenqueue()
    await drained(harbor, queues=["none"])
    first, second = workflow.jobs.ids
    assert (await harbor.jobs.aget(first)).workflow == workflow.id
    assert [job.id for job in await harbor.jobs.alist(workflow=workflow.id)] == [second, first]
    with pytest.raises(JobConflict, match="workflow"):
        await harbor.jobs.adelete(second)
    await drained(harbor)
    clock.advance(8 * 86_400)
    assert await harbor.aprune() == 2
    with pytest.raises(WorkflowNotFound):
        await workflow.arefresh()


async def test_members_inherit_the_meta_of_their_workflow(harbor, tasks):
    workflow = (
        await chain(tasks.number.s(1), tasks.add.using(meta={"tenant": "own", "kind": "sum"}).s())
        .using(meta={"tenant": "acme", "n": "1"})
        .aenqueue()
    )
    assert [job.meta async for job in workflow.jobs] == [
        {"tenant": "acme", "n": "1"},
        {"tenant": "own", "kind": "sum", "n": "1"},
    ]


async def test_failure_task_inherits_the_meta_of_the_member_that_died(harbor, tasks, drained):
    tasks.failing.add(1)
    alert = tasks.alert.using(meta={"kind": "alert"}).s()
    await chain(tasks.number.s(1), tasks.add.s()).using(failure_task=alert, meta={"a": "b"}).aenqueue()
    await drained(harbor)
    [alerted] = await harbor.jobs.alist(task="alert")
    assert alerted.meta == {"kind": "alert", "a": "b"}


async def test_correlation_id_of_a_workflow_is_its_members(harbor, tasks):
    workflow = (
        await chain(tasks.number.s(1), tasks.add.using(correlation_id="own").s())
        .using(correlation_id="c")
        .aenqueue()
    )
    assert [job.correlation_id async for job in workflow.jobs] == ["c", "own"]


async def test_options_of_members_are_their_own(harbor, tasks):
    part = tasks.number.using(queue="q", priority=7, timeout=3, tags=["x"], delay=60, max_attempts=9)
    workflow = await chain(part.s(1), tasks.add.s()).aenqueue()
    job = await harbor.jobs.aget(workflow.jobs.ids[0])
    assert (job.queue, job.priority, job.timeout, job.tags, job.max_attempts) == ("q", 7, 3.0, ("x",), 9)
    assert job.state is State.SCHEDULED
    assert [each.id for each in await harbor.jobs.alist(tag="x")] == [job.id]


async def test_retry_of_at_most_once_members_needs_force(harbor, tasks, drained):
    tasks.failing.add(1)
    workflow = await group(tasks.number.using(delivery="at_most_once").s(1)).aenqueue()
    await drained(harbor)
    with pytest.raises(JobConflict, match="force=True"):
        await workflow.aretry()
    tasks.failing.clear()
    await workflow.aretry(force=True)
    await drained(harbor)
    assert await workflow.aresult(0) == [1]


async def test_events_tell_of_every_member(memory, tasks_memory):
    told = []
    memory.on("enqueued")(lambda event: told.append(event.job_id))
    workflow = await chain(tasks_memory.number.s(1), tasks_memory.add.s()).aenqueue()
    await until(lambda: len(told) == 2)
    assert told == workflow.jobs.ids


@pytest.fixture
def tasks_memory(memory: Harbor) -> Tasks:
    return Tasks(memory)


def test_synchronous_surface(tmp_path):
    with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        tasks = Tasks(harbor)
        workflow = chord([tasks.number.s(n) for n in range(3)], tasks.total.s()).enqueue()
        assert [job.task for job in workflow.jobs] == ["number"] * 3 + ["total"]
        assert (workflow.jobs[-1].state, [job.id for job in workflow.jobs[:2]]) == (
            "waiting",
            workflow.jobs.ids[:2],
        )
        with pytest.raises(TimeoutError, match="0 of 4 jobs have succeeded"):
            workflow.result(timeout=0)
        Worker(harbor).drain_sync()
        assert workflow.result(timeout=60) == [0, 1, 2]
        assert workflow.refresh().state == "succeeded"
        assert harbor.workflows.list()[0] == harbor.workflows.get(workflow.id)
        other = chain(tasks.number.s(1)).enqueue()
        assert other.cancel().state == "cancelled"
        assert other.retry().state == "running"


def test_workflow_in_the_callers_transaction(tmp_path):
    """On SQLite; PostgreSQL has more ways to get there, and tests of its own."""
    path = f"{tmp_path}/harbor.db"
    with Harbor(f"sqlite:///{path}") as harbor:
        tasks = Tasks(harbor)
        harbor.migrate()
        connection = sqlite3.connect(path, isolation_level=None)
        for end in ("ROLLBACK", "COMMIT"):
            connection.execute("BEGIN")
            with harbor.transaction(connection):
                workflow = chain(tasks.number.s(1), tasks.add.s()).enqueue()
            connection.execute(end)
            found = harbor.workflows.list()
            assert [each.id for each in found] == ([workflow.id] if end == "COMMIT" else [])
        connection.close()
