"""The simulation finds bugs: each of those that are planted, within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.search import assert_found


@pytest.mark.parametrize("what", PLANTED)
def test_planted_bug_is_found(what):
    assert_found(what)
