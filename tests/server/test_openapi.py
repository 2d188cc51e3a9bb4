"""The OpenAPI document describes what the server does: random requests of all kinds find no difference."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.schemas import BaseSchema

from taskharbor import Harbor
from taskharbor.server.openapi import openapi
from taskharbor.server.routes import OPERATIONS, PREFIX, ROOT_OPERATIONS
from taskharbor.server.tokens import create_token

harbor = Harbor("memory://")
DESCRIBED = [*((PREFIX, each) for each in OPERATIONS), *(("", each) for each in ROOT_OPERATIONS)]
TOKEN, _ = asyncio.run(create_token(harbor.driver, "tests", "admin"))
# What fits the document may still say what cannot be done; that is 422, and no difference.
config = SchemathesisConfig.from_dict(
    {
        "auth": {"openapi": {"token": {"bearer": TOKEN}}},
        "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "422"]}},
    }
)


@cache
def schema() -> BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", harbor.asgi(), config=config)


# `schema.parametrize()` thinks up all requests while tests are collected: seconds, in each process of a run. Here the
# test of an operation thinks up its own.
@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param(each.method, prefix + each.shown_path, id=f"{each.method} {prefix}{each.shown_path}")
        for prefix, each in DESCRIBED
        if not each.shown_path.endswith("/events")  # a stream does not end; it has tests of its own
    ],
)
def test_the_server_is_as_its_document_says(method: str, path: str):
    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Case) -> None:
        cases.append(case)
        case.call_and_validate()

    cases: list[Case] = []
    load_all_checks()
    build_operation_test(
        config=schema().config,
        operation=schema()[path][method],
        test_func=holds,
        given_kwargs={},
        feedback=FeedbackSources(constants_value_source=make_constants_value_source(schema())),
    )()
    assert cases


def test_every_operation_is_described():
    document = openapi(DESCRIBED, "1")
    assert document["openapi"].startswith("3.1")
    for prefix, operation in DESCRIBED:
        described = document["paths"][prefix + operation.shown_path][operation.method.lower()]
        assert described["summary"]
        assert described["operationId"] == operation.id
    assert len({operation.id for _, operation in DESCRIBED}) == len(DESCRIBED)


def test_every_document_is_described():
    for name, described in openapi(DESCRIBED, "1")["components"]["schemas"].items():
        assert "description" in described or "enum" in described, name


@pytest.fixture(autouse=True, scope="module")
def _open_to_many_failures():
    """Wrong tokens are tried by the hundred here; that too many are answered with 429 has a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taskharbor.server.limits.FAILURES_MAX", 10**9)
        yield
    harbor.close()


def test_the_page_lists_every_operation():
    page = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    for _, operation in DESCRIBED:
        asked = f"`{operation.method} {operation.shown_path}`"
        line = f"| {asked} | {operation.role or 'anyone'} | {operation.summary} |"
        assert line in page, line
