"""enqueue, list, inspect, cancel, job …"""

from __future__ import annotations

import json
import re
import uuid

import msgspec
from msgspec import UNSET

from taskharbor import Context, presets
from taskharbor.views.job_documents import JobDocument

JOB_KEYS = {
    *("id", "task", "queue", "state", "priority", "payload", "attempts", "number", "maxAttempts", "timeout"),
    *("retry", "correlationId", "tags", "delivery", "idempotencyKey", "dependsOn", "enqueuedAt", "runAt"),
    *(
        "expiresAt",
        "finishedAt",
        "failedAt",
        "reason",
        "error",
        "result",
        "progress",
        "worker",
        "parent",
        "leaseExpiresAt",
    ),
    *("leaseExpired", "cancelRequested", "version", "dueAt", "schedule", "workflow", "meta", "failureTask"),
    *("fingerprint", "actionId"),
}


# -- enqueue -------------------------------------------------------------------------------------


def test_enqueue_prints_only_the_id_in_a_pipe(run, harbor):
    job_id = run("enqueue", "echo", '{"message": "hi"}').out.strip()
    assert str(uuid.UUID(job_id)) == job_id
    assert harbor.jobs.get(job_id).payload == {"message": "hi"}


def test_enqueue_takes_a_failure_task_by_name_or_as_json(run, harbor):
    alert = '{"task": "echo", "payload": {"message": "dead"}, "parameter": null, "queue": "alerts"}'
    job_id = run("enqueue", "fail", "--max-attempts", "1", "--failure-task", alert).out.strip()
    assert harbor.jobs.get(job_id).failure_task == "echo"
    call = '{"task": "http", "payload": {"url": "https://example.com"}, "parameter": "body"}'
    run("enqueue", "fail", "--failure-task", call)
    refused = run("enqueue", "fail", "--failure-task", "nowhere", code=1).error
    assert "the code of the failure task 'nowhere' is not known here: say by parameter" in refused
    for wrong in ("{", '{"task": 5, "parameter": null}', '{"task": "t", "parameter": null, "prio": 1}'):
        run("enqueue", "fail", "--failure-task", wrong, code=2 if wrong == "{" else 1)
    added = ("schedule", "add", "hello", "fail", "--schedule", "@every 1h", "--failure-task", alert, "--json")
    assert run(*added).document["failureTask"] == "echo"


def test_inspect_shows_several_jobs(run, harbor):
    first, second = harbor.enqueue("echo", {"message": "1"}), harbor.enqueue("echo", {"message": "2"})
    document = run("inspect", first.id, second.id, first.id, "--json").document
    assert [each["id"] for each in document["items"]] == [first.id, second.id]
    assert run("inspect", first.id, "--json").document == document["items"][0]
    shown = run("inspect", first.id, second.id).out
    assert shown.index(first.id) < shown.index(second.id)
    assert shown.count("history, newest first") == 2
    assert "no job has the id" in run("inspect", first.id, str(uuid.uuid4()), code=1).error


def test_range_the_wrong_way_round_is_refused(run, empty):
    later, earlier = "2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z"
    for what in ("enqueued", "finished"):
        options = (f"--{what}-after", later, f"--{what}-before", earlier)
        for command in (("list",), ("dlq", "list"), ("cancel-all", "--yes"), ("delete-all", "--dry-run")):
            assert f"is later than {what}_before" in run(*command, *options, code=1).error
    assert run("list", "--enqueued-after", later, "--enqueued-before", later, "--count").out == "0\n"


def test_enqueue_takes_every_option(run):
    own = str(uuid.uuid4())
    document = run(
        *("enqueue", "email:send", '{"to": "a@b.c"}', "--queue", "mail", "--priority", "9", "--delay", "5m"),
        *("--max-retries", "3", "--timeout", "1.5", "--key", "order-42", "--delivery", "at_most_once"),
        *("--tag", "x", "--tag", "y", "--correlation-id", "c-1", "--id", own, "--json"),
        *("--meta", "tenant=acme", "--meta", "note=a=b"),
    ).document
    assert document.keys() == JOB_KEYS | {"existed"}
    expected = {
        "id": own,
        "task": "email:send",
        "queue": "mail",
        "state": "scheduled",
        "priority": 9,
        "payload": {"to": "a@b.c"},
        "maxAttempts": 4,
        "timeout": 1.5,
        "idempotencyKey": "order-42",
        "delivery": "at_most_once",
        "tags": ["x", "y"],
        "correlationId": "c-1",
        "meta": {"tenant": "acme", "note": "a=b"},
        "existed": False,
    }
    assert expected.items() <= document.items()


def test_meta_that_is_no_map_of_text_is_refused(run):
    assert "is not NAME=TEXT" in run("enqueue", "echo", "--meta", "tenant", code=2).error
    assert "given twice" in run("enqueue", "echo", "--meta", "a=1", "--meta", "a=2", code=2).error
    assert "a name in meta has 1 to 64" in run("enqueue", "echo", "--meta", "a b=1", code=1).error


def test_enqueue_at_a_time(run):
    document = run("enqueue", "echo", "--run-at", "2999-01-31T08:00:00+02:00", "--json").document
    assert document["runAt"] == "2999-01-31T06:00:00Z"
    assert document["state"] == "scheduled"


def test_a_time_without_a_zone_is_refused(run):
    assert "no time zone" in run("enqueue", "echo", "--run-at", "2999-01-31T08:00:00", code=2).error


def test_enqueueing_a_key_again_gives_the_job_that_existed(run):
    first = run("enqueue", "echo", "--key", "k", "--json").document
    second = run("enqueue", "echo", "message=other", "--key", "k", "--json").document
    assert second["id"] == first["id"]
    assert second["existed"]
    assert second["payload"] == {}


def test_payload_as_words(run):
    document = run(
        "enqueue", "echo", "text=1", "number:=1", 'list:=["a"]', "empty=", "eq=a=b", "--json"
    ).document
    assert document["payload"] == {"text": "1", "number": 1, "list": ["a"], "empty": "", "eq": "a=b"}


def test_payload_from_standard_input(run):
    assert run("enqueue", "echo", "-", "--json", stdin='{"a": [1, null]}').document["payload"] == {
        "a": [1, None]
    }


def test_payloads_that_are_none(run):
    assert "not valid JSON" in run("enqueue", "echo", "{oops", code=2).error
    assert "must be a JSON object" in run("enqueue", "echo", "[1]", code=2).error
    assert "neither name=text nor name:=json" in run("enqueue", "echo", "a=1", "b", code=2).error
    assert "names 'a' twice" in run("enqueue", "echo", "a=1", "a=2", code=2).error
    assert """'hello'; write to=a@b.c or {""" in run("enqueue", "echo", "hello", code=2).error
    assert "the value of a is not valid JSON" in run("enqueue", "echo", "a:=x", code=2).error
    assert "not valid JSON" in run("enqueue", "echo", '{"a": NaN}', code=2).error


def test_enqueue_can_wait_for_the_result(run, started, url):
    started("worker", "--url", url)
    assert json.loads(run("enqueue", "echo", 'message:={"ä": 1}', "--wait", "20").out) == {"ä": 1}
    assert run("enqueue", "echo", "message=hi", "--wait", "20s", "--json").document["result"] == "hi"
    error = run("enqueue", "fail", "message=no luck", "--max-attempts", "1", "--wait", "20", code=1).error
    assert error.endswith("is dead (exhausted): RuntimeError: no luck")


def test_waiting_in_vain_says_what_may_be_missing(run):
    assert "is a worker running?" in run("enqueue", "echo", "--wait", "10ms", code=1).error


# -- list ----------------------------------------------------------------------------------------


def test_list_as_json(run, harbor):
    ids = [harbor.enqueue("echo", {"message": number}).id for number in range(3)]
    document = run("list", "--json").document
    assert document.keys() == {"items", "nextCursor", "examined", "reached"}
    assert document["nextCursor"] is None
    assert [item["id"] for item in document["items"]] == ids[::-1]
    assert all(item.keys() == JOB_KEYS for item in document["items"])


def test_list_goes_on_at_the_cursor(run, harbor):
    ids = [harbor.enqueue("echo").id for _ in range(5)]
    first = run("list", "--limit", "3", "--json").document
    second = run("list", "--limit", "3", "--cursor", first["nextCursor"], "--json").document
    assert [item["id"] for item in first["items"] + second["items"]] == ids[::-1]
    plain = run("list", "--limit", "3")
    assert len(plain.out.splitlines()) == 4
    assert plain.err.strip() == f"there are more: --cursor {first['nextCursor']}"


def test_list_filters(run, harbor):
    wanted = harbor.enqueue("echo", queue="mail", tags=["x"]).id
    harbor.enqueue("sleep", delay=60)
    for words in (["--queue", "mail"], ["--task", "echo"], ["--tag", "x"], ["--state", "ready"]):
        assert [item["id"] for item in run("list", *words, "--json").document["items"]] == [wanted]


def test_list_in_a_pipe_is_columns_without_escape_codes(run, harbor):
    job = harbor.enqueue("echo", queue="mail", priority=5)
    header, row = run("list").out.splitlines()
    assert header.split() == ["ID", "STATE", "TASK", "QUEUE", "PRIORITY", "FAILURES", "WHEN"]
    assert row.split()[:6] == [job.id, "ready", "echo", "mail", "5", "0"]
    assert row.split()[6].endswith("Z")
    assert "\x1b" not in header + row
    assert header.index("QUEUE") == row.index("mail")


def test_an_empty_list_is_only_its_header(run, harbor):
    harbor.migrate()
    assert len(run("list").out.splitlines()) == 1
    assert run("list", "--json").document == {"items": [], "nextCursor": None, "examined": 0, "reached": None}


# -- inspect -------------------------------------------------------------------------------------


def test_inspect_shows_the_job_and_its_history(run, harbor, drain):
    job = harbor.enqueue("fail", {"message": "no\nluck"}, max_attempts=2, timeout=3, tags=["x"])
    drain_until_dead(harbor, drain, job.id)
    plain = run("inspect", job.id).out
    said = re.sub(" {2,}", "  ", plain)  # the columns are as wide as their widest name
    assert "reason  exhausted" in said
    assert "max attempts  2" in said
    assert "timeout  3.0s" in said
    assert "error  RuntimeError: no\\nluck" in said
    assert "retries  Task: fail | FAILED | Total Attempts: 2 | Last Error: RuntimeError: no luck" in said
    ended = dict(re.findall(r"^(finished at|failed at) +(.+)$", plain, re.MULTILINE))
    assert ended["failed at"] == ended["finished at"]
    assert plain.count(" failed ") == 2
    assert "Traceback" not in plain
    told = run("inspect", job.id, "--traceback").out
    assert told.count("Traceback (most recent call last)") == 2


def test_inspect_as_json(run, harbor, drain):
    job = harbor.enqueue("fail", {}, max_attempts=2)
    drain_until_dead(harbor, drain, job.id)
    document = run("inspect", job.id, "--json").document
    assert document.keys() == JOB_KEYS | {"history", "steps", "retryMetrics", "latestAction"}
    assert document["failedAt"] == document["finishedAt"] == document["history"][0]["finishedAt"]
    metrics, [last, first] = document["retryMetrics"], document["history"]
    assert (metrics["totalAttempts"], metrics["successfulAt"]) == (2, None)
    assert metrics["lastError"] == last["error"]
    assert metrics["backoffSeconds"] == first["retryDelay"] > 0
    assert last["retryDelay"] is None
    assert metrics["summary"].startswith("Task: fail | FAILED | Total Attempts: 2 | Last Error: ")
    assert (document["state"], document["reason"], document["attempts"]) == ("dead", "exhausted", 2)
    assert [attempt["number"] for attempt in document["history"]] == [2, 1]
    assert [attempt["retryCount"] for attempt in document["history"]] == [1, 0]
    assert document["history"][0]["traceback"].startswith("Traceback")
    assert document["history"][0]["startedAt"] <= document["history"][0]["finishedAt"]


def test_inspect_shows_durable_steps(run, harbor, drain):
    @harbor.task(name="order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", lambda: {"receipt": 7})

    job = order.enqueue()
    drain()
    [step] = run("inspect", job.id, "--json").document["steps"]
    assert step == {"name": "charge", "number": 1, "result": {"receipt": 7}}
    assert 'charge  1        {"receipt": 7}' in run("inspect", job.id).out


def test_a_result_is_shown(run, harbor, drain):
    job = harbor.enqueue("echo", {"message": {"a": 1}})
    drain()
    assert run("inspect", job.id, "--json").document["result"] == {"a": 1}
    assert 'result       {"a": 1}' in run("inspect", job.id).out


def test_what_a_job_says_cannot_reach_the_terminal_as_an_escape_code(run, harbor):
    job = harbor.enqueue("echo", {"message": "\x1b[2J\x9b2J\u202e"})
    assert not {"\x1b", "\x9b", "\u202e"} & set(run("inspect", job.id).out)


# -- cancel, retry -------------------------------------------------------------------------------


def test_cancel(run, harbor):
    job = harbor.enqueue("echo")
    assert run("cancel", job.id).out.strip() == f"{job.id}  echo: cancelled"
    assert harbor.jobs.get(job.id).state == "cancelled"
    assert run("cancel", job.id, code=1).error == f"job {job.id} is cancelled, so it cannot be cancelled"


def test_cancel_as_json(run, harbor):
    job = harbor.enqueue("echo")
    document = run("cancel", job.id, "--json").document
    assert document == msgspec.json.decode(msgspec.json.encode(JobDocument.of(harbor.jobs.get(job.id))))
    assert (document["state"], document["reason"]) == ("cancelled", "cancelled")


def test_job_retry(run, harbor):
    job = harbor.enqueue("echo")
    assert "only a dead or cancelled one can" in run("job", "retry", job.id, code=1).error
    harbor.jobs.cancel(job.id)
    assert run("job", "retry", job.id).out.strip() == f"{job.id}  echo: ready again"
    harbor.jobs.cancel(job.id)
    assert (
        run("job", "retry", job.id, "--run-at", "2999-01-01T00:00:00Z", "--json").document["state"]
        == "scheduled"
    )


def drain_until_dead(harbor, drain, job_id):
    """A retry waits for its delay, which draining does not."""
    while harbor.jobs.get(job_id).state != "dead":
        if harbor.jobs.get(job_id).state == "scheduled":
            harbor.jobs.run_now(job_id)
        drain()


def test_job_run_now(run, harbor):
    job = harbor.enqueue("echo", delay=3600)
    assert run("job", "run-now", job.id).out == f"{job.id}  echo: ready\n"
    assert "only a scheduled one can" in run("job", "run-now", job.id, code=1).error


def test_job_update_changes_what_is_given_and_nothing_else(run, harbor):
    job = harbor.enqueue("echo", {"message": "a"}, priority=1, tags=["old"], timeout=5)
    assert run("job", "update", job.id, "--priority", "9").out == f"{job.id}  echo: changed: priority\n"
    document = run(
        *(
            "job",
            "update",
            job.id,
            "--run-at",
            "2999-01-01T00:00:00Z",
            "--expires-at",
            "2999-02-01T00:00:00Z",
        ),
        *(
            "--max-retries",
            "2",
            "--timeout",
            "1m",
            "--tag",
            "b",
            "--tag",
            "c",
            "--payload",
            '{"message": "z"}',
            "--json",
        ),
    ).document
    assert (document["priority"], document["state"], document["runAt"]) == (
        9,
        "scheduled",
        "2999-01-01T00:00:00Z",
    )
    assert (document["maxAttempts"], document["timeout"], document["tags"]) == (3, 60.0, ["b", "c"])
    assert document["payload"] == {"message": "z"}
    assert document["expiresAt"] == "2999-02-01T00:00:00Z"
    assert run("job", "update", job.id, "--no-tags", "--json").document["tags"] == []
    assert run("job", "update", job.id, "--payload", "-", "--json", stdin='{"message": 1}').document[
        "payload"
    ] == {"message": 1}


def test_update_all_changes_those_that_match(run, harbor):
    jobs = [harbor.enqueue("echo", delay=60, tags=[tag]) for tag in ("a", "a", "b")]
    words = (
        "update-all",
        "--tag",
        "a",
        "--timeout",
        "30s",
        "--retry",
        "email",
        "--set-tag",
        "a",
        "--set-tag",
        "z",
    )
    assert run(*words, "--dry-run").out == "2 would be changed\n"
    assert jobs[0].refresh().timeout is None
    assert run(*words, "--yes").out == "2 changed\n"
    found = [job.refresh() for job in jobs]
    assert [job.timeout for job in found] == [30.0, 30.0, None]
    assert (found[0].tags, found[0].max_attempts) == (("a", "z"), presets.EMAIL.max_attempts)
    shown = run("update-all", "--retry", "declared", "--expires-in", "1h", "--yes", "--json").document
    assert shown["changed"] == 3
    assert jobs[0].refresh().record.options.retry is UNSET
    assert "say what to change" in run("update-all", "--tag", "a", "--yes", code=2).error
    assert "contradict" in run("update-all", "--set-tag", "a", "--no-tags", "--yes", code=2).error


def test_job_update_takes_a_policy_and_an_expiry(run, harbor):
    job = harbor.enqueue("echo", delay=60)
    document = run("job", "update", job.id, "--retry", "none", "--expires-in", "5m", "--json").document
    assert (document["retry"], document["expiresAt"] is None) == ("none", False)
    assert "--retry" in run("job", "update", job.id, "--retry", "often", code=2).error


def test_job_update_that_says_nothing_or_two_things_is_refused(run, harbor):
    job = harbor.enqueue("echo")
    assert "say what to change" in run("job", "update", job.id, code=2).error
    assert "contradict" in run("job", "update", job.id, "--tag", "a", "--no-tags", code=2).error
    assert "must be a JSON object" in run("job", "update", job.id, "--payload", "[1]", code=2).error
    assert "priority must be" in run("job", "update", job.id, "--priority", "1000", code=1).error
    run("cancel", job.id)
    assert "cannot be changed" in run("job", "update", job.id, "--priority", "1", code=1).error


def test_job_delete(run, harbor):
    job, other = harbor.enqueue("echo"), harbor.enqueue("echo")
    assert run("job", "delete", job.id).out == f"{job.id}: deleted\n"
    assert run("job", "delete", other.id, "--json").document == {"id": other.id, "deleted": True}
    assert harbor.jobs.list() == []
