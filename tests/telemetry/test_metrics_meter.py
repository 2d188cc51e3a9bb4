"""What a worker counts: each attempt once, in the right series and buckets."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.drivers.base import Occurrence, SettleAnswer
from taskharbor.records import AttemptStatus, JobRecord, Reason, State
from taskharbor.telemetry.metrics import buckets, catalogue
from taskharbor.telemetry.metrics.cells import Cells
from taskharbor.telemetry.metrics.meter import Meter, watch_loop
from tests.telemetry.attempts import (
    NOW,
    SECOND,
    attempt,
    count_of,
    counters,
    job,
    new_meter,
    read,
    settle,
    sum_of,
    words_of,
)

LOST, FAILED, TIMED_OUT = AttemptStatus.LOST, AttemptStatus.FAILED, AttemptStatus.TIMED_OUT
RELEASED, SLEPT, CANCELLED = AttemptStatus.RELEASED, AttemptStatus.SLEPT, AttemptStatus.CANCELLED
NEXT = Occurrence(NOW + 60 * SECOND, 1)
REARMED: dict[str, Any] = {"state": State.SCHEDULED, "run_at": NEXT.due_at}

# An end of an attempt, and what it counts beside its begin.
ENDS = {
    "success": (attempt(), {"jobs_succeeded": 1}),
    "retry": (attempt(FAILED, State.READY, delay=SECOND), {"jobs_failed": 1, "retries": 1}),
    "retry after a timeout": (attempt(TIMED_OUT, State.READY, delay=0), {"jobs_failed": 1, "retries": 1}),
    "exhausted": (
        attempt(FAILED, State.DEAD, reason=Reason.EXHAUSTED),
        {"jobs_failed": 1, "jobs_dead": 1, "retry_exhausted": 1},
    ),
    "unrecoverable": (attempt(FAILED, State.DEAD, reason=Reason.UNRECOVERABLE), {"jobs_failed": 1, "jobs_dead": 1}),
    "exhausted occurrence": (
        attempt(FAILED, State.DEAD, reason=Reason.EXHAUSTED, occurrence=NEXT, **REARMED),
        {"jobs_failed": 1, "jobs_dead": 1, "retry_exhausted": 1},
    ),
    "successful occurrence": (
        attempt(occurrence=NEXT, **REARMED),
        {"jobs_succeeded": 1},
    ),
    "retry of an occurrence": (
        attempt(FAILED, State.READY, delay=SECOND, occurrence=NEXT, state=State.SCHEDULED, run_at=NOW + SECOND),
        {"jobs_failed": 1, "retries": 1},
    ),
    "cancelled occurrence": (
        attempt(FAILED, State.READY, delay=SECOND, occurrence=NEXT, **REARMED),
        {"jobs_failed": 1, "jobs_cancelled": 1},
    ),
    "failure of a job that was asked to end": (
        attempt(FAILED, State.READY, delay=SECOND, state=State.CANCELLED),
        {"jobs_failed": 1, "jobs_cancelled": 1},
    ),
    "cancelled on request": (attempt(CANCELLED, State.CANCELLED, reason=Reason.CANCELLED), {"jobs_cancelled": 1}),
    "lost": (attempt(LOST, State.READY), {"jobs_lost": 1}),
    "poison": (attempt(LOST, State.DEAD, reason=Reason.POISON), {"jobs_lost": 1, "jobs_dead": 1}),
    "handed back": (attempt(RELEASED, State.READY), {}),
    "slept": (attempt(SLEPT, State.READY, delay=SECOND), {}),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("beside", [0, 3])
def test_each_end_of_an_attempt_counts_what_it_means(end: str, beside: int):
    ended, counted = ENDS[end]
    meter = new_meter()
    settle(meter, ended, *[attempt(of=job("other"))] * beside)
    assert counters(read(meter)) == {"jobs_started": 1} | counted


def test_an_attempt_that_never_began_is_not_started():
    meter = new_meter()
    settle(meter, attempt(RELEASED, State.READY, begun=False))
    snapshot = read(meter)
    assert counters(snapshot) == {}
    assert count_of(snapshot, catalogue.WAIT) == 0


@pytest.mark.parametrize(
    "answer", [SettleAnswer.NOT_RUNNING, SettleAnswer.LEASE_MISMATCH, SettleAnswer.LEASE_EXPIRED]
)
def test_a_refused_settle_counts_as_refused_and_in_no_series(answer: SettleAnswer):
    meter = new_meter()
    settle(meter, attempt(answer=answer))
    snapshot = read(meter)
    assert snapshot.jobs == {}
    assert count_of(snapshot, catalogue.SETTLES_REFUSED) == 1


@pytest.mark.parametrize("answer", [SettleAnswer.CHANGED, SettleAnswer.LATER])
def test_an_attempt_that_is_settled_again_counts_only_then(answer: SettleAnswer):
    meter = new_meter()
    settle(meter, attempt(answer=answer))
    snapshot = read(meter)
    assert snapshot.jobs == {}
    assert count_of(snapshot, catalogue.SETTLES_REFUSED) == 0


def test_a_job_counts_as_enqueued_at_its_first_claim_only():
    meter = new_meter()
    assert meter.claimed([job(number=1), job(number=1), job(number=2)], 0.01) == ("default", "send")
    assert meter.claimed([job(number=1), job("other", number=1), job("other", number=7)], 0.01) is None
    assert meter.claimed([], 0.01) is None
    snapshot = read(meter)
    assert counters(snapshot) == {"jobs_enqueued": 3}
    assert counters(snapshot, task="other") == {"jobs_enqueued": 1}
    assert (count_of(snapshot, catalogue.CLAIM_BATCH), sum_of(snapshot, catalogue.CLAIM_BATCH)) == (3, 6)
    assert words_of(snapshot, catalogue.CLAIM_BATCH)[0] == 1  # the empty one


def test_claims_and_settles_are_timed_once_for_each_batch():
    meter = new_meter()
    meter.claimed([job()] * 3, 0.25)
    settle(meter, *[attempt()] * 3, seconds=0.5)
    settle(meter, attempt())
    snapshot = read(meter)
    assert sum_of(snapshot, catalogue.CLAIM_DURATION) == SECOND // 4
    assert (count_of(snapshot, catalogue.SETTLE_DURATION), sum_of(snapshot, catalogue.SETTLE_DURATION)) == (
        1,
        SECOND // 2,
    )
    assert (count_of(snapshot, catalogue.SETTLE_BATCH), sum_of(snapshot, catalogue.SETTLE_BATCH)) == (1, 3)


def test_a_retry_is_observed_with_the_delay_that_was_granted():
    meter = new_meter()
    settle(
        meter, attempt(FAILED, State.READY, delay=3 * SECOND), attempt(SLEPT, State.READY, delay=99 * SECOND)
    )
    snapshot = read(meter)
    assert (count_of(snapshot, catalogue.RETRY_LATENCY), sum_of(snapshot, catalogue.RETRY_LATENCY)) == (
        1,
        3 * SECOND,
    )


@pytest.mark.parametrize("status", [LOST, RELEASED])
def test_an_attempt_that_was_cut_off_has_a_wait_and_no_duration(status: AttemptStatus):
    meter = new_meter()
    settle(meter, attempt(status, State.READY, waited=5, took=7))
    snapshot = read(meter)
    assert sum_of(snapshot, catalogue.WAIT) == 5
    assert count_of(snapshot, catalogue.DURATION) == 0


Times = st.lists(
    st.integers(-SECOND, 20_000 * SECOND) | st.sampled_from(buckets.TIMES), min_size=1, max_size=30
) | st.lists(st.integers(SECOND // 2, SECOND + 1), min_size=2, max_size=30)  # most of them in one bucket


@given(waits=Times, durations=Times, tasks=st.integers(1, 3), failing=st.booleans())
def test_every_time_is_in_its_bucket_and_in_the_sum(
    waits: list[int], durations: list[int], tasks: int, failing: bool
):
    # All end at the same time, as those of one settle do.
    attempts = [
        attempt(of=job(f"task-{index % tasks}", run_at=NOW - duration - wait), waited=wait, took=duration)
        for index, (wait, duration) in enumerate(zip(waits, durations, strict=False))
    ]
    meter = new_meter()
    # One end of another kind in the batch, and every attempt is recorded by itself.
    settle(meter, *attempts, *[attempt(FAILED, State.READY, of=job("failing"))] * failing)
    snapshot = read(meter)
    for number in range(tasks):
        expected = attempts[number::tasks]
        if not expected:
            continue
        for metric, times in (
            (catalogue.WAIT, [(t.started_at or 0) - j.run_at for j, t, _ in expected]),
            (catalogue.DURATION, [a.at - (t.started_at or 0) for _, t, a in expected]),
        ):
            cells = [0] * metric.words
            for time in (max(0, time) for time in times):
                cells[bisect_left(buckets.TIMES, time)] += 1
                cells[-1] += time
            assert words_of(snapshot, metric, task=f"task-{number}") == cells


def test_a_time_that_is_a_bound_is_within_it():
    meter = new_meter()
    times = [*buckets.TIMES, buckets.TIMES[-1] + 1]
    settle(meter, *[attempt(of=job(run_at=NOW - time), waited=time) for time in times])
    settle(meter, *[attempt(of=job("late", run_at=NOW - time), took=time) for time in times])
    snapshot = read(meter)
    for words in (words_of(snapshot, catalogue.WAIT), words_of(snapshot, catalogue.DURATION, task="late")):
        assert words == [*[1] * len(times), sum(times)]


def record(state: State) -> JobRecord:
    return JobRecord("id", "send", "{}", "default", 0, state, NOW, NOW)


def test_a_job_that_ended_unbegun_counts_by_its_state():
    meter = new_meter()
    for state in (State.CANCELLED, State.CANCELLED, State.DEAD, State.READY):
        meter.ended_unbegun(record(state))
    assert counters(read(meter)) == {"jobs_cancelled": 2, "jobs_dead": 1}


def test_successes_that_ended_at_several_times_have_each_their_duration():
    meter = new_meter()
    settle(meter, attempt(took=1 * SECOND), attempt(took=3 * SECOND), attempt(took=3 * SECOND))
    found = read(meter)
    assert counters(found) == {"jobs_started": 3, "jobs_succeeded": 3}
    assert (count_of(found, catalogue.DURATION), sum_of(found, catalogue.DURATION)) == (3, 7 * SECOND)


def test_a_success_whose_begin_is_unknown_counts_without_a_time():
    """Such as one that another program has settled by hand."""
    meter = new_meter()
    settle(meter, attempt(), attempt(begun=False))
    assert counters(read(meter)) == {"jobs_started": 1, "jobs_succeeded": 2}
    assert count_of(read(meter), catalogue.WAIT) == count_of(read(meter), catalogue.DURATION) == 1


def test_messages_of_streams_are_counted():
    meter = new_meter()
    meter.messages_taken(5)
    meter.messages_handed_over(3, 1)
    streams = (catalogue.STREAM_TAKEN, catalogue.STREAM_HANDED_OVER, catalogue.STREAM_DEAD)
    assert [count_of(read(meter), metric) for metric in streams] == [5, 3, 1]


def test_refused_extensions_are_counted():
    meter = new_meter()
    meter.extension_refused()
    assert count_of(read(meter), catalogue.EXTENSIONS_REFUSED) == 1


class Watched(Meter):
    """A meter whose looks at the loop a test can wait for."""

    def __init__(self) -> None:
        super().__init__(Cells(), lambda task: True)
        self.looks: asyncio.Queue[float] = asyncio.Queue()

    def loop_was_late(self, seconds: float) -> None:
        super().loop_was_late(seconds)
        self.looks.put_nowait(seconds)


async def test_a_blocked_loop_is_late():
    meter = Watched()
    watching = asyncio.create_task(watch_loop(meter, seconds=0.001))
    await meter.looks.get()  # the next look is under way
    end = asyncio.get_running_loop().time() + 0.05
    while asyncio.get_running_loop().time() < end:
        pass
    late = await meter.looks.get()
    watching.cancel()
    assert late >= 0.045
    assert sum_of(read(meter), catalogue.LOOP_LAG) >= 0.045 * SECOND


async def test_a_loop_is_late_by_what_exceeds_the_pause(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]

    async def sleep(seconds: float) -> None:
        if len(late) == 2:
            raise asyncio.CancelledError
        now[0] += seconds + 0.25

    class Lateness(Meter):
        def loop_was_late(self, seconds: float) -> None:
            late.append(seconds)

    late: list[float] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0], raising=False)
    monkeypatch.setattr("taskharbor.telemetry.metrics.meter.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await watch_loop(Lateness(Cells(), lambda task: True), seconds=1.0)
    assert late == [0.25, 0.25]
