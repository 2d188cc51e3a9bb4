"""Retention: how long finished jobs are kept, state by state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from taskharbor.clock import seconds_to_micros
from taskharbor.codec import shorten
from taskharbor.drivers.base import Driver
from taskharbor.errors import ConfigurationError
from taskharbor.records import State
from taskharbor.rules.lifecycle import TERMINAL

DAY_SECONDS = 86_400.0
BATCH = 500  # jobs deleted in one transaction, so that pruning never blocks others for long


class Retention(Struct, frozen=True):
    """Seconds to keep jobs in each terminal state, and the history of recurring ones; None keeps them."""

    succeeded: float | None = 7 * DAY_SECONDS
    dead: float | None = None  # kept until an operator requeues or discards it
    cancelled: float | None = 7 * DAY_SECONDS
    history: float | None = 90 * DAY_SECONDS  # of recurring jobs, which never finish …
    history_count: int | None = 100  # … and no more attempts of each than this

    @classmethod
    def of(cls, given: Mapping[str, float | None] | None) -> Retention:
        if given is not None and not isinstance(given, Mapping):
            raise ConfigurationError(
                f'retention maps states to seconds, such as {{"succeeded": 86400}}, not {shorten(given)}'
            )
        for state, seconds in (given or {}).items():
            if state == "history_count":
                if seconds is not None and (
                    isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 1
                ):
                    raise ConfigurationError(
                        f"history_count must be a whole number of attempts from 1, or None, not {shorten(seconds)}"
                    )
                continue
            if state not in TERMINAL and state != "history":
                raise ConfigurationError(
                    "retention is set for succeeded, dead and cancelled jobs, in seconds, and for the history of "
                    f"recurring ones (history, history_count), not for {shorten(state)}"
                )
            if seconds is not None:
                seconds_to_micros(seconds, f"retention of {state} jobs")
        fields: dict[str, Any] = {str(state): seconds for state, seconds in (given or {}).items()}
        return cls(**fields)

    async def prune(self, driver: Driver, limit: int | None = None) -> int:
        """Delete older jobs in small transactions; return how many."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ConfigurationError(
                f"limit must be a whole number from 0, or None for all, not {shorten(limit)}"
            )
        from taskharbor.drivers.capabilities import Upkeep  # a producer never prunes

        upkeep = Upkeep.of(driver)
        now = await driver.now()
        before = {
            state: now - seconds_to_micros(seconds)
            for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED)
            if (seconds := getattr(self, state)) is not None
        }
        pruned = 0
        while before and (limit is None or pruned < limit):
            batch = BATCH if limit is None else min(BATCH, limit - pruned)
            deleted = await upkeep.prune(before, batch)
            pruned += deleted
            if deleted < batch:
                break
        return pruned
