"""The OpenAPI document describes what the server does: random requests of all kinds find no difference."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.config import SchemathesisConfig

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
schema = schemathesis.openapi.from_asgi("/openapi.json", harbor.asgi(), config=config)


# A stream does not end; it has tests of its own.
@schema.exclude(path_regex="/events$").parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_server_is_as_its_document_says(case: Case):
    case.call_and_validate()


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
