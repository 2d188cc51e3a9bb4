"""The failure task of a job that was enqueued by name: over REST, and as the command line and SQL give it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from taskharbor import ConfigurationError, Context, Harbor, PayloadError, Unrecoverable
from taskharbor.failure_tasks import named_failure_task
from taskharbor.server.app import application
from tests.server.conftest import client_of

API = "/api/v1"


class Stage:
    """A task that fails, and one that is called with what died."""

    def __init__(self, harbor: Harbor) -> None:
        self.calls: list[tuple[Any, ...]] = []

        @harbor.task(name="alert", max_attempts=1, queue="alerts")
        async def alert(ctx: Context, died: dict[str, Any], level: int = 1) -> None:
            self.calls.append((died["job"], level, ctx.job.queue, ctx.job.priority))
            raise Unrecoverable("no line")

        @harbor.task(name="clean")
        async def clean() -> None:
            self.calls.append(("clean",))

        @harbor.task(name="fail", failure_task=clean.si())
        async def fail() -> None:
            raise Unrecoverable("broken")


@pytest.fixture
def stage(harbor: Harbor) -> Stage:
    return Stage(harbor)


@pytest.fixture
async def client(harbor: Harbor) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(harbor, open_on_loopback=True)) as client:
        yield client


async def test_job_over_rest_has_its_failure_task(harbor, stage, client, drained):
    """With the queue that the task declares, in the place of the one that its own task declares."""
    sent = {"task": "alert", "payload": {"level": 3}, "priority": 7}
    answer = await client.post(f"{API}/jobs", json={"task": "fail", "failureTask": sent})
    assert (answer.status_code, answer.json()["failureTask"]) == (201, "alert")
    await drained(harbor)
    assert stage.calls == [(answer.json()["id"], 3, "alerts", 7)]


async def test_null_over_rest_takes_the_declared_one_away(harbor, stage, client, drained):
    await client.post(f"{API}/jobs", json={"task": "fail", "failureTask": None})
    await drained(harbor)
    assert stage.calls == []
    await client.post(f"{API}/jobs", json={"task": "fail"})
    await drained(harbor)
    assert stage.calls == [("clean",)]


async def test_parameter_names_what_takes_the_death(harbor, drained, client):
    """Of a task whose code the server does not have; a worker that has it is called so."""
    for parameter, payload in (("died", {"level": 2}), (None, {})):
        sent = {"task": "later", "parameter": parameter, "payload": payload, "queue": "q"}
        answer = await client.post(f"{API}/jobs", json={"task": "unknown", "failureTask": sent})
        assert answer.status_code == 201, answer.text
    seen = []

    @harbor.task(name="unknown")
    async def unknown() -> None:
        raise Unrecoverable("broken")

    @harbor.task(name="later")
    async def later(died: dict[str, Any] | None = None, level: int = 1) -> None:
        seen.append((died and died["task"], level))

    await drained(harbor)
    assert sorted(seen, key=str) == [("unknown", 2), (None, 1)]


async def test_schedule_over_rest_has_a_failure_task_until_it_is_taken_away(
    harbor, stage, client, clock, drained
):
    sent = {"name": "nightly", "task": "fail", "schedule": "@every 60s", "failureTask": {"task": "alert"}}
    answer = await client.post(f"{API}/schedules", json=sent)
    assert (answer.status_code, answer.json()["failureTask"]) == (201, "alert")
    clock.advance(60)
    await drained(harbor)
    assert len(stage.calls) == 1
    answer = await client.patch(f"{API}/schedules/nightly", json={"failureTask": None})
    assert (answer.status_code, answer.json()["failureTask"]) == (200, None)
    clock.advance(60)
    await drained(harbor)
    assert len(stage.calls) == 1


async def test_call_of_a_url_has_a_failure_task(stage, client):
    sent = {"api": "https://example.com/hook", "failureTask": {"task": "alert"}}
    answer = await client.post(f"{API}/jobs", json=sent)
    assert (answer.status_code, answer.json()["failureTask"]) == (201, "alert")


@pytest.mark.parametrize(
    ("status", "complaint", "sent"),
    [
        (422, "not known here: say by parameter", {"task": "stranger"}),
        (422, "payload has a value", {"task": "alert", "parameter": "level", "payload": {"level": 1}}),
        (422, "level", {"task": "alert", "payload": {"level": "high"}}),
        (422, "method", {"task": "http", "payload": {"url": "https://example.com"}}),
        (422, "closed to HTTP jobs", {"task": "http", "parameter": "body", "payload": {"url": "http://10.0.0.1"}}),
        (403, "started with POST /jobs/bulk", {"task": "taskharbor.bulk", "parameter": None}),
        (403, "started with POST /dlq/replay", {"task": "taskharbor.replay", "parameter": None}),
        (422, "queue", {"task": "alert", "queue": ""}),
        (422, "idempotencyKey", {"task": "alert", "idempotencyKey": "k"}),
        (422, "whitespace", {"task": " alert"}),
    ],
)  # fmt: skip
async def test_failure_task_that_cannot_be_enqueued_is_refused(
    harbor, stage, client, status, complaint, sent
):
    for path, job in (
        ("jobs", {"task": "fail"}),
        ("jobs", {"api": "https://example.com/hook"}),
        ("schedules", {"name": "nightly", "task": "fail", "schedule": "@every 60s"}),
    ):
        answer = await client.post(f"{API}/{path}", json={**job, "failureTask": sent})
        assert answer.status_code == status or (status == 422 and answer.status_code == 400), answer.text
        assert complaint in answer.text
    assert sum((await harbor.jobs.acounts()).values()) == 0


async def test_failure_task_over_rest_is_sealed_as_payloads_are(driver):
    class Reversed:
        name = "reversed"

        def encode(self, text: str) -> str:
            return text[::-1]

        decode = encode

    async with Harbor(driver=driver, payload_codec=Reversed()) as sealed:
        await sealed.amigrate()
        async with client_of(application(sealed, open_on_loopback=True)) as client:
            sent = {"task": "alert", "parameter": "died", "payload": {"card": "4111"}}
            answer = await client.post(f"{API}/jobs", json={"task": "t", "failureTask": sent})
        [stored] = await sealed.driver.get([answer.json()["id"]])
        assert stored is not None
        kept = str(stored.options.failure_task)
        assert "4111" not in kept
        assert "1114" in kept


def test_signature_of_a_failure_task_keeps_no_option_of_a_single_job():
    harbor = Harbor("memory://")
    alert = harbor.task(name="alert")(_takes_one)
    for option, value in {"idempotency_key": "k", "expires_in": 5, "id": "0" * 32}.items():
        with pytest.raises(ConfigurationError, match=f"a failure task takes no {option}"):
            alert.using(failure_task=alert.using(**{option: value}).s())  # type: ignore[arg-type]


def test_failure_task_by_name_is_checked():
    harbor = Harbor("memory://")
    harbor.task(name="alert")(_takes_one)
    assert named_failure_task(harbor, "alert").parameter == "died"
    policy = named_failure_task(harbor, {"task": "alert", "retry": {"max_attempts": 2}}).options.retry
    assert isinstance(policy, dict)
    assert policy["max_attempts"] == 2
    refused: list[tuple[type[Exception], str, Any]] = [
        (ConfigurationError, "needs the name of a task", {}),
        (ConfigurationError, "unknown field of failure_task prio", {"task": "alert", "prio": 1}),
        (ConfigurationError, "takes no id", {"task": "alert", "id": None}),
        (PayloadError, "died", {"task": "alert", "parameter": None}),
        (PayloadError, "is a JSON object", {"task": "alert", "payload": [1]}),
        (ConfigurationError, "needs the name of a task", 5),
        (ConfigurationError, "parameter", {"task": "alert", "parameter": 5}),
    ]
    for error, complaint, sent in refused:
        with pytest.raises(error, match=complaint):
            named_failure_task(harbor, sent)


def _takes_one(died: dict[str, Any]) -> None: ...
