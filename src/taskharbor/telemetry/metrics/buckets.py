"""Buckets of histograms: one table for times, one for the sizes of batches."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.clock import MICROS_PER_SECOND

# Upper bounds, in seconds, from 1 ms to 4 h, each 2 to 3 times the one before it. They are times that people name, so
# that a threshold such as one minute is a bound, and a share of jobs within it is exact.
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0,
)  # fmt: skip
TIMES = tuple(round(seconds * MICROS_PER_SECOND) for seconds in SECONDS)  # as cells count: in microseconds
BATCHES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)  # jobs


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return, in seconds, the time that this share of the times in the buckets does not exceed; None without a time.

    Within a bucket it is interpolated, as if its times were spread evenly. Above the last bound it is that bound.
    """
    rank = share * sum(counts)
    below = 0
    for count, lower, upper in zip(counts, (0.0, *SECONDS), (*SECONDS, SECONDS[-1]), strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below += count
    return None
