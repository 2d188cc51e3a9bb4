"""Which store a URL means."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from taskharbor import ConfigurationError, Harbor
from taskharbor.clock import Clock, ManualClock
from taskharbor.drivers.memory import MemoryDriver

WITHOUT = "import sys; sys.modules['asyncpg'] = None\nimport taskharbor\n"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_postgres_without_asyncpg_says_what_to_install(scheme: str):
    code = WITHOUT + f"taskharbor.Harbor('{scheme}://me:secret@host/db')"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.endswith(
        "ConfigurationError: a store in PostgreSQL needs asyncpg: pip install 'taskharbor[postgres]'"
    )
    assert "secret" not in last


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_a_postgres_url_means_the_postgres_driver(scheme: str, monkeypatch: pytest.MonkeyPatch):
    """Without asyncpg and a server: only who is asked, and for what."""
    driver, clock = MemoryDriver(), ManualClock()
    asked: list[tuple[str, Clock | None]] = []

    class PostgresDriver:
        @classmethod
        def from_url(cls, url: str, clock: Clock | None = None) -> MemoryDriver:
            asked.append((url, clock))
            return driver

    module = ModuleType("taskharbor.drivers.postgres")
    module.PostgresDriver = PostgresDriver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "taskharbor.drivers.postgres", module)
    url = f"{scheme}://me@host/db?listen=off"
    assert Harbor(url, clock=clock).driver is driver
    assert asked == [(url, clock)]


def test_an_unknown_store_names_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"memory://.*, postgres://, postgresql://.*, sqlite://"):
        Harbor("oracle://x")
