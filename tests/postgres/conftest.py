"""One server for each test run (or worker of it), a fresh schema for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import store
from tests.postgres.server import Server


@pytest.fixture(scope="session")
def server() -> Server:
    return store.server()


@pytest.fixture
def dsn() -> Iterator[str]:
    """A database of the test's own."""
    with store.database() as dsn:
        yield dsn
