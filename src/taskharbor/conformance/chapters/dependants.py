"""Dependants: a job that waits for others until all of them have succeeded."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import HOUR, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import (
    Cancel,
    Delete,
    OperationVerdict,
    Requeue,
    SettleAnswer,
    unknown_dependency,
)
from taskharbor.errors import ConfigurationError
from taskharbor.records import AttemptStatus, State


class Dependants(Chapter):
    needs = capabilities.Workflows

    def test_dependant_waits_until_all_have_succeeded(self, store: Store) -> None:
        """A job that depends on others is waiting, and ready with the last of their successes."""
        first, second = store.running(), store.running()
        waiting = store.enqueue(depends_on=(first.id, second.id))
        assert (store.state(waiting), store.job(waiting).depends_on) == (State.WAITING, (first.id, second.id))
        assert store.claim() == []
        assert store.succeed(first).released == ()
        assert store.state(waiting) is State.WAITING
        assert store.succeed(second).released == (waiting,)
        assert store.claimed_ids() == [waiting]

    def test_repeated_settle_reports_the_same_dependants(self, store: Store) -> None:
        """Its answer was lost: the repeat says what this success has released, and nothing that another one has."""
        first, second = store.running(), store.running()
        waiting = store.enqueue(depends_on=(first.id, second.id))
        alone = store.enqueue(depends_on=(second.id,))
        expected = [(first, ()), (second, tuple(sorted((waiting, alone))))]
        for held, released in expected:
            store.pass_time(1)
            assert store.succeed(held).released == released
        store.pass_time(1)
        store.enqueue(depends_on=(second.id,))
        for held, released in expected:
            repeated = store.succeed(held)
            assert (repeated.answer, repeated.released) == (SettleAnswer.DONE, released)
        batch = [store.transition(held, AttemptStatus.SUCCEEDED, State.SUCCEEDED) for held, _ in expected]
        assert [each.released for each in store.settle_all(*batch)] == [released for _, released in expected]

    def test_dependant_that_a_batch_releases_is_reported_with_its_last_success(self, store: Store) -> None:
        """By the first answer and by a repeat alike."""
        held = [store.running(), store.running()]
        waiting = store.enqueue(depends_on=tuple(each.id for each in held))
        batch = [store.transition(each, AttemptStatus.SUCCEEDED, State.SUCCEEDED) for each in held]
        for _ in range(2):
            assert [each.released for each in store.settle_all(*batch)] == [(), (waiting,)]

    def test_enqueue_answers_that_the_job_waits(self, store: Store) -> None:
        """The producer's answer says that its job is waiting, and for when."""
        before = store.enqueue()
        [answer] = store.enqueue_all(store.new(depends_on=(before,), delay=HOUR))
        assert (answer.state, answer.run_at) == (State.WAITING, store.now + HOUR)

    def test_unknown_dependency_is_refused(self, store: Store) -> None:
        """Waiting for a job that does not exist would never end."""
        unknown = store.new_id()
        job = store.new(depends_on=(store.enqueue(), unknown))
        with pytest.raises(ConfigurationError) as refused:
            store.enqueue_all(job)
        assert str(refused.value) == str(unknown_dependency(job.id, unknown))
        assert store.find(job.id) is None

    def test_batch_may_depend_on_itself_in_any_order(self, store: Store) -> None:
        """Jobs of one batch may depend on each other, whichever comes first in it."""
        first, second = store.new(), store.new()
        last = store.new(depends_on=(first.id, second.id))
        store.enqueue_all(last, first, second)
        assert store.state(last.id) is State.WAITING
        for held in store.claim():
            store.succeed(held)
        assert store.claimed_ids() == [last.id]

    def test_chain_goes_on_step_by_step(self, store: Store) -> None:
        """Each success releases the next of a chain, and no more."""
        a = store.enqueue()
        b = store.enqueue(depends_on=(a,))
        c = store.enqueue(depends_on=(b,))
        assert store.succeed(store.claim_one()).released == (b,)
        assert store.state(c) is State.WAITING
        assert store.succeed(store.claim_one()).released == (c,)

    def test_success_from_before_is_satisfied(self, store: Store) -> None:
        """A dependency that has already succeeded is not waited for."""
        done, running = store.job_in(State.SUCCEEDED), store.running()
        assert store.state(store.enqueue(depends_on=(done,))) is State.READY
        assert store.state(store.enqueue(depends_on=(done,), delay=HOUR)) is State.SCHEDULED
        waiting = store.enqueue(depends_on=(done, running.id))
        assert store.succeed(running).released == (waiting,)

    def test_same_dependency_twice_is_one(self, store: Store) -> None:
        """Naming a job twice does not wait for it twice."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id, held.id))
        assert store.succeed(held).released == (waiting,)
        assert store.state(waiting) is State.READY

    def test_one_success_releases_many(self, store: Store) -> None:
        """All that waited for nothing else are released, and named in order of their ids."""
        held, other = store.running(), store.running()
        jobs = [store.new(depends_on=(held.id,)) for _ in range(5)]
        still = store.enqueue(depends_on=(held.id, other.id))
        store.enqueue_all(*reversed(jobs))
        assert store.succeed(held).released == tuple(job.id for job in jobs)
        assert store.state(still) is State.WAITING

    def test_last_members_settled_together_release_once(self, store: Store) -> None:
        """When the last two succeed in one batch, one of them releases the dependant, exactly once."""
        first, second = store.running(), store.running()
        waiting = store.enqueue(depends_on=(first.id, second.id))
        answers = store.settle_all(
            *[store.transition(held, AttemptStatus.SUCCEEDED, State.SUCCEEDED) for held in (first, second)]
        )
        assert sorted(answer.released for answer in answers) == [(), (waiting,)]
        assert store.claimed_ids() == [waiting]

    def test_repeated_success_releases_no_dependant_again(self, store: Store) -> None:
        """A settle that is repeated does not make a dependant ready that has been claimed since."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id,))
        store.succeed(held)
        again = store.claim_one()
        assert store.succeed(held).answer is SettleAnswer.DONE
        assert (again.id, store.state(waiting)) == (waiting, State.RUNNING)

    def test_released_job_has_the_place_it_was_enqueued_for(self, store: Store) -> None:
        """A released job is placed by its run_at, or by when it was enqueued."""
        held = store.running()
        place = store.now
        now, later = (store.enqueue(depends_on=(held.id,), delay=delay) for delay in (None, HOUR))
        store.pass_time(1)
        store.succeed(held)
        assert (store.state(now), store.job(now).run_at) == (State.READY, place)
        assert (store.state(later), store.job(later).run_at) == (State.SCHEDULED, place + HOUR)

    def test_waiting_job_stays_waiting_when_its_run_at_passes(self, store: Store) -> None:
        """Time alone releases no job."""
        waiting = store.enqueue(depends_on=(store.running().id,), delay=HOUR)
        store.pass_time(2 * HOUR)
        assert store.state(waiting) is State.WAITING
        assert store.claim() == []

    @pytest.mark.parametrize("ending", ["dead", "cancelled", "deleted dependant"])
    def test_unsuccessful_ending_releases_no_dependant(self, store: Store, ending: str) -> None:
        """A dead or cancelled dependency leaves its dependants waiting, visible as such."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id,))
        if ending == "deleted dependant":
            assert store.do(Delete(), waiting) is OperationVerdict.DONE
            assert store.succeed(held).released == ()
            assert store.find(waiting) is None
            return
        settled = store.bury(held) if ending == "dead" else store.end_cancelled(held)
        assert settled.released == ()
        assert (store.state(waiting), store.claim()) == (State.WAITING, [])

    def test_retried_dependency_releases_when_it_succeeds(self, store: Store) -> None:
        """Requeueing a dead dependency resumes what waits for it."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id,))
        store.bury(held)
        store.do(Requeue(), held.id)
        assert store.state(waiting) is State.WAITING
        assert store.succeed(store.claim_one()).released == (waiting,)

    def test_cancelled_dependant_is_not_released(self, store: Store) -> None:
        """A dependant that was cancelled meanwhile stays cancelled."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id,))
        store.do(Cancel(), waiting)
        assert store.succeed(held).released == ()
        assert store.state(waiting) is State.CANCELLED

    def test_requeued_dependant_waits_again(self, store: Store) -> None:
        """A requeued job that depends on one that has not succeeded is waiting, under the same check as ever."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id,))
        store.do(Cancel(), waiting)
        assert store.do(Requeue(), waiting) is OperationVerdict.DONE
        assert store.state(waiting) is State.WAITING
        assert store.succeed(held).released == (waiting,)
        assert store.claimed_ids() == [waiting]

    def test_requeued_dependant_is_ready_when_all_have_succeeded_meanwhile(self, store: Store) -> None:
        """If its dependencies succeeded while it was cancelled, a requeued job need not wait."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id,))
        store.do(Cancel(), waiting)
        store.succeed(held)
        store.do(Requeue(), waiting)
        assert store.state(waiting) is State.READY

    def test_job_that_an_unfinished_one_depends_on_cannot_be_deleted(self, store: Store) -> None:
        """Deleting it would leave a job waiting without end; once no job waits, it can go."""
        held = store.running()
        waiting = store.enqueue(depends_on=(held.id,))
        store.bury(held)
        assert store.do(Delete(), held.id) is OperationVerdict.CONFLICT
        assert store.state(held.id) is State.DEAD
        store.do(Cancel(), waiting)
        assert store.do(Delete(), held.id) is OperationVerdict.DONE

    def test_succeeded_dependency_of_an_unfinished_job_cannot_be_deleted(self, store: Store) -> None:
        """A dependant that has not finished still needs what it depended on."""
        done = store.job_in(State.SUCCEEDED)
        store.enqueue(depends_on=(done,))
        assert store.do(Delete(), done) is OperationVerdict.CONFLICT

    def test_dependency_and_dependant_can_be_deleted_in_one_call(self, store: Store) -> None:
        """The ids of a call are taken in order: once the dependant has gone, its dependency may go."""
        before = store.enqueue()
        waiting = store.enqueue(depends_on=(before,))
        assert store.operate(Delete(), waiting, before) == [OperationVerdict.DONE, OperationVerdict.DONE]
