"""Workers on PostgreSQL, killed with SIGKILL at any moment."""

from __future__ import annotations

import pytest

from tests.faults.kills import survive_kills
from tests.faults.processes import Crew

pytestmark = pytest.mark.timeout(200)


def test_fifty_kills_over_ten_thousand_jobs_lose_nothing_and_settle_nothing_twice(crew: Crew) -> None:
    found = survive_kills(
        crew, jobs=10_000, kills=50, workers=4, concurrency=12, handler_seconds=0.1, seed=50
    )
    found.assert_nothing_wrong()
    # What was in flight in each of them: begun, or claimed for the next moment.
    assert 50 < found.losses < 50 * 150
    assert found.repeated <= found.losses
