"""PostgreSQL against the memory reference."""

from __future__ import annotations

import os

import pytest

from taskharbor import conformance
from tests.postgres.store import fresh

# A failure is shrunk to its shortest story before it is told, which may take minutes.
pytestmark = pytest.mark.timeout(900)

# Enough to meet every verb in many orders; `make faults` tells many more.
STORIES = int(os.environ.get("TASKHARBOR_CONFORMANCE_EXAMPLES", "25"))
TestPostgresMachine = conformance.state_machine(fresh, examples=STORIES)
