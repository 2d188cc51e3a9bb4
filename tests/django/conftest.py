from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.django import environments

collect_ignore = ["cases", "site"]


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(kind: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with environments.database(kind, tmp_path) as made:
        yield made


@pytest.fixture
def project(database: dict[str, Any]) -> environments.Project:
    """The tests' project, with the Django of the suite's own environment."""
    return environments.project(environments.OWN, database)
