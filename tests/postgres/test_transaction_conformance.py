"""What the contract says of enqueueing, with every enqueue inside a caller's transaction that commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import pytest

from taskharbor import conformance
from taskharbor.clock import Clock
from taskharbor.conformance.chapters.dependants import Dependants
from taskharbor.conformance.chapters.enqueueing import Enqueueing
from taskharbor.conformance.chapters.workflows import Workflows
from taskharbor.drivers.base import Enqueued, WorkflowEnqueued
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.records import NewJob, NewWorkflow
from tests.postgres import store

# A failure of the state machine is shrunk to its shortest story before it is told, which may take minutes.
pytestmark = pytest.mark.timeout(900)


class TransactionalDriver(PostgresDriver):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        async with self._committed():
            return await super().enqueue(jobs, now=now)

    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> WorkflowEnqueued:
        async with self._committed():
            return await super().enqueue_workflow(workflow, jobs, now=now)

    @asynccontextmanager
    async def _committed(self) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self.dsn)
        try:
            async with connection.transaction():
                with self.transaction(connection):
                    yield
        finally:
            await connection.close()
        self._changes.tell(urgent=True)


@contextmanager
def fresh(clock: Clock | None = None) -> Iterator[TransactionalDriver]:
    with store.fresh(clock) as driver:
        yield TransactionalDriver(driver.dsn, schema=driver.schema, clock=clock)


class TestInTransactions(Enqueueing, Dependants, Workflows):
    factory = staticmethod(fresh)


TestInTransactionsMachine = conformance.state_machine(fresh, examples=4)
