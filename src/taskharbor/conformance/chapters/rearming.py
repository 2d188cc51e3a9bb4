"""Re-arming: a recurring job goes from one occurrence to the next in the settle that ends it."""

from __future__ import annotations

import pytest
from msgspec import structs

from taskharbor.conformance.store import DAY, HOUR, MINUTE, SECOND, Chapter, Held, Store
from taskharbor.drivers.base import (
    Cancel,
    Occurrence,
    OperationVerdict,
    Requeue,
    RunNow,
    Seen,
    SettleAnswer,
    Update,
)
from taskharbor.records import AttemptStatus, Delivery, Options, Reason, Recurrence, State
from taskharbor.rules.standing import PARKED_AT

ENDINGS = (
    (AttemptStatus.SUCCEEDED, State.SUCCEEDED, None),
    (AttemptStatus.FAILED, State.DEAD, Reason.EXHAUSTED),
    (AttemptStatus.TIMED_OUT, State.DEAD, Reason.UNRECOVERABLE),
    (AttemptStatus.LOST, State.DEAD, Reason.POISON),
    (AttemptStatus.CANCELLED, State.CANCELLED, Reason.CANCELLED),
)


def recurring(store: Store) -> Held:
    """A job that runs, for an occurrence that is due now."""
    held = store.running()
    store.succeed(held, occurrence=Occurrence(store.now, held.job.version))
    return store.claim_one()


class Rearming(Chapter):
    @pytest.mark.parametrize(("status", "to", "reason"), ENDINGS)
    def test_every_ending_of_a_run_sets_the_next_occurrence(
        self, store: Store, status: AttemptStatus, to: State, reason: Reason | None
    ) -> None:
        """However an occurrence ends, its row is in history and the job is scheduled for the next one."""
        held, due_at = store.running(), store.now + HOUR
        next_one = Occurrence(due_at, held.job.version)
        settled = store.settle(
            held, status, to, attempts=3, reason=reason, started_at=store.now, occurrence=next_one
        )
        assert (settled.answer, settled.state, settled.run_at) == (SettleAnswer.DONE, State.SCHEDULED, due_at)
        record = store.job(held.id)
        assert (record.state, record.run_at, record.due_at) == (State.SCHEDULED, due_at, due_at)
        assert (record.attempts, record.reason, record.finished_at) == (0, None, None)
        assert store.last_attempt(held.id).status is status

    def test_next_occurrence_is_a_new_run(self, store: Store) -> None:
        """The number goes on, the run begins anew, and the worker learns which occurrence it is."""
        held = recurring(store)
        assert (held.number, held.job.first_number, held.job.attempts) == (2, 2, 0)
        assert (held.job.due_at, held.job.run_at) == (store.now, store.now)

    def test_steps_and_progress_of_the_old_run_are_gone(self, store: Store) -> None:
        """An occurrence remembers nothing of the one before; history does."""
        held = store.running()
        store.step(held, "a", "1")
        store.report(held, 0.5)
        store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1))
        assert (store.steps(held.id), store.job(held.id).progress) == ({}, None)
        assert len(store.history(held.id)) == 1

    def test_occurrence_in_the_past_is_ready_at_once(self, store: Store) -> None:
        """A missed occurrence is made up: it is due, and placed by when it was due."""
        held = store.running()
        settled = store.succeed(held, occurrence=Occurrence(store.now - DAY, 1))
        assert (settled.state, settled.run_at) == (State.READY, store.now - DAY)
        assert store.claim_one().job.due_at == store.now - DAY

    def test_retry_keeps_the_occurrence_apart_from_the_retry_time(self, store: Store) -> None:
        """While an occurrence is retried its due time stays, so that nothing drifts."""
        held = recurring(store)
        due_at = store.now
        store.pass_time(SECOND)
        store.fail(held, delay=MINUTE)
        record = store.job(held.id)
        assert (record.run_at, record.due_at) == (store.now + MINUTE, due_at)
        store.pass_time(MINUTE)
        assert store.claim_one().job.due_at == due_at

    def test_occurrence_that_comes_with_a_retry_is_not_used(self, store: Store) -> None:
        """A run that goes on does not end its occurrence."""
        held = recurring(store)
        settled = store.fail(held, delay=MINUTE, occurrence=Occurrence(store.now + DAY, 1))
        assert (settled.state, settled.run_at) == (State.SCHEDULED, store.now + MINUTE)
        assert (store.job(held.id).attempts, store.job(held.id).due_at) == (1, held.job.due_at)
        assert store.last_attempt(held.id).retry_delay == MINUTE

    def test_failure_of_a_paused_schedule_was_granted_no_delay(self, store: Store) -> None:
        """It is parked until someone resumes the schedule: that is nothing that a policy asked for."""
        held = recurring(store)
        parked = Occurrence(store.now + DAY, 1, PARKED_AT)
        store.fail(held, delay=PARKED_AT - store.now, occurrence=parked)
        assert store.job(held.id).run_at == PARKED_AT
        assert store.last_attempt(held.id).retry_delay is None

    def test_cancelled_occurrence_is_followed_by_the_next(self, store: Store) -> None:
        """Cancel ends the occurrence: a retry after the request becomes the next occurrence instead."""
        held = recurring(store)
        store.do(Cancel(), held.id)
        settled = store.fail(held, delay=MINUTE, occurrence=Occurrence(store.now + DAY, 1))
        assert (settled.state, settled.run_at) == (State.SCHEDULED, store.now + DAY)
        record = store.job(held.id)
        assert (record.attempts, record.due_at, record.cancel_requested) == (0, store.now + DAY, False)
        attempt = store.last_attempt(held.id)
        assert (attempt.status, attempt.retry_delay) == (AttemptStatus.FAILED, None)
        store.pass_time(DAY)
        again = store.claim_one()
        assert store.extend(again.token).cancel_requested == ()
        assert store.fail(again).state is State.READY

    def test_changed_schedule_is_not_overwritten(self, store: Store) -> None:
        """A next occurrence computed from another version of the schedule is refused, and nothing changes."""
        held = store.running()
        before = store.everything()
        for version in (0, 2):
            settled = store.succeed(
                held, occurrence=Occurrence(store.now + HOUR, version), inserts=(store.new(),)
            )
            assert settled.answer is SettleAnswer.CHANGED
        assert store.everything() == before
        assert store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1)).answer is SettleAnswer.DONE

    def test_lease_errors_come_before_a_changed_schedule(self, store: Store) -> None:
        """A caller that does not hold the job learns that first."""
        held = store.running()
        other = Occurrence(store.now, 9)
        assert store.succeed(held, number=7, occurrence=other).answer is SettleAnswer.LEASE_MISMATCH
        store.let_expire()
        assert store.succeed(held, occurrence=other).answer is SettleAnswer.LEASE_EXPIRED

    def test_version_of_a_changed_job_is_the_one_to_prove(self, store: Store) -> None:
        """An operator's change raises the version that the claim tells and the settle has to name."""
        job_id = store.enqueue()
        store.do(Update(payload='{"n":2}'), job_id)
        held = store.claim_one()
        assert store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1)).answer is SettleAnswer.CHANGED
        assert store.succeed(held, occurrence=Occurrence(store.now + HOUR, 2)).answer is SettleAnswer.DONE

    def test_next_occurrence_does_not_inherit_the_expiry(self, store: Store) -> None:
        """expires_at concerned the run that is over."""
        held = store.running(expires_at=store.now + MINUTE)
        store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1))
        store.pass_time(HOUR)
        assert store.expire() == []
        assert store.claim_one().job.expires_at is None

    def test_rearmed_suspect_is_an_ordinary_job(self, store: Store) -> None:
        """A next occurrence begins with a clean slate."""
        store.lose(store.running(), suspect=True)
        held = store.claim_one(suspects=True)
        store.bury(held, occurrence=Occurrence(store.now, 1))
        assert not store.job(held.id).suspect
        assert store.claimed_ids() == [held.id]

    def test_repeated_settle_does_not_rearm_again(self, store: Store) -> None:
        """Repeating the settle of an occurrence answers done and moves nothing."""
        held = store.running()
        store.succeed(held, occurrence=Occurrence(store.now, 1))
        store.claim_one()
        before = store.everything()
        assert store.succeed(held, occurrence=Occurrence(store.now + DAY, 1)).answer is SettleAnswer.DONE
        assert store.everything() == before

    def test_occurrences_follow_one_another(self, store: Store) -> None:
        """Run after run is one job with one line of history."""
        held = store.running()
        for _ in range(3):
            store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1))
            store.pass_time(HOUR)
            held = store.claim_one()
        assert [row.number for row in store.history(held.id)] == [3, 2, 1]
        assert store.counts()[State.RUNNING] == 1

    # -- the first occurrence, and places that are not the due time --

    def test_recurring_job_is_born_with_its_first_occurrence(self, store: Store) -> None:
        """The due time that an enqueue names is the one that the claim tells."""
        due_at = store.now + MINUTE
        job_id = store.enqueue(due_at=due_at, run_at=due_at, options=Options(tags=("recurs",)))
        assert (store.job(job_id).due_at, store.job(job_id).run_at) == (due_at, due_at)
        assert store.claimed_ids() == []
        store.pass_time(MINUTE)
        held = store.claim_one()
        assert (held.job.due_at, held.job.run_at, held.job.number) == (due_at, due_at, 1)

    def test_occurrence_may_stand_elsewhere_than_at_its_due_time(self, store: Store) -> None:
        """A paused schedule is parked: scheduled, with its due time known, and not claimed when that comes."""
        held = store.running()
        due_at, parked_at = store.now + MINUTE, store.now + 100 * DAY
        settled = store.succeed(held, occurrence=Occurrence(due_at, 1, parked_at))
        assert (settled.state, settled.run_at) == (State.SCHEDULED, parked_at)
        assert (store.job(held.id).due_at, store.job(held.id).run_at) == (due_at, parked_at)
        store.pass_time(HOUR)
        assert (store.claimed_ids(), store.state(held.id)) == ([], State.SCHEDULED)

    def test_run_now_keeps_the_due_time(self, store: Store) -> None:
        """An extra run is known by its place, which is before its due time."""
        held, due_at = store.running(), store.now + HOUR
        store.succeed(held, occurrence=Occurrence(due_at, 1))
        assert store.do(RunNow(), held.id) is OperationVerdict.DONE
        extra = store.claim_one()
        assert (extra.job.run_at, extra.job.due_at) == (store.now, due_at)

    # -- cancelling what has not begun --

    def test_cancelling_an_occurrence_that_has_not_begun_sets_the_next(self, store: Store) -> None:
        """The job is not ended: its next occurrence is set, as a new run, and history has what was cancelled."""
        held = recurring(store)
        store.step(held, "a", "1")
        store.report(held, 0.5)
        store.fail(held, delay=MINUTE)
        due_at = store.now + HOUR
        assert store.do(Cancel(Occurrence(due_at, 1)), held.id) is OperationVerdict.DONE
        record = store.job(held.id)
        assert (record.state, record.run_at, record.due_at) == (State.SCHEDULED, due_at, due_at)
        assert (record.attempts, record.reason, record.finished_at) == (0, None, None)
        assert (store.steps(held.id), record.progress) == ({}, None)
        row = store.last_attempt(held.id)
        assert (row.number, row.status, row.started_at) == (held.number + 1, AttemptStatus.CANCELLED, None)
        assert (row.retry_count, row.finished_at) == (1, store.now)
        store.pass_time(HOUR)
        again = store.claim_one()
        assert (again.number, again.job.first_number, again.job.attempts) == (
            held.number + 2,
            held.number + 2,
            0,
        )

    def test_cancelling_an_occurrence_asks_a_running_one_to_end(self, store: Store) -> None:
        """The worker learns of it as ever; the settle brings the next occurrence."""
        held = recurring(store)
        assert store.do(Cancel(Occurrence(store.now + HOUR, 1)), held.id) is OperationVerdict.REQUESTED
        assert store.extend(held.token).cancel_requested == (held.id,)
        store.end_cancelled(held, occurrence=Occurrence(store.now + DAY, 1))
        assert store.job(held.id).due_at == store.now + DAY

    def test_cancelling_by_another_version_of_the_schedule_changes_nothing(self, store: Store) -> None:
        """A caller that computed the next occurrence from an old schedule has to compute it again."""
        held = store.running()
        store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1))
        before = store.everything()
        assert store.do(Cancel(Occurrence(store.now + DAY, 2)), held.id) is OperationVerdict.CHANGED
        assert store.everything() == before

    def test_cancelling_an_occurrence_of_an_earlier_run_changes_nothing(self, store: Store) -> None:
        """A caller that looked before the last run would set an occurrence that has had its run already."""
        held = store.running()
        store.succeed(held, occurrence=Occurrence(store.now, 1))
        stale = Cancel(Occurrence(store.now + MINUTE, 1), Seen(held.number, False))
        later = store.claim_one()
        store.succeed(later, occurrence=Occurrence(store.now + HOUR, 1))
        before = store.everything()
        assert store.do(stale, held.id) is OperationVerdict.CHANGED
        assert store.everything() == before
        assert (
            store.do(structs.replace(stale, seen=Seen(later.number, False)), held.id) is OperationVerdict.DONE
        )

    # -- changing --

    def test_change_relies_on_where_the_job_was_seen(self, store: Store) -> None:
        """A recurring job goes from run to run with the same version: what was meant for one is not for another."""
        held = recurring(store)
        update = Update(priority=1, while_running=True)
        for seen in (Seen(held.number - 1, False), Seen(held.number - 1, True), Seen(held.number, False)):
            before = store.everything()
            assert store.do(structs.replace(update, seen=seen), held.id) is OperationVerdict.CHANGED
            assert store.everything() == before
        assert (
            store.do(structs.replace(update, seen=Seen(held.number, True)), held.id) is OperationVerdict.DONE
        )
        store.succeed(held, occurrence=Occurrence(store.now + HOUR, 2))
        assert (
            store.do(structs.replace(update, seen=Seen(held.number, True)), held.id)
            is OperationVerdict.CHANGED
        )
        assert (
            store.do(structs.replace(update, seen=Seen(held.number, False)), held.id) is OperationVerdict.DONE
        )

    def test_ending_relies_on_the_version_that_was_read(self, store: Store) -> None:
        """A job in its last run may have become a schedule again."""
        for end in (store.succeed, store.bury, store.hand_back):
            held = recurring(store)
            assert store.do(Update(priority=1, while_running=True), held.id) is OperationVerdict.DONE
            before = store.everything()
            assert end(held, version=1).answer is SettleAnswer.CHANGED
            assert store.everything() == before
            assert end(held, version=2).answer is SettleAnswer.DONE
            store.claim(limit=10)

    def test_running_job_is_changed_from_its_next_run_on(self, store: Store) -> None:
        """The attempt goes on as it was; its settle learns that the schedule is another, and the next run has it."""
        held = recurring(store)
        options = Options(timeout=9, tags=("t",), recurrence=Recurrence("@daily", "n"))
        update = Update(
            task="another", payload='{"n":2}', queue="elsewhere", priority=3, delivery=Delivery.AT_MOST_ONCE,
            options=options, due_at=store.now + DAY, run_at=store.now + DAY, while_running=True,
        )  # fmt: skip
        assert store.do(update, held.id) is OperationVerdict.DONE
        record = store.job(held.id)
        assert (record.state, record.number, record.due_at) == (State.RUNNING, held.number, held.job.due_at)
        assert (record.options, record.version, store.listed_ids(tag="t")) == (options, 2, [held.id])
        assert store.succeed(held, occurrence=Occurrence(store.now, 1)).answer is SettleAnswer.CHANGED
        assert store.succeed(held, occurrence=Occurrence(store.now, 2)).answer is SettleAnswer.DONE
        again = store.claim_one(once_limit=1)
        assert (again.job.task, again.job.payload, again.job.queue) == ("another", '{"n":2}', "elsewhere")
        assert (again.job.priority, again.job.delivery) == (3, Delivery.AT_MOST_ONCE)
        assert store.succeed(again).state is State.SUCCEEDED
        assert store.counts("elsewhere")[State.SUCCEEDED] == 1

    def test_job_that_ends_in_another_queue_is_counted_there(self, store: Store) -> None:
        """A job moved while it ran belongs to where it was moved to, however it ends."""
        for end, state in ((store.bury, State.DEAD), (store.end_cancelled, State.CANCELLED)):
            held = store.running()
            store.do(Update(queue="elsewhere", while_running=True), held.id)
            end(held)
            assert store.counts("elsewhere")[state] == 1
            assert store.counts("default")[state] == 0

    def test_running_job_is_not_changed_by_an_update_that_does_not_say_so(self, store: Store) -> None:
        """What does not say that it concerns a running job is a conflict."""
        held = recurring(store)
        assert store.do(Update(due_at=store.now + DAY), held.id) is OperationVerdict.CONFLICT

    def test_finished_job_is_not_changed_while_running(self, store: Store) -> None:
        """Running or not, it must not have ended."""
        for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED):
            job_id = store.job_in(state)
            assert store.do(Update(priority=1, while_running=True), job_id) is OperationVerdict.CONFLICT

    def test_change_relies_on_the_version_that_was_read(self, store: Store) -> None:
        """Of two who change what they have both read, the second one is refused."""
        job_id = store.enqueue()
        assert store.do(Update(priority=1, version=1), job_id) is OperationVerdict.DONE
        before = store.everything()
        assert store.do(Update(priority=2, version=1), job_id) is OperationVerdict.CHANGED
        assert store.everything() == before

    def test_place_can_be_set_to_the_due_time_whatever_that_is(self, store: Store) -> None:
        """A caller that resumes a schedule need not know when it is due."""
        held, due_at = store.running(), store.now + MINUTE
        store.succeed(held, occurrence=Occurrence(due_at, 1, store.now + 100 * DAY))
        assert store.do(Update(at_due=True), held.id) is OperationVerdict.DONE
        assert store.job(held.id).run_at == due_at
        later = store.now + HOUR
        assert store.do(Update(at_due=True, due_at=later), held.id) is OperationVerdict.DONE
        assert (store.job(held.id).run_at, store.job(held.id).due_at) == (later, later)

    def test_job_is_moved_to_another_queue_and_claimed_there(self, store: Store) -> None:
        """A change of the queue is a change of its place in the order."""
        job_id = store.enqueue()
        assert store.do(Update(queue="elsewhere"), job_id) is OperationVerdict.DONE
        assert store.claimed_ids(queues=("default",)) == []
        assert store.claimed_ids(queues=("elsewhere",)) == [job_id]

    def test_job_with_an_idempotency_key_stays_in_its_queue(self, store: Store) -> None:
        """The queue is a part of its name."""
        job_id = store.enqueue(idempotency_key="k")
        assert store.do(Update(queue="elsewhere"), job_id) is OperationVerdict.CONFLICT
        assert store.do(Update(queue="default", priority=1), job_id) is OperationVerdict.DONE

    # -- the copy that is dead from the start --

    def test_failed_occurrence_leaves_a_dead_copy_with_the_history_of_its_run(self, store: Store) -> None:
        """The schedule goes on; the dead-letter queue has the run that failed, all of it and nothing else."""
        held = recurring(store)
        store.fail(held, error="first", delay=SECOND)
        store.pass_time(SECOND)
        held = store.claim_one()
        copy = store.new(
            task="copied", queue="other", options=Options(tags=("t",)), delivery=Delivery.AT_LEAST_ONCE,
            meta='{"tenant":"acme"}',
        )  # fmt: skip
        settled = store.bury(held, error="last", occurrence=Occurrence(store.now + HOUR, 1), dead_letter=copy)
        assert (settled.answer, settled.state) == (SettleAnswer.DONE, State.SCHEDULED)
        dead = store.job(copy.id)
        assert (dead.state, dead.reason, dead.attempts) == (State.DEAD, Reason.EXHAUSTED, 2)
        assert (dead.number, dead.finished_at, dead.due_at) == (3, store.now, None)
        assert (dead.task, dead.queue, dead.error, dead.meta) == ("copied", "other", "last", copy.meta)
        rows = store.history(copy.id)
        assert [(row.number, row.error, row.retry_count) for row in rows] == [(3, "last", 1), (2, "first", 0)]
        assert [row.retry_delay for row in rows] == [None, SECOND]
        assert store.listed_ids(state=State.DEAD) == store.listed_ids(tag="t") == [copy.id]
        assert store.counts()[State.DEAD] == store.counts("other")[State.DEAD] == 1

    def test_dead_copy_can_be_requeued_and_runs_once(self, store: Store) -> None:
        """It is an ordinary job: its numbers go on from those of the run it is a copy of."""
        held, copy = recurring(store), store.new()
        store.bury(held, occurrence=Occurrence(store.now + HOUR, 1), dead_letter=copy)
        assert store.do(Requeue(), copy.id) is OperationVerdict.DONE
        again = store.claim_one()
        assert (again.id, again.number, again.job.attempts, again.job.due_at) == (copy.id, 3, 0, None)
        assert store.succeed(again).state is State.SUCCEEDED
        assert store.counts()[State.DEAD] == 0

    def test_no_copy_is_left_when_the_settle_is_refused_repeated_or_turned_into_a_cancellation(
        self, store: Store
    ) -> None:
        """It exists if and only if the occurrence really ended so."""
        held, copy, next_one = recurring(store), store.new(), Occurrence(store.now, 1)
        store.succeed(held, occurrence=next_one, dead_letter=copy)
        assert store.find(copy.id) is None
        held = store.claim_one()
        store.bury(held, occurrence=Occurrence(store.now, 9), dead_letter=copy)
        assert store.find(copy.id) is None
        store.bury(held, occurrence=next_one, dead_letter=copy)
        store.bury(held, occurrence=next_one, dead_letter=store.new())
        assert store.counts()[State.DEAD] == 1
        held = store.claim_one()
        store.do(Cancel(), held.id)
        store.bury(held, occurrence=Occurrence(store.now + HOUR, 1), dead_letter=store.new())
        assert store.counts()[State.DEAD] == 1

    # -- history --

    def test_latest_attempt_is_shown_with_the_job(self, store: Store) -> None:
        """How a schedule's last run ended is known without reading its history."""
        held = store.running()
        assert (store.job(held.id).last_status, store.job(held.id).last_finished_at) == (None, None)
        store.bury(held, occurrence=Occurrence(store.now + HOUR, 1))
        record = store.job(held.id)
        assert (record.last_status, record.last_finished_at) == (AttemptStatus.FAILED, store.now)

    def test_history_is_pruned_by_count_and_by_age(self, store: Store) -> None:
        """The newest ones stay, up to a number and an age; of other jobs nothing goes."""
        held = recurring(store)
        other = store.history(store.job_in(State.DEAD, queue="other"))
        for _ in range(6):
            store.pass_time(SECOND)
            store.succeed(held, occurrence=Occurrence(store.now, 1))
            held = store.claim_one(queues=("default",))
        assert store.prune_history(held.id, keep=4) == 3
        assert [row.number for row in store.history(held.id)] == [7, 6, 5, 4]
        assert store.prune_history(held.id, before=store.now - SECOND) == 2
        assert [row.number for row in store.history(held.id)] == [7, 6]
        assert store.prune_history(held.id, keep=4, before=store.now - SECOND) == 0
        assert store.history(other[0].job_id) == other
        assert store.succeed(held).state is State.SUCCEEDED

    def test_present_run_and_latest_attempt_outlast_every_pruning(self, store: Store) -> None:
        """What the policy weighs, and what tells where the job stands, is never struck out."""
        held = recurring(store)
        for _ in range(2):
            store.fail(held)
            held = store.claim_one()
        assert store.prune_history(held.id, keep=0, before=store.now + DAY) == 1
        assert [row.number for row in store.history(held.id)] == [3, 2]
        store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1))
        store.prune_history(held.id, keep=0, before=store.now + DAY)
        assert [row.number for row in store.history(held.id)] == [4]
        assert store.job(held.id).state is State.SCHEDULED
        store.pass_time(HOUR)
        assert store.claim_one().number == 5

    def test_pruning_raises_nothing_that_a_live_lease_still_names(self, store: Store) -> None:
        """A lease names what was settled under it for as long as another of its jobs is open."""
        ids = [store.enqueue(), store.enqueue()]
        first, second = sorted(store.claim(limit=2), key=lambda held: held.id)
        held = first
        for _ in range(3):
            store.succeed(held, occurrence=Occurrence(store.now, 1))
            held = store.claim_one()
        store.prune_history(first.id, keep=0, before=store.now + DAY)
        store.succeed(held, occurrence=Occurrence(store.now + 100 * DAY, 1))
        store.let_expire()
        expired = store.collected()
        assert [job.id for job in expired.jobs] == [second.id]
        assert set(ids) == {first.id, second.id}

    def test_pruning_of_unknown_and_finished_jobs_prunes_nothing(self, store: Store) -> None:
        """A finished job's history goes with the job."""
        job_id = store.job_in(State.SUCCEEDED)
        unknown = store.new().id
        assert store.prune_history(job_id, unknown, keep=0, before=store.now + DAY) == 0
        assert len(store.history(job_id)) == 1
