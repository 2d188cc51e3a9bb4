"""Handing over: jobs that come from a log of messages, in the middle of their first run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from taskharbor.conformance.store import HOUR, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.contract.handing_over import HandedOver, HandOverAnswer, Owner
from taskharbor.records import AttemptRecord, AttemptStatus, Options, Reason, State
from taskharbor.rules.aside import task_label

QUEUE = "stream:tasks"


class HandingOver(Chapter):
    needs = capabilities.HandOver

    def handed(self, store: Store, key: str = "log:1", **fields: Any) -> HandedOver:
        """A message whose first attempt has failed and is to be retried in ten seconds."""
        job = store.new(queue=QUEUE, idempotency_key=key, delay=fields.pop("delay", 10 * SECOND))
        attempt = AttemptRecord(
            job.id,
            1,
            AttemptStatus.FAILED,
            0,
            "worker-1",
            store.now - SECOND,
            store.now,
            error="timeout",
            traceback="Traceback …",
            retry_delay=10 * SECOND,
            fingerprint="0123456789abcdef",
            code_version="1.2",
        )
        return HandedOver(job, **{"attempt": attempt, "attempts": 1, **fields})

    def hand_over(
        self, store: Store, *jobs: HandedOver, owners: Sequence[Owner] = ()
    ) -> list[HandOverAnswer]:
        return store.run(capabilities.HandOver.of(store.driver).hand_over(jobs, owners=owners, now=store.now))

    def keys(self, store: Store, first: str, last: str, limit: int = 100, queue: str = QUEUE) -> list[str]:
        return store.run(capabilities.HandOver.of(store.driver).handed_over(queue, first, last, limit))

    def test_handed_over_job_goes_on_after_its_first_attempt(self, store: Store) -> None:
        """The failure counts, its row is history, and the next claim is attempt 2 of the same run."""
        handed = self.handed(store)
        assert self.hand_over(store, handed) == [HandOverAnswer.STORED]
        job = store.job(handed.job.id)
        assert (job.state, job.attempts, job.number) == (State.SCHEDULED, 1, 1)
        assert (job.run_at, job.error) == (store.now + 10 * SECOND, "timeout")
        assert store.history(job.id) == [handed.attempt]
        store.pass_time(10 * SECOND)
        held = store.claim_one()
        assert (held.id, held.number, held.job.attempts, held.job.first_number) == (job.id, 2, 1, 1)
        store.succeed(held)
        assert store.state(job.id) is State.SUCCEEDED

    def test_handed_over_job_may_stand_aside(self, store: Store) -> None:
        """Only a claim that looks into its place gets it; readers see where it stands."""
        handed = self.handed(store, delay=0, aside=task_label("test:task"))
        assert self.hand_over(store, handed) == [HandOverAnswer.STORED]
        assert store.job(handed.job.id).aside == handed.aside
        assert store.claim() == []
        assert [held.id for held in store.claim(aside=(handed.aside,))] == [handed.job.id]

    def test_dead_message_is_dead_from_the_start(self, store: Store) -> None:
        """It is a dead letter like any other: with its reason and history, and it can be requeued."""
        handed = self.handed(store, to=State.DEAD, reason=Reason.EXHAUSTED)
        self.hand_over(store, handed)
        job = store.job(handed.job.id)
        assert (job.state, job.reason, job.attempts) == (State.DEAD, Reason.EXHAUSTED, 1)
        assert (job.finished_at, job.fingerprint) == (store.now, "0123456789abcdef")
        assert store.history(job.id) == [handed.attempt]
        assert store.counts(QUEUE)[State.DEAD] == 1
        assert store.claim() == []

    def test_message_that_was_not_attempted_is_a_new_job(self, store: Store) -> None:
        """Nothing counts against it."""
        handed = self.handed(store, attempt=None, attempts=0, delay=0)
        self.hand_over(store, handed)
        held = store.claim_one()
        assert (held.id, held.number, held.job.attempts) == (handed.job.id, 1, 0)

    def test_message_that_is_handed_over_twice_is_one_job(self, store: Store) -> None:
        """By its key, in whatever state its job is by then; what goes with it is not stored twice either."""
        child = store.new(task="copy")
        first = self.handed(store, delay=0, inserts=(child,))
        assert self.hand_over(store, first) == [HandOverAnswer.STORED]
        store.succeed(next(held for held in store.claim() if held.id == first.job.id))
        again = self.handed(store, inserts=(store.new(task="copy"),))
        assert self.hand_over(store, again, self.handed(store, "log:2")) == [
            HandOverAnswer.KNOWN,
            HandOverAnswer.STORED,
        ]
        assert store.find(again.job.id) is None
        assert store.state(first.job.id) is State.SUCCEEDED
        assert len(store.listed(task="copy")) == 1

    def test_what_goes_with_a_message_is_stored_with_it(self, store: Store) -> None:
        """In the same transaction."""
        child = store.new(task="copy", options=Options(tags=("dead",)))
        self.hand_over(store, self.handed(store, to=State.DEAD, reason=Reason.EXHAUSTED, inserts=(child,)))
        assert store.claim_one().id == child.id

    def test_keys_of_handed_over_messages_come_in_order(self, store: Store) -> None:
        """From one key to another, of one queue, whatever has become of the jobs."""
        self.hand_over(store, *[self.handed(store, f"log:{n:03}") for n in (5, 1, 9, 3)])
        store.enqueue(queue="other", idempotency_key="log:004")
        assert self.keys(store, "log:002", "log:009") == ["log:003", "log:005", "log:009"]
        assert self.keys(store, "log:000", "log:999", limit=2) == ["log:001", "log:003"]
        assert self.keys(store, "log:000", "log:999", queue="other") == ["log:004"]

    def test_handed_over_job_that_has_begun_does_not_expire(self, store: Store) -> None:
        """An expiry concerns only the first begin of a run."""
        begun = self.handed(store)
        begun = replace(begun, job=replace(begun.job, expires_at=store.now + SECOND))
        self.hand_over(store, begun)
        store.pass_time(HOUR)
        if isinstance(store.driver, capabilities.Upkeep):
            assert store.expire() == []
        assert store.claim_one().id == begun.job.id
