"""Roll-ups: what workers have counted, by minute or hour, queue and task. They are not exact counts."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Period(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"


class Figures(Struct, frozen=True, omit_defaults=True):
    """Counts, and two histograms of times.

    A histogram is the sum of its times in microseconds, then how many there are in each bucket of
    `telemetry.metrics.buckets.TIMES` and above all of them; zeros at its end are left out. Without a time it is empty.
    """

    enqueued: int = 0  # jobs claimed for the first time
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    lost: int = 0
    cancelled: int = 0
    wait: tuple[int, ...] = ()
    duration: tuple[int, ...] = ()


class Rollup(Struct, frozen=True):
    """What was counted of one queue and task in one minute or hour, by one worker or by all of them."""

    at: int  # the begin of the minute or hour, in the store's time
    queue: str
    task: str
    figures: Figures
