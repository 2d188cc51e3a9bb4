"""Expiry: a run that has not begun by its expires_at does not begin any more."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import HOUR, MINUTE, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import Requeue, Update
from taskharbor.records import AttemptStatus, Reason, State


class Expiry(Chapter):
    needs = capabilities.Upkeep

    @pytest.mark.parametrize("state", [State.READY, State.SCHEDULED, State.WAITING])
    def test_unbegun_job_is_cancelled_when_it_expires(self, store: Store, state: State) -> None:
        """Ready, scheduled or waiting: what was not begun by its expires_at is cancelled, reason expired."""
        job_id = store.job_in(state, expires_at=store.now + MINUTE)
        store.pass_time(MINUTE - 1)
        assert (store.expire(), store.state(job_id)) == ([], state)
        store.pass_time(1)
        assert store.expire() == [job_id]
        record = store.job(job_id)
        assert (record.state, record.reason) == (State.CANCELLED, Reason.EXPIRED)
        assert record.finished_at == store.now

    def test_expired_job_is_not_claimed_after_the_sweep(self, store: Store) -> None:
        """Once it is cancelled no worker receives the job."""
        store.enqueue(expires_at=store.now)
        store.expire()
        assert store.claim() == []
        assert store.expire() == []

    def test_claim_tells_the_worker_when_the_job_expires(self, store: Store) -> None:
        """The claim itself does not look: the worker receives the expiry, and ends an expired job before it begins."""
        job_id = store.enqueue(expires_at=store.now)
        held = store.claim_one()
        assert (held.id, held.job.expires_at) == (job_id, store.now)
        store.settle(held, AttemptStatus.CANCELLED, State.CANCELLED, reason=Reason.EXPIRED)
        assert store.job(job_id).reason is Reason.EXPIRED

    def test_running_job_does_not_expire(self, store: Store) -> None:
        """The sweep leaves alone what is under a lease."""
        held = store.running(expires_at=store.now + SECOND)
        store.pass_time(MINUTE)
        assert store.expire() == []
        assert store.state(held.id) is State.RUNNING

    @pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.TIMED_OUT, AttemptStatus.SLEPT])
    def test_begun_run_does_not_expire_any_more(self, store: Store, status: AttemptStatus) -> None:
        """expires_at concerns the first begin of a run: a job that backs off or sleeps does not expire."""
        held = store.running(expires_at=store.now + MINUTE)
        store.settle(held, status, State.READY, started_at=store.now, delay=SECOND)
        store.pass_time(HOUR)
        assert store.expire() == []
        assert store.claim_one().job.expires_at is None

    def test_lost_run_does_not_expire_any_more(self, store: Store) -> None:
        """A lost job may have begun, so its run counts as begun."""
        held = store.running(expires_at=store.now + MINUTE)
        store.lose(held)
        store.pass_time(HOUR)
        assert store.expire() == []
        assert store.claim_one().job.expires_at is None

    def test_unbegun_job_that_is_handed_back_still_expires(self, store: Store) -> None:
        """A hand-back before the begin leaves the run unbegun, with its expires_at."""
        held = store.running(expires_at=store.now + MINUTE)
        store.hand_back(held)
        held = store.claim_one()
        assert held.job.expires_at == store.now + MINUTE
        store.hand_back(held)
        store.pass_time(MINUTE)
        assert store.expire() == [held.id]

    def test_begun_run_stays_begun_when_it_is_handed_back_later(self, store: Store) -> None:
        """An unbegun attempt after a begun one does not bring the run's expiry back."""
        store.fail(store.running(expires_at=store.now + MINUTE))
        store.hand_back(store.claim_one())
        store.pass_time(HOUR)
        assert store.expire() == []
        assert store.claim_one().job.expires_at is None

    def test_expiry_sweep_takes_the_earliest_first_up_to_its_limit(self, store: Store) -> None:
        """A sweep is bounded, begins with what expired first, and tells which jobs it cancelled, in that order."""
        late, early, middle = (store.enqueue(expires_at=store.now + n * SECOND) for n in (3, 1, 2))
        store.pass_time(MINUTE)
        assert store.expire(limit=2) == [early, middle]
        assert [store.state(job_id) for job_id in (early, middle, late)] == [
            State.CANCELLED,
            State.CANCELLED,
            State.READY,
        ]
        assert (store.expire(limit=2), store.expire(limit=2)) == ([late], [])

    def test_job_without_expires_at_never_expires(self, store: Store) -> None:
        """No expires_at, no expiry."""
        store.enqueue()
        store.pass_time(10_000 * HOUR)
        assert store.expire() == []

    def test_requeue_clears_an_expiry_that_has_passed(self, store: Store) -> None:
        """A new run is not born expired."""
        job_id = store.enqueue(expires_at=store.now + MINUTE)
        store.pass_time(MINUTE)
        store.expire()
        store.do(Requeue(), job_id)
        assert (store.expire(), store.job(job_id).expires_at) == ([], None)
        assert store.claim_one().job.expires_at is None

    def test_requeue_keeps_an_expiry_that_is_ahead(self, store: Store) -> None:
        """A new run that has not begun by the expires_at that is still ahead expires then."""
        held = store.running(expires_at=(expires_at := store.now + HOUR))
        store.bury(held)
        store.do(Requeue(), held.id)
        assert store.job(held.id).expires_at == expires_at
        store.pass_time(HOUR)
        assert store.expire() == [held.id]

    def test_changed_expiry_is_the_one_that_counts(self, store: Store) -> None:
        """An operator can move a job's expiry, or take it away."""
        moved, cleared = (store.enqueue(expires_at=store.now + MINUTE) for _ in range(2))
        store.do(Update(expires_at=store.now + HOUR), moved)
        store.do(Update(expires_at=None), cleared)
        store.pass_time(MINUTE)
        assert store.expire() == []
        store.pass_time(HOUR)
        assert store.expire() == [moved]
        assert (store.job(moved).reason, store.state(cleared)) == (Reason.EXPIRED, State.READY)
