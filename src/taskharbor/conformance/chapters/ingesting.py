"""Ingesting: each message of a log becomes one job, however often its batch comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskharbor.conformance.store import HOUR, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.drivers.contract.ingesting import AlikeMessages, Ingested, MessageBatch
from taskharbor.records import AttemptRecord, AttemptStatus, NewJob, Options, Reason, State

LOG = "cluster/tasks/id/group"


class Ingesting(Chapter):
    needs = capabilities.Ingest

    def batch(
        self,
        store: Store,
        expected: int | None,
        count: int = 3,
        *,
        log: str = LOG,
        partition: int = 0,
        dead: Sequence[HandedOver] = (),
        **fields: Any,
    ) -> MessageBatch:
        """Messages of one task, from the expected offset on."""
        first = expected or 0
        ids = [store.new_id() for _ in range(count)]
        payloads = [f'{{"n":{first + n}}}' for n in range(count)]
        metas = [None if n == 1 else f'{{"stream-offset":"{first + n}"}}' for n in range(count)]
        group = AlikeMessages(store.new(task="note", **fields), ids, payloads, metas)
        return MessageBatch(log, partition, expected, first + count, [group] if count else [], dead)

    def ingest(self, store: Store, *batches: MessageBatch) -> list[Ingested]:
        return store.run(capabilities.Ingest.of(store.driver).ingest(batches, now=store.now))

    def offsets(self, store: Store, *partitions: int, log: str = LOG) -> dict[int, int]:
        return store.run(capabilities.Ingest.of(store.driver).ingested(log, partitions))

    def test_messages_become_jobs_and_the_offset_moves(self, store: Store) -> None:
        """In the order of the ids that they were given, each with its own payload and meta."""
        batch = self.batch(store, None, queue="mail", priority=5, options=Options(max_attempts=4))
        assert self.ingest(store, batch) == [Ingested(True, 3, store.now)]
        assert self.offsets(store, 0, 1) == {0: 3}
        [group] = batch.groups
        assert list(store.claimed_ids(queues=("mail",))) == list(group.ids)
        jobs = [store.job(job_id) for job_id in group.ids]
        assert [job.payload for job in jobs] == list(group.payloads)
        assert [job.meta for job in jobs] == list(group.metas)
        first = jobs[0]
        assert (first.task, first.queue, first.priority, first.enqueued_at) == ("note", "mail", 5, store.now)
        assert (first.options.max_attempts, first.idempotency_key) == (4, None)

    def test_repeated_batch_is_refused_whole(self, store: Store) -> None:
        """Whatever became of its jobs: also when the store no longer keeps them."""
        batch = self.batch(store, None)
        self.ingest(store, batch)
        again = self.batch(store, None)
        assert self.ingest(store, again) == [Ingested(False, 3, store.now)]
        for held in store.claim():
            store.succeed(held)
        if isinstance(store.driver, capabilities.Upkeep):
            store.pass_time(HOUR)
            assert store.prune({State.SUCCEEDED: store.now}) == 3
        assert self.ingest(store, again) == [Ingested(False, 3, store.now)]
        assert all(store.find(job_id) is None for job_id in again.groups[0].ids)
        assert self.offsets(store, 0) == {0: 3}

    def test_late_and_early_batches_are_refused(self, store: Store) -> None:
        """Only the expected offset counts: a reader that was replaced, or that skipped something, stores nothing."""
        self.ingest(store, self.batch(store, None, 5))
        for expected in (0, 3, 4, 6, None):
            assert self.ingest(store, self.batch(store, expected)) == [Ingested(False, 5, store.now)]
        assert store.counts()[State.READY] == 5
        assert self.ingest(store, self.batch(store, 5)) == [Ingested(True, 8, store.now)]

    def test_batch_of_an_unknown_partition_expects_nothing(self, store: Store) -> None:
        """An expected offset that the store does not know of is refused."""
        assert self.ingest(store, self.batch(store, 7)) == [Ingested(False, None, store.now)]
        assert self.offsets(store, 0) == {}
        assert store.counts()[State.READY] == 0

    def test_partitions_and_logs_move_by_themselves(self, store: Store) -> None:
        """In one call, a batch that is refused takes no other along."""
        self.ingest(store, self.batch(store, None, partition=1))
        batches = [
            self.batch(store, None, 2, partition=2),
            self.batch(store, None, 2, partition=1),
            self.batch(store, None, 2, partition=0),
            self.batch(store, None, 2, partition=1, log="another"),
        ]
        assert [each.stored for each in self.ingest(store, *batches)] == [True, False, True, True]
        assert self.offsets(store, 0, 1, 2, 3) == {0: 2, 1: 3, 2: 2}
        assert self.offsets(store, 0, 1, log="another") == {1: 2}
        assert store.counts()[State.READY] == 3 + 2 + 2 + 2

    def test_offset_moves_over_gaps_and_without_jobs(self, store: Store) -> None:
        """A log leaves offsets out; and it may have been cut, so that an offset goes back."""
        self.ingest(store, self.batch(store, None))
        moves = [MessageBatch(LOG, 0, 3, 50), MessageBatch(LOG, 0, 50, 10), self.batch(store, 10, 1)]
        assert [self.ingest(store, each)[0].stored for each in moves] == [True, True, True]
        assert self.offsets(store, 0) == {0: 11}

    def test_dead_messages_come_with_their_batch(self, store: Store) -> None:
        """They are dead from the start, and a refused batch stores none of them."""
        job = NewJob(store.new_id(), "unreadable", "{}", "stream:tasks", idempotency_key="0:3")
        attempt = AttemptRecord(
            job.id, 1, AttemptStatus.RELEASED, 0, "stream", None, store.now, error="no JSON"
        )
        dead = [HandedOver(job, attempt, 0, State.DEAD, Reason.INVALID_PAYLOAD)]
        assert not self.ingest(store, self.batch(store, 9, dead=dead))[0].stored
        assert store.find(job.id) is None
        assert self.ingest(store, self.batch(store, None, dead=dead))[0].stored
        assert (store.job(job.id).state, store.job(job.id).error) == (State.DEAD, "no JSON")
        assert store.counts()[State.READY] == 3

    def test_options_of_the_task_hold_for_its_messages(self, store: Store) -> None:
        """Delay, expiry and tags; groups with tags are stored beside those without."""
        later = self.batch(
            store, None, 2, delay=10 * SECOND, expires_at=store.now + HOUR, options=Options(tags=("mail",))
        )
        plain = self.batch(store, None, 40, partition=1)
        assert [each.stored for each in self.ingest(store, later, plain)] == [True, True]
        job = store.job(later.groups[0].ids[0])
        assert (job.state, job.run_at, job.expires_at) == (
            State.SCHEDULED,
            store.now + 10 * SECOND,
            store.now + HOUR,
        )
        assert store.listed_ids(tag="mail") == sorted(later.groups[0].ids, reverse=True)
        assert store.counts()[State.READY] == 40
