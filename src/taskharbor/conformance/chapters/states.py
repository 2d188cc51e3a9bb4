"""The words: the seven states, what an attempt is, and which numbers count what."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import DAY, HOUR, LEASE, SECOND, Chapter, Store
from taskharbor.drivers.base import Cancel, Occurrence, OperationVerdict, Requeue
from taskharbor.records import State

YEAR_9999 = 253_402_300_799_999_999


class States(Chapter):
    @pytest.mark.parametrize("state", list(State))
    def test_every_reader_agrees_on_a_jobs_state(self, store: Store, state: State) -> None:
        """A job is in one of seven states, and `get`, `list` and `counts` name the same one."""
        job_id = store.job_in(state)
        assert store.state(job_id) is state
        assert [other for other in State if job_id in store.listed_ids(state=other)] == [state]
        assert store.counts()[state] >= 1

    def test_counts_have_all_seven_states_and_no_other(self, store: Store) -> None:
        """An empty store counts nothing in each of the seven states."""
        assert store.counts() == dict.fromkeys(State, 0)

    def test_job_is_scheduled_until_its_time_and_ready_from_then_on(self, store: Store) -> None:
        """A job becomes ready in the very microsecond of its run_at, without anybody touching it."""
        job_id = store.enqueue(run_at=store.now + HOUR)
        store.pass_time(HOUR - 1)
        assert (store.state(job_id), store.counts()[State.SCHEDULED]) == (State.SCHEDULED, 1)
        store.pass_time(1)
        assert (store.state(job_id), store.counts()[State.READY]) == (State.READY, 1)

    def test_job_whose_lease_expired_is_still_running(self, store: Store) -> None:
        """Until it is collected, a job with an expired lease is running to every reader, and shown as such."""
        held = store.running()
        assert not store.job(held.id).lease_expired
        store.let_expire()
        record = store.job(held.id)
        assert (record.state, record.lease_expired) == (State.RUNNING, True)
        assert store.counts()[State.RUNNING] == 1
        assert store.listed_ids(state=State.RUNNING) == [held.id]
        assert store.claim() == []

    def test_running_job_shows_its_lease(self, store: Store) -> None:
        """A running job names the worker that has it and the instant until which it may."""
        held = store.running()
        record = store.job(held.id)
        assert record.worker == held.token.rpartition("/")[0]
        assert record.lease_expires_at == store.now + LEASE

    def test_lease_leaves_nothing_on_a_job_that_is_not_running(self, store: Store) -> None:
        """What belongs to a lease is gone from the job with the lease."""
        held = store.running()
        store.do(Cancel(), held.id)
        store.succeed(held)
        record = store.job(held.id)
        assert (record.worker, record.lease_expires_at) == (None, None)
        assert (record.lease_expired, record.cancel_requested) == (False, False)

    def test_attempt_number_rises_on_every_claim_of_every_run(self, store: Store) -> None:
        """Retry, hand-back, sleep, loss, requeue and next occurrence: the next claim has the next number."""
        job_id = store.enqueue()
        store.fail(store.claim_one())
        store.hand_back(store.claim_one())
        store.sleep(store.claim_one(), delay=0)
        store.claim_one()
        store.let_expire()
        store.lose(store.collect_one())
        store.bury(store.claim_one())
        store.do(Requeue(), job_id)
        store.succeed(store.claim_one(), occurrence=Occurrence(store.now, store.job(job_id).version))
        assert store.claim_one().number == 7
        assert store.job(job_id).number == 7
        assert [attempt.number for attempt in store.history(job_id)] == [6, 5, 4, 3, 2, 1]

    def test_attempts_are_the_failures_of_the_run(self, store: Store) -> None:
        """Failures count; a hand-back, a sleep and a loss leave the count as it is."""
        job_id = store.enqueue()
        store.fail(store.claim_one())
        assert store.job(job_id).attempts == 1
        store.hand_back(store.claim_one())
        store.sleep(store.claim_one(), delay=0)
        store.lose(store.claim_one())
        assert store.job(job_id).attempts == 1
        store.fail(store.claim_one())
        assert store.claim_one().job.attempts == 2

    def test_first_number_is_that_of_the_runs_first_attempt(self, store: Store) -> None:
        """All attempts of a run know where it began; a requeue begins a new run with the next number."""
        held = store.running()
        assert (held.job.first_number, held.number) == (1, 1)
        store.fail(held)
        held = store.claim_one()
        assert (held.job.first_number, held.number) == (1, 2)
        store.bury(held)
        assert store.do(Requeue(), held.id) is OperationVerdict.DONE
        held = store.claim_one()
        assert (held.job.first_number, held.number) == (3, 3)

    def test_paused_is_not_a_state(self, store: Store) -> None:
        """Pausing a queue moves no job to another state."""
        ready, scheduled = store.enqueue(), store.enqueue(delay=HOUR)
        held = store.running()
        before = store.counts()
        store.pause("default")
        assert store.counts() == before
        assert [store.state(job_id) for job_id in (ready, scheduled, held.id)] == [
            State.READY,
            State.SCHEDULED,
            State.RUNNING,
        ]

    @pytest.mark.parametrize("run_at", [1, 999_999, 1_767_225_600_000_001, YEAR_9999 - 7])
    def test_instants_come_back_to_the_microsecond(self, store: Store, run_at: int) -> None:
        """Every instant a store is given comes back exactly, however far away."""
        job_id = store.enqueue(run_at=run_at, expires_at=run_at + 7)
        record = store.job(job_id)
        assert (record.run_at, record.expires_at) == (run_at, run_at + 7)
        assert record.enqueued_at == store.now

    def test_instants_of_an_attempt_come_back_to_the_microsecond(self, store: Store) -> None:
        """The times in history are the ones that were given, digit for digit."""
        held = store.running()
        store.pass_time(SECOND + 1)
        store.fail(held, started_at=store.now - 3, delay=DAY + 1)
        attempt = store.last_attempt(held.id)
        assert (attempt.started_at, attempt.finished_at) == (store.now - 3, store.now)
        assert store.job(held.id).run_at == store.now + DAY + 1
