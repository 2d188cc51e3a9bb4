"""`GET /metrics`: the store's gauges, for Prometheus and for readers only."""

from __future__ import annotations

import sys
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from taskharbor import Harbor
from taskharbor.errors import StoreUnavailable
from taskharbor.server.app import application
from tests.server.conftest import client_of
from tests.server.test_resources import error_of


def gauges(response: httpx.Response) -> dict[str, float]:
    assert response.status_code == 200
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_the_gauges_of_the_store_are_shown(harbor: Harbor, client: httpx.AsyncClient):
    for _ in range(3):
        await harbor.aenqueue("t", queue="mail")
    await harbor.queues.apause("mail")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    found = gauges(response)
    assert found["taskharbor_queue_jobs mail ready"] == 3
    assert found["taskharbor_queue_paused mail"] == 1
    assert (found["taskharbor_workers"], found["taskharbor_store_up"]) == (0, 1)


async def test_the_names_can_be_bare(harbor: Harbor):
    app = application(harbor, open_on_loopback=True, metrics_prefix="")
    async with client_of(app) as client:
        assert gauges(await client.get("/metrics"))["store_up"] == 1


async def test_openmetrics_is_for_those_who_ask_for_it(client: httpx.AsyncClient):
    response = await client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


async def test_a_store_that_is_away_is_shown_as_such(
    harbor: Harbor, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    async def away(*_: Any) -> Any:
        raise StoreUnavailable("postgresql://user:canary@db is away")

    monkeypatch.setattr(harbor.driver, "counts", away)
    response = await client.get("/metrics")
    assert gauges(response) == {"taskharbor_store_up": 0}


@pytest.mark.parametrize("role", ["read", "write", "admin"])
async def test_every_role_may_read_them(harbor: Harbor, bearer: Any, role: str):
    async with client_of(harbor.asgi(), headers=await bearer(role)) as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_without_a_token_they_are_refused(harbor: Harbor, bearer: Any):
    await bearer("read")
    async with client_of(harbor.asgi()) as client:
        response = await client.get("/metrics")
    assert (response.status_code, error_of(response)["code"]) == (401, "unauthorized")


async def test_without_the_extra_the_answer_says_what_is_missing(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "taskharbor.telemetry.metrics.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    response = await client.get("/metrics")
    assert (response.status_code, error_of(response)["code"]) == (501, "unsupported")
    assert "taskharbor[metrics]" in error_of(response)["message"]
