"""Each resource does what the harbor does, in the documents of the interface."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from taskharbor import Harbor, RetryPolicy, Worker
from taskharbor.clock import ManualClock
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.rules.rollups import begin_of

API = "/api/v1"


async def created(client: httpx.AsyncClient, **document: Any) -> Any:
    response = await client.post(f"{API}/jobs", json={"task": "t", **document})
    assert response.status_code == 201, response.text
    return response.json()


async def dead_job(harbor: Harbor, client: httpx.AsyncClient, **document: Any) -> Any:
    if "broken" not in harbor.tasks:

        @harbor.task(name="broken")
        def broken() -> None:
            raise RuntimeError("no luck")

    job = await created(client, **{"task": "broken", "maxAttempts": 1, **document})
    await Worker(harbor).drain()
    return job


def error_of(response: httpx.Response) -> Any:
    error = response.json()["error"]
    assert set(error) == {"code", "message", "details"}
    return error


async def test_a_created_job_answers_201_and_one_that_existed_200(harbor: Harbor, client: httpx.AsyncClient):
    document = {
        "task": "email:send",
        "payload": {"to": "a@b.c"},
        "queue": "mail",
        "priority": 9,
        "maxAttempts": 5,
        "timeout": 30,
        "idempotencyKey": "order-42",
        "delivery": "at_most_once",
        "runAt": "2100-01-01T00:00:00Z",
        "tags": ["x"],
        "meta": {"tenant": "acme"},
        "correlationId": "c",
    }
    first = await client.post(f"{API}/jobs", json=document)
    assert first.status_code == 201
    assert document.items() <= first.json().items()
    again = await client.post(f"{API}/jobs", json={**document, "payload": {"to": "else"}})
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert again.json()["payload"] == {"to": "a@b.c"}
    assert (await harbor.jobs.aget(first.json()["id"])).timeout == 30


async def test_jobs_are_listed_page_by_page_and_by_filter(client: httpx.AsyncClient):
    ids = [(await created(client, queue="a" if n % 2 else "b"))["id"] for n in range(5)]
    seen, cursor = [], ""
    while cursor is not None:
        page = (await client.get(f"{API}/jobs?limit=2{cursor and f'&cursor={cursor}'}")).json()
        seen += [job["id"] for job in page["items"]]
        cursor = page["nextCursor"]
    assert seen == ids[::-1]
    found = (await client.get(f"{API}/jobs", params={"queue": "a", "state": "ready"})).json()
    assert {job["id"] for job in found["items"]} == {ids[1], ids[3]}
    assert found["nextCursor"] is None


async def test_a_job_is_changed_run_cancelled_retried_and_deleted(client: httpx.AsyncClient):
    job = f"{API}/jobs/{(await created(client, delay=3600))['id']}"
    changed = await client.patch(job, json={"priority": 7, "payload": {"x": 1}, "tags": ["t"]})
    assert (changed.json()["priority"], changed.json()["payload"], changed.json()["tags"]) == (
        7,
        {"x": 1},
        ["t"],
    )
    assert (await client.post(f"{job}/run")).json()["state"] == "ready"
    again = await client.post(f"{job}/run")
    assert (again.status_code, error_of(again)["code"]) == (409, "conflict")
    assert (await client.post(f"{job}/cancel")).json()["state"] == "cancelled"
    assert (await client.post(f"{job}/retry", json={"runAt": "2100-01-01T00:00:00Z"})).json()[
        "state"
    ] == "scheduled"
    assert (await client.delete(job)).status_code == 204
    gone = await client.get(job)
    assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found")


async def test_jobs_that_wait_are_changed_by_a_filter(harbor: Harbor, client: httpx.AsyncClient):
    jobs = [await harbor.aenqueue("t", delay=60, tags=[tag]) for tag in ("a", "a", "b")]
    body = {"tag": "a", "changes": {"timeout": 30, "retry": {"maxAttempts": 7, "initial": 2}}}
    for dry_run in (True, False):
        answer = await client.post(f"{API}/jobs/update-all", json={**body, "dryRun": dry_run})
        assert (answer.status_code, answer.json()["changed"]) == (200, 2)
        assert answer.json().get("dryRun", False) is dry_run
    [first, _, other] = [(await client.get(f"{API}/jobs/{job.id}")).json() for job in jobs]
    assert (first["timeout"], first["maxAttempts"], first["retry"]["initial"]) == (30.0, 7, 2.0)
    assert (other["timeout"], other["retry"]) == (None, None)
    changed = await client.patch(f"{API}/jobs/{jobs[0].id}", json={"retry": None, "expiresIn": 60})
    assert (changed.json()["retry"], changed.json()["expiresAt"] is None) == (None, False)
    refused: list[dict[str, Any]] = [
        {},
        {"changes": {}},
        {"changes": {"payload": {}}},
        {"changes": {"priority": 1000}},
    ]
    for wrong in refused:
        assert (await client.post(f"{API}/jobs/update-all", json=wrong)).status_code in (400, 422)


async def test_history_tells_of_each_attempt_newest_first(
    harbor: Harbor, clock: ManualClock, client: httpx.AsyncClient
):
    attempts: list[int] = []

    @harbor.task(name="flaky", max_attempts=3, retry=RetryPolicy(initial=1, jitter=None))
    def flaky() -> None:
        attempts.append(1)
        clock.advance(2)
        if len(attempts) < 2:
            raise RuntimeError("not yet")

    job = await created(client, task="flaky")
    worker = Worker(harbor)
    await worker.drain()
    clock.advance(60)
    await Worker(harbor).drain()
    found = (await client.get(f"{API}/jobs/{job['id']}/history?limit=10")).json()
    history = found["items"]
    assert [(h["status"], h["retryCount"], h["number"]) for h in history] == [
        ("SUCCESS", 1, 2),
        ("FAILED", 0, 1),
    ]
    assert {h["jobId"] for h in history} == {job["id"]}
    assert [h["executionDuration"] for h in history] == [2.0, 2.0]
    assert history[1]["errorMessage"] == "RuntimeError: not yet"
    assert all(h["executionTime"].endswith("Z") for h in history)
    assert [h["retryDelay"] for h in history] == [None, 1.0]
    assert found["retryMetrics"] == {
        "task": "flaky",
        "totalAttempts": 2,
        "successfulAt": 2,
        "lastError": "RuntimeError: not yet",
        "backoffSeconds": 1.0,
        "summary": "Task: flaky | SUCCESS at attempt 2 | Total Attempts: 2 "
        "| Last Error: RuntimeError: not yet | Backoff: 1.0s",
    }
    latest = (await client.get(f"{API}/jobs/{job['id']}/history?limit=1")).json()
    assert [h["number"] for h in latest["items"]] == [2]
    assert latest["retryMetrics"] == found["retryMetrics"]


async def test_failed_at_is_shown_until_the_job_succeeds(
    harbor: Harbor, clock: ManualClock, client: httpx.AsyncClient
):
    outcomes = iter([RuntimeError("not yet"), None])

    @harbor.task(name="flaky", max_attempts=3)
    def flaky() -> None:
        if error := next(outcomes):
            raise error

    job = f"{API}/jobs/{(await created(client, task='flaky'))['id']}"
    assert (await client.get(job)).json()["failedAt"] is None
    await Worker(harbor).drain()
    failed = (await client.get(job)).json()
    [attempt] = (await client.get(f"{job}/history")).json()["items"]
    assert (failed["state"], failed["failedAt"]) == ("scheduled", attempt["finishedAt"])
    clock.advance(60)
    await Worker(harbor).drain()
    assert (await client.get(job)).json()["failedAt"] is None


async def test_dead_jobs_are_listed_requeued_and_discarded(harbor: Harbor, client: httpx.AsyncClient):
    one, two, three = [await dead_job(harbor, client, queue=queue) for queue in ("a", "a", "b")]
    listed = (await client.get(f"{API}/dlq", params={"queue": "a"})).json()["items"]
    assert {job["id"] for job in listed} == {one["id"], two["id"]}
    assert {job["reason"] for job in listed} == {"exhausted"}
    assert (await client.post(f"{API}/dlq/{one['id']}/requeue")).json()["state"] == "ready"
    assert (await client.post(f"{API}/dlq/{two['id']}/discard")).json()["reason"] == "discarded"
    assert (await client.post(f"{API}/dlq/requeue-all", json={"queue": "a"})).json() == {"requeued": 0}
    assert (await client.post(f"{API}/dlq/requeue-all")).json() == {"requeued": 1}
    assert (await client.get(f"{API}/jobs/{three['id']}")).json()["state"] == "ready"


async def test_dead_jobs_are_grouped_by_cause_and_replayed(harbor: Harbor, client: httpx.AsyncClient):
    one, two = [await dead_job(harbor, client, queue=queue) for queue in ("a", "b")]
    listed = (await client.get(f"{API}/dlq/groups")).json()
    [group] = listed["items"]
    assert (group["count"], group["sampleId"], listed["nextCursor"]) == (2, two["id"], None)
    assert (await client.get(f"{API}/jobs/{one['id']}")).json()["fingerprint"] == group["fingerprint"]
    [group] = (await client.get(f"{API}/dlq/groups", params={"queue": "a"})).json()["items"]
    assert group["count"] == 1
    in_capitals = {"fingerprint": group["fingerprint"].upper()}
    [same] = (await client.get(f"{API}/dlq/groups", params=in_capitals)).json()["items"]
    assert (same["fingerprint"], same["count"]) == (group["fingerprint"], 2)
    body = {"fingerprint": group["fingerprint"].upper(), "brake": 0.1, "onQueue": "operations"}
    job = (await client.post(f"{API}/dlq/replay", json=body)).json()
    assert (job["task"], job["queue"], job["payload"]["brake"]) == ("taskharbor.replay", "operations", 0.1)
    assert (await client.post(f"{API}/dlq/replay", json={"brake": 2})).status_code == 400


async def test_queues_are_paused_and_resumed_whatever_their_name(client: httpx.AsyncClient):
    await created(client, queue="a/b")
    assert (await client.post(f"{API}/queues/a%2Fb/pause")).json() == {"name": "a/b", "paused": True}
    [queue] = (await client.get(f"{API}/queues")).json()["items"]
    assert (queue["name"], queue["paused"], queue["ready"]) == ("a/b", True, 1)
    assert (await client.post(f"{API}/queues/a%2Fb/resume")).json()["paused"] is False


async def test_tasks_and_tags_are_held_and_released_whatever_their_name(client: httpx.AsyncClient):
    held = {"kind": "task", "name": "a/b", "held": True}
    assert (await client.post(f"{API}/tasks/a%2Fb/hold")).json() == held
    assert (await client.post(f"{API}/tags/x/hold")).json() == {"kind": "tag", "name": "x", "held": True}
    items = (await client.get(f"{API}/tasks")).json()["items"]
    assert [(item["kind"], item["name"], item["held"]) for item in items] == [
        ("task", "a/b", True),
        ("tag", "x", True),
    ]
    assert (await client.post(f"{API}/tasks/a%2Fb/release")).json()["held"] is False
    assert (await client.post(f"{API}/tags/x/release")).json()["held"] is False
    assert (await client.get(f"{API}/tasks")).json()["items"] == []


async def test_schedules_are_made_changed_paused_run_and_deleted(client: httpx.AsyncClient):
    document = {
        "name": "tick",
        "task": "t",
        "schedule": "0 0 12 * * *",
        "timezone": "Europe/Berlin",
        "payload": {"x": 1},
    }
    made = await client.post(f"{API}/schedules", json=document)
    assert made.status_code == 201
    assert document.items() <= made.json().items()
    taken = await client.post(f"{API}/schedules", json=document)
    assert (taken.status_code, error_of(taken)["code"]) == (409, "conflict")
    tick = f"{API}/schedules/tick"
    assert (await client.patch(tick, json={"schedule": "*/5 * * * *"})).json()["schedule"] == "*/5 * * * *"
    assert (await client.get(tick)).json()["timezone"] == "Europe/Berlin"
    assert (await client.post(f"{tick}/pause")).json()["paused"] is True
    assert (await client.post(f"{tick}/resume")).json()["paused"] is False
    assert (await client.post(f"{tick}/run")).json()["state"] == "ready"
    assert [s["name"] for s in (await client.get(f"{API}/schedules")).json()["items"]] == ["tick"]
    assert (await client.get(f"{API}/jobs/{made.json()['id']}/history")).json()["items"] == []
    assert (await client.delete(tick)).status_code == 204
    assert (await client.get(tick)).status_code == 404


async def counted(harbor: Harbor, **figures: Any) -> None:
    """Let a worker have counted this in the present minute, in the queue mail."""
    at = begin_of(await harbor.driver.now(), Period.MINUTE)
    await Rollups.of(harbor.driver).append_rollups([Rollup(at, "mail", "send", Figures(**figures))])


async def test_a_series_has_points_and_says_that_they_are_not_exact(
    harbor: Harbor, client: httpx.AsyncClient
):
    await counted(harbor, started=3, duration=(1_500_000, *[0] * 9, 3))
    series = (await client.get(f"{API}/stats/series?queue=mail&task=send&step=hour")).json()
    assert (series["step"], series["queue"], series["task"]) == ("hour", "mail", "send")
    assert "not exact counts" in series["note"]
    *others, point = series["items"]
    assert (len(others), point["started"], point["seconds"]) == (24, 3, 3_600)
    assert point["duration"] == pytest.approx(
        {"count": 3, "mean": 0.5, "p50": 0.75, "p95": 0.975, "p99": 0.995}
    )
    assert (await client.get(f"{API}/stats/series?queue=vip")).json()["items"][-1]["started"] == 0


@pytest.mark.parametrize(
    "query", ["since=yesterday", "since=2026-01-31T12:00:00", "since=9000-01-01T00:00:00Z"]
)
async def test_a_series_of_nonsense_is_refused(client: httpx.AsyncClient, query: str):
    assert (await client.get(f"{API}/stats/series?{query}")).status_code == 422
    assert (await client.get(f"{API}/stats/series?step=day")).status_code == 400


async def test_autoscale_says_how_many_slots_a_queue_needs(harbor: Harbor, client: httpx.AsyncClient):
    await counted(harbor, started=1, duration=(15_000_000, *[0] * 13, 1))
    for _ in range(10):
        await created(client, queue="mail")
    demand = (await client.get(f"{API}/autoscale?queue=mail&age=30")).json()
    assert (demand["slots"], demand["age"]) == (5, 30)  # ten jobs of 15 s, begun within 30 s
    assert [(queue["queue"], queue["ready"], queue["meanSeconds"]) for queue in demand["queues"]] == [
        ("mail", 10, 15)
    ]
    assert "not exact counts" in demand["note"]
    assert (await client.get(f"{API}/autoscale")).json()["slots"] == 5
    assert (await client.get(f"{API}/autoscale?queue=vip")).json()["slots"] == 0
    assert (await client.get(f"{API}/autoscale?age=0")).status_code == 400


async def test_stats_count_what_there_is(client: httpx.AsyncClient):
    await created(client)
    stats = (await client.get(f"{API}/stats")).json()
    assert stats["counts"]["ready"] == 1
    assert [queue["name"] for queue in stats["queues"]] == ["default"]
    assert stats["workers"] == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_for_everybody(harbor: Harbor, path: str):
    from tests.server.conftest import client_of

    async with client_of(harbor.asgi()) as client:
        assert (await client.get(path)).status_code == 200


async def test_a_store_that_cannot_be_reached_is_not_ready(tmp_path):
    from tests.server.conftest import client_of

    async with (
        Harbor(f"sqlite:///{tmp_path}/missing/harbor.db") as harbor,
        client_of(harbor.asgi()) as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        response = await client.get("/readyz")
        assert (response.status_code, error_of(response)["code"]) == (503, "not_ready")
        assert str(tmp_path) not in response.text


async def test_unknown_job_is_a_404_everywhere(client: httpx.AsyncClient):
    nobody = uuid.uuid4()
    for method, path in [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/history"),
        ("POST", "/cancel"),
        ("POST", "/run"),
    ]:
        assert (await client.request(method, f"{API}/jobs/{nobody}{path}")).status_code == 404, path


async def test_a_workflow_is_shown_cancelled_and_retried(harbor: Harbor, client: httpx.AsyncClient):
    from taskharbor import chain

    @harbor.task(name="step")
    def step() -> None: ...

    workflow = await chain(step.si(), step.si()).aenqueue()
    path = f"{API}/workflows/{workflow.id}"
    shown = (await client.get(path)).json()
    assert (shown["state"], shown["total"], shown["waiting"], shown["active"]) == ("running", 2, 1, 1)
    assert (await client.post(f"{path}/cancel")).json()["cancelled"] == 2
    assert (await client.post(f"{path}/retry")).json()["state"] == "running"
    assert (await client.get(f"{API}/workflows/{uuid.uuid4()}")).status_code == 404


@pytest.mark.parametrize("word", ["pause", "resume", "run"])
async def test_a_schedule_may_be_called_as_what_is_asked_of_schedules(client: httpx.AsyncClient, word: str):
    """An escaped slash belongs to the name, another one ends it."""
    for name in (f"a/{word}", word, "a"):
        document = {"name": name, "task": "t", "schedule": "0 0 * * *"}
        assert (await client.post(f"{API}/schedules", json=document)).status_code == 201
    path = f"{API}/schedules/a%2F{word}"
    assert (await client.get(path)).json()["name"] == f"a/{word}"
    assert (await client.patch(path, json={"priority": 3})).json()["priority"] == 3
    assert (await client.post(path)).status_code == 405
    assert (await client.post(f"{path}/pause")).json()["name"] == f"a/{word}"
    assert (await client.post(f"{API}/schedules/a/pause")).json()["name"] == "a"
    assert (await client.get(f"{API}/schedules/{word}")).json()["paused"] is False
    assert (await client.delete(path)).status_code == 204
    left = {each["name"] for each in (await client.get(f"{API}/schedules")).json()["items"]}
    assert left == {word, "a"}


async def test_a_queue_whose_name_ends_in_pause_is_not_another_one(client: httpx.AsyncClient):
    await created(client, queue="a")
    assert (await client.post(f"{API}/queues/a%2Fpause")).status_code == 404
    [queue] = (await client.get(f"{API}/queues")).json()["items"]
    assert (queue["name"], queue["paused"]) == ("a", False)
    assert (await client.post(f"{API}/queues/a%2Fpause/pause")).json()["name"] == "a/pause"


async def test_why_says_the_reason_with_its_facts(harbor: Harbor, client: httpx.AsyncClient):
    job = await created(client, queue="mail")
    found = (await client.get(f"{API}/jobs/{job['id']}/why")).json()
    assert found.keys() == {"id", "code", "sentence", "facts"}
    assert (found["id"], found["code"]) == (job["id"], "no_worker")
    assert found["sentence"].startswith("No worker serves the queue mail (")
    assert (found["facts"]["state"], found["facts"]["workers"], found["facts"]["waitsFor"]) == (
        "ready",
        0,
        None,
    )
    unknown = await client.get(f"{API}/jobs/019b76da-a800-7000-8000-000000000001/why")
    assert unknown.status_code == 404


async def test_members_that_may_have_been_executed_are_retried_by_force(
    harbor: Harbor, client: httpx.AsyncClient
):
    from taskharbor import chain

    @harbor.task(name="once", delivery="at_most_once")
    def once() -> None:
        raise RuntimeError("no luck")

    workflow = await chain(once.si()).aenqueue()
    await Worker(harbor).drain()
    path = f"{API}/workflows/{workflow.id}/retry"
    refused = await client.post(path)
    assert (refused.status_code, '"force": true' in error_of(refused)["message"]) == (409, True)
    assert (await client.post(path, json={"force": True})).json()["active"] == 1


async def test_a_page_of_large_jobs_is_short(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskharbor.server.paging.READ_AT_FIRST", 2)
    monkeypatch.setattr("taskharbor.server.paging.PAGE_BYTES_MAX", 400)
    large = [(await created(client, payload={"x": "y" * 400}))["id"] for _ in range(5)]
    small = [(await created(client))["id"] for _ in range(5)]
    seen, cursor, lengths = [], "", []
    while cursor is not None:
        page = (await client.get(f"{API}/jobs?limit=10{cursor and f'&cursor={cursor}'}")).json()
        seen += [job["id"] for job in page["items"]]
        lengths.append(len(page["items"]))
        cursor = page["nextCursor"]
    assert seen == (large + small)[::-1]
    assert lengths == [6, 2, 2]  # first two, then twice as many
    assert (await client.get(f"{API}/jobs?limit=3")).json()["nextCursor"] == small[2]
