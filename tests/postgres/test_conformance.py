"""The whole contract on PostgreSQL."""

from __future__ import annotations

from taskharbor import conformance
from tests.postgres.store import another, fresh

TestPostgres = conformance.suite(fresh, another=another)
