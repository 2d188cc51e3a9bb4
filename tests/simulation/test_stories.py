"""Worlds of recurring jobs, workflows and durable steps: nothing is wrong there, and planted bugs are found."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers.sqlite import SQLiteDriver
from tests.simulation.planted_story import PLANTED_IN_STORIES
from tests.simulation.search import assert_found
from tests.simulation.stories import KINDS
from tests.simulation.universe import ProcessClock, Universe
from tests.simulation.world import Findings, _bury_all, _seeded, simulate

FIXED = 15  # seeds
SECONDS = float(os.environ.get("TASKHARBOR_SIMULATION_SECONDS", "4")) / 4


def assert_nothing_wrong(kind: str, seed: int) -> None:
    findings = simulate(seed, KINDS[kind])
    told = "\n".join(findings.wrong)
    assert not findings.wrong, f"{told}\nreplay it: python -m tests.simulation --world {kind} --seed {seed}"


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_seeds_of_stories_find_nothing_wrong(kind):
    for seed in range(FIXED):
        assert_nothing_wrong(kind, seed)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("recurring", 2),  # a cancel that had looked before the last run
        ("recurring", 139),  # a run asked for while it ran
        ("recurring", 323),  # a change while it slept
        ("recurring", 257),  # an extra run that slept
        ("recurring", 72),  # deleted, and added again during its last run
    ],
)
def test_seeds_of_stories_that_found_something_find_nothing_any_more(kind, seed):
    assert_nothing_wrong(kind, seed)


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("kind", KINDS)
def test_random_seeds_of_stories_find_nothing_wrong(kind):
    seed = random.SystemRandom().randrange(10**9)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert_nothing_wrong(kind, seed)
        seed += 1


def _told(kind: str, seeds: range) -> Counter[str]:
    told: Counter[str] = Counter()
    for seed in seeds:
        findings = simulate(seed, KINDS[kind], look=lambda world: told.update(world.observer.told))
        told["kills"] += findings.kills
    return told


def test_stories_are_full_of_what_they_are_made_for():
    recurring = _told("recurring", range(25)) + _told("hectic", range(10))
    assert recurring["runs"] >= 150
    assert recurring["extra runs"] >= 15
    assert recurring["dead letters"] >= 10
    assert recurring["missed"] >= 1
    assert recurring["Update"] >= 50
    workflows = _told("workflows", range(10)) + _told("steps", range(10))
    assert workflows["released"] >= 15
    assert workflows["results taken"] >= 20
    assert workflows["steps remembered"] >= 30
    assert workflows["sleeps"] >= 3
    assert workflows["deaths"] >= 5
    assert recurring["kills"] + workflows["kills"] >= 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_of_a_story_tells_the_same_one_twice(kind):
    for seed in range(2):
        assert simulate(seed, KINDS[kind]).trace == simulate(seed, KINDS[kind]).trace


# -- the same worlds on another store ------------------------------------------------------------


def _on_sqlite(kind: str, seed: int, path: Path) -> Findings:
    def store(universe: Universe) -> SQLiteDriver:
        return SQLiteDriver(str(path), synchronous="NORMAL", clock=ProcessClock(universe))

    with _seeded(seed):
        world: Any = KINDS[kind](seed, store)
        world.ask("migrate")
        findings: Findings = world.run()
        world.ask("close")
        _bury_all(world)
    return findings


@pytest.mark.parametrize("kind", KINDS)
def test_a_story_is_the_same_on_sqlite(kind, tmp_path):
    """Nothing is wrong there either; and it is the very same story, to the last answer of the store."""
    for seed in range(3):
        on_sqlite = _on_sqlite(kind, seed, tmp_path / f"{seed}.db")
        assert on_sqlite.wrong == []
        assert on_sqlite.trace == simulate(seed, KINDS[kind]).trace


# -- planted bugs --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", PLANTED_IN_STORIES)
def test_bug_planted_in_a_story_is_found(what):
    """By the rule that it breaks, where that is but one."""
    assert_found(what)
