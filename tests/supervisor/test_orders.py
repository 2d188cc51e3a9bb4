"""The options of a supervisor reach its children."""

from __future__ import annotations

from taskharbor import presets
from taskharbor.records import State


def test_the_workers_policy_reaches_the_children(small):
    job = small.harbor.enqueue("fail")
    own = small.harbor.enqueue("fail", retry=presets.EMAIL, max_attempts=9)
    assert small.start(processes=1, retry="none", drain=True).wait(60) == 0, small.errors()
    assert job.refresh().state is State.DEAD
    assert own.refresh().state is State.SCHEDULED


def test_the_cap_reaches_the_children(small):
    job = small.harbor.enqueue("fail", retry=presets.EMAIL, max_attempts=9)
    assert small.start(processes=1, retry="email", max_attempts=1, drain=True).wait(60) == 0, small.errors()
    assert job.refresh().state is State.DEAD


def test_a_policy_that_cannot_be_is_refused_with_one_line(small):
    assert small.start(processes=1, retry="none", max_attempts=3).wait(60) == 1
    [error] = [line for line in small.errors().splitlines() if line.startswith("Error: ")]
    assert "caps the worker's policy" in error
