from __future__ import annotations

from tests import guard


def pytest_configure() -> None:
    guard.start()
