"""Instants are exact, and a manual clock moves only when it is told to."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.clock import (
    MAX_SECONDS,
    Clock,
    ManualClock,
    SystemClock,
    from_micros,
    seconds_to_micros,
    to_micros,
    wait_for,
)
from taskharbor.errors import ConfigurationError

# Both satisfy the protocol: mypy checks this line.
CLOCKS: tuple[Clock, Clock] = (SystemClock(), ManualClock())

START = datetime(2026, 1, 1, tzinfo=UTC)


# -- instants and durations ----------------------------------------------------------------------


def test_the_epoch_is_zero():
    assert to_micros(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert from_micros(0) == datetime(1970, 1, 1, tzinfo=UTC)


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_survives_the_round_trip_to_the_microsecond(instant):
    assert from_micros(to_micros(instant)) == instant
    assert from_micros(to_micros(instant)).tzinfo is UTC


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)), st.integers(-1439, 1439))  # noqa: DTZ001
def test_the_same_instant_in_another_zone_is_the_same_number(naive, minutes):
    instant = naive.replace(tzinfo=UTC)
    assert to_micros(instant.astimezone(timezone(timedelta(minutes=minutes)))) == to_micros(instant)


def test_a_fold_names_two_instants():
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    assert to_micros(first.replace(fold=1)) - to_micros(first) == 3600 * 1_000_000


def test_a_naive_datetime_is_refused():
    with pytest.raises(ConfigurationError, match=r"run_at must be an aware datetime.*has no time zone"):
        to_micros(datetime(2026, 1, 1), "run_at")  # noqa: DTZ001


@pytest.mark.parametrize("value", [None, 5, "2026-01-01", START.date()])
def test_what_is_no_datetime_is_refused(value):
    with pytest.raises(ConfigurationError, match="expires_at must be an aware datetime, not"):
        to_micros(value, "expires_at")


@pytest.mark.parametrize(
    ("seconds", "micros"), [(0, 0), (1, 1_000_000), (0.1, 100_000), (1e-6, 1), (2.5e-7, 0), (0.0000015, 2)]
)
def test_seconds_to_micros(seconds, micros):
    assert seconds_to_micros(seconds) == micros


@pytest.mark.parametrize("value", [-1, -1e-9, math.nan, math.inf, True, "5", None, MAX_SECONDS * 2, 10**400])
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(ConfigurationError, match="delay must be a number of seconds from 0"):
        seconds_to_micros(value, "delay")


# -- the system's clock --------------------------------------------------------------------------


async def test_the_system_clock_tells_the_machines_time_and_calls_back():
    clock = SystemClock()
    before = to_micros(datetime.now(UTC))
    assert before <= clock.now() <= to_micros(datetime.now(UTC)) + 1
    assert clock.monotonic() <= clock.monotonic()
    rung = asyncio.Event()
    clock.call_later(60, rung.set).cancel()
    clock.call_later(0, rung.set)
    await wait_for(clock, rung.wait(), 30)
    await clock.sleep(0)


async def test_wait_for_times_out_by_the_system_clock():
    with pytest.raises(TimeoutError):
        await wait_for(SystemClock(), asyncio.Event().wait(), 0.001)


# -- the manual clock ----------------------------------------------------------------------------


def test_manual_time_moves_only_when_told_to():
    clock = ManualClock(START)
    assert from_micros(clock.now()) == START
    assert clock.now() == clock.now()
    assert clock.monotonic() == 0
    clock.advance(1.5)
    assert from_micros(clock.now()) == START + timedelta(seconds=1.5)
    assert clock.monotonic() == 1.5


def test_manual_time_starts_where_it_is_told_to():
    assert ManualClock(42).now() == 42
    with pytest.raises(ConfigurationError, match="start must be an aware datetime"):
        ManualClock(datetime(2026, 1, 1))  # noqa: DTZ001


def test_manual_time_does_not_go_back():
    with pytest.raises(ConfigurationError, match="advance must be"):
        ManualClock().advance(-1)


async def test_due_timers_fire_in_order_each_at_its_own_instant():
    clock = ManualClock()
    fired: list[tuple[str, float]] = []

    def note(name: str) -> None:
        fired.append((name, clock.monotonic()))

    clock.call_later(3, lambda: note("third"))
    clock.call_later(1, lambda: note("first"))
    clock.call_later(1, lambda: note("second"))
    clock.call_later(9, lambda: note("not yet"))
    clock.advance(5)
    assert fired == [("first", 1), ("second", 1), ("third", 3)]
    assert clock.monotonic() == 5


async def test_a_timer_is_never_early():
    clock = ManualClock()
    fired: list[int] = []
    clock.call_later(1, lambda: fired.append(1))
    clock.advance(0.999999)
    assert not fired
    clock.advance(0.000001)
    assert fired


async def test_a_timer_set_by_a_timer_fires_in_the_same_advance_when_it_is_due():
    clock = ManualClock()
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(clock.monotonic())
        clock.call_later(1, tick)

    clock.call_later(1, tick)
    clock.advance(3.5)
    assert ticks == [1, 2, 3]


async def test_a_cancelled_timer_does_not_fire():
    clock = ManualClock()
    fired: list[int] = []
    timer = clock.call_later(1, lambda: fired.append(1))
    timer.cancel()
    timer.cancel()
    clock.advance(2)
    assert not fired


async def test_a_timer_of_no_delay_needs_no_advance():
    clock = ManualClock()
    rung = asyncio.Event()
    began = clock.now()
    clock.call_later(0, rung.set)
    await rung.wait()
    await clock.sleep(0)
    assert (rung.is_set(), clock.now()) == (True, began)


async def test_an_error_in_a_timer_is_reported_and_the_next_one_fires():
    clock = ManualClock()
    reported: list[dict[str, object]] = []
    fired: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    error = RuntimeError("broken")

    def broken() -> None:
        raise error

    clock.call_later(1, broken)
    clock.call_later(2, lambda: fired.append(1))
    clock.advance(2)
    assert [context["exception"] for context in reported] == [error]
    assert fired


async def test_sleepers_wake_as_often_as_they_would_have_in_real_time():
    clock = ManualClock()
    woken: list[float] = []

    async def beat() -> None:
        while True:
            await clock.sleep(10)
            woken.append(clock.monotonic())

    beating = asyncio.create_task(beat())
    await clock.jump(35)
    assert woken == [10, 20, 30]
    assert clock.monotonic() == 35
    beating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beating
    clock.advance(10)  # a cancelled sleeper leaves no timer behind
    assert woken == [10, 20, 30]


async def test_wait_for_returns_what_comes_in_time():
    clock = ManualClock()
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    clock.call_later(4, lambda: future.set_result("here"))
    waiting = asyncio.create_task(wait_for(clock, future, 5))
    await clock.jump(4)
    assert await waiting == "here"
    clock.advance(10)


async def test_wait_for_times_out_by_the_manual_clock():
    clock = ManualClock()
    waiting = asyncio.create_task(wait_for(clock, asyncio.Event().wait(), 5))
    await clock.jump(4.9)
    assert not waiting.done()
    await clock.jump(0.1)
    with pytest.raises(TimeoutError):
        await waiting


async def test_wait_for_without_a_limit_waits():
    clock = ManualClock()
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for(clock, event.wait(), None))
    await clock.jump(1_000_000)
    assert not waiting.done()
    event.set()
    assert await waiting is True


async def test_cancelling_a_wait_from_outside_is_not_a_timeout():
    clock = ManualClock()
    waiting = asyncio.create_task(wait_for(clock, asyncio.Event().wait(), 5))
    await clock.settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_advancing_from_another_thread_fires_on_the_loops_thread():
    clock = ManualClock()
    rung = asyncio.Event()
    threads: list[int] = []

    def ring() -> None:
        threads.append(threading.get_ident())
        rung.set()

    clock.call_later(5, ring)
    await asyncio.to_thread(clock.advance, 5)
    await rung.wait()
    assert threads == [threading.get_ident()]


async def test_a_timer_cancelled_before_its_loop_gets_to_it_does_not_fire():
    clock = ManualClock()
    fired: list[int] = []
    timer = clock.call_later(5, lambda: fired.append(1))
    advancing = threading.Thread(target=clock.advance, args=(5,))
    advancing.start()
    advancing.join()  # the loop has been asked to call, and has not come round yet
    timer.cancel()
    await clock.settle()
    assert not fired


def test_timers_of_a_closed_loop_are_dropped():
    clock = ManualClock()

    async def leave_a_timer() -> None:
        clock.call_later(5, lambda: None)

    asyncio.run(leave_a_timer())
    clock.advance(10)
    assert clock.monotonic() == 10


def test_threads_see_manual_time_rise_and_their_moves_add_up():
    clock = ManualClock(0)
    stop = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        while not stop.is_set():
            seen.append(clock.now())

    def move() -> None:
        for _ in range(500):
            clock.advance(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    movers = [threading.Thread(target=move) for _ in range(4)]
    for mover in movers:
        mover.start()
    for mover in movers:
        mover.join()
    stop.set()
    watcher.join()
    assert seen == sorted(seen)
    assert clock.monotonic() == 2
