"""How many slots a queue needs, as a table."""

from __future__ import annotations

import pytest

from taskharbor.rules.autoscale import Load, slots_wanted

# What is known of the queue, the age, the slots.
CASES: dict[str, tuple[Load, float, int]] = {
    "nothing to do": (Load(), 30, 0),
    "nothing to do, with a known duration": (Load(mean_seconds=2.0), 30, 0),
    "arrivals times duration": (Load(arrivals_per_second=10, mean_seconds=0.5), 30, 5),
    "a part of a slot is a slot": (Load(arrivals_per_second=10, mean_seconds=0.51), 30, 6),
    "a rounding error is no part of a slot": (Load(arrivals_per_second=1.1, mean_seconds=100.0), 30, 110),
    "rare jobs need one": (Load(arrivals_per_second=0.01, mean_seconds=0.01), 30, 1),
    "a new backlog is drained within the age": (Load(ready=600, mean_seconds=1.0), 30, 20),
    "a longer age needs fewer": (Load(ready=600, mean_seconds=1.0), 300, 2),
    "an older backlog within what is left": (Load(ready=600, oldest_seconds=20, mean_seconds=1.0), 30, 60),
    "one that is too old within a quarter": (Load(ready=600, oldest_seconds=99, mean_seconds=1.0), 30, 80),
    "arrivals and backlog add up": (Load(ready=600, arrivals_per_second=10, mean_seconds=1.0), 30, 30),
    "what runs keeps its slots": (Load(running=7, arrivals_per_second=1, mean_seconds=1.0), 30, 7),
    "an unknown duration needs one": (Load(ready=1_000), 30, 1),
    "an unknown duration, and what runs": (Load(ready=1_000, running=3), 30, 3),
    "a paused queue needs none": (
        Load(ready=600, arrivals_per_second=9, mean_seconds=1.0, is_paused=True),
        30,
        0,
    ),
    "a paused queue lets its jobs end": (Load(ready=600, running=2, mean_seconds=1.0, is_paused=True), 30, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_slots_wanted(case: str):
    load, age, slots = CASES[case]
    assert slots_wanted(load, age) == slots
