"""Searching: what each filter selects, what a bounded search says, and counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from taskharbor.conformance.store import HOUR, MINUTE, Chapter, Store
from taskharbor.drivers.base import Cancel, DeadLetter, Discard, JobCount, Page, Requeue, SearchBudget
from taskharbor.records import JobFilter, Options, Reason, State
from taskharbor.rules.filtering import matches
from taskharbor.rules.fingerprint import ERROR_SHOWN

_FILTERS: list[dict[str, Any]] = [
    {"queue": "a"},
    {"task": "u"},
    {"tag": "x"},
    {"reason": Reason.EXHAUSTED},
    {"reason": Reason.CANCELLED},
    {"error": "boom"},
    {"error": "%"},
    {"correlation_id": "order-7"},
    {"state": State.DEAD, "queue": "a"},
    {"state": State.DEAD, "task": "u", "error": "boom"},
    {"state": State.DEAD, "correlation_id": "order-7"},
    {"state": State.SUCCEEDED, "queue": "b"},
    {"state": State.READY, "task": "u"},
    {"state": State.SCHEDULED, "error": "boom"},
    {"state": State.RUNNING, "queue": "a"},
    {"state": State.WAITING, "task": "t"},
    {"state": State.CANCELLED, "tag": "x"},
    {"state": State.READY, "reason": Reason.EXHAUSTED},
    {"tag": "x", "correlation_id": "order-7", "queue": "b"},
    {},
]


class Searching(Chapter):
    # -- what matches --

    @pytest.mark.parametrize("where", _FILTERS, ids=lambda where: " ".join(where) or "everything")
    def test_filter_selects_what_the_rules_say(self, store: Store, where: dict[str, Any]) -> None:
        """Each filter, alone or with others, finds exactly the jobs that match it, on one page or on many."""
        _mixed(store)
        wanted = [job.id for job in store.listed() if matches(job, JobFilter(**where))]
        assert (
            wanted or where == {"state": State.READY, "reason": Reason.EXHAUSTED} or where == {"error": "%"}
        )
        assert store.listed_ids(**where) == wanted
        assert store.listed_ids(page_size=2, **where) == wanted
        assert _count(store, **where).jobs == len(wanted)

    def test_time_ranges_begin_with_an_instant_and_end_before_one(self, store: Store) -> None:
        """Two ranges that meet have no job in common, and miss none."""
        times = []
        for _ in range(3):
            store.bury(store.running())
            times.append(store.now)
            store.pass_time(MINUTE)
        first, second, third = store.listed_ids()[::-1]
        for begin, end in (("enqueued_after", "enqueued_before"), ("finished_after", "finished_before")):
            assert store.listed_ids(**{begin: times[1]}) == [third, second]
            assert store.listed_ids(**{end: times[1]}) == [first]
            assert store.listed_ids(**{begin: times[0], end: times[2]}) == [second, first]
            assert store.listed_ids(**{begin: times[2] + 1}) == []

    def test_finished_range_holds_every_way_to_finish_and_no_unfinished_job(self, store: Store) -> None:
        """Succeeded, dead and cancelled jobs have finished; the others have not, however old they are."""
        jobs = {state: store.job_in(state) for state in State}
        finished = {jobs[state] for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)}
        assert set(store.listed_ids(finished_before=store.now + HOUR)) == finished
        assert store.listed_ids(finished_after=store.now + 1) == []
        assert store.listed_ids(state=State.SUCCEEDED, finished_after=store.now) == [jobs[State.SUCCEEDED]]

    def test_error_is_searched_as_it_is_written(self, store: Store) -> None:
        """A part of the text matches, in its case, and nothing in it is a pattern."""
        held = store.running()
        store.bury(held, error='HTTP 503 of "api_1" took 100% too long 😀')
        for text in ("503", "api_1", "100%", '"api', "😀"):
            assert store.listed_ids(error=text) == [held.id], text
            assert store.listed_ids(error=text, state=State.DEAD) == [held.id], text
        for text in ("http", "api%", "5_3", "502"):
            assert store.listed_ids(error=text) == [], text

    def test_only_the_first_characters_of_an_error_are_searched(self, store: Store) -> None:
        """What a store keeps beside a dead job is what it searches, also where it could search more."""
        held, retried = store.running(), store.running()
        error = "é" * (ERROR_SHOWN - 1) + "xy"
        store.bury(held, error=error)
        store.fail(retried, error=error, delay=HOUR)
        assert store.listed_ids(error="éx") == [retried.id, held.id]
        assert store.listed_ids(error="xy") == []

    def test_error_of_the_latest_attempt_counts(self, store: Store) -> None:
        """A job that failed otherwise before, or that has succeeded since, is not found by the old error."""
        held = store.running()
        store.fail(held, error="first")
        store.bury(store.claim_one(), error="second")
        recovered = store.running()
        store.fail(recovered, error="first")
        store.succeed(store.claim_one())
        assert store.listed_ids(error="first") == []
        assert store.listed_ids(error="second") == [held.id]

    def test_payload_values_select_by_path_and_type(self, store: Store) -> None:
        """A number is no text, true is no 1, a path leads into objects; a payload that is no JSON matches nothing."""
        wanted = store.enqueue(payload='{"user":{"id":42,"ok":true},"name":"a.b","none":null}')
        store.enqueue(payload='{"user":{"id":"42","ok":1},"name":"x"}')
        store.enqueue(payload='{"id":42}')
        found: list[dict[str, Any]] = [
            {"user.id": 42},
            {"user.ok": True},
            {"user.id": 42.0, "name": "a.b"},
            {"none": None},
        ]
        for payload in found:
            assert store.listed_ids(payload=payload) == [wanted], payload
            assert store.listed_ids(page_size=1, payload=payload) == [wanted], payload
            assert _count(store, payload=payload).jobs == 1, payload
        for payload in (
            {"user.id": 43},
            {"user": 42},
            {"user.id.x": 42},
            {"missing": None},
            {"name.x": "a.b"},
        ):
            assert store.listed_ids(payload=payload) == [], payload
        assert store.listed_ids(payload={"user.id": 42}, queue="other") == []

    def test_search_by_payload_goes_on_through_jobs_that_do_not_match(self, store: Store) -> None:
        """A page holds what lies within the budget, however many others stand between."""
        wanted = [store.enqueue(payload='{"n":1}')]
        for number in range(7):
            store.enqueue(payload='{"n":0}')
            if number == 3:
                wanted.append(store.enqueue(payload='{"n":1}'))
        assert store.listed_ids(payload={"n": 1}) == wanted[::-1]
        assert store.listed_ids(page_size=1, payload={"n": 1}) == wanted[::-1]
        store.driver.search_budget = SearchBudget(jobs=2)
        assert store.listed_ids(payload={"n": 1}) == wanted[::-1]

    def test_secret_of_an_http_job_cannot_be_guessed_by_searching(self, store: Store) -> None:
        """What is shown as *** is searched as ***."""
        job = store.enqueue(task="http", payload='{"url":"http://a.b","headers":{"Authorization":"secret"}}')
        assert store.listed_ids(payload={"headers.Authorization": "secret"}) == []
        assert store.listed_ids(payload={"url": "http://a.b"}) == [job]

    def test_ids_select_the_jobs_that_they_name(self, store: Store) -> None:
        """In the order of a list, whatever order they were given in, and together with other filters."""
        first, second, third = (store.enqueue(queue=queue) for queue in ("a", "b", "a"))
        asked = (first, store.new_id(), third, first, "no id")
        assert store.listed_ids(ids=asked) == [third, first]
        assert store.listed_ids(page_size=1, ids=asked) == [third, first]
        assert store.listed_ids(ids=(first, second), queue="b") == [second]
        assert store.listed_ids(ids=()) == []

    # -- bounded searches --

    def test_bounded_search_says_how_far_it_got_and_goes_on(self, store: Store) -> None:
        """With a small budget the pages are short, but together they are complete, and each says where it ended."""
        wanted = [store.enqueue(task="rare")]
        for number in range(8):
            store.pass_time(MINUTE)
            store.enqueue(task="usual")
            if number == 4:
                wanted.append(store.enqueue(task="rare"))
        store.driver.search_budget = SearchBudget(jobs=3)
        pages = list(_pages(store, task="rare"))
        assert [job.id for page in pages for job in page.jobs] == wanted[::-1]
        for page in pages:
            assert (page.reached is None) == (page.next_cursor is None)
            if page.next_cursor is not None:
                assert store.job(page.next_cursor).enqueued_at == page.reached

    def test_full_page_has_reached_what_it_had_to(self, store: Store) -> None:
        """Only a search that ended before its page was full says how far it got."""
        for _ in range(5):
            store.enqueue(task="t")
        page = store.run(store.driver.list(JobFilter(task="t"), limit=2, now=store.now))
        assert (len(page.jobs), page.reached) == (2, None)
        assert page.next_cursor is not None

    def test_search_ends_with_its_time_but_looks_at_something(self, store: Store) -> None:
        """However short the time, every page gets further, so that following the cursors ends."""
        wanted = store.enqueue(task="rare")
        for _ in range(5):
            store.enqueue()
        store.driver.search_budget = SearchBudget(seconds=0.0)
        assert store.listed_ids(task="rare") == [wanted]

    # -- counts --

    def test_count_ends_at_its_limit_and_says_so(self, store: Store) -> None:
        """A count is exact up to the limit; beyond it, there is a cursor."""
        for _ in range(5):
            store.enqueue(task="t")
        store.enqueue(task="u")
        assert _count(store, task="t", limit=3).jobs == 3
        assert _count(store, task="t", limit=3).next_cursor is not None
        exact = _count(store, task="t", limit=5)
        assert (exact.jobs, exact.reached) == (5, None)
        assert _count(store, task="v") == JobCount(0, None, _count(store, task="v").examined)

    # -- dead-lettered by an operator --

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.READY])
    def test_dead_lettered_job_is_dead_for_that_reason(self, store: Store, state: State) -> None:
        """It is in the dead-letter queue, reason operator, with what it had, and no worker gets it."""
        job_id = store.job_in(state, payload='{"n":1}')
        store.do(DeadLetter(), job_id)
        job = store.job(job_id)
        assert (job.state, job.reason, job.finished_at) == (State.DEAD, Reason.OPERATOR, store.now)
        assert (job.payload, job.attempts, store.history(job_id)) == ('{"n":1}', 0, [])
        store.pass_time(2 * HOUR)
        assert store.claim() == []
        assert store.listed_ids(reason=Reason.OPERATOR) == [job_id]
        assert store.counts()[State.DEAD] == 1

    def test_dead_lettered_retry_keeps_its_error(self, store: Store) -> None:
        """A job that backs off leaves with its failures; its latest error is still found."""
        held = store.running()
        store.fail(held, delay=HOUR, error="no route")
        store.do(DeadLetter(), held.id)
        job = store.job(held.id)
        assert (job.attempts, job.error, job.reason) == (1, "no route", Reason.OPERATOR)
        assert store.listed_ids(state=State.DEAD, error="route") == [held.id]

    def test_dead_lettered_job_is_requeued_or_discarded_like_any_other(self, store: Store) -> None:
        """From the dead-letter queue both ways lead on."""
        first, second = store.enqueue(), store.enqueue()
        assert len(store.operate(DeadLetter(), first, second)) == 2
        store.do(Discard(), second)
        assert (store.job(second).state, store.job(second).reason) == (State.CANCELLED, Reason.DISCARDED)
        store.do(Requeue(), first)
        assert store.claimed_ids() == [first]


def _mixed(store: Store) -> None:
    """Jobs of every state, of two queues and tasks, some with a tag and a correlation id, some with errors."""
    both = Options(tags=("x",), correlation_id="order-7")
    for state in State:
        store.job_in(state, queue="a", task="t", options=both)
        store.job_in(state, queue="b", task="u", options=Options(correlation_id="order-7"))
        store.job_in(state, queue="b", task="t", options=Options(tags=("x", "y")))
        store.job_in(state, queue="a", task="u")
    store.fail(store.running(queue="b", task="u"), delay=HOUR)
    store.do(Cancel(), store.enqueue(queue="b", options=both))


def _pages(store: Store, **where: Any) -> Iterator[Page]:
    cursor: str | None = None
    while True:
        page: Page = store.run(store.driver.list(JobFilter(**where), cursor=cursor, limit=100, now=store.now))
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


def _count(store: Store, limit: int = 10_000, **where: Any) -> JobCount:
    return store.run(store.driver.count(JobFilter(**where), limit=limit, now=store.now))
