"""Reads: get, list, counts and queues, which always tell the same story."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import HOUR, MINUTE, Chapter, Store
from taskharbor.drivers.base import Requeue
from taskharbor.records import JobFilter, Options, QueueRecord, State


class Reads(Chapter):
    # -- get --

    def test_get_answers_in_the_order_asked(self, store: Store) -> None:
        """Each id is answered in its place, an unknown one with None, a repeated one again."""
        first, second = store.enqueue(), store.enqueue()
        records = store.run(store.driver.get([second, store.new_id(), first, second], now=store.now))
        assert [record and record.id for record in records] == [second, None, first, second]

    def test_get_takes_many_ids(self, store: Store) -> None:
        """There is no small limit on how many jobs are read at once."""
        wanted = [answer.id for answer in store.enqueue_all(*[store.new() for _ in range(1200)])]
        records = store.run(store.driver.get(wanted, now=store.now))
        assert [record and record.id for record in records] == wanted

    @pytest.mark.parametrize("text", ["", "x", "'; --", "00000000-0000-0000-0000-000000000000"])
    def test_id_of_no_job_is_none(self, store: Store, text: str) -> None:
        """Any text may be asked for; what is no job's id is no job."""
        assert store.find(text) is None
        assert store.history(text) == []
        assert store.steps(text) == {}

    # -- list --

    def test_list_is_newest_first(self, store: Store) -> None:
        """Jobs are listed by id, the newest first, whatever order they were enqueued in."""
        jobs = [store.new() for _ in range(6)]
        store.enqueue_all(*jobs[3:], *jobs[:3])
        assert store.listed_ids() == [job.id for job in reversed(jobs)]

    @pytest.mark.parametrize("page_size", [1, 2, 3, 7, 100])
    def test_pages_hold_every_job_once(self, store: Store, page_size: int) -> None:
        """Going from cursor to cursor shows each job exactly once, and ends."""
        wanted = [store.enqueue() for _ in range(7)]
        pages = list(store.pages(page_size))
        assert [job.id for page in pages for job in page] == wanted[::-1]
        assert all(len(page) <= page_size for page in pages)

    def test_cursor_stays_true_while_jobs_come_and_go(self, store: Store) -> None:
        """A job enqueued between two pages neither repeats nor hides one that was there."""
        wanted = [store.enqueue() for _ in range(4)]
        page = store.run(store.driver.list(JobFilter(), limit=2, now=store.now))
        store.enqueue()
        rest = store.run(store.driver.list(JobFilter(), cursor=page.next_cursor, limit=10, now=store.now))
        assert [job.id for job in page.jobs + rest.jobs] == wanted[::-1]

    def test_empty_list_ends_at_once(self, store: Store) -> None:
        """Nothing there is an empty page without a cursor."""
        assert (store.listed(), store.listed(state=State.DEAD)) == ([], [])

    def test_listed_job_is_the_job(self, store: Store) -> None:
        """A list shows each job exactly as `get` does."""
        jobs = [store.job_in(state, queue="q", options=Options(tags=("x",))) for state in State]
        assert {job.id: job for job in store.listed()}.items() >= {
            job: store.job(job) for job in jobs
        }.items()

    def test_filters_are_joined_by_and(self, store: Store) -> None:
        """A job is listed when it fits everything that was asked."""
        wanted = store.enqueue(queue="a", task="t", options=Options(tags=("x", "y")))
        store.enqueue(queue="b", task="t", options=Options(tags=("x",)))
        store.enqueue(queue="a", task="u", options=Options(tags=("x",)))
        store.enqueue(queue="a", task="t", options=Options(tags=("z",)))
        store.enqueue(queue="a", task="t", delay=HOUR, options=Options(tags=("x",)))
        assert store.listed_ids(queue="a", task="t", tag="x", state=State.READY) == [wanted]
        assert len(store.listed(queue="a", task="t")) == 3
        assert len(store.listed(tag="x")) == 4

    @pytest.mark.parametrize("state", list(State))
    def test_filtered_pages_hold_every_job_once(self, store: Store, state: State) -> None:
        """A page of a filtered list may be short, but the pages together are complete and in order."""
        wanted = []
        for _ in range(3):
            wanted.append(store.job_in(state, queue="q"))
            store.job_in(State.SCHEDULED if state is State.DEAD else State.DEAD, queue="q")
        assert store.listed_ids(page_size=2, state=state, queue="q") == wanted[::-1]

    def test_state_filter_follows_the_clock(self, store: Store) -> None:
        """What is scheduled now is listed as ready when its time has come."""
        job_id = store.enqueue(delay=HOUR)
        assert store.listed_ids(state=State.SCHEDULED) == [job_id]
        store.pass_time(HOUR)
        assert (store.listed_ids(state=State.SCHEDULED), store.listed_ids(state=State.READY)) == (
            [],
            [job_id],
        )

    @pytest.mark.parametrize("tag", ["ab", "a", "A", "a%", "a_", "*", "", "a,b", '"a"'])
    def test_tag_is_matched_whole(self, store: Store, tag: str) -> None:
        """A tag matches itself: no prefix, no pattern, no other case."""
        tags = ["ab", "a", "A", "a%", "a_", "*", "", "a,b", '"a"', "abc", "b"]
        by_tag = {each: store.enqueue(options=Options(tags=(each, "all"))) for each in tags}
        assert store.listed_ids(tag=tag) == [by_tag[tag]]
        assert len(store.listed(tag="all")) == len(tags)

    # -- counts --

    def test_counts_equal_what_is_listed(self, store: Store) -> None:
        """For every state and queue the count is the length of the list, after whatever happened."""
        for queue in ("a", "b"):
            for state in State:
                store.job_in(state, queue=queue)
        store.lose(store.running(queue="a"), suspect=True)
        store.fail(store.running(queue="b"), delay=MINUTE)
        store.operate(Requeue(), *store.listed_ids(state=State.DEAD, queue="b"))
        for _ in range(3):
            for name in (None, "a", "b", "default"):
                listed = {state: len(store.listed(state=state, queue=name)) for state in State}
                assert store.counts(name) == listed, name
            store.pass_time(HOUR)

    def test_counts_of_an_unknown_queue_are_zero(self, store: Store) -> None:
        """All seven states are counted, even where there is nothing."""
        store.enqueue()
        assert store.counts("unheard-of") == dict.fromkeys(State, 0)

    # -- queues --

    def test_queues_tell_their_depth(self, store: Store) -> None:
        """Each queue tells how many are ready, scheduled and running, and since when the oldest is ready."""
        store.running(queue="b")
        oldest = store.now - MINUTE
        for run_at in (store.now, oldest, store.now + HOUR):
            store.enqueue(queue="b", run_at=run_at)
        store.enqueue(queue="a", delay=HOUR)
        assert store.run(store.driver.queues(now=store.now)) == [
            QueueRecord("a", paused=False, ready=0, scheduled=1, running=0, oldest_ready_at=None),
            QueueRecord("b", paused=False, ready=2, scheduled=1, running=1, oldest_ready_at=oldest),
        ]

    def test_paused_queue_is_listed_even_when_empty(self, store: Store) -> None:
        """A pause must not be forgotten because there is nothing to hold back."""
        store.pause("z")
        assert store.run(store.driver.queues(now=store.now)) == [QueueRecord("z", True, 0, 0, 0, None)]
        store.resume("z")
        assert store.run(store.driver.queues(now=store.now)) == []

    def test_queue_without_unfinished_jobs_is_not_listed(self, store: Store) -> None:
        """Finished jobs make no queue."""
        for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED):
            store.job_in(state)
        assert store.run(store.driver.queues(now=store.now)) == []

    def test_suspects_count_in_their_queue(self, store: Store) -> None:
        """A suspect is ready or scheduled like any other job."""
        store.lose(store.running(queue="a"), suspect=True)
        store.lose(store.running(queue="a"), suspect=True, delay=HOUR)
        [queue] = store.run(store.driver.queues(now=store.now))
        assert (queue.ready, queue.scheduled, queue.oldest_ready_at) == (1, 1, store.now)
