"""The simulation finds bugs: each of those that are planted, within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.world import simulate

# In the seeds where each is found soonest, so that the suite need not search for long.
FIRST = {
    "an expired lease can still settle": 93,
    "a settle does not prove its lease": 272,
    "a heartbeat revives an expired lease": 224,
    "a request to cancel is forgotten when the job is put back": 76,
    "a worker that outlived its lease is known only once the loss is recorded": 174,
    "at_most_once is not marked before the handler begins": 79,
    "a settle that failed is not repeated": 22,
    "children exist before the attempt has succeeded": 79,
    "a worker that stops keeps what it has not begun": 86,
    "a timeout is measured by a clock that can be set": 172,
}
HINTED, SEEDS_MAX = 100, 1_000


@pytest.mark.parametrize("what", PLANTED)
def test_planted_bug_is_found(what):
    first = FIRST.get(what, 1)
    # A change of scheduling moves them.
    seeds = dict.fromkeys((*range(first, first + HINTED), *range(SEEDS_MAX)))
    with PLANTED[what]():
        assert any(simulate(seed).wrong for seed in seeds), f"not found: {what}"
