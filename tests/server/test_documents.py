"""The documents of the interface: one case for all names, what is shown is described, what is shown can be sent."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest

from taskharbor import Harbor, RetryPolicy, Worker, chain, presets
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.contract.reading import StreamPartition, StreamPresence, WorkerRecord
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.server.requests import Input
from taskharbor.views.documents import Document
from taskharbor.views.job_documents import History, JobDocument, JobPage
from taskharbor.views.queue_documents import QueueList
from taskharbor.views.retry_documents import RetryDocument
from taskharbor.views.rollup_documents import Autoscale, Series
from taskharbor.views.schedule_documents import ScheduleDocument, ScheduleList
from taskharbor.views.streams import StreamList
from taskharbor.views.why import WhyDocument
from taskharbor.views.workers import Stats
from taskharbor.views.workflow_documents import WorkflowDocument, WorkflowPage
from tests.server.test_resources import API, created, dead_job, error_of

POLICIES = {
    "default": RetryPolicy(),
    "texts": RetryPolicy(max_attempts=3, retry_on=["timeout"], never_retry_on=["404", "Nö"]),
    "types": RetryPolicy(jitter=None, retry_on=[OSError, "busy"], never_retry_on=[PermissionError]),
    "full": presets.FULL_JITTER,
    "unlimited": RetryPolicy(max_attempts=0, initial=0, multiplier=1.5),
}


def described(document: Any, kind: type[Any]) -> None:
    """Every name is in the type, and the other way round, all the way down."""
    fields = msgspec.structs.fields(kind)
    optional = {f.encode_name for f in fields if f.default is msgspec.UNSET}
    assert {f.encode_name for f in fields} - optional <= set(document) <= {f.encode_name for f in fields}
    msgspec.convert(document, kind)
    for field in fields:
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)*|p\d+", field.encode_name)
        for inner, value in _inside(field.type, document.get(field.encode_name)):
            described(value, inner)


def _inside(kind: Any, value: Any) -> Any:
    shown = [k for k in _kinds(kind) if isinstance(k, type) and issubclass(k, Document | Input)]
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, dict) and shown:
            yield shown[0], each


def _kinds(kind: Any) -> Any:
    yield kind
    for inner in getattr(kind, "__args__", ()):
        yield from _kinds(inner)


async def test_every_document_that_is_shown_is_described(harbor: Harbor, client: httpx.AsyncClient):
    @harbor.task(name="step")
    async def step() -> None: ...

    job = await dead_job(harbor, client, retry={"maxAttempts": 1})
    await client.post(
        f"{API}/schedules",
        json={"name": "tick", "task": "t", "schedule": "0 0 * * *", "retry": {"retryOn": ["x"]}},
    )
    workflow = await chain(step.si()).aenqueue()
    reading = StreamPresence("tasks", "shop", (StreamPartition(0, 3, 9, 10),))
    member = WorkerRecord("member", "host", 1, 10, 0, stream=reading)
    await WORKERS.put(harbor.driver, [member], 60 * MICROS_PER_SECOND)
    for path, kind in {
        f"/jobs/{job['id']}": JobDocument,
        "/jobs": JobPage,
        "/dlq": JobPage,
        f"/jobs/{job['id']}/history": History,
        f"/jobs/{job['id']}/why": WhyDocument,
        "/queues": QueueList,
        "/schedules": ScheduleList,
        "/schedules/tick": ScheduleDocument,
        "/workflows": WorkflowPage,
        f"/workflows/{workflow.id}": WorkflowDocument,
        "/stats": Stats,
        "/stats/series": Series,
        "/autoscale": Autoscale,
        "/streams": StreamList,
    }.items():
        document = (await client.get(f"{API}{path}")).json()
        assert document.get("items") != [], path
        described(document, kind)


async def test_workers_and_what_they_run_are_described(harbor: Harbor, client: httpx.AsyncClient):
    seen: list[Any] = []

    @harbor.task(name="look")
    async def look() -> None:
        seen.append((await client.get(f"{API}/stats")).json())

    await created(client, task="look")
    await Worker(harbor).drain()
    [stats] = seen
    described(stats, Stats)
    assert [worker["open"] for worker in stats["workers"]] == [1]


@pytest.mark.parametrize("name", POLICIES)
async def test_a_policy_that_is_shown_can_be_sent(harbor: Harbor, client: httpx.AsyncClient, name: str):
    policy = POLICIES[name]
    job = await harbor.aenqueue("t", {}, retry=policy)
    shown = (await client.get(f"{API}/jobs/{job.id}")).json()["retry"]
    described(shown, RetryDocument)
    again = await created(client, retry=shown)
    assert again["retry"] == shown
    stored = (await harbor.jobs.aget(again["id"])).record.options.retry
    assert stored == policy.to_dict()


async def test_no_retries_and_no_word_about_them_can_be_sent_as_they_are_shown(
    harbor: Harbor, client: httpx.AsyncClient
):
    @harbor.task(name="declared", retry=presets.EMAIL)
    def declared() -> None: ...

    cases: list[tuple[dict[str, Any], str | None]] = [
        ({"retry": "none"}, "none"),
        ({"retry": None}, None),
        ({}, None),
    ]
    for sent, shown in cases:
        assert (await created(client, **sent))["retry"] == shown
    # Where the task is declared here, null leaves that to it: its policy follows the code, and its limit is stored.
    for sent in ({"retry": None}, {}):
        job = await created(client, task="declared", **sent)
        assert (job["retry"], job["maxAttempts"]) == (None, 11)


async def test_a_policy_may_leave_out_what_the_default_says(client: httpx.AsyncClient):
    shown = (await created(client, retry={"maxAttempts": 3.0, "initial": 60}))["retry"]
    default = RetryPolicy(max_attempts=3, initial=60)
    assert (shown["maxAttempts"], shown["initial"], shown["maximum"], shown["jitter"]) == (
        3,
        60.0,
        default.maximum,
        default.jitter,
    )


@pytest.mark.parametrize(
    ("retry", "status"),
    [
        ({"max_attempts": 3}, 400),
        ({"maxAttempts": -1}, 400),
        ({"maxAttempts": 10**30}, 400),
        ({"jitter": 2}, 400),
        ({"jitter": "some"}, 400),
        ({"multiplier": 0.5}, 400),
        ({"initial": -1}, 400),
        ({"initial": 1e300}, 400),
        ({"retryOn": "timeout"}, 400),
        ({"retryOn": [""]}, 400),
        ({"retryOn": [" "]}, 422),
        ({"retryOn": ["a\0b"]}, 422),
        ({"retryOn": ["x"] * 101}, 400),
        ({"retryOnTypes": ["no type"]}, 400),
        ({"retryOnTypes": ["a:b\n"]}, 400),
        ("some", 400),
        ([], 400),
        (3, 400),
    ],
)
async def test_a_bad_policy_is_refused_and_nothing_stored(
    harbor: Harbor, client: httpx.AsyncClient, retry: Any, status: int
):
    response = await client.post(f"{API}/jobs", json={"task": "t", "retry": retry})
    assert response.status_code == status, response.text
    assert "retry_on" not in error_of(response)["message"]
    assert sum((await harbor.jobs.acounts()).values()) == 0


async def test_a_schedule_shows_what_it_was_given_and_its_policy_can_be_taken_back(client: httpx.AsyncClient):
    given = {
        "name": "tick",
        "task": "t",
        "schedule": "0 0 * * *",
        "maxAttempts": 7,
        "timeout": 5.0,
        "delivery": "at_most_once",
        "correlationId": "c",
        "misfireGrace": 5.0,
        "tags": ["x"],
        "meta": {"tenant": "acme"},
        "retry": (await created(client, retry={"neverRetryOn": ["404"]}))["retry"],
    }
    made = await client.post(f"{API}/schedules", json=given)
    assert made.status_code == 201, made.text
    assert given.items() <= made.json().items()
    for sent, shown in [
        ({"timeout": 6}, given["retry"]),
        ({"retry": "none"}, "none"),
        ({"retry": None}, None),
    ]:
        changed = await client.patch(f"{API}/schedules/tick", json=sent)
        assert (changed.status_code, changed.json()["retry"]) == (200, shown)


async def test_what_a_harbor_says_is_told_by_the_names_of_the_interface(client: httpx.AsyncClient):
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"runAt": "2100-01-01T00:00:00Z", "delay": 5}, "runAt and delay", "run_at"),
        ({"maxAttempts": 1, "maxRetries": 1}, "maxAttempts=1 and maxRetries=1", "max_"),
        ({"id": "run_at"}, "'run_at'", "runAt"),  # what was sent stays what it is
    ]
    for document, told, untold in cases:
        message = error_of(await client.post(f"{API}/jobs", json={"task": "t", **document}))["message"]
        assert told in message
        assert untold not in message
