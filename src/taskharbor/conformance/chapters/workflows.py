"""Workflows: jobs that are stored, ended, restored, kept and pruned as a whole."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from taskharbor.conformance.store import HOUR, SECOND, Chapter, Held, Store, large_text
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import (
    Cancel,
    DeadLetter,
    Delete,
    Discard,
    OperationVerdict,
    Requeue,
    SettleAnswer,
    Transition,
    member_id,
)
from taskharbor.errors import ConfigurationError
from taskharbor.records import AttemptStatus, MemberResult, Reason, State

SUCCESS = (AttemptStatus.SUCCEEDED, State.SUCCEEDED)
DEATH = (AttemptStatus.FAILED, State.DEAD)
CHORD = ((), (), (0, 1))  # two jobs, and one that depends on both
CHAIN = ((), (0,), (1,))
ALL_OVER = {State.SUCCEEDED: 0, State.DEAD: 0, State.CANCELLED: 0}


class Workflows(Chapter):
    needs = capabilities.Workflows

    # -- storing --

    def test_workflow_is_stored_with_its_jobs(self, store: Store) -> None:
        """One call stores the workflow and every job of it; those that depend on others wait."""
        workflow_id, a, b, last = store.workflow(*CHORD, about='{"shape":[0,1]}', idempotency_key="k")
        assert [store.state(job_id) for job_id in (a, b, last)] == [State.READY, State.READY, State.WAITING]
        record = store.find_workflow(workflow_id)
        assert record is not None
        assert (record.about, record.idempotency_key) == ('{"shape":[0,1]}', "k")
        assert (record.total, record.enqueued_at) == (3, store.now)
        assert store.numbers(workflow_id) == (0, 0, 0, 1, 2)
        assert store.job(last).depends_on == (a, b)

    def test_members_keep_their_meta(self, store: Store) -> None:
        """Many members that are alike otherwise are stored each with its own, and so are those that wait."""
        workflow, jobs = store.new_workflow(*[()] * 120, (0, 1))
        given = [f'{{"n":"{index % 2}"}}' if index < 119 else None for index in range(len(jobs))]
        jobs = [replace(job, meta=meta) for job, meta in zip(jobs, given, strict=True)]
        store.enqueue_workflow(workflow, jobs)
        assert [store.job(job.id).meta for job in jobs] == given

    def test_workflow_of_large_jobs_is_stored_whole_or_not_at_all(self, store: Store) -> None:
        """However many bytes its jobs have, a workflow is all or nothing."""
        workflow, jobs = store.new_workflow(*[()] * 24, (0, 1), payload=large_text(1))  # 7 MB
        taken = store.new(id=jobs[-1].id)
        store.enqueue_all(taken)
        with pytest.raises(ConfigurationError):
            store.enqueue_workflow(workflow, jobs)
        assert store.counts()[State.READY] == 1
        workflow_id, *members = store.workflow(*[()] * 24, (0, 1), payload=large_text(2))
        assert store.find_workflow(workflow_id) is not None
        assert [store.job(job_id).payload for job_id in members] == [large_text(2)] * 25

    def test_results_are_bounded_in_bytes(self, store: Store) -> None:
        """Who reads results may name a limit: from the first job on that exceeds it, they are left out."""
        _, a, b, first, second, third = store.workflow((), (), (0, 1), (1,), ())
        for held in store.claim(limit=2, queues=None):
            store.succeed(held, result='"' + "é" * 49 + '"')  # 100 bytes
        jobs = [first, second, third]
        for limit, left_out in (
            (300, []),
            (None, []),
            (299, [second]),
            (200, [second]),
            (199, [first, second]),
        ):
            answers = store.run(store.workflows.results(jobs, bytes_limit=limit))
            assert [[each.job_id for each in members] for members in answers] == [[a, b], [b], []]
            for job_id, members in zip(jobs, answers, strict=True):
                assert all(each.succeeded for each in members)
                assert all(each.left_out == (job_id in left_out) for each in members)
                assert all((each.result is None) == each.left_out for each in members)

    def test_jobs_of_a_workflow_have_the_ids_after_its_own(self, store: Store) -> None:
        """All that belongs to a workflow is one range of ids."""
        workflow_id, *members = store.workflow((), ())
        assert members == [member_id(workflow_id, 0), member_id(workflow_id, 1)]
        assert store.listed_ids(workflow=workflow_id) == members[::-1]
        assert store.listed_ids(page_size=1, workflow=workflow_id) == members[::-1]

    @pytest.mark.parametrize("by", ["id", "key"])
    def test_workflow_that_exists_stands_for_the_one_given(self, store: Store, by: str) -> None:
        """The same id or key again creates nothing and changes nothing, whatever the jobs are."""
        first, jobs = store.new_workflow((), idempotency_key="k")
        store.enqueue_workflow(first, jobs)
        before = store.everything()
        store.pass_time(SECOND)
        other, more = store.new_workflow((), (0,), idempotency_key="k")
        again = (first, jobs) if by == "id" else (other, more)
        answer = store.enqueue_workflow(*again)
        assert (answer.id, answer.existed, answer.enqueued_at) == (first.id, True, store.now - SECOND)
        assert store.everything() == before

    def test_key_of_a_workflow_is_no_jobs_key(self, store: Store) -> None:
        """Workflows and jobs do not share their keys."""
        store.workflow((), idempotency_key="k")
        assert store.enqueue_all(store.new(idempotency_key="k"))[0].existed is False

    def test_workflow_whose_jobs_would_take_an_id_is_refused(self, store: Store) -> None:
        """All or nothing: if one of the ids is taken, nothing is stored."""
        workflow, jobs = store.new_workflow((), ())
        store.enqueue(id=jobs[1].id)
        before = store.everything()
        with pytest.raises(ConfigurationError):
            store.enqueue_workflow(workflow, jobs)
        assert store.everything() == before

    def test_empty_workflow_is_a_workflow(self, store: Store) -> None:
        """It has no jobs, and is kept as long as a success is."""
        [workflow_id] = store.workflow()
        assert store.numbers(workflow_id) == (0, 0, 0, 0, 0)
        store.pass_time(1)
        store.prune({State.SUCCEEDED: store.now}, 10)
        assert store.find_workflow(workflow_id) is None

    def test_large_workflow_is_stored_and_ends(self, store: Store) -> None:
        """A job that depends on some hundreds is released by the last of them."""
        count = 700
        workflow_id, *members, last = store.workflow(*[()] * count, tuple(range(count)))
        assert store.job(last).depends_on == tuple(members)
        while held := store.claim(limit=100):
            store.settle_all(
                *(store.transition(one, *SUCCESS, result=f"{members.index(one.id)}") for one in held[:99])
            )
            for one in held[99:]:
                store.succeed(one, result=f"{members.index(one.id)}")
            if store.state(last) is not State.WAITING:
                break
        assert [each.result for each in store.results(last)] == [str(index) for index in range(count)]
        store.succeed(store.claim_one())
        assert store.numbers(workflow_id) == (count + 1, 0, 0, 0, 0)

    # -- reading --

    def test_workflows_are_listed_newest_first(self, store: Store) -> None:
        """In pages, each with its numbers."""
        ids = [store.workflow((), (0,))[0] for _ in range(3)]
        assert [each.id for each in store.listed_workflows(page_size=2)] == ids[::-1]
        assert [each.active for each in store.listed_workflows()] == [1, 1, 1]
        assert store.find_workflow(store.new_id()) is None

    def test_numbers_follow_the_jobs(self, store: Store) -> None:
        """Succeeded, dead, cancelled, waiting, and the rest, wherever it stands."""
        workflow_id, *members = store.workflow((), (), (), (), (), (0,))
        first, second = store.claim(limit=2)
        store.succeed(first)
        store.bury(second)
        store.do(Cancel(), members[2])
        store.claim_one(limit=1)
        # One runs, one is ready, and what waited for the first is ready, too.
        assert store.numbers(workflow_id) == (1, 1, 1, 0, 3)

    def test_results_come_in_the_order_of_the_dependencies(self, store: Store) -> None:
        """A dependant can read the results of the jobs it depends on; one that has not succeeded has none."""
        a, b, c = store.running(), store.running(), store.enqueue(delay=HOUR)
        waiting = store.enqueue(depends_on=(b.id, c, a.id))
        store.succeed(a, result='"a"')
        store.succeed(b)
        expected = [MemberResult(b.id, True), MemberResult(c, False), MemberResult(a.id, True, '"a"')]
        assert store.results(waiting) == expected
        assert store.results(a.id) == store.results(store.new_id()) == []

    # -- ending with those it depends on --

    @pytest.mark.parametrize("ending", ["dead", "cancelled", "asked to end", "operator", "dead letter"])
    def test_unsuccessful_ending_cancels_those_that_end_with_it(self, store: Store, ending: str) -> None:
        """In the same transaction, and those that depend on them as well."""
        _, _a, b, last = store.workflow(*CHAIN, ends_with_members=True)
        self._end_first(store, ending)
        assert [store.state(job_id) for job_id in (b, last)] == [State.CANCELLED] * 2
        assert [store.job(job_id).reason for job_id in (b, last)] == [Reason.DEPENDENCY] * 2
        assert store.job(last).finished_at == store.now
        assert store.counts()[State.CANCELLED] == (2 if "dead" in ending else 3)

    @pytest.mark.parametrize("ending", ["dead", "cancelled", "asked to end"])
    def test_settle_reports_the_jobs_that_ended_with_it(self, store: Store, ending: str) -> None:
        """Each dependant, by id. A settle that is repeated because its answer was lost reports them again."""
        _, _a, b, last = store.workflow(*CHAIN, ends_with_members=True)
        store.workflow(*CHAIN)
        held = store.claim_one(limit=1)
        if ending == "asked to end":
            store.do(Cancel(), held.id)
        to = State.DEAD if ending == "dead" else State.CANCELLED
        transition = store.transition(held, AttemptStatus.CANCELLED, to, reason=Reason.CANCELLED)
        [settled] = store.settle_all(transition)
        assert settled.cancelled == (b, last)
        store.pass_time(SECOND)
        [repeated] = store.settle_all(transition)
        assert (repeated.answer, repeated.cancelled) == (SettleAnswer.DONE, (b, last))

    def test_dependant_of_several_is_reported_once(self, store: Store) -> None:
        """Of the first that it ended with: of a batch of settles by their order, of an operation by id."""
        shape = ((), (), (0, 1), (2,), (1,))
        _, *_, both, after, one = store.workflow(*shape, ends_with_members=True)
        batch = self._deaths(store)
        assert [each.cancelled for each in store.settle_all(*batch)] == [(both, after), (one,)]
        assert [each.cancelled for each in store.settle_all(*batch)] == [(both, after), (one,)]
        _, *_, both, after, one = store.workflow(*shape, ends_with_members=True)
        batch = self._deaths(store)
        assert [each.cancelled for each in store.settle_all(*batch[::-1])] == [(both, after, one), ()]
        assert [each.cancelled for each in store.settle_all(*batch[::-1])] == [(both, after, one), ()]
        _, a, b, both, after, one = store.workflow(*shape, ends_with_members=True)
        told = store.run(store.driver.operate(Cancel(), [b, store.new_id(), a, after], now=store.now))
        assert [each.cancelled for each in told] == [(one,), (), (both,), ()]

    def _deaths(self, store: Store) -> list[Transition]:
        held = store.claim(limit=2)
        return [store.transition(each, *DEATH, reason=Reason.EXHAUSTED) for each in held]

    def test_expiry_cancels_those_that_end_with_it(self, store: Store) -> None:
        """Not begun in time: what waits for it waits no longer."""
        workflow, [a, b] = store.new_workflow((), (0,), ends_with_members=True)
        store.enqueue_workflow(workflow, [replace(a, expires_at=store.now + SECOND), b])
        store.pass_time(SECOND)
        assert store.expire(1) == [a.id, b.id]
        assert (store.job(a.id).reason, store.job(b.id).reason) == (Reason.EXPIRED, Reason.DEPENDENCY)

    def _end_first(self, store: Store, ending: str) -> None:
        if ending in ("operator", "dead letter"):
            operation = Cancel() if ending == "operator" else DeadLetter()
            store.do(operation, store.listed_ids(state=State.READY)[0])
            return
        held = store.claim_one()
        if ending == "dead":
            store.bury(held)
        elif ending == "cancelled":
            store.end_cancelled(held)
        else:
            store.do(Cancel(), held.id)
            store.fail(held)

    def test_ending_cancels_no_dependant_that_does_not_end_with_it(self, store: Store) -> None:
        """Without that, dependants wait, visible as such."""
        _, a, b, last = store.workflow(*CHAIN)
        store.do(Cancel(), a)
        assert [store.state(job_id) for job_id in (b, last)] == [State.WAITING] * 2

    def test_explicitly_cancelled_jobs_are_so_for_their_own_sake(self, store: Store) -> None:
        """A job that the same call names has been cancelled, not drawn along."""
        _, *members = store.workflow(*CHORD, ends_with_members=True)
        assert store.operate(Cancel(), *members) == [OperationVerdict.DONE] * 3
        assert {store.job(job_id).reason for job_id in members} == {Reason.CANCELLED}

    def test_retry_restores_those_that_the_failure_cancelled(self, store: Store) -> None:
        """They wait again, under the same check as ever, and the workflow goes on to its end."""
        workflow_id, a, b, last = store.workflow(*CHAIN, ends_with_members=True)
        store.bury(store.claim_one())
        assert store.do(Requeue(), a) is OperationVerdict.DONE
        assert [store.state(job_id) for job_id in (a, b, last)] == [
            State.READY,
            State.WAITING,
            State.WAITING,
        ]
        assert (store.job(b).reason, store.job(b).finished_at) == (None, None)
        for _ in range(3):
            store.succeed(store.claim_one())
        assert store.numbers(workflow_id) == (3, 0, 0, 0, 0)
        assert store.counts()[State.CANCELLED] == 0

    def test_retry_restores_no_dependant_of_another_failed_job(self, store: Store) -> None:
        """Only with the last of those that failed may it wait again."""
        _, a, b, last = store.workflow(*CHORD, ends_with_members=True)
        for held in store.claim():
            store.bury(held)
        store.do(Requeue(), a)
        assert (store.state(last), store.job(last).reason) == (State.CANCELLED, Reason.DEPENDENCY)
        store.do(Requeue(), b)
        assert store.state(last) is State.WAITING

    def test_failing_again_cancels_again(self, store: Store) -> None:
        """Nothing about the first failure is left behind."""
        _, a, b, last = store.workflow(*CHAIN, ends_with_members=True)
        for _ in range(2):
            store.bury(store.claim_one())
            assert [store.state(job_id) for job_id in (b, last)] == [State.CANCELLED] * 2
            store.do(Requeue(), a)

    def test_retry_restores_no_dependant_that_was_cancelled_for_another_reason(self, store: Store) -> None:
        """What an operator cancelled stays so."""
        _, a, b, last = store.workflow(*CHAIN, ends_with_members=True)
        store.do(Cancel(), b)
        assert (store.job(b).reason, store.job(last).reason) == (Reason.CANCELLED, Reason.DEPENDENCY)
        store.bury(store.claim_one())
        store.do(Requeue(), a)
        assert [store.state(job_id) for job_id in (b, last)] == [State.CANCELLED] * 2

    def test_discarding_a_dead_member_is_no_second_ending(self, store: Store) -> None:
        """It was unsuccessful already."""
        _, a, b, _last = store.workflow(*CHAIN)
        store.bury(store.claim_one())
        store.do(Discard(), a)
        assert store.state(b) is State.WAITING

    # -- running twice --

    def test_member_that_is_run_twice_releases_no_dependant_twice(self, store: Store) -> None:
        """Its worker died after the side effect: the second run releases the last one, the first one none."""
        _, _a, last = store.workflow((), (0,))
        stale = store.claim_one()
        store.let_expire()
        store.lose(store.collect_one())
        again = store.claim_one()
        assert store.succeed(stale).answer is not SettleAnswer.DONE
        assert store.succeed(again).released == (last,)
        held = store.claim_one()
        assert store.succeed(stale).answer is not SettleAnswer.DONE
        assert store.succeed(again).answer is SettleAnswer.DONE
        assert (store.state(last), held.number) == (State.RUNNING, 1)

    # -- being kept --

    def test_member_of_an_unfinished_workflow_cannot_be_deleted(self, store: Store) -> None:
        """Not the one that is long over, nor the one that no job depends on."""
        workflow_id, a, b, c = store.workflow((), (), ())
        held: list[Held] = store.claim()
        store.succeed(held[0])
        store.bury(held[1])
        assert store.operate(Delete(), a, b) == [OperationVerdict.CONFLICT] * 2
        store.succeed(held[2])
        assert store.operate(Delete(), a, b) == [OperationVerdict.DONE] * 2
        assert store.numbers(workflow_id) == (1, 0, 0, 0, 0)
        assert store.listed_ids(workflow=workflow_id) == [c]

    def test_workflow_is_pruned_as_a_whole(self, store: Store) -> None:
        """Nothing of it goes before all of it may go."""
        workflow_id, a, _b, _last = store.workflow(*CHORD)
        store.succeed(store.claim_one(limit=1))
        store.pass_time(HOUR)
        assert store.prune({**ALL_OVER, State.SUCCEEDED: store.now}, 10) == 0
        store.succeed(store.claim_one(limit=1))
        held = store.claim_one()
        store.pass_time(SECOND)
        store.bury(held)
        cutoff = store.now
        store.pass_time(HOUR)
        assert store.prune({State.SUCCEEDED: store.now}, 10) == 0
        assert store.prune({State.SUCCEEDED: store.now, State.DEAD: cutoff}, 10) == 0
        assert store.state(a) is State.SUCCEEDED
        assert store.prune({State.SUCCEEDED: store.now, State.DEAD: cutoff + 1}, 10) == 3
        assert store.find_workflow(workflow_id) is None
        assert store.listed() == []

    def test_large_workflow_is_pruned_bit_by_bit(self, store: Store) -> None:
        """Once nothing of it has to stay, its jobs go as any others, at most `limit` at a time."""
        workflow_id, *members = store.workflow((), (), (), idempotency_key="k")
        store.operate(Cancel(), *members)
        store.pass_time(1)
        before = {State.CANCELLED: store.now}
        assert [store.prune(before, 2), store.prune(before, 2)] == [2, 1]
        assert store.find_workflow(workflow_id) is None
        assert store.workflow((), idempotency_key="k")

    def test_workflow_whose_members_are_all_deleted_is_pruned_with_any_state(self, store: Store) -> None:
        """No job of it has to stay, whichever state is pruned."""
        workflow_id, *members = store.workflow((), ())
        store.operate(Cancel(), *members)
        store.operate(Delete(), *members)
        assert store.find_workflow(workflow_id) is not None
        store.pass_time(1)
        assert store.prune({State.DEAD: store.now}, 10) == 0
        assert store.find_workflow(workflow_id) is None

    def test_other_jobs_are_pruned_beside_a_workflow(self, store: Store) -> None:
        """Jobs whose ids are close to a workflow's are none of it."""
        before, (_, a), after = store.enqueue(), store.workflow(()), store.enqueue()
        store.operate(Cancel(), before, after)
        store.pass_time(1)
        assert store.prune({State.CANCELLED: store.now}, 10) == 2
        assert store.listed_ids() == [a]
