"""One broker for the whole run, a topic of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from taskharbor import Harbor
from tests import run_broker
from tests.postgres import store as postgres
from tests.streams.log import Log
from tools import kafka_server
from tools.kafka_server import Broker, OwnBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with run_broker.running() as broker:
        yield broker


@pytest.fixture(scope="module")
def mortal_broker(broker: Broker) -> Iterator[OwnBroker]:
    """One that a test may stop, if it starts it again."""
    if isinstance(broker, OwnBroker):
        yield broker
        return
    with kafka_server.running() as own:
        if not isinstance(own, OwnBroker):
            pytest.skip("a mock, or the broker at $KAFKA_BOOTSTRAP, is not stopped by a test")
        yield own


@pytest.fixture
def log(broker: Broker) -> Log:
    """A topic that no other test uses."""
    return Log(broker.bootstrap, f"tasks-{uuid.uuid4().hex[:10]}", partitions=2)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with postgres.database() as dsn:
            yield dsn
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/harbor.db?synchronous=normal"
    else:
        yield "memory://"


@pytest.fixture
async def harbor(url: str) -> AsyncIterator[Harbor]:
    async with Harbor(url) as harbor:
        await harbor.amigrate()
        yield harbor


@pytest.fixture
async def memory() -> AsyncIterator[Harbor]:
    async with Harbor("memory://") as harbor:
        yield harbor
