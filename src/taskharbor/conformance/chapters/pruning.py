"""Pruning: finished jobs go when their time is over, and nothing else does."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import DAY, HOUR, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import Cancel
from taskharbor.errors import ConfigurationError
from taskharbor.records import Options, State
from taskharbor.rules.lifecycle import TERMINAL, UNFINISHED


class Pruning(Chapter):
    needs = capabilities.Upkeep

    @pytest.mark.parametrize("state", sorted(TERMINAL))
    def test_finished_job_is_pruned_after_its_time(self, store: Store, state: State) -> None:
        """What came to its end before the instant given is deleted; in that very instant is not before it."""
        job_id = store.job_in(state)
        finished_at = store.now
        store.pass_time(DAY)
        assert store.prune({state: finished_at}) == 0
        assert store.prune({state: finished_at + 1}) == 1
        assert store.find(job_id) is None

    def test_each_state_has_its_own_retention(self, store: Store) -> None:
        """Only the states that are named are pruned, each by its own instant."""
        jobs = {state: store.job_in(state) for state in TERMINAL}
        store.pass_time(HOUR)
        assert store.prune({State.SUCCEEDED: store.now, State.CANCELLED: store.now - 2 * HOUR}) == 1
        assert store.find(jobs[State.SUCCEEDED]) is None
        assert (store.state(jobs[State.DEAD]), store.state(jobs[State.CANCELLED])) == (
            State.DEAD,
            State.CANCELLED,
        )

    def test_unfinished_jobs_are_never_pruned(self, store: Store) -> None:
        """However old, what is not terminal stays."""
        for state in UNFINISHED:
            store.job_in(state)
        store.pass_time(DAY)
        before = store.everything()
        assert store.prune(dict.fromkeys(TERMINAL, store.now)) == 0
        assert store.everything() == before

    @pytest.mark.parametrize("state", sorted(UNFINISHED))
    def test_unfinished_state_is_refused(self, store: Store, state: State) -> None:
        """A retention for a state that is no end is a mistake, and nothing is deleted by it."""
        store.job_in(State.SUCCEEDED)
        store.pass_time(DAY)
        with pytest.raises(ConfigurationError):
            store.prune({State.SUCCEEDED: store.now, state: store.now})
        assert store.counts()[State.SUCCEEDED] == 1

    def test_oldest_are_pruned_first_up_to_the_limit(self, store: Store) -> None:
        """A pruning is bounded, and begins with what finished first, whichever id that has."""
        held = [store.running() for _ in range(4)]
        for one in reversed(held):
            store.succeed(one)
            store.pass_time(SECOND)
        assert store.prune({State.SUCCEEDED: store.now}, limit=3) == 3
        assert store.listed_ids() == [held[0].id]
        assert store.prune({State.SUCCEEDED: store.now}, limit=3) == 1

    def test_pruned_job_leaves_nothing_behind(self, store: Store) -> None:
        """History, steps, tags and key go with the job."""
        held = store.running(idempotency_key="k", options=Options(tags=("x",)))
        store.step(held, "a", "1")
        store.succeed(held)
        store.pass_time(SECOND)
        store.prune({State.SUCCEEDED: store.now})
        assert (store.find(held.id), store.history(held.id), store.steps(held.id)) == (None, [], {})
        assert store.listed_ids(tag="x") == []
        assert store.enqueue(idempotency_key="k") != held.id

    def test_job_that_an_unfinished_one_depends_on_stays(self, store: Store) -> None:
        """Pruning never makes a dependency disappear under a job that is not finished."""
        done = store.job_in(State.SUCCEEDED)
        waiting = store.enqueue(depends_on=(done, store.enqueue(delay=DAY)))
        store.pass_time(SECOND)
        assert store.prune({State.SUCCEEDED: store.now}) == 0
        store.do(Cancel(), waiting)
        assert store.prune({State.SUCCEEDED: store.now}) == 1
        assert store.state(waiting) is State.CANCELLED

    def test_job_that_must_stay_does_not_use_up_the_limit(self, store: Store) -> None:
        """The limit bounds what is deleted: one that stays does not hold up those behind it."""
        needed = store.job_in(State.SUCCEEDED)
        store.enqueue(depends_on=(needed,), delay=HOUR)
        store.pass_time(SECOND)
        other = store.job_in(State.SUCCEEDED)
        store.pass_time(SECOND)
        assert store.prune({State.SUCCEEDED: store.now}, limit=1) == 1
        assert (store.find(other), store.state(needed)) == (None, State.SUCCEEDED)

    def test_nothing_to_prune(self, store: Store) -> None:
        """No states, or nothing old enough: nothing happens."""
        store.job_in(State.SUCCEEDED)
        assert (store.prune({}), store.prune({State.SUCCEEDED: store.now - DAY})) == (0, 0)
