"""HTTP jobs at work: what is sent, what counts as success, what history says of a failure."""

from __future__ import annotations

import asyncio
import gzip
import json
from datetime import timedelta
from email.utils import format_datetime

import pytest

from taskharbor import Harbor, RetryPolicy, Worker, presets
from taskharbor.clock import from_micros
from taskharbor.errors import PayloadError
from taskharbor.http import http_payload
from taskharbor.http.answers import BODY_BYTES_MAX, RESULT_BODY_MAX
from taskharbor.records import Reason, State
from tests.http.stage import reply
from tests.worker.stage import attempts_of, statuses, until, until_state, working


async def done(harbor: Harbor, job):
    await Worker(harbor).drain()
    return await job.arefresh()


# -- what is sent --------------------------------------------------------------------------------


async def test_a_request_is_sent_as_the_payload_says(harbor, server):
    job = await harbor.aenqueue(
        "http",
        http_payload(
            f"{server.url}/hook?a=1",
            method="put",
            headers={"X-Acme": "yes", "Content-Type": "text/x"},
            body="hi ü",
        ),
        correlation_id="order-42",
    )
    assert (await done(harbor, job)).state is State.SUCCEEDED
    request = server.request
    assert (request.method, request.path, request.body) == ("PUT", "/hook?a=1", "hi ü".encode())
    assert request.headers["host"] == server.place
    assert request.headers["x-acme"] == "yes"
    assert request.headers["content-type"] == "text/x"
    assert request.headers["x-correlation-id"] == "order-42"
    assert request.headers["taskharbor-job"] == job.id
    assert request.headers["taskharbor-attempt"] == "1"
    assert request.headers["user-agent"].startswith("TaskHarbor/")
    assert "webhook-signature" not in request.headers


@pytest.mark.parametrize(
    ("body", "sent", "kind"),
    [
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json"),
        ([1], b"[1]", "application/json"),
        (False, b"false", "application/json"),
        ("text", b"text", "text/plain; charset=utf-8"),
    ],
)
async def test_a_body_is_text_or_json_and_makes_it_a_post(harbor, server, body, sent, kind):
    await done(harbor, await harbor.aenqueue("http", {"url": server.url, "body": body}))
    request = server.request
    assert (request.method, request.body, request.headers["content-type"]) == ("POST", sent, kind)
    assert request.headers["content-length"] == str(len(sent))


async def test_without_a_body_it_is_a_get(harbor, server):
    await done(harbor, await harbor.aenqueue("http", {"url": server.url}))
    assert server.request.method == "GET"
    assert not {"content-length", "content-type", "transfer-encoding"} & server.request.headers.keys()


async def test_a_post_without_a_body_says_so(harbor, server):
    await done(harbor, await harbor.aenqueue("http", {"url": server.url, "method": "POST"}))
    assert server.request.headers["content-length"] == "0"


async def test_the_idempotency_key_is_the_same_in_a_run_and_another_in_the_next(harbor, server, clock):
    server.handle = lambda request: reply(500)
    job = await harbor.aenqueue("http", {"url": server.url}, max_attempts=2)
    await done(harbor, job)
    clock.advance(2)
    assert (await done(harbor, job)).state is State.DEAD
    await harbor.dlq.arequeue(job.id)
    server.handle = lambda request: reply(200)
    assert (await done(harbor, job)).state is State.SUCCEEDED
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 3
    assert keys[0] == keys[1] != keys[2]
    assert [request.headers["taskharbor-attempt"] for request in server.requests] == ["1", "2", "1"]


async def test_headers_of_the_job_go_before_ours(harbor, server):
    own = {"idempotency-key": "mine", "User-Agent": "me/1", "X-Correlation-ID": "theirs"}
    await done(harbor, await harbor.aenqueue("http", {"url": server.url, "headers": own}, correlation_id="c"))
    sent = server.request.headers
    assert (sent["idempotency-key"], sent["user-agent"], sent["x-correlation-id"]) == (
        "mine",
        "me/1",
        "theirs",
    )


# -- success -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_a_status_of_2xx_is_success(harbor, server, status):
    server.handle = lambda request: reply(status, "" if status == 204 else "done", X_Id="7", Set_Cookie="s=1")
    job = await harbor.aenqueue("http", {"url": server.url})
    await done(harbor, job)
    result = await job.aresult()
    assert (result["status"], result["truncated"]) == (status, False)
    assert result["body"] == ("" if status == 204 else "done")
    assert (result["headers"]["X-Id"], result["headers"]["Set-Cookie"]) == ("7", "***")


async def test_a_huge_answer_is_not_read_to_its_end(harbor, server):
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    server.handle = lambda request: endless
    job = await harbor.aenqueue("http", {"url": server.url})
    await done(harbor, job)
    result = await job.aresult()
    assert result["truncated"]
    assert result["body"] == "x" * RESULT_BODY_MAX
    assert sent < 100_000_000


async def test_a_bomb_is_not_unpacked(harbor, server):
    bomb = gzip.compress(b"\0" * 10_000_000)
    assert len(bomb) < BODY_BYTES_MAX
    server.handle = lambda request: reply(200, bomb, Content_Encoding="gzip")
    job = await harbor.aenqueue("http", {"url": server.url})
    await done(harbor, job)
    result = await job.aresult()
    assert len(result["body"]) <= RESULT_BODY_MAX
    assert result["truncated"]


async def test_no_cookie_goes_from_one_job_to_the_next(harbor, server):
    server.handle = lambda request: reply(200, Set_Cookie="session=1; Path=/")
    for _ in range(2):
        await done(harbor, await harbor.aenqueue("http", {"url": server.url}))
    assert all("cookie" not in request.headers for request in server.requests)


# -- failure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [302, 400, 404, 418, 429, 500, 503, 599])
async def test_any_other_status_is_a_failure_with_a_piece_of_the_body(harbor, server, status):
    server.handle = lambda request: reply(status, "why not " + "x" * 100_000)
    job = await harbor.aenqueue("http", {"url": f"{server.url}/path?token=abc"}, max_attempts=1)
    found = await done(harbor, job)
    assert (found.state, found.reason) == (State.DEAD, Reason.EXHAUSTED)
    assert f"HttpError: {status}" in found.error
    assert "/path" in found.error
    assert "why not" in found.error
    assert "abc" not in found.error
    assert len(found.error) < 2_000


async def test_failures_are_retried_by_the_preset_for_schedules(harbor, server, clock):
    server.handle = lambda request: reply(500)
    job = await harbor.aenqueue("http", {"url": server.url})
    delays = []
    while (found := await done(harbor, job)).state is not State.DEAD:
        delays.append((found.run_at - from_micros(clock.now())).total_seconds())
        clock.advance(delays[-1])
    assert delays == [1, 2, 4]
    assert presets.SCHEDULE.max_attempts == len(server.requests) == 4


async def test_at_most_once_is_never_sent_again(harbor, server):
    server.handle = lambda request: reply(500)
    job = await harbor.aenqueue("http", {"url": server.url}, delivery="at_most_once", max_attempts=5)
    assert (await done(harbor, job)).reason is Reason.NOT_RETRYABLE
    assert len(server.requests) == 1


async def test_a_refused_connection_is_a_failure_that_is_retried(harbor, server, clock):
    gone = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = gone.sockets[0].getsockname()[1]
    gone.close()
    async with Harbor("memory://", clock=clock, http_allow=["127.0.0.1"]) as harbor:
        job = await harbor.aenqueue("http", {"url": f"http://127.0.0.1:{port}"})
        found = await done(harbor, job)
    assert (found.state, found.attempts) == (State.SCHEDULED, 1)
    assert "HttpError: connection to" in found.error


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"]
)
async def test_what_is_no_answer_is_a_failure(harbor, server, answer):
    server.handle = lambda request: answer
    found = await done(harbor, await harbor.aenqueue("http", {"url": server.url}))
    assert (found.state, found.attempts) == (State.SCHEDULED, 1)
    assert found.error.startswith("HttpError: ")


# -- Retry-After ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "delay"),
    [("120", 120), ("99999999999", 86_400), ("0", 1), ("-5", 1), ("soon", 1), ("1.5", 1)],
)
async def test_retry_after_in_seconds_is_respected_and_capped(harbor, server, clock, value, delay):
    server.handle = lambda request: reply(503, Retry_After=value)
    found = await done(harbor, await harbor.aenqueue("http", {"url": server.url}))
    assert (found.run_at - from_micros(clock.now())).total_seconds() == delay
    assert "503 Service Unavailable" in found.error


@pytest.mark.parametrize(("ahead", "delay"), [(300, 300), (-300, 1), (10**7, 86_400)])
async def test_retry_after_as_a_date_is_respected_and_capped(harbor, server, clock, ahead, delay):
    date = format_datetime(from_micros(clock.now()) + timedelta(seconds=ahead), usegmt=True)
    server.handle = lambda request: reply(429, Retry_After=date)
    found = await done(harbor, await harbor.aenqueue("http", {"url": server.url}))
    assert (found.run_at - from_micros(clock.now())).total_seconds() == delay


async def test_retry_after_counts_as_an_attempt(harbor, server, clock):
    server.handle = lambda request: reply(503, Retry_After="10")
    job = await harbor.aenqueue("http", {"url": server.url}, max_attempts=2)
    await done(harbor, job)
    clock.advance(10)
    assert (await done(harbor, job)).reason is Reason.EXHAUSTED


# -- time ----------------------------------------------------------------------------------------


def never(server) -> None:
    async def wait(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    server.handle = lambda request: wait


def trickle(server) -> None:
    """Headers at once, then a byte now and then: no single wait is long."""

    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    server.handle = lambda request: slowly


@pytest.mark.parametrize("slow", [never, trickle])
@pytest.mark.parametrize(
    ("payload", "options", "seconds"), [({}, {}, 30), ({"timeout": 5}, {}, 5), ({}, {"timeout": 90}, 90)]
)
async def test_an_exchange_that_takes_too_long_has_timed_out(
    harbor, server, clock, slow, payload, options, seconds
):
    slow(server)
    job = await harbor.aenqueue("http", {"url": server.url, **payload}, max_attempts=1, **options)
    async with working(harbor, lease_seconds=1000):
        await asyncio.wait_for(server.arrived.wait(), 60)
        await clock.jump(seconds - 0.1)
        assert (await job.arefresh()).state is State.RUNNING
        await clock.jump(0.2)
        await until_state(job, State.DEAD)
    assert await statuses(job) == ["timed_out"]
    [attempt] = await attempts_of(job)
    assert f"{seconds} s" in (attempt.error or "")


async def test_a_cancelled_job_hangs_up(harbor, server, clock):
    hung_up = asyncio.Event()

    async def until_hung_up(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        try:
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            hung_up.set()

    server.handle = lambda request: until_hung_up
    job = await harbor.aenqueue("http", {"url": server.url})
    async with working(harbor, lease_seconds=30):
        await asyncio.wait_for(server.arrived.wait(), 60)
        await harbor.jobs.acancel(job.id)
        await clock.jump(15)
        await until_state(job, State.CANCELLED)
        await asyncio.wait_for(hung_up.wait(), 60)


async def test_slow_calls_do_not_hold_up_others(harbor, server):
    """A hundred calls wait at once in one worker."""
    together = asyncio.Event()

    async def meet(writer: asyncio.StreamWriter) -> None:
        if len(server.requests) == 100:
            together.set()
        await together.wait()
        writer.write(reply(200))

    server.handle = lambda request: meet
    jobs = [await harbor.aenqueue("http", {"url": server.url}) for _ in range(100)]
    await asyncio.wait_for(Worker(harbor, concurrency=100).drain(), 60)
    assert {(await job.arefresh()).state for job in jobs} == {State.SUCCEEDED}


# -- being known ---------------------------------------------------------------------------------


async def test_without_the_extra_it_is_put_back_and_then_dead_naming_the_extra(harbor, server, monkeypatch):
    monkeypatch.setattr("taskharbor.http.task.is_installed", lambda: False)
    job = await harbor.aenqueue("http", {"url": server.url})
    found = await done(harbor, job)
    assert (found.state, await statuses(job)) == (State.SCHEDULED, ["released"])
    await Worker(harbor, unrunnable_grace_seconds=0).drain()
    harbor.driver.clock.advance(60)
    await Worker(harbor, unrunnable_grace_seconds=0).drain()
    found = await job.arefresh()
    assert found.reason is Reason.UNKNOWN_TASK
    assert "taskharbor[http]" in found.error


async def test_a_task_declared_as_http_goes_before_ours(harbor):
    @harbor.task(name="http")
    async def own(anything: int) -> int:
        return anything

    job = await harbor.aenqueue("http", {"anything": 1})
    await done(harbor, job)
    assert await job.aresult() == 1


async def test_a_payload_that_another_program_wrote_wrongly_is_dead_at_once(harbor):
    from taskharbor.client.options import new_id
    from taskharbor.records import NewJob

    job_id = new_id()
    await harbor.driver.enqueue([NewJob(job_id, "http", json.dumps({"url": "http://127.1/"}))])
    await Worker(harbor).drain()
    found = await harbor.jobs.aget(job_id)
    assert found.reason is Reason.UNRECOVERABLE
    assert "odd spelling" in found.error


async def test_a_wrong_payload_is_refused_when_it_is_enqueued_or_changed(harbor, server):
    with pytest.raises(PayloadError, match="url must begin"):
        await harbor.aenqueue("http", {"url": "ftp://example.com"})
    with pytest.raises(PayloadError, match="url"):
        await harbor.aenqueue("http", {})
    with pytest.raises(PayloadError, match="unknown"):
        await harbor.aenqueue("http", {"url": server.url, "unknown": 1})
    job = await harbor.aenqueue("http", {"url": server.url, "headers": {"Authorization": "x1y2z3"}})
    with pytest.raises(PayloadError, match="how a secret is shown"):
        await harbor.jobs.aupdate(job.id, payload=job.payload)


async def test_the_policy_of_a_job_goes_before_the_tasks(harbor, server, clock):
    server.handle = lambda request: reply(404)
    job = await harbor.aenqueue("http", {"url": server.url}, retry=RetryPolicy(never_retry_on=["404"]))
    assert (await done(harbor, job)).reason is Reason.NOT_RETRYABLE


async def test_a_shutdown_gives_the_job_back(harbor, server):
    never(server)
    job = await harbor.aenqueue("http", {"url": server.url})
    async with working(harbor, grace_seconds=0):
        await until(lambda: server.requests)
    assert (await job.arefresh()).state is State.READY
    assert (await job.arefresh()).attempts == 0
