"""Enqueue: what is stored, when it is runnable, and how a job is named once."""

from __future__ import annotations

import pytest
from msgspec import UNSET, UnsetType, structs

from taskharbor.conformance.chapters.hostile import HOSTILE, label
from taskharbor.conformance.store import DAY, HOUR, MINUTE, SECOND, Chapter, Store, large_text
from taskharbor.drivers.base import AlikeJobs, Delete
from taskharbor.errors import ConfigurationError
from taskharbor.records import Delivery, NewJob, Options, State

MEBIBYTE = 1024 * 1024


class Enqueueing(Chapter):
    # -- what is stored --

    def test_job_comes_back_with_all_it_was_given(self, store: Store) -> None:
        """Every field and option of a job is kept, and nothing is added to it."""
        options = Options(
            max_attempts=5, timeout=2.5, retry={"initial": 0.5}, correlation_id="c-1", tags=("a", "b")
        )
        job = store.new(
            task="email:send",
            payload='{"to":"a@b.c","n":[1,2.5,null]}',
            queue="mail",
            priority=-7,
            run_at=store.now + MINUTE,
            expires_at=store.now + HOUR,
            idempotency_key="order-42",
            delivery=Delivery.AT_MOST_ONCE,
            options=options,
            meta='{"tenant":"acme","note":"a \\"b\\" é"}',
        )
        store.enqueue_all(job)
        record = store.job(job.id)
        for field in (
            "id",
            "task",
            "payload",
            "queue",
            "priority",
            "run_at",
            "expires_at",
            "options",
            "delivery",
            "meta",
        ):
            assert getattr(record, field) == getattr(job, field), field
        assert record.idempotency_key == "order-42"
        assert (record.enqueued_at, record.attempts, record.number, record.version) == (store.now, 0, 0, 1)

    def test_bare_job_has_the_defaults(self, store: Store) -> None:
        """A job that was given nothing else is ready in the default queue, at priority 0, without options."""
        record = store.job(store.enqueue())
        assert (record.queue, record.priority, record.state) == ("default", 0, State.READY)
        assert (record.payload, record.options, record.depends_on, record.meta) == ("{}", Options(), (), None)
        assert (record.expires_at, record.idempotency_key, record.delivery, record.due_at) == (None,) * 4
        assert (record.reason, record.finished_at, record.error, record.result, record.progress) == (
            None,
        ) * 5

    @pytest.mark.parametrize("count", [1, 2, 50])
    def test_each_job_of_a_batch_keeps_its_own_meta(self, store: Store, count: int) -> None:
        """Jobs with and without meta may come in one call, alike otherwise or not."""
        metas = [None if index % 3 == 2 else f'{{"n":"{index}"}}' for index in range(count)]
        for others in ({}, {"options": Options(tags=("x",))}, {"queue": "q"}):
            jobs = [store.new(meta=meta, **others) for meta in metas]
            store.enqueue_all(*jobs)
            assert [store.job(job.id).meta for job in jobs] == metas

    def test_jobs_that_differ_in_their_payloads_alone_share_their_meta(self, store: Store) -> None:
        """Jobs that come as columns keep the meta that they share."""
        shared = store.new(meta='{"tenant":"acme"}')
        ids = [store.new_id() for _ in range(3)]
        jobs = AlikeJobs(shared, 3, lambda start, stop: (ids[start:stop], ["{}"] * (stop - start)))
        store.run(store.driver.enqueue(jobs, now=store.now))
        assert [store.job(job_id).meta for job_id in ids] == [shared.meta] * 3

    @pytest.mark.parametrize("retry", [UNSET, None, {"max_attempts": 3, "jitter": "full"}])
    def test_no_policy_and_nothing_said_of_a_policy_are_kept_apart(
        self, store: Store, retry: dict[str, object] | None | UnsetType
    ) -> None:
        """`retry=None` was given explicitly, which is not the same as not having been given."""
        job_id = store.enqueue(options=Options(retry=retry))
        assert store.job(job_id).options.retry == retry

    @pytest.mark.parametrize("priority", [-100, -1, 0, 1, 100])
    def test_priorities_from_minus_to_plus_a_hundred(self, store: Store, priority: int) -> None:
        """The whole range of priorities is kept."""
        assert store.job(store.enqueue(priority=priority)).priority == priority

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_text_is_kept_as_it_is(self, store: Store, text: str) -> None:
        """Names, keys, tags and payloads are data to a store, never part of a statement or a pattern."""
        options = Options(correlation_id=text, tags=(text, "other"))
        job = store.new(task=text, queue=text, payload=text, idempotency_key=text, options=options)
        store.enqueue_all(job)
        record = store.job(job.id)
        assert (record.task, record.queue, record.payload, record.idempotency_key) == (text,) * 4
        assert record.options == options
        held = store.claim_one(queues=(text,))
        assert (held.job.task, held.job.queue, held.job.payload) == (text,) * 3

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_text_is_found_by_itself_alone(self, store: Store, text: str) -> None:
        """A filter, a count or a claim for one name finds the job of that name and no other."""
        by_text = {
            other: store.new(task=other, queue=other, options=Options(tags=(other,))) for other in HOSTILE
        }
        store.enqueue_all(*by_text.values())
        job_id = by_text[text].id
        assert store.listed_ids(queue=text) == [job_id]
        assert store.listed_ids(task=text) == [job_id]
        assert store.listed_ids(tag=text) == [job_id]
        assert store.counts(text)[State.READY] == 1
        assert store.claimed_ids(queues=(text,), limit=100) == [job_id]

    def test_large_payload_is_kept(self, store: Store) -> None:
        """A payload of a mebibyte, the client's limit, comes back whole."""
        payload = '{"blob":"' + "x" * (MEBIBYTE - 11) + '"}'
        held = store.running(payload=payload)
        assert held.job.payload == payload
        assert store.job(held.id).payload == payload

    # -- when it is runnable --

    def test_job_without_run_at_has_the_place_of_its_enqueue(self, store: Store) -> None:
        """No run_at means runnable now, in the order of arrival."""
        [answer] = store.enqueue_all(store.new())
        assert (answer.state, answer.run_at, answer.enqueued_at) == (State.READY, store.now, store.now)

    def test_delay_counts_from_the_stores_now(self, store: Store) -> None:
        """A delay is added to the store's time, not the caller's."""
        [answer] = store.enqueue_all(store.new(delay=90 * SECOND))
        assert (answer.state, answer.run_at) == (State.SCHEDULED, store.now + 90 * SECOND)

    def test_run_at_in_the_past_is_ready_in_its_own_place(self, store: Store) -> None:
        """A job that was due yesterday is ready, and goes before those that became due since."""
        store.enqueue()
        [answer] = store.enqueue_all(store.new(run_at=store.now - DAY))
        assert (answer.state, answer.run_at) == (State.READY, store.now - DAY)
        assert store.claimed_ids(limit=1) == [answer.id]

    # -- many at once --

    def test_batch_is_answered_in_order(self, store: Store) -> None:
        """The answers of a batch stand in the order of its jobs."""
        jobs = [store.new(delay=SECOND * (n % 3)) for n in range(50)]
        answers = store.enqueue_all(*reversed(jobs))
        assert [answer.id for answer in answers] == [job.id for job in reversed(jobs)]
        assert not any(answer.existed for answer in answers)

    def test_empty_batch_does_nothing(self, store: Store) -> None:
        """Nothing to enqueue is nothing to complain about."""
        assert store.enqueue_all() == []

    def test_large_batch_is_stored_whole(self, store: Store) -> None:
        """A thousand jobs in one call are a thousand jobs."""
        assert len(store.enqueue_all(*[store.new() for _ in range(1000)])) == 1000
        assert store.counts()[State.READY] == 1000

    def test_batch_with_a_bad_member_stores_none_of_it(self, store: Store) -> None:
        """Enqueueing many is all or nothing."""
        bad = store.new(depends_on=(store.new_id(),))
        with pytest.raises(ConfigurationError):
            store.enqueue_all(store.new(), bad, store.new(idempotency_key="k"))
        assert store.counts() == dict.fromkeys(State, 0)
        [answer] = store.enqueue_all(store.new(idempotency_key="k"))
        assert not answer.existed

    def test_batch_of_large_jobs_is_stored_whole_or_not_at_all(self, store: Store) -> None:
        """However many bytes a batch has, it is all or nothing, and comes back as it was given."""
        jobs = [store.new(payload=large_text(n)) for n in range(24)]  # 7 MB
        bad = store.new(depends_on=(store.new_id(),))
        with pytest.raises(ConfigurationError):
            store.enqueue_all(*jobs, bad)
        assert store.counts() == dict.fromkeys(State, 0)
        assert [each.existed for each in store.enqueue_all(*jobs, jobs[0])] == [False] * 24 + [True]
        assert [store.job(job.id).payload for job in jobs] == [job.payload for job in jobs]

    # -- idempotency --

    def test_same_key_returns_existing_job_and_changes_nothing(self, store: Store) -> None:
        """A second enqueue under a key answers with the first job, whatever else it says."""
        first = store.enqueue(idempotency_key="k", payload='{"n":1}')
        before = store.everything()
        second = store.new(idempotency_key="k", payload='{"n":2}', priority=9, delay=HOUR, task="other")
        [answer] = store.enqueue_all(second)
        assert (answer.id, answer.existed) == (first, True)
        assert store.everything() == before
        assert store.find(second.id) is None

    @pytest.mark.parametrize("state", list(State))
    def test_key_names_its_job_in_every_state(self, store: Store, state: State) -> None:
        """A key is taken for as long as its job is kept, finished or not."""
        job_id = store.job_in(state, idempotency_key="k")
        record = store.job(job_id)
        [answer] = store.enqueue_all(store.new(idempotency_key="k"))
        assert (answer.id, answer.existed, answer.state) == (job_id, True, state)
        assert (answer.run_at, answer.enqueued_at) == (record.run_at, record.enqueued_at)

    def test_key_belongs_to_its_queue(self, store: Store) -> None:
        """The same key in another queue is another job."""
        store.enqueue(queue="a", idempotency_key="k")
        [answer] = store.enqueue_all(store.new(queue="b", idempotency_key="k"))
        assert not answer.existed

    def test_queue_and_key_are_not_run_together(self, store: Store) -> None:
        """The pair is the name: ("a", "b:c") is not ("a:b", "c")."""
        for separator in ":|/ \x1f":
            store.enqueue(queue="a", idempotency_key=f"b{separator}c")
            [answer] = store.enqueue_all(store.new(queue=f"a{separator}b", idempotency_key="c"))
            assert not answer.existed, separator

    def test_without_a_key_every_enqueue_is_a_new_job(self, store: Store) -> None:
        """Equal jobs without a key are several jobs."""
        answers = store.enqueue_all(store.new(), store.new(), store.new())
        assert not any(answer.existed for answer in answers)
        assert store.counts()[State.READY] == 3

    def test_empty_key_is_a_key(self, store: Store) -> None:
        """The empty text is a key like any other, and not the absence of one."""
        first = store.enqueue(idempotency_key="")
        assert store.enqueue(idempotency_key="") == first

    def test_keys_differ_by_case(self, store: Store) -> None:
        """Keys are compared as they are written."""
        assert store.enqueue(idempotency_key="KEY") != store.enqueue(idempotency_key="key")

    def test_key_is_free_again_when_its_job_is_deleted(self, store: Store) -> None:
        """A key lives exactly as long as its job."""
        first = store.enqueue(idempotency_key="k")
        store.do(Delete(), first)
        [answer] = store.enqueue_all(store.new(idempotency_key="k"))
        assert (answer.existed, answer.id == first) == (False, False)

    def test_same_key_twice_in_a_batch_is_one_job(self, store: Store) -> None:
        """The later one of two equal keys in a batch is answered with the earlier one."""
        first, second = store.new(idempotency_key="k"), store.new(idempotency_key="k")
        answers = store.enqueue_all(first, second)
        assert [(answer.id, answer.existed) for answer in answers] == [(first.id, False), (first.id, True)]
        assert store.listed_ids() == [first.id]

    def test_same_id_again_returns_the_job_and_changes_nothing(self, store: Store) -> None:
        """An enqueue whose answer was lost can be repeated under its id."""
        job = store.new(payload='{"n":1}')
        store.enqueue_all(job)
        before = store.everything()
        [answer] = store.enqueue_all(structs.replace(job, payload='{"n":2}', priority=5))
        assert (answer.id, answer.existed) == (job.id, True)
        assert store.everything() == before

    @pytest.mark.parametrize("state", list(State))
    def test_id_names_its_job_in_every_state(self, store: Store, state: State) -> None:
        """A job enqueued again under its id is not begun again, wherever it stands."""
        job_id = store.job_in(state)
        before = store.everything()
        [answer] = store.enqueue_all(store.new(id=job_id))
        assert (answer.id, answer.existed, answer.state) == (job_id, True, state)
        assert store.everything() == before

    def test_same_id_twice_in_a_batch_is_one_job(self, store: Store) -> None:
        """Two equal ids in a batch are one job, the earlier one."""
        job = store.new()
        answers = store.enqueue_all(job, structs.replace(job, payload='{"n":2}'))
        assert [answer.existed for answer in answers] == [False, True]
        assert (store.job(job.id).payload, store.counts()[State.READY]) == ("{}", 1)

    def test_batch_member_is_compared_with_what_the_batch_has_stored_so_far(self, store: Store) -> None:
        """An id that stood for another job, by its key, is still free for a later member, and means that one."""
        first, taken = store.new(idempotency_key="a"), store.new(idempotency_key="a")
        free = structs.replace(taken, idempotency_key="b")
        dependant = store.new(depends_on=(taken.id,))
        answers = store.enqueue_all(first, taken, free, dependant)
        assert [(answer.id, answer.existed) for answer in answers] == [
            (first.id, False),
            (first.id, True),
            (taken.id, False),
            (dependant.id, False),
        ]
        assert store.job(dependant.id).depends_on == (taken.id,)

    def test_id_that_stands_for_two_jobs_in_a_batch_is_answered_by_key(self, store: Store) -> None:
        """Each member is answered for itself; a dependency on such an id means the first of them."""
        first, second = store.new(idempotency_key="a"), store.new(idempotency_key="b")
        copy = store.new(idempotency_key="a")
        other = structs.replace(copy, idempotency_key="b")
        dependant = store.new(depends_on=(copy.id,))
        answers = store.enqueue_all(first, second, copy, other, dependant)
        assert [answer.id for answer in answers] == [first.id, second.id, first.id, second.id, dependant.id]
        assert store.job(dependant.id).depends_on == (first.id,)

    def test_new_and_existing_jobs_in_one_batch(self, store: Store) -> None:
        """A batch may hold both: each is answered for itself."""
        first = store.enqueue(idempotency_key="k")
        fresh: list[NewJob] = [store.new(), store.new()]
        answers = store.enqueue_all(fresh[0], store.new(idempotency_key="k"), fresh[1])
        assert [answer.id for answer in answers] == [fresh[0].id, first, fresh[1].id]
        assert [answer.existed for answer in answers] == [False, True, False]
