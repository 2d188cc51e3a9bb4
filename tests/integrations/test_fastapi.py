"""FastAPI: what a request enqueues is part of its session's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskharbor import ConfigurationError, Harbor
from taskharbor.integrations.fastapi import transaction
from tests.postgres import store


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """The harbor's URL, and those of SQLAlchemy, synchronous and asynchronous."""
    if request.param == "sqlite":
        file = tmp_path / "shop.db"
        yield f"sqlite:///{file}", f"sqlite:///{file}", f"sqlite+aiosqlite:///{file}"
        return
    with store.database() as dsn:
        rest = dsn.partition("://")[2]
        yield dsn, f"postgresql+psycopg://{rest}", f"postgresql+asyncpg://{rest}"


def application(harbor: Harbor, url: str, async_url: str) -> FastAPI:
    engine, async_engine = create_engine(url), create_async_engine(async_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER)"))

    def session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    async def async_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(async_engine) as session:
            yield session
        await async_engine.dispose()

    @harbor.task(name="confirm")
    def confirm(number: int) -> None: ...

    app = FastAPI()
    in_sync, in_async = (Depends(transaction(harbor, each)) for each in (session, async_session))
    insert = text("INSERT INTO orders VALUES (:number)")

    @app.post("/sync/{number}")
    def place(number: int, session: Any = in_sync) -> None:
        session.execute(insert, {"number": number})
        confirm.enqueue(number)
        if number == 13:
            raise ValueError("refused")
        session.commit()

    @app.post("/async/{number}")
    async def aplace(number: int, session: Any = in_async) -> None:
        await session.execute(insert, {"number": number})
        await confirm.aenqueue(number)
        if number == 13:
            raise ValueError("refused")
        await session.commit()

    @app.get("/orders")
    def orders() -> list[int]:
        with Session(engine) as session:
            return list(session.scalars(text("SELECT number FROM orders")))

    app.state.engine = engine
    return app


@pytest.mark.parametrize("form", ["sync", "async"])
def test_job_exists_exactly_when_the_requests_transaction_commits(
    database: tuple[str, str, str], form: str
) -> None:
    with Harbor(database[0]) as harbor:
        harbor.migrate()
        app = application(harbor, *database[1:])
        with TestClient(app, raise_server_exceptions=False) as client:
            assert client.post(f"/{form}/13").status_code == 500
            assert (client.get("/orders").json(), harbor.jobs.counts()["ready"]) == ([], 0)
            assert client.post(f"/{form}/7").status_code == 200
            assert client.get("/orders").json() == [7]
        [job] = harbor.jobs.list()
        assert job.payload == {"number": 7}
        app.state.engine.dispose()


def test_transaction_takes_the_function_that_makes_the_session() -> None:
    harbor = Harbor("memory://")
    with pytest.raises(
        ConfigurationError, match="calls for a session, such as get_session, not 'get_session'"
    ):
        transaction(harbor, "get_session")  # type: ignore[arg-type]


def test_authorize_is_a_function() -> None:
    harbor = Harbor("memory://")
    with pytest.raises(ConfigurationError, match="authorize is a function .* not 'admin'"):
        harbor.asgi(authorize="admin")  # type: ignore[arg-type]
