"""Growth: does a drain slow down when the store is full of jobs that are not its business?"""

from __future__ import annotations

from abc import abstractmethod

from benchmarks.contestant import Contestant

TOP_PRIORITY = 100
LOW_PRIORITY = -50
FAR_FUTURE_SECONDS = 7 * 86_400.0
FILL_STEPS = ("finished", "ready", "future")
REST_STEP = "rest"
RACE_STEP = "race"


class GrowthContestant(Contestant):
    """A contestant that knows priorities and due times, and can run some of its jobs and stop."""

    @abstractmethod
    def enqueue_with(self, count: int, *, priority: int, delay_seconds: float) -> None:
        """Enqueue `count` no-op jobs at a priority, due after a delay."""

    def rest(self) -> None:
        """What the store does by itself in a quiet hour, done now."""

    @abstractmethod
    def race(self, count: int) -> float:
        """Enqueue `count` jobs of the default priority, run the worker, and stop it when they have run.

        Returns the seconds from the first handler to the last: opening a large store is not counted.
        """


def run_growth_step(contestant: Contestant, step: str, count: int) -> dict[str, float | None]:
    """One step on a store that stays between steps; each runs in a fresh process."""
    if not isinstance(contestant, GrowthContestant):
        raise TypeError(f"{contestant.name} has no growth measurement")
    if step == RACE_STEP:
        return {"growth": count / contestant.race(count)}
    if step == "finished":
        # Really drained: rows made by hand would not be what the product leaves behind.
        contestant.fill(count)
        contestant.drain(count)
    elif step == "ready":
        contestant.enqueue_with(count, priority=LOW_PRIORITY, delay_seconds=0)
    elif step == "future":
        contestant.enqueue_with(count, priority=TOP_PRIORITY, delay_seconds=FAR_FUTURE_SECONDS)
    elif step == REST_STEP:
        contestant.rest()
    else:
        raise ValueError(f"unknown step {step!r}, expected one of {(*FILL_STEPS, REST_STEP, RACE_STEP)}")
    return {}
