"""Operators: each verb on each state, and what a change changes."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from taskharbor.conformance.store import DAY, HOUR, MINUTE, Chapter, Store
from taskharbor.drivers.base import (
    DECLARED,
    Cancel,
    DeadLetter,
    Delete,
    Discard,
    Operation,
    OperationResult,
    OperationVerdict,
    Requeue,
    RunNow,
    Update,
)
from taskharbor.records import Options, State
from taskharbor.rules import lifecycle

VERBS: dict[str, tuple[Operation, frozenset[State]]] = {
    "cancel": (Cancel(), lifecycle.CANCELLABLE),
    "discard": (Discard(), lifecycle.DISCARDABLE),
    "dead_letter": (DeadLetter(), lifecycle.DEADLETTERABLE),
    "delete": (Delete(), lifecycle.DELETABLE),
    "run_now": (RunNow(), lifecycle.RUNNABLE_NOW),
    "requeue": (Requeue(), lifecycle.REQUEUEABLE),
    "update": (Update(payload='{"new":1}'), lifecycle.CHANGEABLE),
}


class Operators(Chapter):
    # -- every verb on every state --

    @pytest.mark.parametrize("state", list(State))
    @pytest.mark.parametrize("verb", list(VERBS))
    def test_each_verb_works_in_its_states_and_conflicts_in_the_others(
        self, store: Store, verb: str, state: State
    ) -> None:
        """A verb whose state does not fit is a conflict, names the state, and changes nothing."""
        operation, accepted = VERBS[verb]
        job_id = store.job_in(state)
        before = store.everything()
        [answer] = store.run(store.driver.operate(operation, [job_id], now=store.now))
        if state not in accepted:
            assert answer == OperationResult(job_id, OperationVerdict.CONFLICT, state)
            assert store.everything() == before
        else:
            requested = verb == "cancel" and state is State.RUNNING
            assert answer == OperationResult(
                job_id, OperationVerdict.REQUESTED if requested else OperationVerdict.DONE, state
            )
            assert store.everything() != before

    @pytest.mark.parametrize("verb", list(VERBS))
    def test_unknown_job_is_not_found(self, store: Store, verb: str) -> None:
        """An unknown id is answered as such, and hinders no other."""
        unknown = store.new_id()
        [answer] = store.run(store.driver.operate(VERBS[verb][0], [unknown], now=store.now))
        assert (answer.job_id, answer.verdict) == (unknown, OperationVerdict.NOT_FOUND)

    @pytest.mark.parametrize("verb", ["discard", "dead_letter", "delete", "run_now", "requeue", "update"])
    def test_job_with_an_expired_lease_conflicts_as_a_running_one(self, store: Store, verb: str) -> None:
        """Until its lease is collected the job is running to every verb."""
        held = store.running()
        store.let_expire()
        [answer] = store.run(store.driver.operate(VERBS[verb][0], [held.id], now=store.now))
        assert answer == OperationResult(held.id, OperationVerdict.CONFLICT, State.RUNNING)

    def test_many_are_answered_in_order_each_for_itself(self, store: Store) -> None:
        """One call may name many jobs; a conflict of one is no conflict of the others."""
        states = [State.READY, State.DEAD, State.SCHEDULED, State.RUNNING, State.SUCCEEDED]
        jobs = [store.job_in(state) for state in states]
        answers = store.run(store.driver.operate(Cancel(), jobs[::-1], now=store.now))
        assert [answer.job_id for answer in answers] == jobs[::-1]
        assert [answer.state for answer in answers] == states[::-1]
        assert [answer.verdict for answer in answers][::-1] == [
            OperationVerdict.DONE,
            OperationVerdict.CONFLICT,
            OperationVerdict.DONE,
            OperationVerdict.REQUESTED,
            OperationVerdict.CONFLICT,
        ]

    def test_same_job_twice_in_a_call_is_operated_on_twice(self, store: Store) -> None:
        """The ids of a call are taken in order, each seeing what the one before it did."""
        ready, deleted = store.enqueue(), store.enqueue()
        assert store.operate(Cancel(), ready, ready) == [OperationVerdict.DONE, OperationVerdict.CONFLICT]
        assert store.operate(Delete(), deleted, deleted) == [
            OperationVerdict.DONE,
            OperationVerdict.NOT_FOUND,
        ]

    # -- run now --

    def test_run_now_makes_a_scheduled_job_ready(self, store: Store) -> None:
        """The job is runnable now, in the line of those that are due now."""
        job_id, other = store.enqueue(delay=DAY), store.enqueue(run_at=store.now - 1)
        assert store.do(RunNow(), job_id) is OperationVerdict.DONE
        assert (store.state(job_id), store.job(job_id).run_at) == (State.READY, store.now)
        assert store.claimed_ids() == [other, job_id]

    def test_run_now_ends_a_back_off(self, store: Store) -> None:
        """A job that waits for its retry is scheduled; run now retries it now, its failures counted."""
        held = store.running()
        store.fail(held, delay=DAY)
        assert store.do(RunNow(), held.id) is OperationVerdict.DONE
        again = store.claim_one()
        assert (again.id, again.number, again.job.attempts) == (held.id, 2, 1)

    # -- delete --

    @pytest.mark.parametrize("state", sorted(lifecycle.DELETABLE))
    def test_deleted_job_leaves_nothing_behind(self, store: Store, state: State) -> None:
        """Deleting removes the job, its history, its tags and its key."""
        job_id = store.job_in(state, queue="gone", idempotency_key="k", options=Options(tags=("x",)))
        assert store.do(Delete(), job_id) is OperationVerdict.DONE
        assert (store.find(job_id), store.history(job_id), store.steps(job_id)) == (None, [], {})
        assert store.listed_ids(tag="x") == []
        assert store.counts("gone") == dict.fromkeys(State, 0)
        store.pass_time(DAY)
        assert store.claim(queues=("gone",)) == []
        assert store.enqueue(queue="gone", idempotency_key="k") != job_id

    def test_id_of_a_deleted_job_is_free_for_a_new_one(self, store: Store) -> None:
        """A job enqueued under a deleted one's id begins from nothing."""
        held = store.running(payload='{"n":1}')
        store.step(held, "a", "1")
        store.report(held, 0.5)
        store.bury(held)
        store.do(Delete(), held.id)
        [answer] = store.enqueue_all(store.new(id=held.id))
        assert not answer.existed
        record = store.job(held.id)
        assert (record.number, record.attempts, record.error, record.progress) == (0, 0, None, None)
        assert (store.history(held.id), store.steps(held.id)) == ([], {})
        assert store.claim_one().number == 1

    def test_deleting_one_leaves_its_neighbours(self, store: Store) -> None:
        """History, steps and tags of other jobs stay."""
        first, second = store.running(), store.running()
        for held in (first, second):
            store.step(held, "a", "1")
            store.succeed(held)
        store.do(Delete(), first.id)
        assert (len(store.history(second.id)), store.steps(second.id)) == (1, {"a": "1"})

    # -- update --

    def test_update_changes_what_it_sets_and_nothing_else(self, store: Store) -> None:
        """What an update does not name stays as it is."""
        options = Options(max_attempts=3, timeout=5.0, retry={"initial": 1}, correlation_id="c", tags=("a",))
        job_id = store.enqueue(
            payload='{"n":1}',
            priority=3,
            expires_at=store.now + DAY,
            options=options,
            meta='{"tenant":"acme"}',
        )
        before = store.job(job_id)
        store.do(Update(payload='{"n":2}'), job_id)
        after = store.job(job_id)
        assert (after.payload, after.version) == ('{"n":2}', before.version + 1)
        for field in (
            "priority",
            "run_at",
            "options",
            "expires_at",
            "state",
            "queue",
            "enqueued_at",
            "attempts",
            "meta",
        ):
            assert getattr(after, field) == getattr(before, field), field

    def test_update_gives_a_policy_or_takes_it_away(self, store: Store) -> None:
        """A policy is stored beside the other options; DECLARED leaves none, which is not the same as None."""
        job_id = store.enqueue(options=Options(timeout=5.0))
        for given, kept in (({"initial": 2}, {"initial": 2}), (None, None), (DECLARED, UNSET)):
            store.do(Update(retry=given), job_id)
            assert store.job(job_id).options == Options(timeout=5.0, retry=kept)

    def test_update_replaces_the_meta_or_takes_it_away(self, store: Store) -> None:
        """The text given stands for all that was there; None clears it, which leaving it out does not."""
        job_id = store.enqueue(meta='{"a":"1","b":"2"}')
        store.do(Update(meta='{"b":"3"}'), job_id)
        assert store.job(job_id).meta == '{"b":"3"}'
        store.do(Update(meta=None), job_id)
        assert store.job(job_id).meta is None
        assert store.claim_one().job.meta is None

    def test_requeue_of_only_the_dead_leaves_a_cancelled_job(self, store: Store) -> None:
        """One that an operator has discarded or cancelled meanwhile stays so, and the dead one gets a new run."""
        dead, discarded, cancelled = store.running(), store.running(), store.enqueue()
        store.bury(dead)
        store.bury(discarded)
        store.do(Discard(), discarded.id)
        store.do(Cancel(), cancelled)
        found = [store.do(Requeue(only_dead=True), each) for each in (dead.id, discarded.id, cancelled)]
        assert found == [OperationVerdict.DONE, OperationVerdict.CONFLICT, OperationVerdict.CONFLICT]
        assert [store.state(each) for each in (dead.id, discarded.id, cancelled)] == [
            State.READY,
            State.CANCELLED,
            State.CANCELLED,
        ]

    def test_requeued_job_keeps_its_meta(self, store: Store) -> None:
        """A new run carries what the run before it carried."""
        held = store.running(meta='{"tenant":"acme"}')
        store.bury(held)
        store.do(Requeue(), held.id)
        assert store.claim_one().job.meta == '{"tenant":"acme"}'

    def test_update_changes_limits_and_tags(self, store: Store) -> None:
        """Limits, timeout and tags change; the other options, which cannot be changed, stay."""
        options = Options(
            max_attempts=3, timeout=5.0, retry={"initial": 1}, correlation_id="c", tags=("a", "b")
        )
        job_id = store.enqueue(options=options)
        store.do(Update(max_attempts=9, timeout=0.25, tags=("b", "z")), job_id)
        assert store.job(job_id).options == Options(
            max_attempts=9, timeout=0.25, retry={"initial": 1}, correlation_id="c", tags=("b", "z")
        )
        assert (store.listed_ids(tag="a"), store.listed_ids(tag="z")) == ([], [job_id])

    def test_update_can_take_a_limit_away(self, store: Store) -> None:
        """None is a value: it clears the limit, which leaving it out does not."""
        job_id = store.enqueue(options=Options(max_attempts=3, timeout=5.0, tags=("a",)))
        store.do(Update(max_attempts=None, timeout=None, tags=()), job_id)
        assert store.job(job_id).options == Options()
        assert store.claim_one().job.options is None

    def test_changed_job_is_claimed_as_changed(self, store: Store) -> None:
        """The worker gets the job as the operator left it, with its new version."""
        job_id = store.enqueue()
        store.do(Update(payload='{"n":2}', priority=9), job_id)
        store.do(Update(expires_at=store.now + HOUR), job_id)
        job = store.claim_one().job
        assert (job.payload, job.priority, job.version) == ('{"n":2}', 9, 3)
        assert job.expires_at == store.now + HOUR

    def test_update_moves_the_job_to_its_new_place(self, store: Store) -> None:
        """A changed priority or run_at counts in the order from then on."""
        first, second, third = (store.enqueue() for _ in range(3))
        store.do(Update(priority=5), third)
        store.do(Update(run_at=store.now - MINUTE), second)
        assert store.claimed_ids() == [third, second, first]

    def test_update_moves_a_job_between_ready_and_scheduled(self, store: Store) -> None:
        """A run_at ahead makes a ready job scheduled, and one behind makes a scheduled job ready."""
        ready, scheduled = store.enqueue(), store.enqueue(delay=HOUR)
        store.do(Update(run_at=store.now + HOUR), ready)
        store.do(Update(run_at=store.now), scheduled)
        assert (store.state(ready), store.state(scheduled)) == (State.SCHEDULED, State.READY)
        assert store.claimed_ids() == [scheduled]

    def test_update_keeps_the_place_of_a_retry(self, store: Store) -> None:
        """Changing something else about a job that backs off neither hastens nor forgets its retry."""
        held = store.running()
        store.fail(held, delay=HOUR)
        store.do(Update(payload='{"n":2}', priority=50), held.id)
        record = store.job(held.id)
        assert (record.run_at, record.attempts, record.state) == (store.now + HOUR, 1, State.SCHEDULED)
        assert (record.priority, record.payload) == (50, '{"n":2}')

    def test_update_of_a_waiting_job_counts_when_it_is_released(self, store: Store) -> None:
        """What an operator changes about a waiting job is kept for when it stops waiting."""
        before = store.running()
        waiting = store.enqueue(depends_on=(before.id,))
        store.do(Update(payload='{"n":2}', run_at=store.now + HOUR, priority=7), waiting)
        assert store.state(waiting) is State.WAITING
        store.succeed(before)
        record = store.job(waiting)
        assert (record.state, record.run_at) == (State.SCHEDULED, store.now + HOUR)
        assert (record.priority, record.payload, record.version) == (7, '{"n":2}', 2)

    def test_update_of_a_suspect_leaves_it_a_suspect(self, store: Store) -> None:
        """An operator's change does not move a job out of the suspects' place."""
        held = store.running()
        store.lose(held, suspect=True)
        store.do(Update(priority=5), held.id)
        assert store.job(held.id).suspect
        assert store.claim() == []
        assert store.claim_one(suspects=True).job.priority == 5

    def test_update_is_kept_through_a_retry(self, store: Store) -> None:
        """A change belongs to the job: the next attempts have it too."""
        job_id = store.enqueue()
        store.do(Update(payload='{"n":2}', priority=4), job_id)
        store.fail(store.claim_one())
        job = store.claim_one().job
        assert (job.payload, job.priority, job.version) == ('{"n":2}', 4, 2)
