"""A list of workflows: by state, page by page, in Python and over REST, on every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskharbor import Harbor, WorkflowState, chain
from taskharbor.errors import ConfigurationError
from taskharbor.server.app import application
from taskharbor.workflow.handle import WorkflowStateName
from tests.server.conftest import client_of
from tests.server.test_resources import API, error_of

EACH: tuple[WorkflowStateName, ...] = ("running", "stuck", "succeeded", "cancelled")


@pytest.fixture
async def ids(harbor: Harbor, drained: Callable[..., Any]) -> dict[str, list[str]]:
    """Three workflows in each state, all mixed; by their states, the newest first."""

    @harbor.task(name="step", max_attempts=1)
    async def step(fails: bool = False) -> None:
        if fails:
            raise ValueError("no luck")

    ids: dict[str, list[str]] = {state: [] for state in EACH}
    for _ in range(3):
        for state in EACH:
            first = step.using(delay=3600) if state == "running" else step
            steps = chain(first.si(fails=state in ("stuck", "cancelled")), step.si())
            if state == "cancelled":
                steps = steps.using(on_failure="cancel")
            ids[state].insert(0, (await steps.aenqueue()).id)
    await drained(harbor)
    return ids


async def listed(client: Any, **query: Any) -> tuple[list[dict[str, Any]], int]:
    """All of the pages, and how many there were."""
    items: list[dict[str, Any]] = []
    pages = 0
    while True:
        response = await client.get(f"{API}/workflows", params=query)
        assert response.status_code == 200, response.text
        page = response.json()
        assert len(page["items"]) <= query.get("limit", 100)
        items += page["items"]
        pages += 1
        if page["nextCursor"] is None:
            return items, pages
        query["cursor"] = page["nextCursor"]


async def test_workflows_are_listed_by_state_newest_first(harbor: Harbor, ids: dict[str, list[str]]):
    every = sorted((each for of in ids.values() for each in of), reverse=True)
    assert [each.id for each in await harbor.workflows.alist()] == every
    async with client_of(application(harbor, open_on_loopback=True)) as client:
        assert [item["id"] for item in (await listed(client, limit=5))[0]] == every
        for state in EACH:
            found = await harbor.workflows.alist(state=state)
            assert ([each.id for each in found], found.next_cursor) == (ids[state], None)
            items, pages = await listed(client, state=state, limit=2)
            assert ([item["id"] for item in items], {item["state"] for item in items}) == (
                ids[state],
                {state},
            )
            assert pages == 2
            one = (await client.get(f"{API}/workflows/{ids[state][0]}")).json()
            assert one == items[0]


async def test_a_search_for_a_state_looks_at_so_many_and_goes_on_from_there(
    harbor: Harbor, ids: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("taskharbor.client.workflows.LOOK_PAGE", 1)
    monkeypatch.setattr("taskharbor.client.workflows.LOOK_MAX", 2)
    found: list[str] = []
    page = await harbor.workflows.alist(state=WorkflowState.STUCK, limit=1)
    for _ in range(sum(map(len, ids.values()))):
        found += [each.id for each in page]
        if page.next_cursor is None:
            break
        page = await harbor.workflows.alist(state=WorkflowState.STUCK, limit=1, cursor=page.next_cursor)
    assert found == ids["stuck"]
    assert page.next_cursor is None


async def test_a_workflow_s_jobs_are_listed_by_its_id(harbor: Harbor, ids: dict[str, list[str]]):
    async with client_of(application(harbor, open_on_loopback=True)) as client:
        workflow = await harbor.workflows.aget(ids["stuck"][0])
        jobs = (await client.get(f"{API}/jobs", params={"workflow": workflow.id})).json()["items"]
        assert [job["id"] for job in jobs] == workflow.jobs.ids[::-1]
        assert {job["workflow"] for job in jobs} == {workflow.id}
        dead = (await client.get(f"{API}/dlq", params={"workflow": workflow.id})).json()["items"]
        assert [job["id"] for job in dead] == workflow.jobs.ids[:1]


async def test_what_a_list_of_workflows_cannot_be_asked(memory: Harbor):
    with pytest.raises(ConfigurationError, match="the states are running, stuck, succeeded, cancelled"):
        await memory.workflows.alist(state="dead")  # type: ignore[arg-type]
    async with client_of(application(memory, open_on_loopback=True)) as client:
        for query, status in {
            "state=dead": 400,
            "state=null": 400,
            "limit=0": 400,
            "limit=1001": 400,
            "stat=stuck": 400,
            "cursor=x": 422,
        }.items():
            response = await client.get(f"{API}/workflows?{query}")
            assert (response.status_code, bool(error_of(response)["message"])) == (status, True), query
