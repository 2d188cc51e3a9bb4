"""PostgreSQL against the memory reference."""

from __future__ import annotations

import pytest

from taskharbor import conformance
from tests.postgres.store import fresh

# A failure is shrunk to its shortest story before it is told, which may take minutes.
pytestmark = pytest.mark.timeout(900)

TestPostgresMachine = conformance.state_machine(fresh)
