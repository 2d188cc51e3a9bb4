from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import Crew
from tests.postgres.faults.crews import crew_on


@pytest.fixture
def crew(tmp_path: Path, dsn: str) -> Iterator[Crew]:
    """Processes on a database of the test's own."""
    with crew_on(tmp_path, dsn) as crew:
        yield crew
