from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskharbor import Harbor


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "harbor.db"


@pytest.fixture
def harbor(file: Path) -> Iterator[Harbor]:
    with Harbor(f"sqlite:///{file}") as harbor:
        yield harbor
