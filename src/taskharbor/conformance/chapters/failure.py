"""Failure, retry, and the dead-letter queue."""

from __future__ import annotations

import pytest

from taskharbor.conformance.chapters.hostile import HOSTILE, label
from taskharbor.conformance.store import HOUR, MINUTE, SECOND, Chapter, Store
from taskharbor.drivers.base import Discard, OperationVerdict, Requeue, SettleAnswer
from taskharbor.records import AttemptStatus, Options, Reason, State
from taskharbor.rules.lifecycle import SETTLES

DEATHS = (
    Reason.EXHAUSTED,
    Reason.UNRECOVERABLE,
    Reason.NOT_RETRYABLE,
    Reason.LOST,
    Reason.INTERRUPTED,
    Reason.POISON,
    Reason.INVALID_PAYLOAD,
    Reason.UNKNOWN_TASK,
)


class Failure(Chapter):
    @pytest.mark.parametrize(
        ("status", "to"),
        [(status, to) for status, targets in SETTLES.items() for to in sorted(targets)],
        ids=str,
    )
    def test_every_legal_ending_is_applied_and_recorded(
        self, store: Store, status: AttemptStatus, to: State
    ) -> None:
        """Each status may lead to the states that the lifecycle's table names."""
        held = store.running()
        reason = {State.DEAD: Reason.EXHAUSTED, State.CANCELLED: Reason.CANCELLED}.get(to)
        settled = store.settle(held, status, to, started_at=store.now, reason=reason)
        assert (settled.answer, settled.state, settled.at) == (SettleAnswer.DONE, to, store.now)
        assert store.state(held.id) is to
        assert store.last_attempt(held.id).status is status

    # -- retry --

    def test_failed_job_is_runnable_again_after_its_delay(self, store: Store) -> None:
        """The delay counts from the store's now, to the microsecond; until then the job is scheduled."""
        held = store.running()
        store.pass_time(SECOND)
        settled = store.fail(held, delay=MINUTE + 1)
        retry_at = store.now + MINUTE + 1
        assert (settled.state, settled.run_at) == (State.SCHEDULED, retry_at)
        assert (store.state(held.id), store.job(held.id).run_at) == (State.SCHEDULED, retry_at)
        store.pass_time(MINUTE)
        assert store.claim() == []
        store.pass_time(1)
        assert store.claim_one().id == held.id

    def test_failure_without_delay_is_ready_at_once(self, store: Store) -> None:
        """A delay of 0 is a place at the end of the line, now."""
        held = store.running()
        store.pass_time(SECOND)
        settled = store.fail(held, delay=0)
        assert (settled.state, settled.run_at) == (State.READY, store.now)

    def test_failure_is_counted_and_its_error_is_shown(self, store: Store) -> None:
        """The count that the policy wrote, and the latest error, are on the job."""
        held = store.running()
        store.fail(held, attempts=3, error="the first")
        assert (store.job(held.id).attempts, store.job(held.id).error) == (3, "the first")
        store.fail(store.claim_one(), error="the second")
        assert (store.job(held.id).attempts, store.job(held.id).error) == (4, "the second")

    def test_retried_job_keeps_all_it_was_given(self, store: Store) -> None:
        """A retry changes the count and the place; the rest of the job is what was enqueued."""
        options = Options(max_attempts=9, correlation_id="c", tags=("x",))
        held = store.running(
            payload='{"n":1}', queue="mail", idempotency_key="k", options=options, meta='{"tenant":"acme"}'
        )
        store.fail(held)
        again = store.claim_one().job
        for field in (
            "task",
            "payload",
            "queue",
            "priority",
            "enqueued_at",
            "options",
            "first_number",
            "version",
            "meta",
        ):
            assert getattr(again, field) == getattr(held.job, field), field
        assert store.job(held.id).idempotency_key == "k"

    def test_unbegun_hand_back_counts_nothing(self, store: Store) -> None:
        """Handing back an unbegun job writes no failure; history shows that it was released."""
        held = store.running()
        store.hand_back(held, detail="shutdown")
        record, attempt = store.job(held.id), store.last_attempt(held.id)
        assert (record.state, record.attempts, record.error) == (State.READY, 0, None)
        assert (attempt.status, attempt.started_at) == (AttemptStatus.RELEASED, None)
        assert attempt.detail == "shutdown"

    def test_job_can_be_put_back_uncounted_with_a_delay(self, store: Store) -> None:
        """A worker that does not know the task puts it back for later, without counting a failure."""
        held = store.running()
        settled = store.hand_back(held, delay=SECOND, detail="unknown task")
        assert (settled.state, settled.run_at) == (State.SCHEDULED, store.now + SECOND)
        assert store.job(held.id).attempts == 0

    def test_loss_is_not_a_failure(self, store: Store) -> None:
        """A lost job is runnable at once, its failures uncounted, and history says lost."""
        store.fail(store.running())
        held = store.claim_one()
        store.let_expire()
        settled = store.lose(store.collect_one(), detail="lease expired")
        assert (settled.state, store.job(held.id).attempts) == (State.READY, 1)
        assert store.last_attempt(held.id).status is AttemptStatus.LOST

    def test_sleeping_job_is_scheduled_until_it_wakes(self, store: Store) -> None:
        """A job that sleeps gives its slot back, counts nothing, and runs on when its time has come."""
        held = store.running()
        store.sleep(held, delay=HOUR)
        record = store.job(held.id)
        assert (record.state, record.run_at, record.attempts) == (State.SCHEDULED, store.now + HOUR, 0)
        assert store.last_attempt(held.id).status is AttemptStatus.SLEPT

    # -- the dead-letter queue --

    @pytest.mark.parametrize("reason", DEATHS)
    def test_dead_job_says_why(self, store: Store, reason: Reason) -> None:
        """A job in the dead-letter queue keeps the reason, the instant and the last error."""
        held = store.running()
        store.pass_time(SECOND)
        settled = store.bury(held, reason=reason, attempts=5, error="no such user")
        assert (settled.state, settled.run_at) == (State.DEAD, None)
        record = store.job(held.id)
        assert (record.state, record.reason, record.attempts) == (State.DEAD, reason, 5)
        assert (record.finished_at, record.error) == (store.now, "no such user")

    def test_dead_job_keeps_its_payload_options_and_every_attempt(self, store: Store) -> None:
        """Nothing of why a job died is lost: payload, options, each attempt with error, traceback and times."""
        options = Options(max_attempts=2, timeout=3.5, tags=("a",))
        held = store.running(payload='{"n":1}', options=options)
        store.fail(held, error="one", traceback="Traceback 1")
        held = store.claim_one()
        store.bury(held, error="two", traceback="Traceback 2")
        record = store.job(held.id)
        assert (record.payload, record.options) == ('{"n":1}', options)
        assert [(row.error, row.traceback) for row in store.history(held.id)] == [
            ("two", "Traceback 2"),
            ("one", "Traceback 1"),
        ]
        assert all(row.finished_at and row.started_at and row.worker for row in store.history(held.id))

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_error_text_is_kept(self, store: Store, text: str) -> None:
        """Errors, tracebacks, details and workers' names are data, whatever is in them."""
        held = store.running()
        store.bury(held, error=text, traceback=text, detail=text, worker=text)
        attempt = store.last_attempt(held.id)
        assert (attempt.error, attempt.traceback, attempt.detail, attempt.worker) == (text,) * 4
        assert store.job(held.id).error == text

    def test_dead_jobs_are_the_dead_letter_queue(self, store: Store) -> None:
        """Listing the dead gives the dead-letter queue; no claim hands one out."""
        dead = [store.job_in(State.DEAD) for _ in range(3)]
        store.job_in(State.SUCCEEDED)
        assert store.listed_ids(state=State.DEAD) == dead[::-1]
        assert store.claim() == []

    # -- requeue --

    @pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
    def test_requeue_begins_a_new_run(self, store: Store, state: State) -> None:
        """A requeued job is ready now, its failures back to 0, and nothing says that it was finished."""
        job_id = store.job_in(state)
        store.pass_time(HOUR)
        assert store.do(Requeue(), job_id) is OperationVerdict.DONE
        record = store.job(job_id)
        assert (record.state, record.run_at, record.attempts) == (State.READY, store.now, 0)
        assert (record.reason, record.finished_at) == (None, None)
        held = store.claim_one()
        assert (held.number, held.job.first_number, held.job.attempts) == (2, 2, 0)

    def test_requeue_at_a_given_time(self, store: Store) -> None:
        """A requeue may be for later."""
        job_id = store.job_in(State.DEAD)
        store.do(Requeue(run_at=store.now + HOUR), job_id)
        assert (store.state(job_id), store.job(job_id).run_at) == (State.SCHEDULED, store.now + HOUR)

    def test_requeue_can_keep_the_failures(self, store: Store) -> None:
        """Asked to, a requeue leaves the count of failures as it was."""
        held = store.running()
        store.bury(held, attempts=4)
        store.do(Requeue(reset_attempts=False), held.id)
        assert (store.job(held.id).attempts, store.claim_one().job.attempts) == (4, 4)

    def test_requeue_keeps_history_and_steps(self, store: Store) -> None:
        """A new run is a new run of the same job: what it has done and stored stays."""
        held = store.running()
        store.step(held, "charge", '"paid"')
        store.report(held, 0.5, "half")
        store.bury(held)
        store.do(Requeue(), held.id)
        assert [attempt.number for attempt in store.history(held.id)] == [1]
        assert store.steps(held.id) == {"charge": '"paid"'}
        assert store.job(held.id).progress is None

    def test_requeueing_many_answers_for_each(self, store: Store) -> None:
        """Of several jobs, those that can be requeued are."""
        dead, ready, other = store.job_in(State.DEAD), store.enqueue(), store.job_in(State.DEAD)
        verdicts = store.operate(Requeue(), dead, ready, store.new_id(), other)
        assert verdicts == [
            OperationVerdict.DONE,
            OperationVerdict.CONFLICT,
            OperationVerdict.NOT_FOUND,
            OperationVerdict.DONE,
        ]
        assert store.counts()[State.READY] == 3

    def test_discarded_job_is_cancelled_for_that_reason(self, store: Store) -> None:
        """Discarding takes a job out of the dead-letter queue for good, and says so."""
        job_id = store.job_in(State.DEAD)
        store.pass_time(MINUTE)
        assert store.do(Discard(), job_id) is OperationVerdict.DONE
        record = store.job(job_id)
        assert (record.state, record.reason) == (State.CANCELLED, Reason.DISCARDED)
        assert record.finished_at == store.now
        assert store.listed_ids(state=State.DEAD) == []
