"""Processes on a PostgreSQL database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskharbor.drivers.postgres import PostgresDriver
from tests.faults.processes import Crew


@contextmanager
def crew_on(folder: Path, dsn: str) -> Iterator[Crew]:
    """A crew on this database, which gets its tables first."""
    asyncio.run(_migrate(dsn))
    folder.mkdir(parents=True, exist_ok=True)
    crew = Crew(folder, dsn)
    try:
        yield crew
    finally:
        crew.close()


async def _migrate(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    await driver.close()
