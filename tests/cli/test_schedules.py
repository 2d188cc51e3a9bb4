"""schedule list, add, pause, resume, run, delete."""

from __future__ import annotations

import pytest

APP = """
from taskharbor import Harbor
harbor = Harbor(application="shop")

@harbor.task(name="report"{schedule})
def report() -> None: ...
"""


@pytest.fixture
def hello(run):
    return run("schedule", "add", "hello", "echo", "message=hi", "--schedule", "@hourly", "--json").document


def test_schedule_add(run, harbor, hello):
    assert (hello["name"], hello["task"], hello["payload"]) == ("hello", "echo", {"message": "hi"})
    assert (hello["schedule"], hello["timezone"], hello["application"]) == ("@hourly", "UTC", "default")
    assert hello["nextRunAt"].endswith(":00:00Z")
    told = run(
        "schedule", "add", "hello", "echo", "--schedule", "*/10 * * * * *", "--timezone", "Europe/Berlin",
        "--misfire", "skip", "--misfire-grace", "5s", "--dead-letter", "--queue", "q", "--priority", "3",
        "--max-attempts", "2", "--timeout", "9", "--delivery", "at_most_once", "--tag", "a", "--tag", "b",
        "--meta", "tenant=acme",
    )  # fmt: skip
    assert told.out.startswith("hello: added, next run ")
    [schedule] = harbor.schedules.list()
    assert (schedule.schedule, schedule.timezone, schedule.misfire) == (
        "*/10 * * * * *",
        "Europe/Berlin",
        "skip",
    )
    assert (schedule.misfire_grace, schedule.dead_letter, schedule.queue) == (5, True, "q")
    assert (schedule.priority, schedule.tags, schedule.payload) == (3, ("a", "b"), {})
    job = harbor.jobs.get(schedule.id)
    assert (job.max_attempts, job.timeout, job.delivery) == (2, 9, "at_most_once")
    assert job.meta == {"tenant": "acme"}


def test_schedule_list(run, hello):
    run("schedule", "add", "other", "echo", "--schedule", "@daily", "--application", "shop")
    run("schedule", "pause", "hello")
    header, *rows = run("schedule", "list").out.splitlines()
    assert header.split() == [
        "SCHEDULE", "APPLICATION", "TASK", "WHEN", "TIMEZONE", "NEXT", "LAST", "ENDED", "NOTE",
    ]  # fmt: skip
    assert [row.split()[:4] for row in rows] == [
        ["hello", "default", "echo", "@hourly"],
        ["other", "shop", "echo", "@daily"],
    ]
    assert rows[0].split()[-1] == "paused"
    listed = run("schedule", "list", "--application", "shop", "--json").document
    assert [item["name"] for item in listed["items"]] == ["other"]
    assert (listed["items"][0]["orphaned"], listed["nextCursor"]) == (None, None)
    run("schedule", "delete", "other", "--application", "shop")
    run("schedule", "delete", "hello")
    assert len(run("schedule", "list").out.splitlines()) == 1


def test_schedule_pause_and_resume(run, hello):
    assert run("schedule", "pause", "hello").out == "hello: paused\n"
    assert run("schedule", "resume", "hello").out.startswith("hello: resumed, next run ")
    document = run("schedule", "pause", "hello", "--json").document
    assert (document["paused"], document["nextRunAt"], document["state"]) == (True, None, "scheduled")


def test_schedule_run(run, drain, hello):
    assert run("schedule", "run", "hello").out.startswith("hello: runs now")
    drain()
    document = run("schedule", "list", "--json").document["items"][0]
    assert (document["lastStatus"], document["dueAt"]) == ("succeeded", hello["dueAt"])
    inspected = run("inspect", document["id"], "--json").document
    assert (inspected["schedule"], inspected["tags"]) == ("hello", [])


def test_schedule_delete(run, harbor, hello):
    assert run("schedule", "delete", "hello", "--json").document == {"name": "hello", "deleted": True}
    assert (
        "no schedule of this application is called 'hello'"
        in run("schedule", "delete", "hello", code=1).error
    )


def test_what_is_no_longer_declared_is_shown(run, tmp_path, url, monkeypatch):
    monkeypatch.setenv("TASKHARBOR_URL", url)
    (tmp_path / "shop_before.py").write_text(APP.format(schedule=', schedule="@daily"'))
    (tmp_path / "shop_now.py").write_text(APP.format(schedule=""))
    run("worker", "--drain", "-A", "shop_before:harbor")
    before = run("schedule", "list", "-A", "shop_before:harbor", "--json").document["items"]
    assert [(item["name"], item["declared"], item["orphaned"]) for item in before] == [
        ("report", True, False)
    ]
    assert run("schedule", "list", "-A", "shop_now:harbor").out.split()[-1] == "orphaned"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("add", "x", "echo", "--schedule", "nonsense"), "no cron expression"),
        (("add", "x", "echo", "--schedule", "@daily", "--timezone", "Mars"), "no time zone is called"),
        (("add", "x", "echo", "--schedule", "@every 5s", "--timezone", "Mars"), "no time zone is called"),
        (("pause", "x"), "no schedule of this application is called 'x'"),
        (("run", "x"), "no schedule of this application is called 'x'"),
    ],
)
def test_errors_are_one_clear_line(run, harbor, arguments, told):
    harbor.migrate()
    assert told in run("schedule", *arguments, code=1).error
