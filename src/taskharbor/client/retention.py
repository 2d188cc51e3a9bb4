"""Retention: how long finished jobs are kept, state by state."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from taskharbor.clock import seconds_to_micros
from taskharbor.codec import shorten
from taskharbor.drivers.base import Driver
from taskharbor.errors import ConfigurationError
from taskharbor.job import State
from taskharbor.lifecycle import TERMINAL

DAY_SECONDS = 86_400.0
BATCH = 500  # jobs deleted in one transaction, so that pruning never holds others up


class Retention(Struct, frozen=True):
    """Seconds to keep jobs in each terminal state; None for ever."""

    succeeded: float | None = 7 * DAY_SECONDS
    dead: float | None = None  # until somebody requeues or discards it
    cancelled: float | None = 7 * DAY_SECONDS

    @classmethod
    def of(cls, given: Mapping[str, float | None] | None) -> Retention:
        if given is not None and not isinstance(given, Mapping):
            raise ConfigurationError(
                f'retention maps states to seconds, such as {{"succeeded": 86400}}, not {shorten(given)}'
            )
        for state, seconds in (given or {}).items():
            if state not in TERMINAL:
                raise ConfigurationError(
                    f"retention is set for succeeded, dead and cancelled jobs, in seconds, not for {shorten(state)}"
                )
            if seconds is not None:
                seconds_to_micros(seconds, f"retention of {state} jobs")
        return cls(**{str(state): seconds for state, seconds in (given or {}).items()})

    async def prune(self, driver: Driver, limit: int | None = None) -> int:
        """Delete what is older, in small transactions; how many jobs."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ConfigurationError(
                f"limit must be a whole number from 0, or None for all, not {shorten(limit)}"
            )
        now = await driver.now()
        before = {
            state: now - seconds_to_micros(seconds)
            for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)
            if (seconds := getattr(self, state)) is not None
        }
        pruned = 0
        while before and (limit is None or pruned < limit):
            batch = BATCH if limit is None else min(BATCH, limit - pruned)
            deleted = await driver.prune(before, batch)
            pruned += deleted
            if deleted < batch:
                break
        return pruned
