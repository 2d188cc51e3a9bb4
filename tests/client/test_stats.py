"""harbor.stats: series of roll-ups, and the slots that a queue needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor import ConfigurationError, Harbor
from taskharbor.clock import ManualClock, from_micros
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.rules.rollups import HOUR, MINUTE, begin_of
from taskharbor.sync import run_inline

SECOND = 1_000_000
TEN = Figures(
    enqueued=10, started=10, succeeded=8, failed=2, duration=(5 * SECOND, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10)
)


def append(harbor: Harbor, at: int, figures: Figures = TEN, queue: str = "mail", task: str = "send") -> None:
    run_inline(Rollups.of(harbor.driver).append_rollups([Rollup(at, queue, task, figures)]))


def now_in(clock: ManualClock, period: Period = Period.MINUTE) -> int:
    return begin_of(clock.now(), period)


def test_a_series_has_a_point_for_each_minute_of_the_last_hour(timed: Harbor, clock: ManualClock):
    append(timed, now_in(clock) - 5 * MINUTE)
    append(timed, now_in(clock) - 5 * MINUTE, queue="vip")
    append(timed, now_in(clock) - 2 * HOUR)
    points = timed.stats.series()
    assert [point.at for point in points] == [
        from_micros(now_in(clock) - minute * MINUTE) for minute in range(60, -1, -1)
    ]
    [found] = [point for point in points if point.started]
    assert (found.at, found.seconds) == (from_micros(now_in(clock) - 5 * MINUTE), 60)
    assert (found.enqueued, found.started, found.succeeded, found.failed) == (20, 20, 16, 4)
    assert (found.retried, found.dead, found.lost, found.cancelled) == (0, 0, 0, 0)
    assert (found.duration.count, found.duration.mean, found.duration.p50) == (20, 0.5, 0.75)
    assert (found.wait.count, found.wait.mean, found.wait.p50) == (0, None, None)


def test_a_series_is_of_a_queue_and_of_a_task(timed: Harbor, clock: ManualClock):
    for queue, task in (("mail", "send"), ("mail", "sort"), ("vip", "send")):
        append(timed, now_in(clock), queue=queue, task=task)
    assert timed.stats.series()[-1].started == 30
    assert timed.stats.series("mail")[-1].started == 20
    assert timed.stats.series(task="sort")[-1].started == 10
    assert timed.stats.series("vip", "sort")[-1].started == 0


def test_hours_go_back_further_than_minutes(timed: Harbor, clock: ManualClock):
    hour = now_in(clock, Period.HOUR)
    append(timed, hour - 3 * 24 * HOUR + MINUTE)
    assert len(timed.stats.series(step="hour")) == 25
    points = timed.stats.series(step="hour", since=timedelta(days=29))
    assert [point.at for point in points if point.started] == [from_micros(hour - 3 * 24 * HOUR)]
    assert points[0].seconds == 3_600
    assert len(timed.stats.series(step="hour", since=timedelta(days=90))) == 30 * 24 + 1


def test_minutes_are_there_for_a_day(timed: Harbor, clock: ManualClock):
    points = timed.stats.series(since=datetime(2000, 1, 1, tzinfo=UTC))
    assert points[0].at == from_micros(begin_of(clock.now() - 24 * HOUR, Period.HOUR))


def test_a_long_series_misses_no_window(timed: Harbor, clock: ManualClock):
    """It is read in several portions."""
    first = begin_of(clock.now() - 24 * HOUR, Period.HOUR)
    for at in range(first, now_in(clock) + MINUTE, 29 * MINUTE):
        append(timed, at)
    points = timed.stats.series(since=timedelta(hours=24, minutes=59))
    assert [point.started for point in points[::29]] == [10] * len(points[::29])
    assert sum(point.started for point in points) == 10 * len(points[::29])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": "day"}, 'step must be "minute" or "hour", not \'day\''),
        ({"since": datetime(2000, 1, 1)}, "since must be an aware datetime"),  # noqa: DTZ001
        ({"since": datetime(9000, 1, 1, tzinfo=UTC)}, "since must be in the past"),
        ({"since": timedelta(seconds=-1)}, "since must be a number of seconds"),
        ({"queue": ""}, "queue"),
    ],
)
def test_a_series_of_nonsense_is_refused(timed: Harbor, options: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        timed.stats.series(**options)


# -- slots -----------------------------------------------------------------------------------------


def test_slots_follow_from_arrivals_durations_and_what_is_ready(timed: Harbor, clock: ManualClock):
    seconds = (
        clock.now() - now_in(clock) + 5 * MINUTE
    ) / SECOND  # five minutes, and what has passed of this one
    figures = Figures(enqueued=round(8 * seconds), retried=round(2 * seconds), duration=(4 * SECOND, 0, 8))
    append(timed, now_in(clock) - 5 * MINUTE, figures)
    demand = timed.stats.slots_wanted("mail")
    assert demand.slots == 5  # 10 a second, for half a second
    for _ in range(60):
        timed.enqueue("send", queue="mail")
    demand = timed.stats.slots_wanted("mail")
    [queue] = demand.queues
    assert (demand.age, demand.slots, queue.slots) == (30.0, 6, 6)
    assert (queue.queue, queue.ready, queue.mean_seconds) == ("mail", 60, 0.5)
    assert queue.arrivals_per_second == pytest.approx(10, rel=0.01)


def test_arrivals_are_those_of_whole_minutes_and_of_what_has_passed_of_this_one(
    timed: Harbor, clock: ManualClock
):
    clock.advance((now_in(clock) + MINUTE - clock.now()) / SECOND + 45)
    append(timed, now_in(clock) - 5 * MINUTE, Figures(enqueued=345))
    append(timed, now_in(clock), Figures(enqueued=345))
    [queue] = timed.stats.slots_wanted("mail").queues
    assert queue.arrivals_per_second == 2.0


def test_slots_of_all_queues_are_those_of_each(timed: Harbor, clock: ManualClock):
    timed.enqueue("send", queue="mail")
    timed.enqueue("send", queue="vip")
    demand = timed.stats.slots_wanted()
    assert [(each.queue, each.slots) for each in demand.queues] == [("mail", 1), ("vip", 1)]
    assert demand.slots == 2
    assert [each.slots for each in timed.stats.slots_wanted("unknown").queues] == [0]


def test_the_duration_may_be_an_hour_old(timed: Harbor, clock: ManualClock):
    """A queue that was idle for some minutes still knows how long its jobs take."""
    append(timed, now_in(clock) - 50 * MINUTE)
    [queue] = timed.stats.slots_wanted("mail").queues
    assert (queue.arrivals_per_second, queue.mean_seconds) == (0, 0.5)


@pytest.mark.parametrize("age", [0, -1, 90_000, float("nan")])
def test_an_age_of_nonsense_is_refused(timed: Harbor, age: float):
    with pytest.raises(ConfigurationError, match="age must be"):
        timed.stats.slots_wanted("mail", age=age)


async def test_the_asynchronous_forms_say_the_same(timed: Harbor):
    assert len(await timed.stats.aseries()) == 61
    assert (await timed.stats.aslots_wanted()).slots == 0
