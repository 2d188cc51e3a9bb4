"""Aside: jobs that only some workers take, and holds, which keep the jobs of a task or a tag back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskharbor.conformance.store import HOUR, MINUTE, SECOND, Chapter, Held, Store, ids
from taskharbor.drivers.base import Cancel, Delete, OperationVerdict, Requeue, RunNow, Update
from taskharbor.drivers.capabilities import Holds
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.records import AttemptStatus, Delivery, Options, QueueRecord, Reason, State
from taskharbor.rules.aside import hold_label, task_label
from taskharbor.rules.outcome import Unrunnable
from taskharbor.rules.policy import settle_known_elsewhere, settle_unrunnable, unrunnable_until

KNOWN = task_label("shop:pay")
OTHER = task_label("blog:render")
HELD = hold_label(HoldKind.TASK, "mail:send")


class Aside(Chapter):
    needs = Holds

    # -- the place --

    def test_job_that_stands_aside_is_claimed_only_by_its_label(self, store: Store) -> None:
        """A claim looks into the places aside that it names, and into no other."""
        held = store.running()
        store.put_aside(held, KNOWN)
        assert store.claim() == []
        assert store.claim(aside=(OTHER,)) == []
        [again] = store.claim(aside=(OTHER, KNOWN))
        assert (again.id, again.number, again.job.queue) == (held.id, held.number + 1, "default")

    def test_put_aside_counts_nothing_and_leaves_a_row(self, store: Store) -> None:
        """It is handed back like any job that has not begun, and the record says where it stands."""
        held = store.running()
        store.put_aside(held, KNOWN)
        job = store.job(held.id)
        assert (job.state, job.attempts, job.aside) == (State.READY, 0, KNOWN)
        assert store.last_attempt(held.id).status is AttemptStatus.RELEASED
        assert store.claim_one(aside=(KNOWN,)).job.run_at == held.job.run_at
        assert store.job(held.id).aside is None

    def test_jobs_aside_and_ordinary_ones_are_claimed_in_one_order(self, store: Store) -> None:
        """Priority, then due time, then id: over all the queues and all the places that a claim looks into."""
        wanted: list[str] = []
        for priority in (3, 2, 1):
            for index in range(6):
                job_id = store.enqueue(queue="ab"[index % 2], priority=priority)
                wanted.append(job_id)
                store.pass_time(1)
        for held in store.claim(limit=100)[::3]:
            store.put_aside(held, KNOWN)
        store.let_expire()
        store.hand_back_all(store.collect())
        assert store.claimed_ids(aside=(KNOWN,), limit=7) == wanted[:7]
        assert store.claimed_ids(aside=(KNOWN,), queues=("b", "a"), limit=100) == wanted[7:]

    def test_claim_ends_at_its_limits_whatever_the_place(self, store: Store) -> None:
        """Number, bytes and at_most_once are counted over ordinary jobs and those aside together."""
        first = store.running(delivery=Delivery.AT_MOST_ONCE)
        store.put_aside(first, KNOWN)
        store.pass_time(1)
        second = store.enqueue(priority=100, delivery=Delivery.AT_MOST_ONCE)
        third = store.enqueue()
        assert store.claimed_ids(aside=(KNOWN,), once_limit=0) == []
        assert store.claimed_ids(aside=(KNOWN,), once_limit=1) == [first.id]
        assert store.claimed_ids(aside=(KNOWN,), limit=1, once_limit=5) == [second]
        assert store.claimed_ids(aside=(KNOWN,)) == [third]

    def test_only_the_queues_asked_for_are_looked_into(self, store: Store) -> None:
        """A label stands for one place in each queue; a worker of another queue is given nothing of it."""
        held = store.running(queue="a")
        store.put_aside(held, KNOWN)
        assert store.claim(aside=(KNOWN,), queues=("b",)) == []
        assert store.claimed_ids(aside=(KNOWN,), queues=("b", "a")) == [held.id]

    def test_claim_names_the_labels_of_its_queues(self, store: Store) -> None:
        """So that a worker looks aside only while there is something, and only for what concerns it."""
        assert store.ask().aside == ()
        store.put_aside(store.running(queue="a"), KNOWN)
        store.put_aside(store.running(queue="b"), OTHER)
        store.put_aside(store.running(queue="b"), KNOWN)
        assert store.ask().aside == (OTHER, KNOWN)
        assert store.ask(queues=("a",)).aside == (KNOWN,)
        assert store.ask(queues=("c",)).aside == ()
        store.pause("b")
        assert store.ask().aside == (KNOWN,)
        store.claim_one(queues=("a",), aside=(KNOWN,))
        assert store.ask().aside == ()

    def test_paused_queue_gives_nothing_from_aside(self, store: Store) -> None:
        """A pause holds for every place of the queue."""
        held = store.running(queue="a")
        store.put_aside(held, KNOWN)
        store.pause("a")
        assert store.claim(aside=(KNOWN,)) == []
        assert [store.ask(queues=queues).aside for queues in (None, ("a",), ("a", "b"))] == [(), (), ()]
        store.resume("a")
        assert store.claimed_ids(aside=(KNOWN,)) == [held.id]

    def test_job_aside_counts_in_its_queue(self, store: Store) -> None:
        """It keeps its state and its queue for every reader: counts, lists and queues."""
        oldest = store.now
        ready, scheduled = store.running(queue="a"), store.running(queue="a")
        store.put_aside(ready, KNOWN)
        store.put_aside(scheduled, KNOWN, delay=HOUR)
        assert (store.counts("a")[State.READY], store.counts("a")[State.SCHEDULED]) == (1, 1)
        assert store.listed_ids(state=State.READY, queue="a") == [ready.id]
        assert store.listed_ids(state=State.SCHEDULED, queue="a") == [scheduled.id]
        assert store.listed_ids(queue="b") == []
        assert store.run(store.driver.queues(now=store.now)) == [
            QueueRecord("a", paused=False, ready=1, scheduled=1, running=0, oldest_ready_at=oldest)
        ]

    def test_suspect_that_stands_aside_is_one_still(self, store: Store) -> None:
        """It is handed out only to a claim that asks for suspects and names its label."""
        held = store.running()
        store.put_aside(held, KNOWN, suspect=True)
        assert store.job(held.id).suspect
        claim = store.ask(aside=(KNOWN,))
        assert (claim.jobs, claim.suspects_waiting, claim.aside) == ([], True, (KNOWN,))
        claim = store.ask()
        assert (claim.jobs, claim.suspects_waiting, claim.aside) == ([], False, (KNOWN,))
        assert store.ask(queues=("default",)).aside == (KNOWN,)
        assert store.claim(suspects=True) == []
        assert store.claimed_ids(suspects=True, aside=(KNOWN,)) == [held.id]

    # -- delays --

    def test_delay_of_a_place_aside_counts_for_those_that_do_not_know_it(self, store: Store) -> None:
        """A worker that only looks waits for the time; one that knows the job gets it at once."""
        held = store.running()
        store.put_aside(held, KNOWN, delay=MINUTE)
        claim = store.ask(aside=(KNOWN,))
        assert (claim.jobs, claim.next_due, claim.aside) == ([], store.now + MINUTE, (KNOWN,))
        assert store.ask().next_due is None
        assert store.claimed_ids(aside=(KNOWN,), recall=(KNOWN,)) == [held.id]

    def test_recall_is_bounded_by_the_claim_and_changes_nothing_else(self, store: Store) -> None:
        """Of what waits there, as many become due as the claim may take; other places keep their times."""
        jobs = [store.running() for _ in range(3)]
        other = store.running()
        for index, held in enumerate(jobs):
            store.put_aside(held, KNOWN, delay=MINUTE + index)
        store.put_aside(other, OTHER, delay=SECOND)
        labels = (KNOWN, OTHER)
        assert store.claimed_ids(aside=labels, recall=(KNOWN,), limit=2) == ids(jobs[:2])
        assert store.job(jobs[2].id).run_at == store.now + MINUTE + 2
        assert store.claimed_ids(aside=labels, recall=(KNOWN,)) == [jobs[2].id]
        store.pass_time(SECOND)
        assert store.claimed_ids(aside=labels) == [other.id]

    def test_recalled_job_stands_where_readers_say(self, store: Store) -> None:
        """What a recall makes due and the claim has no room for is found by every verb."""
        held = store.running(delivery=Delivery.AT_MOST_ONCE)
        store.put_aside(held, KNOWN, delay=MINUTE)
        assert store.claim(aside=(KNOWN,), recall=(KNOWN,), once_limit=0) == []
        job = store.job(held.id)
        assert (job.state, job.run_at, job.aside) == (State.READY, store.now, KNOWN)
        assert store.do(Cancel(), held.id) is OperationVerdict.DONE

    def test_time_without_a_worker_that_knows_the_task_adds_up_over_claims(self, store: Store) -> None:
        """The rows of a job's claims tell it. A worker that came and went stops the clock, and restarts nothing."""
        job_id = store.enqueue(task="blog:render")
        outcome = Unrunnable(Reason.UNKNOWN_TASK, "no task is called so here")

        def look() -> State:
            held = store.claim_one(aside=(OTHER,), recall=(OTHER,))
            history = store.history(job_id)
            store.settle_all(
                settle_unrunnable(held.token, held.job, outcome, history, now=store.now, aside=OTHER)
            )
            return store.state(job_id)

        def pass_by(claim: Callable[[Held], object]) -> None:
            claim(store.claim_one(aside=(OTHER,), recall=(OTHER,)))

        look()
        store.pass_time(200 * SECOND)
        look()
        pass_by(lambda held: store.settle_all(settle_known_elsewhere(held.token, held.job)))
        store.pass_time(HOUR)
        assert look() is State.SCHEDULED
        store.pass_time(50 * SECOND)
        pass_by(store.lose)
        store.pass_time(50 * SECOND - 1)
        assert look() is State.SCHEDULED
        assert unrunnable_until(store.history(job_id)) == store.now + 1
        store.pass_time(1)
        assert look() is State.DEAD
        assert store.job(job_id).reason is Reason.UNKNOWN_TASK

    # -- holds --

    def test_hold_is_known_to_claims_and_heartbeats(self, store: Store) -> None:
        """Workers learn of a hold with their next claim or heartbeat, and of its end as well."""
        assert store.hold(HoldKind.TASK, "mail:send", by="ann")
        assert (store.ask().holds, store.beat().holds) == (frozenset({HELD}), frozenset({HELD}))
        assert store.release(HoldKind.TASK, "mail:send")
        assert (store.ask().holds, store.beat().holds) == (frozenset(), frozenset())

    def test_hold_is_kept_with_who_and_since_when(self, store: Store) -> None:
        """By kind and name; the first of two counts, and the end of one that is over is no error."""
        since = store.now
        assert store.hold(HoldKind.TASK, "mail:send", by="ann")
        store.pass_time(SECOND)
        assert not store.hold(HoldKind.TASK, "mail:send", by="bob")
        assert store.hold(HoldKind.TAG, "mail:send")
        assert store.holds() == [
            HoldRecord(HoldKind.TAG, "mail:send", since + SECOND),
            HoldRecord(HoldKind.TASK, "mail:send", since, "ann"),
        ]
        assert store.release(HoldKind.TASK, "mail:send")
        assert not store.release(HoldKind.TASK, "mail:send")
        assert [hold.kind for hold in store.holds()] == [HoldKind.TAG]

    def test_held_jobs_are_handed_out_to_no_claim(self, store: Store) -> None:
        """The place of a hold is neither named nor looked into while the hold is in force."""
        held = store.running()
        store.hold(HoldKind.TASK, "mail:send")
        store.put_aside(held, HELD)
        claim = store.ask(aside=(HELD,), recall=(HELD,))
        assert (claim.jobs, claim.aside, claim.next_due) == ([], (), None)
        store.release(HoldKind.TASK, "mail:send")
        assert store.ask().aside == (HELD,)
        assert store.claimed_ids(aside=(HELD,)) == [held.id]

    def test_released_jobs_keep_their_place_in_the_order(self, store: Store) -> None:
        """However long they were held, they stand where they stood among all others."""
        early, first, late = store.enqueue(priority=1), store.enqueue(), store.enqueue()
        store.hold(HoldKind.TASK, "mail:send")
        for held in store.claim():
            store.put_aside(held, HELD)
        store.pass_time(HOUR)
        between = store.enqueue(priority=0, run_at=store.job(first).run_at)
        after = store.enqueue()
        store.release(HoldKind.TASK, "mail:send")
        assert store.claimed_ids(aside=(HELD,)) == [early, first, late, between, after]

    def test_job_put_aside_when_the_hold_is_over_is_not_forgotten(self, store: Store) -> None:
        """A worker may learn late of a release: what it puts aside then is named and handed out."""
        store.hold(HoldKind.TASK, "mail:send")
        held = store.running()
        store.release(HoldKind.TASK, "mail:send")
        store.put_aside(held, HELD)
        assert store.ask().aside == (HELD,)
        assert store.claimed_ids(aside=(HELD,)) == [held.id]

    # -- every other verb --

    def test_job_aside_is_cancelled_requeued_and_deleted(self, store: Store) -> None:
        """A place aside is no hiding place; a new run begins in the ordinary place."""
        held = store.running()
        store.put_aside(held, KNOWN)
        assert store.do(Cancel(), held.id) is OperationVerdict.DONE
        assert (store.state(held.id), store.job(held.id).aside) == (State.CANCELLED, None)
        assert store.ask(aside=(KNOWN,)).jobs == []
        store.do(Requeue(), held.id)
        [again] = store.claim()
        store.put_aside(again, KNOWN)
        assert store.do(Delete(), held.id) is OperationVerdict.DONE
        assert (store.find(held.id), store.ask().aside) == (None, ())

    @pytest.mark.parametrize(
        "change",
        [
            Update(task="blog:render"),
            Update(tags=("x",)),
            Update(queue="b"),
            Update(priority=7),
            Update(payload='{"x":1}'),
            RunNow(),
        ],
    )
    def test_changed_job_is_back_in_its_ordinary_place(self, store: Store, change: Update | RunNow) -> None:
        """What it was put aside for may hold no longer: the next worker that meets it looks again."""
        held = store.running(options=Options(tags=("y",)))
        store.put_aside(held, KNOWN, delay=SECOND if isinstance(change, RunNow) else None)
        assert store.do(change, held.id) is OperationVerdict.DONE
        assert (store.job(held.id).aside, store.ask(limit=0).aside) == (None, ())
        assert store.claimed_ids() == [held.id]

    def test_job_aside_expires_and_is_pruned(self, store: Store) -> None:
        """No worker begins it in time, so it ends like any other, and goes like any other."""
        held = store.running(expires_at=store.now + MINUTE)
        store.put_aside(held, HELD)
        store.pass_time(MINUTE)
        assert store.expire() == [held.id]
        job = store.job(held.id)
        assert (job.state, job.reason) == (State.CANCELLED, Reason.EXPIRED)
        assert store.claim(aside=(HELD,)) == []
        store.pass_time(1)
        assert store.prune({State.CANCELLED: store.now}) == 1
        assert store.find(held.id) is None

    def test_lost_job_is_back_in_its_ordinary_place(self, store: Store) -> None:
        """A job that was claimed from aside, and whose worker vanished, is met anew."""
        store.put_aside(store.running(), KNOWN)
        held = store.claim_one(aside=(KNOWN,))
        store.let_expire()
        store.lose(store.collect_one())
        assert store.job(held.id).aside is None
        assert store.claimed_ids() == [held.id]

    def test_cancelled_request_wins_over_a_put_aside(self, store: Store) -> None:
        """A job that was asked to end while a worker held it is cancelled, not put aside."""
        held = store.running()
        store.do(Cancel(), held.id)
        store.put_aside(held, KNOWN)
        assert (store.state(held.id), store.ask().aside) == (State.CANCELLED, ())
