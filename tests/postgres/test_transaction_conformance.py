"""What the contract says of enqueueing, with every enqueue inside a caller's transaction that commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import asyncpg
import pytest

from taskharbor import conformance
from taskharbor.clock import Clock
from taskharbor.conformance.chapters.dependants import Dependants
from taskharbor.conformance.chapters.enqueueing import Enqueueing
from taskharbor.drivers.base import Enqueued
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.job import NewJob
from tests.postgres import store

# A failure of the state machine is shrunk to its shortest story before it is told, which may take minutes.
pytestmark = pytest.mark.timeout(900)


class TransactionalDriver(PostgresDriver):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        connection = await asyncpg.connect(self.dsn)
        try:
            async with connection.transaction():
                with self.transaction(connection):
                    answers = await super().enqueue(jobs, now=now)
        finally:
            await connection.close()
        self._news.tell(urgent=True)
        return answers


@contextmanager
def fresh(clock: Clock | None = None) -> Iterator[TransactionalDriver]:
    with store.fresh(clock) as driver:
        yield TransactionalDriver(driver.dsn, schema=driver.schema, clock=clock)


class TestInTransactions(Enqueueing, Dependants):
    factory = staticmethod(fresh)


TestInTransactionsMachine = conformance.state_machine(fresh, examples=4)
