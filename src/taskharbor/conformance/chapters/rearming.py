"""Re-arming: a recurring job goes from one occurrence to the next in the settle that ends it."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import DAY, HOUR, MINUTE, SECOND, Chapter, Held, Store
from taskharbor.drivers.base import Answer, Cancel, Occurrence, Update
from taskharbor.job import AttemptStatus, Reason, State

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
        assert (settled.answer, settled.state, settled.run_at) == (Answer.DONE, State.SCHEDULED, due_at)
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

    def test_cancelled_occurrence_is_followed_by_the_next(self, store: Store) -> None:
        """Cancel ends the occurrence: a retry after the request becomes the next occurrence instead."""
        held = recurring(store)
        store.do(Cancel(), held.id)
        settled = store.fail(held, delay=MINUTE, occurrence=Occurrence(store.now + DAY, 1))
        assert (settled.state, settled.run_at) == (State.SCHEDULED, store.now + DAY)
        record = store.job(held.id)
        assert (record.attempts, record.due_at, record.cancel_requested) == (0, store.now + DAY, False)
        assert store.last_attempt(held.id).status is AttemptStatus.FAILED
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
            assert settled.answer is Answer.CHANGED
        assert store.everything() == before
        assert store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1)).answer is Answer.DONE

    def test_lease_errors_come_before_a_changed_schedule(self, store: Store) -> None:
        """Whoever does not hold the job is told that first."""
        held = store.running()
        other = Occurrence(store.now, 9)
        assert store.succeed(held, number=7, occurrence=other).answer is Answer.LEASE_MISMATCH
        store.let_expire()
        assert store.succeed(held, occurrence=other).answer is Answer.LEASE_EXPIRED

    def test_version_of_a_changed_job_is_the_one_to_prove(self, store: Store) -> None:
        """An operator's change raises the version that the claim tells and the settle has to name."""
        job_id = store.enqueue()
        store.do(Update(payload='{"n":2}'), job_id)
        held = store.claim_one()
        assert store.succeed(held, occurrence=Occurrence(store.now + HOUR, 1)).answer is Answer.CHANGED
        assert store.succeed(held, occurrence=Occurrence(store.now + HOUR, 2)).answer is Answer.DONE

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
        assert store.succeed(held, occurrence=Occurrence(store.now + DAY, 1)).answer is Answer.DONE
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
