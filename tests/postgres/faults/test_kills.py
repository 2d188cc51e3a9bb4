"""Workers on PostgreSQL, killed with SIGKILL at any moment.

Twelve kills in the suite; TASKHARBOR_FAULT_KILLS=50 for fifty, over 10,000 jobs.
"""

from __future__ import annotations

import os

import pytest

from tests.faults.kills import survive_kills
from tests.faults.processes import Crew

KILLS = int(os.environ.get("TASKHARBOR_FAULT_KILLS", "12"))

pytestmark = pytest.mark.timeout(300 + 4 * KILLS)


def test_kills_under_load_lose_nothing_and_settle_nothing_twice(crew: Crew) -> None:
    found = survive_kills(
        crew, jobs=200 * KILLS, kills=KILLS, workers=4, concurrency=12, handler_seconds=0.1, seed=50
    )
    found.assert_nothing_wrong()
    # What was in flight in each of them: begun, or claimed for the next moment.
    assert KILLS < found.losses < KILLS * 150
    assert found.repeated <= found.losses
