"""`harbor.lifespan(…)`: a worker that starts and stops with an ASGI application."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette

from taskharbor import ConfigurationError, Harbor, StoreUnavailable, Worker
from taskharbor.integrations import lifespan


@pytest.fixture
def harbor() -> Harbor:
    return Harbor("memory://")


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
def test_application_executes_jobs_while_it_runs(harbor: Harbor, framework: type[Starlette]) -> None:
    @harbor.task
    def double(x: int) -> int:
        return 2 * x

    with TestClient(framework(lifespan=harbor.lifespan(worker=True))):
        assert double.enqueue(21).result(timeout=30) == 42
    assert double.enqueue(1).state == "ready"
    assert harbor.jobs.counts()["ready"] == 1  # the worker has stopped


def test_worker_runs_inside_the_applications_own_lifespan(harbor: Harbor) -> None:
    order: list[str] = []
    harbor.on_worker_start(lambda: order.append("worker starts"))
    harbor.on_worker_stop(lambda: order.append("worker stops"))

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        assert isinstance(app, FastAPI)
        order.append("application opens")
        yield {"shared": "pool"}
        order.append("application closes")

    app = FastAPI(lifespan=harbor.lifespan(worker=True, inner=own))

    @app.get("/")
    def shared(request: Request) -> str:
        return str(request.state.shared)

    with TestClient(app) as client:
        assert client.get("/").json() == "pool"  # the state of the application's lifespan arrives
    assert order == ["application opens", "worker starts", "worker stops", "application closes"]


async def test_running_handler_ends_before_the_lifespan_does(harbor: Harbor) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @harbor.task
    async def slow() -> str:
        begun.set()
        await release.wait()
        return "done"

    async with harbor.lifespan(worker=True):
        job = await slow.aenqueue()
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert await job.aresult(timeout=0) == "done"


async def test_process_keeps_its_signal_handlers_and_garbage_collection(harbor: Harbor) -> None:
    def settings() -> tuple[Any, ...]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        return gc.get_threshold(), gc.get_freeze_count(), *(signal.getsignal(each) for each in numbers)

    before = settings()
    async with harbor.lifespan(worker=True):
        assert settings() == before
    assert settings() == before


async def test_without_a_worker_nothing_executes(harbor: Harbor) -> None:
    harbor.on_worker_start(lambda: pytest.fail("a worker started"))
    async with harbor.lifespan():
        pass


def test_worker_of_ones_own_keeps_its_options(harbor: Harbor) -> None:
    @harbor.task
    def noop() -> None: ...

    worker = Worker(harbor, queues=["mail"])
    with TestClient(FastAPI(lifespan=harbor.lifespan(worker=worker))):
        noop.using(queue="mail").enqueue().result(timeout=30)
        assert noop.enqueue().state == "ready"


async def test_what_keeps_the_worker_from_starting_keeps_the_application_from_starting(
    harbor: Harbor,
) -> None:
    @harbor.on_worker_start
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with harbor.lifespan(worker=True):
            pytest.fail("the application started")


async def test_application_starts_while_the_store_is_away(
    harbor: Harbor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away() -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(harbor.driver, "open_for_work", away)
    monkeypatch.setattr(lifespan, "START_SECONDS", 0.01)
    with caplog.at_level(logging.WARNING, "taskharbor"):
        async with harbor.lifespan(worker=True):
            assert "waits for the store" in caplog.text


async def test_worker_that_ends_before_the_application_is_reported(
    harbor: Harbor, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(harbor)
    reported = asyncio.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has ended" in record.getMessage():
                reported.set()

    listener = Listener()
    logging.getLogger("taskharbor").addHandler(listener)
    try:
        async with harbor.lifespan(worker=worker):
            worker.stop()
            await asyncio.wait_for(reported.wait(), 30)
    finally:
        logging.getLogger("taskharbor").removeHandler(listener)
    assert "executes no more jobs" in caplog.text


async def test_lifespan_can_be_entered_again_after_its_end(harbor: Harbor) -> None:
    life = harbor.lifespan(worker=True)
    for _ in range(2):
        async with life:
            with pytest.raises(ConfigurationError, match="entered already"):
                await life.__aenter__()


def test_wrong_arguments_are_refused(harbor: Harbor) -> None:
    with pytest.raises(ConfigurationError, match="worker is True, False or a Worker"):
        harbor.lifespan(worker=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="another harbor"):
        harbor.lifespan(worker=Worker(Harbor("memory://")))
    with pytest.raises(ConfigurationError, match="inner takes the lifespan"):
        harbor.lifespan(inner=3)  # type: ignore[arg-type]
