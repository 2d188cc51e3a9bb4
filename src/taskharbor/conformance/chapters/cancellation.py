"""Cancellation: at once where nothing runs, by request where something does."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import HOUR, MINUTE, Chapter, Held, Store
from taskharbor.drivers.base import Cancel, OperationVerdict, Requeue, SettleAnswer
from taskharbor.records import AttemptStatus, Reason, State

UNSUCCESSFUL = (
    (AttemptStatus.FAILED, State.READY),
    (AttemptStatus.FAILED, State.DEAD),
    (AttemptStatus.TIMED_OUT, State.READY),
    (AttemptStatus.LOST, State.READY),
    (AttemptStatus.LOST, State.DEAD),
    (AttemptStatus.RELEASED, State.READY),
    (AttemptStatus.SLEPT, State.READY),
    (AttemptStatus.CANCELLED, State.CANCELLED),
    (AttemptStatus.CANCELLED, State.DEAD),
)


class Cancellation(Chapter):
    @pytest.mark.parametrize("state", [State.WAITING, State.SCHEDULED, State.READY])
    def test_job_that_is_not_running_is_cancelled_at_once(self, store: Store, state: State) -> None:
        """What has not begun is cancelled now and never handed out."""
        job_id = store.job_in(state)
        store.pass_time(1)
        assert store.do(Cancel(), job_id) is OperationVerdict.DONE
        record = store.job(job_id)
        assert (record.state, record.reason) == (State.CANCELLED, Reason.CANCELLED)
        assert record.finished_at == store.now
        store.pass_time(HOUR)
        assert job_id not in store.claimed_ids()

    @pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.SLEPT])
    def test_job_that_backs_off_or_sleeps_is_cancelled_at_once(
        self, store: Store, status: AttemptStatus
    ) -> None:
        """Between two attempts a job is not running, so cancelling it ends it."""
        held = store.running()
        store.settle(held, status, State.READY, started_at=store.now, delay=HOUR)
        assert store.do(Cancel(), held.id) is OperationVerdict.DONE
        assert store.state(held.id) is State.CANCELLED

    def test_suspect_is_cancelled_at_once(self, store: Store) -> None:
        """The suspects' place is no hiding place."""
        held = store.running()
        store.lose(held, suspect=True)
        assert store.do(Cancel(), held.id) is OperationVerdict.DONE
        assert store.claim(suspects=True) == []

    def test_running_job_is_asked_to_end(self, store: Store) -> None:
        """Cancelling a running job is a request, which is shown and waits for the worker."""
        held = store.running()
        assert store.do(Cancel(), held.id) is OperationVerdict.REQUESTED
        record = store.job(held.id)
        assert (record.state, record.cancel_requested) == (State.RUNNING, True)

    def test_request_can_be_repeated(self, store: Store) -> None:
        """Asking twice is asking."""
        held = store.running()
        assert store.operate(Cancel(), held.id, held.id) == [OperationVerdict.REQUESTED] * 2
        assert store.extend(held.token).cancel_requested == (held.id,)

    def test_request_reaches_the_worker_with_every_heartbeat(self, store: Store) -> None:
        """Until the job is settled each heartbeat names those that were asked to end, in order of id."""
        store.enqueue_all(*[store.new() for _ in range(4)])
        held = store.claim("worker/1")
        assert store.extend("worker/1").cancel_requested == ()
        store.operate(Cancel(), held[2].id, held[0].id)
        assert store.extend("worker/1").cancel_requested == (held[0].id, held[2].id)
        store.end_cancelled(held[0])
        assert store.extend("worker/1").cancel_requested == (held[2].id,)

    def test_look_names_those_that_were_asked_to_end(self, store: Store) -> None:
        """Between two heartbeats a worker looks at its own leases: who was asked, by lease, in order of id."""
        store.enqueue_all(*[store.new() for _ in range(5)])
        first, second = store.claim("worker/1", limit=3), store.claim("worker/2", limit=2)
        assert store.look("worker/1", "worker/2", "stranger/1").jobs == {}
        store.operate(Cancel(), first[2].id, first[0].id, second[1].id)
        asked = {"worker/1": (first[0].id, first[2].id), "worker/2": (second[1].id,)}
        assert store.look("worker/1", "worker/2", "stranger/1").jobs == asked
        assert store.look("worker/2").jobs == {"worker/2": (second[1].id,)}
        store.end_cancelled(first[0])
        store.succeed(second[1])
        assert store.look("worker/1", "worker/2").jobs == {"worker/1": (first[2].id,)}

    def test_look_finds_what_was_asked_after_its_mark(self, store: Store) -> None:
        """A driver may answer a look from what it knows, and never misses a request of its own."""
        first, second = store.running(), store.running()
        mark = store.look(first.token, second.token).mark
        assert store.look(first.token, second.token, since=mark).jobs == {}
        store.do(Cancel(), first.id)
        found = store.look(first.token, second.token, since=mark)
        assert found.jobs == {first.token: (first.id,)}
        store.do(Cancel(), second.id)
        later = store.look(first.token, second.token, since=found.mark)
        assert later.jobs == {first.token: (first.id,), second.token: (second.id,)}

    def test_look_changes_nothing(self, store: Store) -> None:
        """It is no heartbeat: the lease lasts no longer for it."""
        held = store.running()
        store.do(Cancel(), held.id)
        store.pass_time(1)
        before = store.everything()
        store.look(held.token)
        assert store.everything() == before
        store.let_expire()
        assert store.extend(held.token).answer is SettleAnswer.LEASE_EXPIRED

    def test_request_concerns_one_job_of_its_lease(self, store: Store) -> None:
        """The neighbours under the same lease go on as if nothing had happened."""
        store.enqueue_all(store.new(), store.new())
        asked, neighbour = store.claim()
        store.do(Cancel(), asked.id)
        assert not store.job(neighbour.id).cancel_requested
        assert store.fail(neighbour).state is State.READY

    def test_success_that_is_settled_first_wins(self, store: Store) -> None:
        """A job that succeeds although it was asked to end has succeeded."""
        held = store.running()
        store.do(Cancel(), held.id)
        assert store.succeed(held, result="1").state is State.SUCCEEDED
        record = store.job(held.id)
        assert (record.state, record.result, record.reason) == (State.SUCCEEDED, "1", None)

    @pytest.mark.parametrize(("status", "to"), UNSUCCESSFUL, ids=str)
    def test_any_other_ending_of_a_cancelled_attempt_cancels_the_job(
        self, store: Store, status: AttemptStatus, to: State
    ) -> None:
        """Failure, release, loss or sleep after the request: the job is cancelled, the row says how it ended."""
        held = store.running()
        store.do(Cancel(), held.id)
        settled = store.settle(held, status, to, started_at=store.now, delay=MINUTE, reason=Reason.EXHAUSTED)
        assert (settled.answer, settled.state, settled.run_at) == (SettleAnswer.DONE, State.CANCELLED, None)
        record = store.job(held.id)
        assert (record.state, record.reason) == (State.CANCELLED, Reason.CANCELLED)
        assert record.finished_at == store.now
        assert store.last_attempt(held.id).status is status
        store.pass_time(HOUR)
        assert store.claim() == []

    def test_cancelled_attempt_inserts_nothing(self, store: Store) -> None:
        """The jobs that come with an ending exist only if that ending is the one that took effect."""
        held, child = store.running(), store.new()
        store.do(Cancel(), held.id)
        store.bury(held, inserts=(child,))
        assert store.find(child.id) is None

    def test_success_after_the_request_inserts_its_children(self, store: Store) -> None:
        """A success that wins is a whole success."""
        held, child = store.running(), store.new()
        store.do(Cancel(), held.id)
        store.succeed(held, inserts=(child,))
        assert store.state(child.id) is State.READY

    def test_request_outlives_the_worker(self, store: Store) -> None:
        """A request is durable: the loss of the worker that should have heard it cancels the job."""
        held = store.running()
        store.do(Cancel(), held.id)
        store.let_expire()
        collected = store.collect_one()
        assert store.job(held.id).cancel_requested
        assert store.lose(collected).state is State.CANCELLED

    def test_job_whose_lease_expired_is_asked_as_a_running_one(self, store: Store) -> None:
        """An expired lease that is not collected makes a running job, so that cancelling it is a request."""
        held = store.running()
        store.let_expire()
        assert store.do(Cancel(), held.id) is OperationVerdict.REQUESTED
        assert store.lose(store.collect_one()).state is State.CANCELLED

    def test_collector_hears_the_request_too(self, store: Store) -> None:
        """A request that comes after the collection reaches the holder of the lease now."""
        held = store.running()
        store.let_expire()
        collected = store.collect_one("collector/1")
        store.do(Cancel(), held.id)
        assert store.extend("collector/1").cancel_requested == (held.id,)
        assert store.lose(collected).state is State.CANCELLED

    def test_request_ends_with_its_run(self, store: Store) -> None:
        """A new run that an operator begins was not asked to end."""
        held = store.running()
        store.do(Cancel(), held.id)
        store.hand_back(held)
        store.do(Requeue(), held.id)
        again = store.claim_one()
        assert not store.job(held.id).cancel_requested
        assert store.extend(again.token).cancel_requested == ()
        assert store.fail(again).state is State.READY

    def test_request_is_forgotten_after_a_repeated_settle(self, store: Store) -> None:
        """Repeating the settle that a request turned into a cancellation answers done, and changes nothing."""
        held = store.running()
        store.do(Cancel(), held.id)
        store.fail(held)
        before = store.everything()
        assert store.fail(held).answer is SettleAnswer.DONE
        assert store.everything() == before

    def test_refused_settle_does_not_cancel(self, store: Store) -> None:
        """A stale outcome ends nothing, asked or not."""
        held = store.running()
        store.do(Cancel(), held.id)
        forged = Held("stranger/1", held.job)
        assert store.fail(forged).answer is SettleAnswer.LEASE_MISMATCH
        assert store.state(held.id) is State.RUNNING
