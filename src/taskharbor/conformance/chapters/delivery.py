"""Delivery: nothing accepted is lost, nothing is committed twice, and at_most_once is never forgotten."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import SECOND, Chapter, Store, ids
from taskharbor.drivers.base import Requeue, SettleAnswer
from taskharbor.records import AttemptStatus, Delivery, Reason, State

ONCE = Delivery.AT_MOST_ONCE


class Delivering(Chapter):
    def test_accepted_job_is_handed_out_until_it_succeeds(self, store: Store) -> None:
        """Whatever an attempt comes to, the job is there to be claimed again until one succeeds."""
        job_id = store.enqueue()
        store.fail(store.claim_one())
        store.hand_back(store.claim_one())
        store.claim_one()
        store.let_expire()
        store.lose(store.collect_one())
        held = store.claim_one()
        assert held.id == job_id
        store.succeed(held)
        assert store.claim() == []

    def test_one_attempt_commits_one_outcome(self, store: Store) -> None:
        """Of two outcomes of the same attempt the first stands, and the second changes nothing."""
        held = store.running()
        store.succeed(held, result="1")
        before = store.everything()
        refused = store.bury(held)
        assert (refused.answer, refused.recorded) == (SettleAnswer.NOT_RUNNING, AttemptStatus.SUCCEEDED)
        assert store.everything() == before

    def test_one_run_commits_one_outcome(self, store: Store) -> None:
        """A worker that lost its job commits nothing once another worker has finished it."""
        late = store.running()
        store.let_expire()
        store.lose(store.collect_one())
        store.succeed(store.claim_one(), result="1")
        store.succeed(late, result="2")  # refused: all it leaves is that its worker is alive
        before = store.everything()
        assert store.succeed(late, result="2").answer is SettleAnswer.NOT_RUNNING
        assert store.everything() == before
        assert (store.state(late.id), store.job(late.id).result) == (State.SUCCEEDED, "1")

    @pytest.mark.parametrize("delivery", [None, *Delivery])
    def test_delivery_is_kept_as_it_was_said(self, store: Store, delivery: Delivery | None) -> None:
        """What the producer said about delivery, or that it said nothing, reaches the worker and the reader."""
        held = store.running(delivery=delivery)
        assert held.job.delivery is delivery
        assert store.job(held.id).delivery is delivery

    def test_claim_takes_no_more_at_most_once_jobs_than_allowed(self, store: Store) -> None:
        """A claim ends before the first at_most_once job too many, and skips nothing to go on."""
        plain = store.enqueue(priority=9)
        once = [store.enqueue(priority=8, delivery=ONCE) for _ in range(3)]
        store.enqueue(priority=7)
        assert store.claimed_ids(once_limit=2) == [plain, *once[:2]]

    def test_claim_without_free_slots_stops_at_the_first_at_most_once_job(self, store: Store) -> None:
        """With no slot for at_most_once jobs, the one at the head holds back what is behind it."""
        store.enqueue(priority=1, delivery=ONCE)
        store.enqueue()
        assert store.claim(once_limit=0) == []
        assert len(store.claim(once_limit=1)) == 2

    def test_at_least_once_jobs_need_no_slot(self, store: Store) -> None:
        """The limit is for at_most_once jobs alone: said or unsaid, the others are not counted."""
        wanted = [store.enqueue(), store.enqueue(delivery=Delivery.AT_LEAST_ONCE)]
        assert store.claimed_ids(once_limit=0) == wanted

    def test_at_most_once_mark_is_written_into_the_lease(self, store: Store) -> None:
        """A job that only its worker knows to be at_most_once is shown as such once the heartbeat said so."""
        held, neighbour = store.running(), store.running()
        store.extend(held.token, at_most_once=(held.id,))
        assert store.job(held.id).delivery is ONCE
        assert store.job(neighbour.id).delivery is None
        store.let_expire()
        assert store.collect_one().job.delivery is ONCE

    def test_at_most_once_mark_stays_with_a_job_that_is_runnable_again(self, store: Store) -> None:
        """Handed back, a marked job is still at_most_once, and the next claim counts it as one."""
        held = store.running()
        store.extend(held.token, at_most_once=(held.id,))
        store.hand_back(held)
        assert store.job(held.id).delivery is ONCE
        assert store.claim(once_limit=0) == []
        assert store.claim_one(once_limit=1).job.delivery is ONCE

    def test_at_most_once_mark_survives_death_and_requeue(self, store: Store) -> None:
        """A marked job is at_most_once in the dead-letter queue, and in the run that an operator begins."""
        held = store.running()
        store.extend(held.token, at_most_once=(held.id,))
        store.bury(held, reason=Reason.LOST)
        assert store.job(held.id).delivery is ONCE
        store.do(Requeue(), held.id)
        assert store.claim_one(once_limit=1).job.delivery is ONCE

    @pytest.mark.parametrize("said", [None, Delivery.AT_LEAST_ONCE])
    def test_at_most_once_mark_is_shown_after_the_success(self, store: Store, said: Delivery | None) -> None:
        """What a job was executed as stays to be seen when it has succeeded, alone or in a batch."""
        jobs = store.enqueue_all(*[store.new(delivery=said) for _ in range(3)])
        first, second, third = store.claim()
        store.extend(first.token, at_most_once=(first.id, second.id))
        store.succeed(first)
        store.settle_all(
            *(store.transition(h, AttemptStatus.SUCCEEDED, State.SUCCEEDED) for h in (second, third))
        )
        assert [store.job(job.id).delivery for job in jobs] == [ONCE, ONCE, said]

    def test_settled_job_takes_no_mark(self, store: Store) -> None:
        """A mark is for what is to begin: it changes nothing of a job of the lease that is over."""
        store.enqueue_all(store.new(), store.new())
        over, _ = store.claim()
        store.succeed(over)
        store.extend(over.token, at_most_once=(over.id,))
        assert store.job(over.id).delivery is None

    def test_at_most_once_mark_is_for_the_named_jobs_of_the_lease(self, store: Store) -> None:
        """Of a batch under one lease only the named jobs are marked."""
        store.enqueue_all(*[store.new() for _ in range(3)])
        first, second, third = store.claim()
        store.extend(first.token, at_most_once=(first.id, third.id))
        marked = [store.job(held.id).delivery for held in (first, second, third)]
        assert marked == [ONCE, None, ONCE]

    def test_mark_stays_when_later_heartbeats_do_not_repeat_it(self, store: Store) -> None:
        """Marks are written once; a heartbeat that says nothing of them takes nothing back."""
        held = store.running()
        store.extend(held.token, at_most_once=(held.id,))
        store.extend(held.token)
        assert store.job(held.id).delivery is ONCE

    def test_expired_lease_takes_no_mark(self, store: Store) -> None:
        """A worker whose lease is over cannot mark a job, so it may not begin it."""
        held = store.running()
        store.let_expire()
        assert store.extend(held.token, at_most_once=(held.id,)).answer is SettleAnswer.LEASE_EXPIRED
        assert store.job(held.id).delivery is None

    def test_lost_job_keeps_its_place_in_the_line(self, store: Store) -> None:
        """A reclaimed job is runnable at once, before those that came after it."""
        first = store.enqueue()
        store.claim_one()
        store.pass_time(SECOND)
        store.enqueue()
        store.let_expire()
        store.lose(store.collect_one())
        assert ids(store.claim(limit=1)) == [first]
        assert store.job(first).state is State.RUNNING
