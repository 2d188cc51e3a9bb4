"""The search for a planted bug: which seeds are tried, in which order.

A seed that found the bug once comes first, so that the suite need not search; `python -m tests.simulation --planted`
searches anew and writes those seeds to `found_seeds.json`, after a change of scheduling has moved them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.simulation import planted_recurring, planted_workflow  # noqa: F401 - they plant
from tests.simulation.fleet import FleetWorld
from tests.simulation.planted import PLANTED
from tests.simulation.planted_story import PLANTED_IN_STORIES, Bug
from tests.simulation.planted_supervisor import PLANTED_IN_THE_SUPERVISOR
from tests.simulation.world import World, simulate

SEEDS_MAX = 1_000
SEEDS_FILE = Path(__file__).with_name("found_seeds.json")
BUGS: dict[str, Bug] = {
    **{what: Bug(plant, World) for what, plant in PLANTED.items()},
    **{what: Bug(plant, FleetWorld) for what, plant in PLANTED_IN_THE_SUPERVISOR.items()},
    **PLANTED_IN_STORIES,
}


def assert_found(what: str) -> None:
    """Fail unless a world in which the bug is planted breaks the rule that the bug breaks."""
    assert _first_found(what, _hinted(what)) is not None, f"not found in {SEEDS_MAX} seeds: {what}"


def search_all() -> Iterator[tuple[str, int | None]]:
    """Search for every bug from the first seed on, and write down the seed that found each."""
    found: dict[str, int] = {}
    for what in BUGS:
        seed = _first_found(what, range(SEEDS_MAX))
        if seed is not None:
            found[what] = seed
        yield what, seed
    SEEDS_FILE.write_text(json.dumps(found, indent=1) + "\n")


def _hinted(what: str) -> Iterable[int]:
    hint = json.loads(SEEDS_FILE.read_text()).get(what, 0)
    return itertools.chain([hint], range(SEEDS_MAX))


def _first_found(what: str, seeds: Iterable[int]) -> int | None:
    bug = BUGS[what]
    with bug.plant():
        for seed in seeds:
            if any(wrong.startswith(bug.rule) for wrong in simulate(seed, bug.kind).wrong):
                return seed
    return None
