"""Searches that are far list every queue and priority, and so go another way than others: to the same end.

Here each one counts as far and every claim searches, with the trail of the last one in its hand.
"""

from __future__ import annotations

import pytest

from taskharbor import conformance
from taskharbor.conformance.chapters.claiming import Claiming
from taskharbor.drivers.postgres import claim_hints
from tests.postgres.store import fresh

pytestmark = pytest.mark.timeout(900)  # a failure of the machine is shrunk to its shortest story


@pytest.fixture(autouse=True)
def every_search_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAR", "SEARCH_SECONDS_MIN", "SEARCH_SHARE"):
        monkeypatch.setattr(claim_hints, name, 0)


class TestClaimingAfterFarSearches(Claiming):
    factory = staticmethod(fresh)
    another = None
    threads = True


TestMachineAfterFarSearches = conformance.state_machine(fresh, examples=3)
