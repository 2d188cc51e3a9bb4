"""Roll-ups: which periods are kept, how figures add up, and what percentiles they give."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.rules.rollups import (
    COUNTS,
    DAY,
    HOUR,
    MINUTE,
    OTHER,
    PAIRS_MAX,
    Key,
    added,
    added_up,
    folded,
    from_text,
    place_of,
    to_text,
)
from taskharbor.telemetry.metrics.buckets import SECONDS, quantile

NOW = 20_000 * DAY + 10 * HOUR + 17 * MINUTE + 3
TODAY = NOW - NOW % HOUR

counts = st.integers(0, 2**40)
times = st.lists(counts, max_size=len(SECONDS) + 2).map(tuple)
figures = st.builds(Figures, **dict.fromkeys(COUNTS, counts), wait=times, duration=times)
rows = st.builds(
    Rollup,
    # Few minutes, so that rows meet in one; some are kept as hours, and some not at all.
    st.sampled_from([0, 1, 2, 1_500, 1_501, 50_000]).map(lambda minutes: TODAY - minutes * MINUTE),
    st.sampled_from("ab"),
    st.sampled_from("cd"),
    figures,
)


@pytest.mark.parametrize(
    ("at", "place"),
    [
        (TODAY, (Period.MINUTE, TODAY)),
        (TODAY + 59 * MINUTE, (Period.MINUTE, TODAY + 59 * MINUTE)),
        (TODAY - DAY, (Period.MINUTE, TODAY - DAY)),
        (TODAY - DAY - MINUTE, (Period.HOUR, TODAY - DAY - HOUR)),
        (TODAY - 30 * DAY, (Period.HOUR, TODAY - 30 * DAY)),
        (TODAY - 30 * DAY - MINUTE, None),
    ],
)
def test_a_row_is_kept_in_its_minute_or_hour_or_not_at_all(at: int, place: tuple[Period, int] | None):
    assert place_of(at, NOW) == place


@given(st.lists(rows, max_size=20), st.integers(0, 20))
def test_folding_in_any_portions_gives_the_sums(given_rows: list[Rollup], first: int):
    kept: dict[Key, Figures] = {}
    for portion in (given_rows[:first], given_rows[first:]):
        kept |= folded(portion, kept, NOW)
    placed = [row for row in given_rows if place_of(row.at, NOW) is not None]
    stored = [Rollup(key.at, key.queue, key.task, each) for key, each in kept.items()]
    assert added_up(stored, Period.HOUR) == added_up(placed, Period.HOUR)


@given(figures, figures)
def test_figures_add_up_in_any_order_and_survive_their_text(one: Figures, other: Figures):
    assert added(one, other) == added(other, one)
    assert added(one, Figures()) == one
    assert from_text(to_text(one)) == one


@given(figures, figures)
def test_every_count_and_every_bucket_is_in_the_sum(one: Figures, other: Figures):
    found = added(one, other)
    for name in COUNTS:
        assert getattr(found, name) == getattr(one, name) + getattr(other, name), name
    for name in ("wait", "duration"):
        first, second, both = (getattr(each, name) for each in (one, other, found))
        size = max(len(first), len(second))
        padded = ([*each, *[0] * (size - len(each))] for each in (first, second))
        assert list(both) == [sum(pair) for pair in zip(*padded, strict=True)], name


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"started":"x"}', '{"wait":[1.5]}'])
def test_what_something_else_has_written_counts_as_nothing(text: str):
    assert from_text(text) == Figures()


def test_pairs_beyond_the_limit_are_added_up_as_other():
    many = [Rollup(TODAY, "q", f"t{number}", Figures(started=1)) for number in range(PAIRS_MAX + 5)]
    kept = folded(many, {}, NOW)
    assert len(kept) == PAIRS_MAX + 1
    assert kept[Key(Period.MINUTE, TODAY, OTHER, OTHER)] == Figures(started=5)


def test_what_is_kept_as_other_takes_no_room_from_a_pair():
    other = Rollup(TODAY, OTHER, OTHER, Figures(started=7))
    many = [Rollup(TODAY, "q", f"t{number}", Figures(started=1)) for number in range(PAIRS_MAX)]
    at_once = folded([other, *many], {}, NOW)
    assert len(at_once) == PAIRS_MAX + 1
    kept = folded([other, *many[1:]], {}, NOW)
    later = folded(many[:1], kept, NOW)
    assert {key.task for key in later} == {"t0"}
    assert at_once[Key(Period.MINUTE, TODAY, OTHER, OTHER)] == Figures(started=7)


# -- percentiles -----------------------------------------------------------------------------------


def in_bucket(number: int, count: int = 1) -> list[int]:
    return [0] * number + [count]


@pytest.mark.parametrize(
    ("buckets", "share", "seconds"),
    [
        ([], 0.5, None),
        ([0, 0], 0.5, None),
        (in_bucket(9, 100), 0.5, 0.75),  # the middle of 0.5 to 1 s
        (in_bucket(9, 100), 1.0, 1.0),
        (in_bucket(0, 4), 0.5, 0.0005),
        ([50, 0, 0, 50], 0.5, 0.001),
        ([50, 0, 0, 50], 0.75, 0.0075),
        (in_bucket(len(SECONDS)), 0.5, SECONDS[-1]),  # above the last bound
    ],
)
def test_percentiles_are_interpolated_in_their_bucket(
    buckets: list[int], share: float, seconds: float | None
):
    found = quantile(buckets, share)
    assert found is None if seconds is None else math.isclose(found or 0, seconds)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=len(SECONDS) + 1))
def test_percentiles_rise(buckets: list[int]):
    found = [quantile(buckets, share) for share in (0.5, 0.95, 0.99)]
    assert found == [None] * 3 if not any(buckets) else sorted(found, key=float) == found  # type: ignore[arg-type]
