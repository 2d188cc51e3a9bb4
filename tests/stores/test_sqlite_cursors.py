"""Lists go on behind a job whose id is no UUID: a hand can put one there, and its page ends with it like any other."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from taskharbor import ConfigurationError, Harbor
from taskharbor.cli import cli
from taskharbor.server.app import application

API = "/api/v1"
JOB = (
    "INSERT INTO taskharbor_jobs (id, queue, task, payload, priority, run_at, enqueued_at) "
    "VALUES (?, 'default', 't', '{}', 0, 0, 0)"
)
WORKFLOW = (
    "INSERT INTO taskharbor_workflows (id, last_id, total, enqueued_at, about) VALUES (?1, ?1, 0, 0, '{}')"
)
# An odd one below and above every UUID, one that only its case tells from a UUID, and ones that no URL spells.
ODD = [
    "",
    "!",
    "garbage",
    "garbage & more",
    "héron",
    "0197F3C2-8A5E-7CC3-98C8-5D1F9A3B2C10",
    "g" * 300,
]


@pytest.fixture
def ids(file: Path, harbor: Harbor) -> list[str]:
    """Of all the jobs there are, in the order of a list; as many workflows have the same ids."""
    harbor.migrate()
    given = [*ODD, *(harbor.enqueue("t").id for _ in range(2))]
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executemany(JOB, [(job_id,) for job_id in ODD])
        connection.executemany(WORKFLOW, [(workflow_id,) for workflow_id in given])
    return sorted(given, reverse=True)


def test_python_lists_go_on_behind_any_id(harbor: Harbor, ids: list[str]) -> None:
    for read in (harbor.jobs.list, harbor.workflows.list):
        found: list[str] = []
        page = read(limit=1)
        while page.next_cursor is not None:
            found += [each.id for each in page]
            page = read(cursor=page.next_cursor, limit=1)
        assert found + [each.id for each in page] == ids


async def test_rest_lists_go_on_behind_any_id(harbor: Harbor, ids: list[str]) -> None:
    transport = httpx.ASGITransport(application(harbor, open_on_loopback=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("jobs", "workflows"):
            found: list[str] = []
            query: dict[str, str] | None = {"limit": "1"}
            while query is not None:
                response = await client.get(f"{API}/{path}", params=query)
                assert response.status_code == 200, response.text
                page = response.json()
                found += [each["id"] for each in page["items"]]
                query = page["nextCursor"] and {"limit": "1", "cursor": page["nextCursor"]}
            assert found == ids


def test_command_line_lists_go_on_behind_any_id(file: Path, ids: list[str]) -> None:
    for command in (["list"], ["workflow", "list"]):
        found: list[str] = []
        more: list[str] | None = []
        while more is not None:
            options = ["--json", "--limit", "1", "--url", f"sqlite:///{file}", *more]
            answer = CliRunner().invoke(cli, [*command, *options])
            assert answer.exit_code == 0, answer.output
            page = json.loads(answer.stdout)
            found += [each["id"] for each in page["items"]]
            more = page["nextCursor"] and ["--cursor", page["nextCursor"]]
        assert found == ids


@pytest.mark.parametrize("cursor", ["id:", "id:6", "id:zz", "id:FF", "id:ff", "id: 67", "garbage", "ID:67"])
def test_cursor_that_no_page_gave_is_refused(harbor: Harbor, cursor: str) -> None:
    harbor.migrate()
    with pytest.raises(ConfigurationError, match="a cursor is the next_cursor of an earlier page"):
        harbor.jobs.list(cursor=cursor)
