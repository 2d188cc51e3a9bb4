"""Secrets of an HTTP job are stored, sent, and never shown again."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor import Worker
from taskharbor.errors import PayloadError
from taskharbor.http import http_payload
from taskharbor.http.answers import ERROR_BODY_MAX, Answer, failure_of
from taskharbor.http.secrets import scrubbed, secrets_in
from taskharbor.records import State
from taskharbor.rules.display import shown_payload
from taskharbor.telemetry.logs import JsonFormatter, KeyValueFormatter
from taskharbor.views.job_documents import AttemptDocument, HistoryEntry, JobDocument
from taskharbor.views.schedule_documents import ScheduleDocument
from tests.http.stage import Request, reply
from tests.worker.stage import attempts_of

SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRETS = ["hush-token", "hush-bearer", "hush-key", "hush-cookie", SIGNING, SIGNING.removeprefix("whsec_")]


def secret_payload(url: str) -> dict:
    return http_payload(
        f"{url}/x?api_key=hush-token&page=7",
        headers={
            "Authorization": "Bearer hush-bearer",
            "X-Acme": "hush-key",
            "Cookie": "a=hush-cookie",
            "Accept": "text/x",
        },
        body={"order": 42},
        signing_secret=SIGNING,
    )


def echo(request: Request, status: int) -> bytes:
    """A server that answers with all that it was sent."""
    everything = json.dumps([request.path, request.headers, request.body.decode(), SIGNING])
    return reply(status, everything, X_Echo=request.headers["authorization"], Location=f"/?{request.path}")


def assert_no_secret(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text, text


def test_what_opens_no_door_is_shown():
    shown = shown_payload("http", secret_payload("https://example.com"))
    assert shown == {
        "url": "https://example.com/x?api_key=***&page=7",
        "headers": {"Authorization": "***", "X-Acme": "***", "Cookie": "***", "Accept": "text/x"},
        "body": {"order": 42},
        "signing_secret": "***",
    }


@pytest.mark.parametrize(
    "headers", [["Authorization: hush-key"], "Authorization: hush-key", {"Authorization": ["hush-key"]}]
)
def test_a_payload_that_is_written_wrongly_is_shown_without_its_secrets(headers):
    assert_no_secret(str(shown_payload("http", {"headers": headers, "signing_secret": [SIGNING]})))


def test_the_payloads_of_other_tasks_are_shown_as_they_are():
    payload = {"headers": {"Authorization": "x"}, "url": "https://a/?token=b"}
    assert shown_payload("email:send", payload) == payload


@pytest.mark.parametrize("status", [200, 302, 500, 503])
async def test_no_secret_is_shown_by_any_surface(harbor, server, caplog, status):
    server.handle = lambda request: echo(request, status)
    with caplog.at_level(logging.DEBUG):
        job = await harbor.aenqueue("http", secret_payload(server.url), max_attempts=1)
        await Worker(harbor).drain()
    found = await job.arefresh()
    assert found.state is (State.SUCCEEDED if status == 200 else State.DEAD)
    assert server.request.headers["authorization"] == "Bearer hush-bearer"  # sent
    assert server.request.path == "/x?api_key=hush-token&page=7"
    assert "hush-bearer" in found.record.payload  # stored

    seen = [
        str(job.payload),
        repr(job),
        str(found.payload),
        repr(found),
        repr(found.record),
        str(JobDocument.of(found)),
    ]
    for attempt in await attempts_of(job):
        seen += [str(AttemptDocument.of(attempt)), str(HistoryEntry.of(attempt))]
    seen += [str(found.error), str(found.record.result)]
    seen += [
        formatter.format(record)
        for record in caplog.records
        for formatter in (JsonFormatter(), KeyValueFormatter())
    ]
    seen += [str([(await harbor.jobs.alist())[0].payload])]
    assert "***" in " ".join(seen)
    for text in seen:
        assert_no_secret(text)


async def test_the_repr_of_a_signature_and_of_a_claimed_job_hold_no_secret(harbor, server):
    task = harbor._known("http")
    signature = task.s(**secret_payload(server.url))
    assert_no_secret(repr(signature))
    assert_no_secret(repr(signature.new_job()))
    seen = []

    @harbor.middleware
    async def look(ctx, call):
        seen.append(repr(ctx._execution.claimed) + repr(ctx.job) + str(ctx.job.payload))
        return await call()

    job = await harbor.aenqueue("http", secret_payload(server.url))
    await Worker(harbor).drain()
    assert (await job.arefresh()).state is State.SUCCEEDED
    [text] = seen
    assert_no_secret(text)


@settings(deadline=None)
@given(st.text(min_size=6).filter(lambda secret: "***" not in secret), st.text(), st.text())
def test_a_secret_is_taken_out_of_any_text(secret: str, before: str, after: str):
    headers = [("Authorization", secret)]
    text = scrubbed(before + secret + after, secrets_in("/", headers))
    assert secret not in text or secret in "***"


def test_a_secret_is_not_cut_in_two():
    answer = Answer(500, (), b"x" * (ERROR_BODY_MAX - 3) + b"hush-bearer", truncated=False)
    assert "hus" not in str(failure_of(answer, "there", ["hush-bearer"], now=0))


def test_short_values_are_left_in_answers():
    assert secrets_in("/?page=123456", [("X-Flag", "true"), ("Accept", "application/json")]) == []


async def test_a_schedule_shows_no_secret_either(harbor) -> None:
    await harbor.schedules.aadd("ping", "http", secret_payload("https://example.com"), schedule="0 12 * * *")
    [schedule] = await harbor.schedules.alist()
    shown = msgspec.json.encode(ScheduleDocument.of(schedule)).decode() + repr(schedule)
    assert not [secret for secret in SECRETS if secret in shown]
    with pytest.raises(
        PayloadError, match="how a secret is shown"
    ):  # and what was shown cannot be stored back
        await harbor.schedules.aupdate("ping", payload=schedule.payload)
