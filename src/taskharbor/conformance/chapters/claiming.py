"""Claim: who gets which job, in which order, and what a claim tells."""

from __future__ import annotations

import random

import msgspec
import pytest

from taskharbor.conformance.store import DAY, HOUR, LEASE, MINUTE, SECOND, Chapter, Store, ids
from taskharbor.drivers.base import CLAIM_BYTES, Requeue, claimed_size
from taskharbor.records import Delivery, Options, State


def payload_of(size: int) -> str:
    """Make a payload of this size in bytes."""
    return '{"x":"' + "y" * (size - 8) + '"}'


class Claiming(Chapter):
    # -- what is claimed --

    def test_job_is_never_claimed_before_its_time(self, store: Store) -> None:
        """A job whose run_at is ahead by the store's clock is not handed out, not a microsecond early."""
        job_id = store.enqueue(run_at=store.now + HOUR)
        store.pass_time(HOUR - 1)
        assert store.claim() == []
        store.pass_time(1)
        assert store.claimed_ids() == [job_id]

    @pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
    def test_only_ready_jobs_are_claimed(self, store: Store, state: State) -> None:
        """Of the seven states only `ready` is handed out."""
        store.job_in(state)
        assert store.claim() == []

    def test_claim_takes_no_more_than_its_limit(self, store: Store) -> None:
        """A claim is bounded; the rest stays ready."""
        wanted = [store.enqueue() for _ in range(5)]
        assert store.claimed_ids(limit=3) == wanted[:3]
        assert store.claimed_ids(limit=3) == wanted[3:]

    def test_claim_takes_no_more_bytes_than_its_limit(self, store: Store) -> None:
        """A claim is bounded in bytes as well, of payloads, options and meta; what does not fit stays ready."""
        wanted = [store.enqueue(payload=payload_of(1000)) for _ in range(5)]
        claim = store.ask(bytes_limit=3000)
        assert (ids(claim.jobs), claim.more, claim.next_due) == (wanted[:3], True, None)
        assert store.counts()[State.READY] == 2
        claim = store.ask(bytes_limit=2999)
        assert (ids(claim.jobs), claim.more) == (wanted[3:], False)

    def test_bytes_are_counted_in_utf_8_with_the_options(self, store: Store) -> None:
        """The bytes of a claim are those that travel: a text of 600 characters may have 1200 bytes."""
        wide = '{"x":"' + "é" * 596 + '"}'  # 1200 bytes
        options = Options(correlation_id="c" * 200)
        wanted = [store.enqueue(payload=wide, options=options) for _ in range(3)]
        assert store.claimed_ids(bytes_limit=2 * 1200 + 399) == wanted[:1]
        assert store.claimed_ids(bytes_limit=2 * 1200 + 500) == wanted[1:]

    def test_bytes_are_counted_with_the_meta(self, store: Store) -> None:
        """A meta travels with its job, and counts like the rest of it."""
        meta = '{"x":"' + "é" * 246 + '"}'  # 500 bytes
        wanted = [store.enqueue(payload=payload_of(1000), meta=meta) for _ in range(3)]
        assert store.claimed_ids(bytes_limit=2999) == wanted[:1]
        assert store.claimed_ids(bytes_limit=3000) == wanted[1:]

    def test_claim_takes_one_job_whatever_its_size(self, store: Store) -> None:
        """The first job of the line is claimed although it is larger than the limit: it must not block the others."""
        wanted = [store.enqueue(payload=payload_of(size)) for size in (5000, 10, 5000, 10)]
        assert store.claimed_ids(bytes_limit=100) == wanted[:1]
        assert store.claimed_ids(bytes_limit=100) == wanted[1:2]
        assert store.claimed_ids(bytes_limit=0) == wanted[2:3]
        assert store.claimed_ids(bytes_limit=0) == wanted[3:]

    def test_large_job_is_not_overtaken_by_a_small_one(self, store: Store) -> None:
        """The order stays strict: a claim ends before the first job that does not fit, in whatever queue and rank."""
        first = store.enqueue(queue="a", priority=1, payload=payload_of(500))
        large = store.enqueue(queue="b", payload=payload_of(2000))
        small = store.enqueue(queue="a", payload=payload_of(10))
        assert store.claimed_ids(bytes_limit=2499) == [first]
        assert store.claimed_ids(bytes_limit=2010) == [large, small]

    def test_bytes_of_all_priorities_are_counted_together(self, store: Store) -> None:
        """The limit is one for the whole claim, over every queue and priority that it takes from."""
        wanted = [
            store.enqueue(queue=queue, priority=priority, payload=payload_of(100))
            for priority in (3, 2, 1)
            for queue in "ab"
        ]
        assert store.claimed_ids(bytes_limit=499) == wanted[:4]
        assert store.claimed_ids(bytes_limit=499) == wanted[4:]

    def test_job_that_did_not_fit_keeps_its_number_and_its_place(self, store: Store) -> None:
        """What a claim leaves for its size is as if it had not been looked at."""
        store.enqueue(payload=payload_of(100))
        left = store.enqueue(payload=payload_of(100), delivery=Delivery.AT_MOST_ONCE)
        before = store.job(left)
        store.claim_one(bytes_limit=199)
        assert store.job(left) == before
        held = store.claim_one(bytes_limit=199, once_limit=1)
        assert (held.id, held.number) == (left, 1)

    def test_many_large_jobs_are_claimed_in_order_at_the_usual_limits(self, store: Store) -> None:
        """A line of large jobs behind small ones, full of what JSON escapes, is claimed to its end."""
        small = [store.new() for _ in range(100)]
        large = [store.new(payload='{"x":"' + '\\"' * 100_000 + '"}') for _ in range(60)]  # 12 MB
        store.enqueue_all(*small, *large)
        claimed: list[str] = []
        while (claim := store.ask(limit=1000)).jobs:
            assert sum(map(claimed_size, claim.jobs)) <= CLAIM_BYTES
            claimed += ids(claim.jobs)
        assert claimed == [job.id for job in (*small, *large)]

    def test_two_claims_never_overlap(self, store: Store) -> None:
        """While a lease is valid no other token is given its jobs."""
        wanted = [store.enqueue() for _ in range(20)]
        first, second, third = (store.claimed_ids(limit=8) for _ in range(3))
        assert first + second + third == wanted

    def test_only_the_queues_asked_for_are_served(self, store: Store) -> None:
        """A claim names its queues; without names it serves them all."""
        wanted = {queue: store.enqueue(queue=queue) for queue in ("a", "b", "c")}
        assert store.claimed_ids(queues=("b",)) == [wanted["b"]]
        assert store.claimed_ids(queues=("b", "unheard-of")) == []
        assert store.claimed_ids(queues=None) == [wanted["a"], wanted["c"]]

    def test_no_queues_at_all_gives_nothing(self, store: Store) -> None:
        """An empty list of queues is not the same as every queue."""
        store.enqueue()
        assert store.claim(queues=()) == []

    # -- order --

    def test_higher_priority_goes_first(self, store: Store) -> None:
        """Priority comes before everything else, from 100 down to -100."""
        by_priority = {priority: store.enqueue(priority=priority) for priority in (0, -100, 100, 5, -5)}
        assert store.claimed_ids() == [by_priority[priority] for priority in (100, 5, 0, -5, -100)]

    def test_older_due_time_goes_first_within_a_priority(self, store: Store) -> None:
        """Within a priority the job that has been due longest goes first, to the microsecond."""
        last, first, second = (store.enqueue(run_at=store.now - age) for age in (0, 2, 1))
        assert store.claimed_ids() == [first, second, last]

    def test_equal_jobs_go_in_the_order_of_their_ids(self, store: Store) -> None:
        """Where priority and due time are equal the id decides, so that the order is total."""
        jobs = [store.new() for _ in range(5)]
        store.enqueue_all(*reversed(jobs))
        assert store.claimed_ids() == [job.id for job in jobs]

    def test_high_priority_in_the_future_waits_for_its_time(self, store: Store) -> None:
        """A job ahead of its time holds no other job up, whatever its priority."""
        urgent, plain = store.enqueue(priority=100, delay=SECOND), store.enqueue()
        assert store.claimed_ids() == [plain]
        store.pass_time(SECOND)
        assert store.claimed_ids() == [urgent]

    def test_order_is_strict_over_all_queues(self, store: Store) -> None:
        """Several queues are one line: priority, then due time, then id, wherever the job is."""
        dice = random.Random(4)
        jobs = [
            store.new(
                queue=dice.choice("abcd"),
                priority=dice.choice([-1, 0, 0, 1, 100]),
                run_at=store.now + dice.choice([-DAY, -SECOND, -1, 0, 1, HOUR]),
            )
            for _ in range(120)
        ]
        store.enqueue_all(*jobs)
        due = [job for job in jobs if job.queue in "abc" and (job.run_at or 0) <= store.now]
        line = sorted(due, key=lambda job: (-job.priority, job.run_at or 0, job.id))
        claimed: list[str] = []
        while batch := store.claimed_ids(queues=("c", "a", "b"), limit=7):
            claimed += batch
        assert claimed == [job.id for job in line]

    def test_retried_job_is_placed_by_its_retry_time(self, store: Store) -> None:
        """A retried job keeps its priority and lines up where its retry is due."""
        retried = store.running()
        store.pass_time(SECOND)
        other = store.enqueue(priority=100)
        store.fail(retried, delay=SECOND)
        store.pass_time(SECOND)
        assert store.claimed_ids() == [other, retried.id]

    def test_handed_back_job_keeps_its_place(self, store: Store) -> None:
        """A job that is handed back goes before those that became due after it."""
        held = store.running()
        place = store.job(held.id).run_at
        store.pass_time(SECOND)
        store.enqueue(priority=100)
        assert store.hand_back(held).run_at == place
        assert store.claimed_ids(limit=1) == [held.id]

    # -- repeating --

    def test_claim_repeated_with_its_token_gives_the_same_jobs(self, store: Store) -> None:
        """A claim whose answer was lost is repeated: same jobs, same numbers, nothing new, no longer lease."""
        store.enqueue_all(*[store.new() for _ in range(5)])
        first = store.ask("worker/1", limit=3)
        store.pass_time(SECOND)
        again = store.ask("worker/1", limit=3)
        assert again.jobs == first.jobs
        assert store.counts()[State.RUNNING] == 3
        assert store.job(first.jobs[0].id).lease_expires_at == first.expires_at

    def test_repeated_claim_leaves_out_what_was_settled(self, store: Store) -> None:
        """A repeated claim gives the jobs that are still open under its lease, and takes no others instead."""
        store.enqueue_all(*[store.new() for _ in range(5)])
        first, second, third = store.claim("worker/1", limit=3)
        store.succeed(second)
        assert ids(store.claim("worker/1", limit=3)) == [first.id, third.id]

    def test_repeated_claim_answers_even_after_its_expiry(self, store: Store) -> None:
        """The token still names its lease when that has expired; the worker sees that it is too late."""
        store.enqueue()
        first = store.ask("worker/1")
        store.let_expire()
        again = store.ask("worker/1")
        assert (again.jobs, again.expires_at) == (first.jobs, first.expires_at)
        assert again.now == store.now

    def test_claim_that_finds_nothing_leaves_no_lease(self, store: Store) -> None:
        """An empty claim stores nothing, so its token is free to claim with."""
        assert store.claim("worker/1") == []
        assert store.run(store.driver.leases(now=store.now)) == []
        job_id = store.enqueue()
        assert ids(store.claim("worker/1")) == [job_id]

    # -- pause --

    def test_paused_queue_gives_nothing_until_it_is_resumed(self, store: Store) -> None:
        """Pausing a queue stops its claims and no others."""
        paused, other = store.enqueue(queue="a"), store.enqueue(queue="b")
        store.pause("a")
        assert store.claimed_ids() == [other]
        assert store.claim(queues=("a",)) == []
        store.resume("a")
        assert store.claimed_ids() == [paused]

    def test_pausing_is_idempotent_and_takes_any_name(self, store: Store) -> None:
        """A queue can be paused before its first job, and twice; resuming what runs is fine."""
        store.resume("a")
        store.pause("a")
        store.pause("a")
        job_id = store.enqueue(queue="a")
        assert store.claim() == []
        store.resume("a")
        assert store.claimed_ids() == [job_id]

    def test_paused_queue_takes_back_what_it_gave(self, store: Store) -> None:
        """A job of a paused queue can be settled and handed back; it just is not handed out again."""
        held = store.running(queue="a")
        store.pause("a")
        assert store.hand_back(held).state is State.READY
        assert store.claim() == []

    # -- what a claim tells --

    def test_claim_tells_the_stores_time_and_its_expiry(self, store: Store) -> None:
        """A claim answers with the store's now, and its lease counts from then."""
        store.enqueue()
        claim = store.ask(lease=45 * SECOND + 1)
        assert (claim.now, claim.expires_at) == (store.now, store.now + 45 * SECOND + 1)

    def test_claimed_job_has_what_executing_it_takes(self, store: Store) -> None:
        """A claim carries everything of the job that a worker needs."""
        options = Options(max_attempts=3, timeout=1.5, retry=None, correlation_id="c", tags=("x",))
        job_id = store.enqueue(
            task="email:send",
            payload='{"to":"a"}',
            queue="mail",
            priority=7,
            run_at=store.now - 5,
            expires_at=store.now + HOUR,
            delivery=Delivery.AT_MOST_ONCE,
            options=options,
        )
        job = store.claim_one().job
        assert (job.id, job.task, job.payload, job.queue) == (job_id, "email:send", '{"to":"a"}', "mail")
        assert (job.priority, job.run_at, job.enqueued_at) == (7, store.now - 5, store.now)
        assert (job.number, job.attempts, job.first_number, job.version) == (1, 0, 1, 1)
        assert (job.due_at, job.expires_at, job.delivery) == (None, store.now + HOUR, Delivery.AT_MOST_ONCE)
        assert job.options is not None
        assert msgspec.json.decode(job.options, type=Options) == options

    def test_default_options_are_not_sent_along(self, store: Store) -> None:
        """A job without options costs nothing to claim: they are None."""
        assert store.running().job.options is None

    def test_claim_carries_the_meta_of_the_jobs_that_have_one(self, store: Store) -> None:
        """Of jobs that are claimed together each has its own; one without has None, not an empty map."""
        metas = ['{"tenant":"acme"}', None, '{"note":"a \\"b\\" é"}', None]
        jobs = [store.new(meta=meta, queue=queue) for queue in ("a", "b") for meta in metas]
        store.enqueue_all(*jobs)
        claim = store.ask(limit=8)
        assert {job.id: job.meta for job in claim.jobs} == {job.id: job.meta for job in jobs}

    def test_repeated_claim_carries_the_meta_again(self, store: Store) -> None:
        """A claim whose answer was lost answers the same, and so does a collector's."""
        store.enqueue(meta='{"tenant":"acme"}')
        first = store.ask(token="w/1")
        assert store.ask(token="w/1").jobs == first.jobs
        assert first.jobs[0].meta == '{"tenant":"acme"}'
        store.let_expire()
        assert store.collect_one().job.meta == '{"tenant":"acme"}'

    def test_next_due_is_the_earliest_job_ahead(self, store: Store) -> None:
        """A claim that was not filled tells when the next job becomes runnable."""
        store.enqueue()
        store.enqueue_all(*[store.new(delay=n * MINUTE) for n in (3, 2, 5)])
        assert store.ask().next_due == store.now + 2 * MINUTE

    def test_next_due_looks_at_the_queues_that_are_served(self, store: Store) -> None:
        """Neither a queue that was not asked for nor a paused one is worth waking for."""
        for queue, minutes in (("a", 3), ("b", 2), ("c", 1)):
            store.enqueue(queue=queue, delay=minutes * MINUTE)
        store.pause("c")
        assert store.ask(queues=("a",)).next_due == store.now + 3 * MINUTE
        assert store.ask(queues=("a", "c")).next_due == store.now + 3 * MINUTE
        assert store.ask(queues=None).next_due == store.now + 2 * MINUTE

    def test_next_due_is_none_when_there_is_more_now_or_nothing_ahead(self, store: Store) -> None:
        """A claim that was filled asks to be followed by another at once; an empty future has no next."""
        assert store.ask().next_due is None
        store.enqueue(delay=HOUR)
        store.enqueue_all(store.new(), store.new())
        assert store.ask(limit=2).next_due is None

    # -- suspects --

    def test_suspects_wait_in_a_place_of_their_own(self, store: Store) -> None:
        """A suspect is handed out only to a claim that asks for suspects, and then nothing else is."""
        suspect = store.running()
        store.lose(suspect, suspect=True)
        plain = store.enqueue()
        assert store.job(suspect.id).suspect
        assert (store.state(suspect.id), store.counts()[State.READY]) == (State.READY, 2)
        assert store.claimed_ids() == [plain]
        held = store.claim_one(suspects=True)
        assert (held.id, held.number) == (suspect.id, 2)

    def test_claim_tells_that_a_suspect_is_waiting(self, store: Store) -> None:
        """A worker should execute a suspect alone, so every ordinary claim of its queue says that one is due."""
        suspect = store.running(queue="a")
        store.lose(suspect, suspect=True, delay=MINUTE)
        assert not store.ask().suspects_waiting
        store.pass_time(MINUTE)
        assert store.ask().suspects_waiting
        assert store.ask(queues=("a", "b")).suspects_waiting
        assert not store.ask(queues=("b",)).suspects_waiting
        store.pause("a")
        assert not store.ask().suspects_waiting

    def test_no_suspect_waits_once_it_is_claimed(self, store: Store) -> None:
        """A suspect under a lease is not waiting; a claim for suspects does not speak of them."""
        store.lose(store.running(), suspect=True)
        assert not store.ask(suspects=True).suspects_waiting
        assert not store.ask().suspects_waiting

    def test_next_due_of_suspects_is_their_own(self, store: Store) -> None:
        """Each of the two places tells when its own next job is due."""
        store.lose(store.running(), suspect=True, delay=MINUTE)
        store.enqueue(delay=HOUR)
        assert store.ask().next_due == store.now + HOUR
        assert store.ask(suspects=True).next_due == store.now + MINUTE

    def test_suspect_that_fails_is_an_ordinary_job_again(self, store: Store) -> None:
        """Where a job goes is what its transition says; one that is not a suspect leaves the suspects' place."""
        store.lose(store.running(), suspect=True)
        held = store.claim_one(suspects=True)
        store.fail(held)
        assert not store.job(held.id).suspect
        assert store.claimed_ids() == [held.id]

    def test_requeued_job_is_no_suspect(self, store: Store) -> None:
        """A requeue begins a run with a clean slate."""
        store.lose(store.running(), suspect=True)
        held = store.claim_one(suspects=True)
        store.bury(held)
        store.do(Requeue(), held.id)
        assert store.claimed_ids() == [held.id]

    def test_lease_takes_the_time_it_was_asked_for(self, store: Store) -> None:
        """Two leases of different length expire each at its own time."""
        store.enqueue_all(store.new(), store.new())
        short, long = store.claim_one(limit=1, lease=SECOND), store.claim_one(limit=1, lease=LEASE)
        store.pass_time(SECOND)
        assert store.job(short.id).lease_expired
        assert not store.job(long.id).lease_expired
