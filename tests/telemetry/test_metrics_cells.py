"""Series: how many there may be, what their labels may contain, and that a reader in another process sees them."""

from __future__ import annotations

import mmap
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.telemetry.metrics.cells import LABEL_BYTES, OTHER, PAIRS, SIZE, Cells, label
from taskharbor.telemetry.metrics.meter import Meter
from tests.telemetry.attempts import attempt, counters, job, new_meter, read, settle


def test_series_beyond_the_limit_count_together():
    meter = new_meter()
    for number in range(PAIRS + 50):
        settle(meter, attempt(of=job(f"task-{number}")))
    settle(meter, attempt(of=job("task-0")), attempt(of=job(f"task-{PAIRS + 1}")))
    snapshot = read(meter)
    assert len(snapshot.jobs) == PAIRS + 1
    assert counters(snapshot, task="task-0")["jobs_succeeded"] == 2
    assert counters(snapshot, *OTHER)["jobs_succeeded"] == 51


def test_any_number_of_names_takes_no_more_memory():
    meter = new_meter(declared=lambda task: False)
    for number in range(1_000):
        settle(meter, attempt(of=job(f"task-{number}", f"queue-{number % 2}")))
        settle(meter, attempt(of=job("send", f"queue-{number}" + "x" * 200)))
    assert len(meter._bases) + len(meter._bases_of_labels) <= 2 * PAIRS + 1


def test_a_task_that_is_not_declared_gives_no_label():
    meter = new_meter(declared=lambda task: task == "send")
    settle(meter, attempt(of=job("send")), attempt(of=job("user-7f3a-secret")), attempt(of=job("user-8")))
    snapshot = read(meter)
    assert set(snapshot.jobs) == {("default", "send"), ("default", "_other")}
    assert counters(snapshot, task="_other")["jobs_succeeded"] == 2


def test_a_task_named_like_the_rest_counts_with_the_rest():
    meter = new_meter()
    settle(meter, attempt(of=job(*reversed(OTHER))))
    for number in range(PAIRS + 1):
        settle(meter, attempt(of=job(f"task-{number}")))
    counted = [words for pair, words in meter.cells.jobs() if pair == OTHER]
    assert len(counted) == 1
    assert counters(read(meter), *OTHER)["jobs_succeeded"] == 2


@given(st.text(max_size=300))
def test_a_label_is_short_and_printable(name: str):
    shown = label(name)
    assert len(shown.encode()) <= LABEL_BYTES
    assert shown.isprintable()
    if name.isprintable() and len(name.encode()) <= LABEL_BYTES:
        assert shown == name


def test_long_names_with_one_label_share_a_series():
    meter = new_meter()
    settle(
        meter, attempt(of=job("x" * 300 + "1")), attempt(of=job("x" * 300 + "2")), attempt(of=job("short"))
    )
    snapshot = read(meter)
    assert len(snapshot.jobs) == 2
    assert counters(snapshot, task=label("x" * 300))["jobs_succeeded"] == 2


def test_memory_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match=f"cells take {SIZE} bytes, not {SIZE - 8}"):
        Cells(memoryview(bytearray(SIZE - 8)))


def test_memory_that_a_crash_has_garbled_can_still_be_read():
    meter = new_meter()
    settle(meter, attempt())
    for index, word in enumerate(meter.cells.words):
        meter.cells.words[index] = 2**40 if word else -1
    jobs = read(meter).jobs
    assert len(jobs) <= PAIRS + 1
    assert max(len(name) for pair in jobs for name in pair) <= LABEL_BYTES


def test_another_process_reads_what_a_killed_one_has_counted():
    shared = mmap.mmap(-1, SIZE)
    pid = os.fork()
    if not pid:
        try:
            settle(
                Meter(Cells(memoryview(shared)), lambda task: True), *[attempt(of=job("grüße", "pöst"))] * 3
            )
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    cells = Cells(memoryview(shared))
    [(pair, words)] = cells.jobs()
    assert pair == ("pöst", "grüße")
    assert sum(words) > 0
    del words
    cells.close()
    shared.close()
