from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.filters.stage import SURFACES, Stage, Surface, stage_on


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with stage_on(request.param, tmp_path) as stage:
        yield stage


@pytest.fixture(params=SURFACES)
def surface(request: pytest.FixtureRequest, stage: Stage) -> Surface:
    return SURFACES[request.param](stage)
