"""The simulation finds nothing wrong, whatever the seed; and it is the same story every time.

TASKHARBOR_SIMULATION_SECONDS sets how long random seeds are tried (by default a few seconds).
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulation.fleet import FleetWorld
from tests.simulation.recurring_world import HecticWorld
from tests.simulation.universe import SimulatedLoop
from tests.simulation.world import World, simulate

ROOT = Path(__file__).parents[2]
FIXED = 120  # seeds
SECONDS = float(os.environ.get("TASKHARBOR_SIMULATION_SECONDS", "5"))
# What they found once: a clock that was set, a lease survived while it was collected, a dependency deleted.
REMEMBERED = (591, 100016, 100502, 100526, 101165, 101283, 101492, 101816)


def assert_nothing_wrong(seed: int) -> None:
    findings = simulate(seed)
    told = "\n".join(findings.wrong)
    assert not findings.wrong, f"{told}\nreplay it: python -m tests.simulation --seed {seed}"


@pytest.mark.parametrize("first", range(0, FIXED, 60))
def test_fixed_seeds_find_nothing_wrong(first):
    for seed in range(first, first + 60):
        assert_nothing_wrong(seed)


@pytest.mark.parametrize("seed", REMEMBERED)
def test_seeds_that_found_something_find_nothing_any_more(seed):
    assert_nothing_wrong(seed)


@pytest.mark.timeout(SECONDS + 300)
def test_random_seeds_find_nothing_wrong():
    seed = random.SystemRandom().randrange(10**9)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert_nothing_wrong(seed)
        seed += 1


def test_worlds_are_full_of_what_they_are_made_for():
    findings = [simulate(seed) for seed in range(30)]
    assert sum(each.kills for each in findings) >= 5
    assert sum(each.executions for each in findings) >= 150
    assert sum(each.seconds for each in findings) >= 300


@pytest.mark.parametrize("kind", [World, FleetWorld, HecticWorld])
def test_a_killed_worker_leaves_nothing_in_memory(kind):
    """The collector sees every reference of a worker to itself, at whatever moment the worker was dropped."""
    for seed in range(18):
        simulate(seed, kind)
    assert not [thing for thing in gc.get_objects() if isinstance(thing, SimulatedLoop)]


def test_a_seed_tells_the_same_story_twice():
    for seed in range(20):
        assert simulate(seed).trace == simulate(seed).trace


def test_a_seed_tells_the_same_story_in_every_process():
    program = (
        "from tests.simulation.fleet import FleetWorld\n"
        "from tests.simulation.world import simulate\n"
        "print(*(simulate(seed).trace for seed in range(12)), simulate(3, FleetWorld).trace)"
    )
    stories = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(stories) == 1
    here = [*(simulate(seed).trace for seed in range(12)), simulate(3, FleetWorld).trace]
    assert stories.pop().split() == here
