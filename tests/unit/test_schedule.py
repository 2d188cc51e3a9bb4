"""When a schedule is due: against a search through every minute or second, and when clocks are changed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskharbor.clock import MICROS_PER_SECOND, to_micros
from taskharbor.errors import ConfigurationError
from taskharbor.schedule import Cron, Interval, every, parse

HOUR = 3600
DAY = 24 * HOUR
FAR = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

# Where clocks do odd things, and an instant (UTC) shortly before they do.
CHANGES = {
    "New_York's gap": ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    "New_York's fold": ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Lord_Howe's half-hour gap": ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    "Lord_Howe's half-hour fold": ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    "Troll's two-hour gap": ("Antarctica/Troll", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    "Troll's two-hour fold": ("Antarctica/Troll", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "Chatham's gap": ("Pacific/Chatham", datetime(2026, 9, 26, 14, tzinfo=UTC)),
    "Chatham's fold": ("Pacific/Chatham", datetime(2026, 4, 4, 14, tzinfo=UTC)),
    "Santiago's missing midnight": ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
    "Santiago's second 23 o'clock": ("America/Santiago", datetime(2026, 4, 5, 3, tzinfo=UTC)),
    "Apia's missing day": ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    "no change at all": ("UTC", datetime(2026, 2, 28, 12, tzinfo=UTC)),
}


# -- the search ----------------------------------------------------------------------------------


def matches(cron: Cron, wall: datetime) -> bool:
    parsed = cron._cron  # the fields, as cronsim reads them
    return (
        wall.month in parsed.months
        and parsed.match_day(wall.date())
        and wall.hour in parsed.hours
        and wall.minute in parsed.minutes
        and wall.second in parsed.seconds
    )


def searched(expression: str, zone: str, after: datetime, step: int, steps: int) -> datetime | None:
    """Instant by instant: does a clock show it now, for the first time, or has it just skipped it?"""
    cron = parse(expression, zone)
    assert isinstance(cron, Cron)
    tick = timedelta(seconds=step)
    floor = int(after.timestamp()) // step * step
    instant = datetime.fromtimestamp(floor, UTC)
    shown = instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    for _ in range(steps):
        instant += tick
        local = instant.astimezone(ZoneInfo(zone))
        before, shown = shown, local.replace(tzinfo=None)
        if cron.follows_real_time:
            if matches(cron, shown):
                return instant
            continue
        skipped, first = before + tick, not local.fold
        while skipped < shown:
            if matches(cron, skipped):
                return instant
            skipped += tick
        if first and matches(cron, shown):
            return instant
    return None


numbers = {"second": 59, "minute": 59, "hour": 23}


def fields(name: str) -> st.SearchStrategy[str]:
    most = numbers[name]
    one = st.integers(0, most)
    return st.one_of(
        st.just("*"),
        one.map(str),
        st.sampled_from([2, 3, 5, 7, 10, 15, 20, 30]).map(lambda step: f"*/{step}"),
        st.lists(one, min_size=2, max_size=4, unique=True).map(lambda some: ",".join(map(str, sorted(some)))),
        st.tuples(one, one).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    )


days = st.sampled_from(
    ["* * *", "* * *", "* * *", "* * 0", "1-15 * *", "L * *", "* */2 *", "* * 6#1", "13 * 5"]
)
odd_hours = st.sampled_from(["1", "2", "1,2", "0", "23", "3", "0,12", "*"])


@settings(max_examples=150, deadline=None)
@given(
    change=st.sampled_from(list(CHANGES)),
    minute=fields("minute"),
    hour=st.one_of(fields("hour"), odd_hours),
    days=days,
    before=st.integers(-3 * HOUR, 30 * HOUR),
)
@example(change="New_York's fold", minute="*/15", hour="1", days="* * *", before=-900)
@example(change="Apia's missing day", minute="30", hour="*", days="* * *", before=1)
@example(change="Troll's two-hour fold", minute="*", hour="*", days="* * *", before=1)
def test_five_fields_are_found_where_a_search_through_every_minute_finds_them(
    change, minute, hour, days, before
):
    zone, at = CHANGES[change]
    after = at - timedelta(seconds=before)
    expected = searched(f"{minute} {hour} {days}", zone, after, 60, 60 * 40)
    found = parse(f"{minute} {hour} {days}", zone).next_after(after)
    assert found > after
    if expected is None:
        assert found > after + timedelta(hours=39)
    else:
        assert found == expected


@settings(max_examples=100, deadline=None)
@given(
    change=st.sampled_from([name for name in CHANGES if not name.startswith("Apia")]),
    second=fields("second"),
    minute=fields("minute"),
    hour=st.one_of(fields("hour"), odd_hours),
    before=st.integers(-HOUR, HOUR),
    micros=st.sampled_from([0, 1, 999_999]),
)
def test_six_fields_are_found_where_a_search_through_every_second_finds_them(
    change, second, minute, hour, before, micros
):
    zone, at = CHANGES[change]
    after = at - timedelta(seconds=before) + timedelta(microseconds=micros)
    expression = f"{second} {minute} {hour} * * *"
    expected = searched(expression, zone, after, 1, 3 * HOUR)
    found = parse(expression, zone).next_after(after)
    assert found > after
    if expected is None:
        assert found > after + timedelta(seconds=3 * HOUR - 2)
    else:
        assert found == expected


zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Casablanca"])


@settings(max_examples=150, deadline=None)
@given(
    expression=st.tuples(fields("second"), fields("minute"), fields("hour"), days).map(" ".join),
    zone=zones,
    after=st.integers(365 * DAY, 43_800 * DAY).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    span=st.integers(1, 40 * 24 * HOUR),
)
def test_next_after_is_later_and_the_latest_is_the_last_of_them(expression, zone, after, span):
    schedule = parse(expression, zone)
    begin = to_micros(after)
    first = schedule.next_micros(begin)
    assert first > begin
    second = schedule.next_micros(first)
    assert second > first
    # nothing is between: asked from anywhere before it, the answer is the same
    assert schedule.next_micros((begin + first) // 2) == first
    until = begin + span * MICROS_PER_SECOND
    latest = schedule.latest_micros(begin, until)
    if latest is None:
        assert first > until
    else:
        assert begin < latest <= until < schedule.next_micros(latest)
        assert schedule.next_micros(latest - 1) == latest


# -- daylight saving: the rules -------------------------------------------------------------------

NEW_YORK_GAP, NEW_YORK_FOLD = CHANGES["New_York's gap"][1], CHANGES["New_York's fold"][1]


def utc(*of: int) -> datetime:
    return datetime(*of, tzinfo=UTC)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "due"),
    [
        # A fixed time that does not exist runs at the first instant after the gap …
        ("30 2 * * *", "America/New_York", utc(2026, 3, 8, 0), utc(2026, 3, 8, 7)),
        ("0 30 2 * * *", "America/New_York", utc(2026, 3, 8, 0), utc(2026, 3, 8, 7)),
        ("15 2 * * *", "Australia/Lord_Howe", utc(2026, 10, 3, 0), utc(2026, 10, 3, 15, 30)),
        ("30 1 * * *", "Antarctica/Troll", utc(2026, 3, 28, 12), utc(2026, 3, 29, 1)),
        ("0 3 * * *", "Pacific/Chatham", utc(2026, 9, 26, 0), utc(2026, 9, 26, 14)),
        ("0 0 * * *", "America/Santiago", utc(2026, 9, 5, 12), utc(2026, 9, 6, 4)),
        ("0 12 30 12 *", "Pacific/Apia", utc(2011, 12, 30, 0), utc(2011, 12, 30, 10)),
        # … once, and then as ever.
        ("30 2 * * *", "America/New_York", utc(2026, 3, 8, 7), utc(2026, 3, 9, 6, 30)),
        ("15,45 2 * * *", "America/New_York", utc(2026, 3, 8, 7), utc(2026, 3, 9, 6, 15)),
        ("0 12 * * *", "Pacific/Apia", utc(2011, 12, 30, 10), utc(2011, 12, 30, 22)),
        # A fixed time that exists twice runs once, the first time.
        ("30 1 * * *", "America/New_York", utc(2026, 11, 1, 0), utc(2026, 11, 1, 5, 30)),
        ("30 1 * * *", "America/New_York", utc(2026, 11, 1, 5, 30), utc(2026, 11, 2, 6, 30)),
        ("0 30 1 * * *", "America/New_York", utc(2026, 11, 1, 5, 30), utc(2026, 11, 2, 6, 30)),
        ("30 1 * * *", "America/New_York", utc(2026, 11, 1, 6, 15), utc(2026, 11, 2, 6, 30)),
        ("45 1 * * *", "Australia/Lord_Howe", utc(2026, 4, 4, 14, 45), utc(2026, 4, 5, 15, 15)),
        ("30 2 * * *", "Antarctica/Troll", utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 2, 30)),
        ("0 3 * * *", "Pacific/Chatham", utc(2026, 4, 4, 13, 15), utc(2026, 4, 5, 14, 15)),
        ("30 23 * * *", "America/Santiago", utc(2026, 4, 5, 2, 30), utc(2026, 4, 6, 3, 30)),
        # "Every hour" and finer follow real elapsed time.
        ("0 * * * *", "America/New_York", utc(2026, 3, 8, 6), utc(2026, 3, 8, 7)),
        ("0 * * * *", "America/New_York", utc(2026, 11, 1, 5), utc(2026, 11, 1, 6)),
        ("*/20 * * * *", "America/New_York", utc(2026, 11, 1, 5, 40), utc(2026, 11, 1, 6)),
        ("*/10 * * * * *", "America/New_York", utc(2026, 3, 8, 6, 59, 50), utc(2026, 3, 8, 7)),
        ("*/10 * * * * *", "Antarctica/Troll", utc(2026, 10, 25, 0, 59, 50), utc(2026, 10, 25, 1)),
        ("* * * * * *", "Pacific/Apia", utc(2011, 12, 30, 9, 59, 59), utc(2011, 12, 30, 10)),
        ("@hourly", "Antarctica/Troll", utc(2026, 10, 25, 1), utc(2026, 10, 25, 2)),
    ],
)  # fmt: skip
def test_daylight_saving(expression, zone, after, due):
    assert parse(expression, zone).next_after(after) == due


def test_a_day_with_a_gap_and_one_with_a_fold_have_as_many_hours_as_real_time_has():
    hourly = parse("0 * * * *", "America/New_York")
    for begin, hours in ((utc(2026, 3, 8, 4, 59), 23), (utc(2026, 11, 1, 3, 59), 25)):
        seen, instant = 0, begin
        while (instant := hourly.next_after(instant)) <= begin + timedelta(hours=hours):
            seen += 1
        assert seen == hours


# -- intervals -----------------------------------------------------------------------------------


@given(
    period=st.integers(100_000, 10**12),
    anchor=st.integers(-(10**15), 10**15),
    passed=st.integers(0, 10**13),
)
def test_an_interval_is_anchored_and_does_not_drift(period, anchor, passed):
    interval = Interval(period)
    due = interval.next_micros(anchor + passed, anchor)
    assert anchor + passed < due <= anchor + passed + period
    assert (due - anchor) % period == 0
    latest = interval.latest_micros(anchor, anchor + passed, anchor)
    assert latest == (None if passed < period else due - period)


@given(st.integers(100_000, 10**14))
def test_an_interval_is_the_same_after_it_was_stored(period):
    again = parse(Interval(period).expression)
    assert isinstance(again, Interval)
    assert again.period == period
    assert again == Interval(period)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("@every 90s", 90), ("@every 1h30m", 5400), ("@every 2d", 172_800), ("@every 0.5s", 0.5)],
)
def test_an_interval_can_be_written(text, seconds):
    assert parse(text) == every(seconds)
    assert parse(text).next_after(utc(2026, 1, 1)) == utc(2026, 1, 1) + timedelta(seconds=seconds)


# -- parsing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("0 0 30 2 *", "no cron expression"),
        ("0 0 31 2,4,6,9,11 *", "no cron expression"),
        ("0 0 30 2 * *", "no cron expression"),
        ("0 0 * 2 MON#5,TUE#5 x", "no cron expression"),
        ("* * * *", "Wrong number of fields"),
        ("60 * * * *", "Bad minute"),
        ("5-1 * * * *", "Bad minute"),
        ("*/0 * * * *", "Bad minute"),
        ("0 0 * * 5#1/2", "no cron expression"),
        ("@fortnightly", "no cron expression"),
        ("@every", "no interval"),
        ("@every 5 minutes", "no interval"),
        ("@every 0s", "at least"),
        ("", "a schedule is a text"),
        ("* " * 200, "a schedule is a text"),
        (17, "a schedule is a text"),
        (None, "a schedule is a text"),
    ],
)
def test_what_is_no_schedule_is_refused_clearly(expression, told):
    with pytest.raises(ConfigurationError, match=told):
        parse(expression)


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "", "../etc/passwd", "europe berlin", 3, None, "a" * 500, "\0"]
)
def test_what_is_no_time_zone_is_refused_clearly(zone):
    with pytest.raises(ConfigurationError, match="time ?zone"):
        parse("* * * * *", zone)


@pytest.mark.parametrize("seconds", [0, -1, 0.01, float("nan"), float("inf"), "5", True])
def test_what_is_no_interval_is_refused_clearly(seconds):
    with pytest.raises(ConfigurationError, match="every"):
        every(seconds)


def test_an_aware_instant_is_asked_for():
    with pytest.raises(ConfigurationError, match="aware"):
        parse("* * * * *").next_after(datetime(2026, 1, 1))  # noqa: DTZ001


def test_the_end_of_the_calendar_is_told():
    with pytest.raises(ConfigurationError, match="end of the calendar"):
        parse("0 0 29 2 *").next_after(FAR)
    with pytest.raises(ConfigurationError, match="end of the calendar"):
        parse("* * * * * *", "Asia/Tokyo").next_after(FAR)


def test_a_schedule_takes_a_schedule():
    berlin = parse("0 9 * * MON-FRI", "Europe/Berlin")
    assert parse(berlin) is berlin
    with pytest.raises(ConfigurationError, match="time zone already"):
        parse(berlin, "Asia/Tokyo")


def test_rare_dates_are_found():
    assert parse("0 0 29 2 *").next_after(utc(2096, 3, 1)) == utc(2104, 2, 29)
    assert parse("0 0 * 2 MON#5").next_after(utc(2026, 1, 1)) == utc(2044, 2, 29)


def test_a_usual_expression_takes_well_under_a_millisecond():
    for expression in ("*/5 * * * *", "30 2 * * *", "*/10 * * * * *", "0 9 * * MON-FRI", "@every 90s"):
        schedule = parse(expression, "Europe/Berlin")
        instant = to_micros(utc(2026, 6, 1))
        taken = []
        for _ in range(200):
            begin = time.perf_counter()
            instant = schedule.next_micros(instant, instant)
            taken.append(time.perf_counter() - begin)
        assert min(taken) < 0.0005, expression  # the best of many: the machine may be busy
