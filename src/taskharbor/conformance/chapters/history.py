"""History and results: one row for each attempt, kept as it was written."""

from __future__ import annotations

import pytest

from taskharbor.conformance.chapters.hostile import HOSTILE, label
from taskharbor.conformance.store import MINUTE, SECOND, Chapter, Store
from taskharbor.drivers.base import Cancel, OperationVerdict, Requeue, RunNow
from taskharbor.records import AttemptRecord, AttemptStatus, State


class History(Chapter):
    def test_each_attempt_leaves_one_row_with_all_it_knew(self, store: Store) -> None:
        """Job, number, status, worker, times, delay, error and traceback are in the row as they were settled."""
        store.enqueue()
        held = store.claim_one("worker-x/7")
        started_at = store.now + 5
        store.pass_time(SECOND)
        store.fail(
            held, started_at=started_at, delay=MINUTE, error="boom", traceback="Traceback …", detail="why"
        )
        assert store.history(held.id) == [
            AttemptRecord(
                job_id=held.id,
                number=1,
                status=AttemptStatus.FAILED,
                retry_count=0,
                worker="worker-x",
                started_at=started_at,
                finished_at=store.now,
                error="boom",
                traceback="Traceback …",
                detail="why",
                retry_delay=MINUTE,
            )
        ]

    def test_delay_granted_stays_where_the_job_does_not(self, store: Store) -> None:
        """An operator may move the job, or requeue it: the row of the failure keeps the delay as it was granted."""
        held = store.running()
        store.fail(held, delay=MINUTE)
        assert store.do(RunNow(), held.id) is OperationVerdict.DONE
        held = store.claim_one()
        store.settle(held, AttemptStatus.TIMED_OUT, State.READY, attempts=2, delay=2 * MINUTE)
        assert store.do(Cancel(), held.id) is OperationVerdict.DONE
        assert store.do(Requeue(), held.id) is OperationVerdict.DONE
        assert [row.retry_delay for row in store.history(held.id)] == [2 * MINUTE, MINUTE]

    def test_only_a_failure_that_is_retried_was_granted_a_delay(self, store: Store) -> None:
        """A last failure, a sleep, a hand-back, a loss and a success have none, whatever their transitions carried."""
        held = store.running()
        store.sleep(held, SECOND)
        store.pass_time(SECOND)
        store.hand_back(store.claim_one(), delay=SECOND)
        store.pass_time(SECOND)
        store.lose(store.claim_one())
        store.bury(store.claim_one(), delay=SECOND)
        done = store.running()
        store.succeed(done)
        rows = [*store.history(held.id), *store.history(done.id)]
        assert [row.retry_delay for row in rows] == [None] * 5

    def test_failure_that_becomes_a_cancellation_was_granted_no_delay(self, store: Store) -> None:
        """A caller asked to cancel the job: the retry that its worker asked for never comes."""
        held = store.running()
        store.do(Cancel(), held.id)
        store.fail(held, delay=MINUTE)
        assert store.state(held.id) is State.CANCELLED
        assert store.last_attempt(held.id).retry_delay is None

    def test_row_of_a_success_keeps_as_much_as_that_of_a_failure(self, store: Store) -> None:
        """A success may carry a detail, an error or a traceback as well; its row keeps what it was given."""
        plain, telling = store.running(), store.running()
        store.succeed(plain)
        store.succeed(telling, detail="late", error="warned", traceback="Traceback …", worker="another")
        row = store.last_attempt(telling.id)
        assert (row.detail, row.error, row.traceback) == ("late", "warned", "Traceback …")
        assert (row.status, row.worker) == (AttemptStatus.SUCCEEDED, "another")
        assert store.last_attempt(plain.id).detail is None

    def test_worker_of_an_attempt_is_the_tokens(self, store: Store) -> None:
        """A token names its worker before its last slash; a worker's own name may have slashes."""
        store.enqueue()
        held = store.claim_one("host/42/worker/9")
        assert store.job(held.id).worker == "host/42/worker"
        store.succeed(held)
        assert store.last_attempt(held.id).worker == "host/42/worker"

    def test_retry_count_is_the_failures_before_the_attempt(self, store: Store) -> None:
        """The first attempt is retry 0; a hand-back in between raises the number and not the retry count."""
        store.fail(store.running())
        store.hand_back(store.claim_one())
        held = store.claim_one()
        store.fail(held)
        store.succeed(store.claim_one(), attempts=2)
        rows = [(row.number, row.retry_count) for row in store.history(held.id)]
        assert rows == [(4, 2), (3, 1), (2, 1), (1, 0)]

    def test_running_attempt_has_no_row_yet(self, store: Store) -> None:
        """History is what is over."""
        held = store.running()
        assert store.history(held.id) == []

    def test_unbegun_attempt_has_no_start(self, store: Store) -> None:
        """A job that was handed back before it began shows when it was handed back, and no begin."""
        held = store.running()
        store.pass_time(SECOND)
        store.hand_back(held)
        attempt = store.last_attempt(held.id)
        assert (attempt.started_at, attempt.finished_at) == (None, store.now)

    def test_history_is_newest_first_and_bounded(self, store: Store) -> None:
        """The latest attempts come first, as many as were asked for."""
        job_id = store.enqueue()
        for _ in range(5):
            store.fail(store.claim_one())
            store.pass_time(MINUTE)
        assert [row.number for row in store.history(job_id, limit=3)] == [5, 4, 3]
        assert [row.number for row in store.history(job_id)] == [5, 4, 3, 2, 1]

    def test_many_attempts_stay_in_the_order_of_their_numbers(self, store: Store) -> None:
        """Number 10 comes after number 9, also where instants are equal."""
        job_id = store.enqueue()
        for _ in range(12):
            store.fail(store.claim_one())
        assert [row.number for row in store.history(job_id)] == list(range(12, 0, -1))

    def test_history_of_a_job_is_its_own(self, store: Store) -> None:
        """Rows of other jobs are never mixed in; an unknown job has none."""
        first, second = store.running(), store.running()
        store.fail(first, error="one")
        store.fail(second, error="two")
        assert [row.error for row in store.history(first.id)] == ["one"]
        assert store.history(store.new_id()) == []

    def test_loss_that_the_worker_survived_is_recorded_as_such(self, store: Store) -> None:
        """A collector that knows that the worker is alive writes it into the row."""
        held = store.running()
        store.lose(held, worker_survived=True)
        assert store.last_attempt(held.id).worker_survived

    def test_error_of_the_job_is_that_of_its_latest_attempt(self, store: Store) -> None:
        """When the latest attempt has no error, the job shows none; history keeps the older one."""
        store.fail(store.running(), error="boom")
        held = store.claim_one()
        assert store.job(held.id).error == "boom"
        store.succeed(held)
        assert store.job(held.id).error is None
        assert [row.error for row in store.history(held.id)] == [None, "boom"]

    def test_result_is_kept_with_the_job(self, store: Store) -> None:
        """The result of a success, its finish and its count of failures are on the job."""
        store.fail(store.running())
        held = store.claim_one()
        store.pass_time(SECOND)
        store.succeed(held, result='{"sum":3}', attempts=1)
        record = store.job(held.id)
        assert (record.state, record.result, record.attempts) == (State.SUCCEEDED, '{"sum":3}', 1)
        assert (record.finished_at, record.reason) == (store.now, None)

    @pytest.mark.parametrize("result", [None, "null", '""', "0", "[]"])
    def test_empty_results_are_kept_apart(self, store: Store, result: str | None) -> None:
        """No result, and a result that is empty in one way or another, are different things."""
        held = store.running()
        store.succeed(held, result=result)
        assert store.job(held.id).result == result

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_result_text_is_kept(self, store: Store, text: str) -> None:
        """A result is text to the store, whatever is in it."""
        held = store.running()
        store.succeed(held, result=text)
        assert store.job(held.id).result == text

    def test_only_a_success_has_a_result(self, store: Store) -> None:
        """A job that is not succeeded shows no result, whatever its transition carried."""
        held = store.running()
        store.bury(held, result='"half"')
        assert store.job(held.id).result is None
