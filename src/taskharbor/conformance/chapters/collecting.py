"""Collecting: what becomes of leases whose worker does not come back in time, or comes back after all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from taskharbor.clock import seconds_to_micros
from taskharbor.conformance.store import HOUR, LEASE, SECOND, Chapter, Held, Store, ids
from taskharbor.drivers.base import Driver, SettleAnswer, SettleResult, StepNote, Transition
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.rescue import COLLECT_SECONDS, COLLECTOR_LEASE, Collector


class _Vanished(BaseException):
    """As SIGKILL: nothing after it happens."""


class _Vanishing:
    """A driver whose process vanishes when it is about to settle."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def settle(self, transitions: Sequence[Transition]) -> list[SettleResult]:
        raise _Vanished


class Collecting(Chapter):
    def test_nothing_expired_is_nothing_to_collect(self, store: Store) -> None:
        """A lease is collected from its expiry on, and not a microsecond before."""
        assert store.take_expired() is None
        store.running()
        store.pass_time(LEASE - 1)
        assert store.take_expired() is None
        store.pass_time(1)
        assert store.take_expired() is not None

    def test_expired_lease_comes_with_all_the_policy_needs(self, store: Store) -> None:
        """The collector learns whose lease it was, what was open, what had begun and when it expired."""
        store.enqueue_all(*[store.new() for _ in range(3)])
        first, second, third = store.claim("worker-x/7", supervised=True)
        began_at, expired_at = store.now + 3, store.now + LEASE
        store.extend("worker-x/7", running=((third.id, began_at),))
        store.succeed(second)
        store.pass_time(HOUR)
        expired = store.collected("collector/1")
        assert (expired.token, expired.worker) == ("collector/1", "worker-x")
        assert (expired.now, expired.expires_at, expired.expired_at) == (
            store.now,
            store.now + LEASE,
            expired_at,
        )
        assert (expired.alone, expired.supervised, expired.worker_survived) == (False, True, False)
        assert expired.jobs == [first.job, third.job]
        assert expired.running == {third.id: began_at}

    def test_lease_of_a_suspect_is_marked_alone(self, store: Store) -> None:
        """Only a loss while alone counts against a job, so the collector learns of it."""
        store.lose(store.running(), suspect=True)
        store.claim_one(suspects=True)
        store.let_expire()
        assert store.collected().alone

    def test_losses_are_weighed_by_the_setting_of_the_worker_that_claimed(self, store: Store) -> None:
        """A lease claimed with `max_losses=2` keeps it: for any collector, and for a repeated claim."""
        job_id = store.enqueue()
        store.claim("worker/1", max_losses=2)
        assert store.ask("worker/1", limit=0).max_losses == 2
        store.let_expire()
        assert store.collected("collector/1").max_losses == 2
        store.let_expire()
        assert store.collected("collector/2").max_losses == 2
        [held] = store.collect("collector/2")
        store.lose(held, suspect=True)
        for expected in (State.READY, State.DEAD):
            assert store.claimed_ids(suspects=True, max_losses=2) == [job_id]
            store.let_expire()
            store.run(Collector(store.driver).collect())
            assert store.state(job_id) is expected
        assert store.job(job_id).reason is Reason.POISON

    def test_the_lease_that_expired_first_is_collected_first(self, store: Store) -> None:
        """Leases are collected in the order of their expiry, one by one."""
        for lease in (3, 1, 2):
            store.enqueue()
            store.claim_one(f"for-{lease}-seconds/1", lease=lease * SECOND)
        store.let_expire()
        assert [store.collected().worker for _ in range(3)] == [
            "for-1-seconds",
            "for-2-seconds",
            "for-3-seconds",
        ]
        assert store.take_expired() is None

    def test_two_collectors_never_get_the_same_lease(self, store: Store) -> None:
        """Taking a lease over is taking it: the next collector gets the next one, or none."""
        store.running()
        store.let_expire()
        assert store.take_expired() is not None
        assert store.take_expired() is None

    def test_collecting_repeated_with_its_token_gives_the_same_lease(self, store: Store) -> None:
        """A collection whose answer was lost is repeated, and takes nothing more."""
        store.running()
        store.running()
        store.let_expire()
        first = store.collected("collector/1")
        store.pass_time(SECOND)
        again = store.collected("collector/1")
        assert (again.jobs, again.expires_at, again.expired_at) == (
            first.jobs,
            first.expires_at,
            first.expired_at,
        )
        assert store.collected("collector/2").jobs != first.jobs

    def test_repeated_collection_leaves_out_what_was_settled(self, store: Store) -> None:
        """A collector that goes on after a break sees what is left to decide."""
        first, second = store.two_under_one_lease()
        store.let_expire()
        held, _ = store.collect("collector/1")
        store.lose(held)
        assert (first.id, ids(store.collect("collector/1"))) == (held.id, [second.id])

    def test_collector_settles_under_its_own_token(self, store: Store) -> None:
        """The new token proves the old numbers, and the attempt is recorded as its worker's."""
        old = store.running()
        store.let_expire()
        held = store.collect_one()
        assert (held.id, held.number) == (old.id, old.number)
        assert store.lose(held, worker="worker-x").answer is SettleAnswer.DONE
        attempt = store.last_attempt(held.id)
        assert (attempt.status, attempt.worker) == (AttemptStatus.LOST, "worker-x")
        assert store.state(held.id) is State.READY

    def test_collected_lease_is_no_longer_its_workers(self, store: Store) -> None:
        """From then on the worker that let it expire can neither settle, extend nor note."""
        old = store.running()
        store.let_expire()
        store.collect()
        before = store.everything()
        assert store.succeed(old).answer is SettleAnswer.LEASE_MISMATCH
        assert store.report(old, 0.5) is SettleAnswer.LEASE_MISMATCH
        assert store.extend(old.token).answer is SettleAnswer.NOT_RUNNING
        assert store.everything() == before

    def test_collected_job_is_still_running(self, store: Store) -> None:
        """A collection decides nothing: the job is running, under a lease that has not expired."""
        held = store.running()
        store.let_expire()
        store.collect()
        record = store.job(held.id)
        assert (record.state, record.lease_expired) == (State.RUNNING, False)
        assert record.lease_expires_at == store.now + LEASE
        assert store.claim() == []

    def test_collector_that_vanishes_is_collected_itself(self, store: Store) -> None:
        """A second collector finds all that the first one found, and when the lease expired in the beginning."""
        store.enqueue()
        first = store.claim_one("worker-x/7", supervised=True)
        store.extend("worker-x/7", running=((first.id, 5),))
        expired_at = store.now + LEASE
        store.let_expire()
        store.collect("collector/1")
        store.let_expire()
        again = store.collected("collector/2")
        assert (again.worker, again.supervised, again.running) == ("worker-x", True, {first.id: 5})
        assert (again.jobs, again.expired_at) == ([first.job], expired_at)
        assert store.lose(Held("collector/1", first.job)).answer is SettleAnswer.LEASE_MISMATCH
        assert store.lose(Held("collector/2", first.job)).answer is SettleAnswer.DONE

    def test_collector_can_extend_its_lease(self, store: Store) -> None:
        """A collected lease is a lease: a heartbeat keeps it alive."""
        store.running()
        store.let_expire()
        store.collect("collector/1")
        store.pass_time(LEASE - 1)
        assert store.extend("collector/1").answer is SettleAnswer.DONE
        store.pass_time(LEASE - 1)
        assert store.take_expired() is None

    def test_collector_that_extends_its_lease_keeps_what_the_next_one_needs(self, store: Store) -> None:
        """Should it vanish after all, when the lost attempts began is still known, and when the lease expired."""
        held = store.running()
        store.extend(held.token, running=((held.id, 5),))
        expired_at = store.now + LEASE
        store.let_expire()
        first = store.collected("collector/1")
        store.extend("collector/1", lease=SECOND, running=tuple(first.running.items()))
        store.pass_time(SECOND)
        again = store.collected("collector/2")
        assert (again.running, again.expired_at) == ({held.id: 5}, expired_at)

    def test_jobs_whose_collector_vanishes_are_collected_two_seconds_after_their_lease(
        self, store: Store
    ) -> None:
        """At the latest: the first collector came as late as one may, and so does the second."""
        held = store.two_under_one_lease()
        store.let_expire()
        expired_at = store.now
        store.pass_time(seconds_to_micros(COLLECT_SECONDS))
        with pytest.raises(_Vanished):
            store.run(Collector(cast(Driver, _Vanishing(store.driver))).collect())
        store.pass_time(COLLECTOR_LEASE - 1)
        assert store.run(Collector(store.driver).collect()) == []
        store.pass_time(seconds_to_micros(COLLECT_SECONDS))
        assert len(store.run(Collector(store.driver).collect())) == 2
        assert store.now - expired_at < 2 * SECOND
        for one in held:
            assert (store.state(one.id), store.last_attempt(one.id).status) == (
                State.READY,
                AttemptStatus.LOST,
            )

    def test_settled_jobs_are_not_collected(self, store: Store) -> None:
        """Only what was open when the lease expired is handed to the policy."""
        first, second = store.two_under_one_lease()
        store.succeed(first)
        store.let_expire()
        assert ids(store.collect()) == [second.id]
        assert store.state(first.id) is State.SUCCEEDED

    # -- workers that survive their leases --

    def test_worker_that_survives_its_lease_is_known_to_the_collector(self, store: Store) -> None:
        """An outage counts for no job: the refusal of whatever the worker asks for marks the lease."""
        for ask in WAYS_TO_ASK:
            held = store.running()
            store.let_expire()
            ask(store, held)
            expired = store.collected()
            assert (expired.worker_survived, ids(expired.jobs)) == (True, [held.id])
            store.succeed(Held(expired.token, expired.jobs[0]))

    def test_survival_is_remembered_through_collections(self, store: Store) -> None:
        """The worker asks with the token it claimed with, also after a collector took the lease over."""
        for ask in WAYS_TO_ASK:
            held = store.running()
            store.let_expire()
            expired = store.collected()
            assert not expired.worker_survived
            ask(store, held)
            assert store.collected(expired.token).worker_survived
            store.let_expire()
            expired = store.collected()
            assert expired.worker_survived
            store.succeed(Held(expired.token, expired.jobs[0]))

    def test_recorded_losses_of_a_worker_that_survived_are_marked(self, store: Store) -> None:
        """When the losses are recorded already, the rows of every job of the lease are marked."""
        for ask in WAYS_TO_ASK:
            store.enqueue_all(store.new(), store.new())
            held = store.claim()
            store.let_expire()
            for lost in store.collect():
                store.lose(lost)
            assert not any(store.last_attempt(one.id).worker_survived for one in held)
            ask(store, held[0])
            assert all(store.last_attempt(one.id).worker_survived for one in held)
            for again in store.claim():
                store.succeed(again)

    def test_survival_while_the_lease_is_collected_is_not_forgotten(self, store: Store) -> None:
        """The worker asks after a collector has taken the lease, and before that one settles the loss."""
        for ask in WAYS_TO_ASK:
            held = store.running()
            store.let_expire()
            collected = store.collect_one()
            ask(store, held)
            store.lose(collected)
            assert store.last_attempt(held.id).worker_survived
            store.succeed(store.claim_one())

    def test_live_lease_is_not_marked_by_a_refusal(self, store: Store) -> None:
        """A worker that is refused about one job may still die with the others."""
        first, second = store.two_under_one_lease()
        store.fail(first)
        assert store.succeed(first).answer is SettleAnswer.NOT_RUNNING
        store.let_expire()
        expired = store.collected()
        assert (expired.worker_survived, ids(expired.jobs)) == (False, [second.id])

    def test_settle_for_a_dead_worker_proves_nothing(self, store: Store) -> None:
        """A supervisor settles under the token of its dead child, and names it."""
        held = store.running()
        store.let_expire()
        assert store.lose(held, worker="child").answer is SettleAnswer.LEASE_EXPIRED
        assert not store.collected().worker_survived

    def test_collector_that_is_refused_proves_nothing(self, store: Store) -> None:
        """A collector that was too slow is alive; that says nothing about the worker."""
        store.running()
        store.let_expire()
        slow = store.collect_one()
        store.let_expire()
        collected = store.collect_one()
        for ask in WAYS_TO_ASK:
            ask(store, slow)
        assert not store.collected(collected.token).worker_survived
        store.lose(collected)
        assert not store.last_attempt(collected.id).worker_survived

    def test_only_losses_that_a_collector_settled_are_marked(self, store: Store) -> None:
        """What the worker settled under its own lease stays as it is, a loss of its own child process included."""
        first, second = store.two_under_one_lease()
        store.lose(first)
        store.let_expire()
        before = store.history(first.id)
        for ask in WAYS_TO_ASK:
            ask(store, second)
        assert store.history(first.id) == before

    def test_token_that_the_store_does_not_know_marks_nothing(self, store: Store) -> None:
        """No claim was made under it, so there is no lease that could have been survived."""
        held = store.running()
        store.let_expire()
        before = store.everything()
        for ask in WAYS_TO_ASK:
            ask(store, Held("stranger/1", held.job))
        assert store.everything() == before


def _beat(store: Store, held: Held) -> None:
    assert store.extend(held.token).answer is not SettleAnswer.DONE


def _settle(store: Store, held: Held) -> None:
    assert store.succeed(held).answer is not SettleAnswer.DONE


def _note(store: Store, held: Held) -> None:
    note = StepNote(held.token, held.id, held.number, "step", "1")
    assert store.run(store.stepping.note([note], now=store.now)) != [SettleAnswer.DONE]


WAYS_TO_ASK = (_beat, _settle, _note)
