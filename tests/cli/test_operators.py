"""dlq, queue, stats, prune, migrate, doctor."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from taskharbor import State
from taskharbor.drivers.base import ClaimRequest, Extension, WorkerRecord
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.audit import ActionFilter
from taskharbor.drivers.contract.reading import PRESENCE_LASTS
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.rules.rollups import begin_of
from taskharbor.sync import run_inline


@pytest.fixture
def dead(harbor, drain):
    jobs = [
        harbor.enqueue("fail", {"message": "no luck"}, max_attempts=1, queue=queue)
        for queue in ("mail", "other")
    ]
    drain()
    assert [job.refresh().state for job in jobs] == [State.DEAD, State.DEAD]
    return jobs


# -- dlq -----------------------------------------------------------------------------------------


def test_dlq_list(run, harbor, dead):
    harbor.enqueue("echo")
    header, *rows = run("dlq", "list").out.splitlines()
    assert header.split() == ["ID", "TASK", "QUEUE", "REASON", "FAILURES", "WHEN", "ERROR"]
    assert [row.split()[0] for row in rows] == [dead[1].id, dead[0].id]
    assert rows[0].endswith("RuntimeError: no luck")
    document = run("dlq", "list", "--queue", "mail", "--json").document
    assert [item["id"] for item in document["items"]] == [dead[0].id]
    assert document["items"][0]["reason"] == "exhausted"
    assert document["nextCursor"] is None


def test_dlq_requeue(run, dead):
    document = run("dlq", "requeue", dead[0].id, "--json").document
    assert (document["state"], document["attempts"]) == ("ready", 0)
    assert run("dlq", "requeue", dead[1].id, "--keep-attempts", "--json").document["attempts"] == 1
    assert "cannot be requeued" in run("dlq", "requeue", dead[0].id, code=1).error


def test_dlq_requeue_of_an_at_most_once_job_needs_force(run, harbor, drain):
    job = harbor.enqueue("fail", {}, delivery="at_most_once")
    drain()
    assert "may have been executed" in run("dlq", "requeue", job.id, code=1).error
    assert run("dlq", "requeue", job.id, "--force").out.strip().endswith("ready again")


def test_dlq_requeue_all(run, harbor, dead):
    assert run("dlq", "requeue-all", "--queue", "mail").out == "1 requeued\n"
    assert run("dlq", "requeue-all", "--json").document == {"requeued": 1}
    assert harbor.jobs.counts()["ready"] == 2


def test_dlq_groups(run, dead):
    header, row = run("dlq", "groups").out.splitlines()
    assert header.split() == ["GROUP", "JOBS", "FIRST", "LAST", "TASKS", "VERSIONS", "SAMPLE", "ERROR"]
    assert row.endswith("RuntimeError: no luck")
    [group] = run("dlq", "groups", "--json").document["items"]
    assert (group["fingerprint"], group["count"], group["tasks"]) == (row.split()[0], 2, ["fail"])
    assert group["sampleId"] == dead[1].id
    [group] = run("dlq", "groups", "--queue", "mail", "--json").document["items"]
    assert (group["count"], group["sampleId"]) == (1, dead[0].id)
    assert run("dlq", "requeue-all", "--group", group["fingerprint"]).out == "2 requeued\n"
    assert run("dlq", "groups", "--json").document["items"] == []


def test_dlq_requeue_all_with_a_brake_enqueues_the_replay(run, harbor, dead, drain):
    out = run("dlq", "requeue-all", "--queue", "mail", "--brake", "20%").out
    assert "replays them, and stops above 20%" in out
    document = run("dlq", "requeue-all", "--brake", "0.5", "--json").document
    assert (document["task"], document["payload"]["brake"], document["state"]) == (
        "taskharbor.replay",
        0.5,
        "ready",
    )
    for unfit in ("200%", "x", "-1"):
        assert "is not a share" in run("dlq", "requeue-all", "--brake", unfit, code=2).error
    assert "--keep-attempts" in run("dlq", "requeue-all", "--brake", "1", "--keep-attempts", code=2).error


def test_dlq_discard(run, dead):
    document = run("dlq", "discard", dead[0].id, "--json").document
    assert (document["state"], document["reason"]) == ("cancelled", "discarded")
    assert "only a dead one can" in run("dlq", "discard", dead[0].id, code=1).error


def test_dlq_discard_all(run, harbor, dead, monkeypatch):
    assert run("dlq", "discard-all", "--queue", "mail", "--yes").out == "1 discarded\n"
    assert [job.refresh().state for job in dead] == [State.CANCELLED, State.DEAD]
    assert run("dlq", "discard-all", "--yes", "--json").document == {"discarded": 1}
    assert harbor.jobs.counts()["dead"] == 0


@pytest.mark.parametrize(
    "command", ["cancel-all", "delete-all", "update-all --priority 3", "dlq discard-all"]
)
def test_wrong_filter_is_refused_before_the_question(run, dead, monkeypatch, command):
    monkeypatch.setattr("taskharbor.cli.confirming._is_terminal", lambda: True)
    refused = run(*command.split(), "--group", "no fingerprint", stdin="y\n", code=1)
    assert "a fingerprint has 16 hexadecimal digits" in refused.err
    assert "[y/N]" not in refused.err


def test_hold_of_a_misspelt_task_says_which_one_is_meant(run, harbor):
    """It is held all the same: its workers may come later."""
    workers = [WorkerRecord("w", "host", 1, 1, 0, tasks=("mail:send", "mail:read"))]
    asyncio.run(WORKERS.put(harbor.driver, workers, PRESENCE_LASTS))
    answer = run("task", "hold", "mail:sned")
    assert answer.out == "mail:sned: held\n"
    assert "no live worker knows the task mail:sned; did you mean mail:send?" in answer.err
    assert "taskharbor task release 'x; ls'" in run("task", "hold", "x; ls").err
    assert run("task", "hold", "mail:send").err == ""
    assert run("task", "hold", "mail:sned", "--tag").err == ""


def test_dlq_discard_all_asks_first(run, dead, monkeypatch):
    answer = run("dlq", "discard-all", "--queue", "mail", code=2)
    assert "this discards every dead job of queue mail for good: give --yes" in answer.error
    monkeypatch.setattr("taskharbor.cli.confirming._is_terminal", lambda: True)
    refused = run("dlq", "discard-all", stdin="n\n", code=130)
    assert "Discard every dead job of the store for good? [y/N]" in refused.err
    assert [job.refresh().state for job in dead] == [State.DEAD, State.DEAD]
    assert run("dlq", "discard-all", "--task", "fail", stdin="y\n").out.endswith("2 discarded\n")


# -- queue ---------------------------------------------------------------------------------------


def test_queues_are_listed_paused_and_resumed(run, harbor):
    harbor.enqueue("echo", queue="mail")
    assert run("queue", "pause", "mail").out == "mail: paused\n"
    [queue] = run("queue", "list", "--json").document["items"]
    assert queue.keys() == {
        *("name", "paused", "ready", "scheduled", "running", "oldestReadyAt", "oldestReadySeconds"),
        *("pausedBy", "pausedSince"),
    }
    assert (queue["name"], queue["paused"], queue["ready"]) == ("mail", True, 1)
    assert run("queue", "list").out.splitlines()[1].split()[:3] == ["mail", "yes", "1"]
    assert run("queue", "resume", "mail", "--json").document == {"name": "mail", "paused": False}
    assert not harbor.queues.list()[0].paused


def test_an_unknown_queue_is_noted(run, harbor):
    harbor.enqueue("echo", queue="mail")
    assert run("queue", "pause", "mail").err == ""
    answer = run("queue", "pause", "mial; ls")
    assert answer.out == "mial; ls: paused\n"
    assert "no queue mial; ls has unfinished jobs, and no live worker names it" in answer.err
    assert "To take it back: taskharbor queue resume 'mial; ls'" in answer.err
    assert "did you mean mail?" in run("queue", "pause", "mial").err
    assert run("queue", "resume", "mial; ls").err == ""
    assert "no queue nosuch was paused or has unfinished jobs" in run("queue", "resume", "nosuch").err


# -- task ----------------------------------------------------------------------------------------


def test_tasks_are_held_released_and_listed(run, harbor):
    run_inline(WORKERS.put(harbor.driver, [WorkerRecord("w", "h", 1, 1, 0, tasks=("echo",))], 60_000_000))
    assert run("task", "hold", "mail:send").out == "mail:send: held\n"
    assert run("task", "hold", "bulk", "--tag", "--json").document == {
        "kind": "tag",
        "name": "bulk",
        "held": True,
    }
    echo, held, tag = run("task", "list", "--json").document["items"]
    assert (echo["name"], echo["held"], echo["workers"]) == ("echo", False, ["w"])
    assert (held["name"], held["held"], held["workers"]) == ("mail:send", True, [])
    assert held["heldBy"]
    assert held["heldSince"]
    assert (tag["kind"], tag["name"]) == ("tag", "bulk")
    assert run("task", "list").out.splitlines()[2].split()[:3] == ["mail:send", "task", "yes"]
    assert run("task", "hold", "mail:send").out == "mail:send: was held already\n"
    assert run("task", "release", "bulk").out.startswith("bulk: no task of this name was held")
    assert run("task", "release", "bulk", "--tag").out == "bulk: released\n"
    assert [hold.name for hold in harbor.holds.list()] == ["mail:send"]
    kept = run_inline(harbor.driver.actions(ActionFilter())).actions
    assert [action.verb for action in kept] == ["task.release", "task.hold", "task.hold"]


# -- stats ---------------------------------------------------------------------------------------


async def test_stats_tell_what_workers_run_and_for_how_long(run, harbor):
    job = await harbor.aenqueue("sleep", {}, queue="mail")
    driver = harbor.driver
    claim = await driver.claim(ClaimRequest("host-1/1", 30_000_000, 10))
    await driver.extend([Extension("host-1/1", 30_000_000, ((job.id, claim.now - 5_000_000),))])
    document = await in_thread(run, "stats", "--json")
    assert document.keys() == {"counts", "queues", "workers"}
    assert document["counts"] == {**dict.fromkeys(map(str, State), 0), "running": 1}
    assert [queue["running"] for queue in document["queues"]] == [1]
    [worker] = document["workers"]
    assert (worker["worker"], worker["open"], worker["expired"]) == ("host-1", 1, False)
    [running] = worker["running"]
    assert (running["id"], running["task"]) == (job.id, "sleep")
    assert running["seconds"] >= 5


async def in_thread(run, *words):
    return (await asyncio.to_thread(run, *words)).document


def test_stats_show_a_series_of_what_workers_counted(run, harbor):
    """Only the minutes in which anything was, in a table; each of them as JSON; and that they are not exact."""
    at = begin_of(run_inline(harbor.driver.now()), Period.MINUTE)
    row = Rollup(at, "mail", "send", Figures(enqueued=7, started=5, duration=(1, *[0] * 9, 5)))
    run_inline(Rollups.of(harbor.driver).append_rollups([row]))
    shown = run("stats", "--series")
    header, *rows = shown.out.splitlines()
    assert header.split()[:4] == ["BEGIN", "ENQUEUED", "STARTED", "SUCCEEDED"]
    assert [row.split()[1:3] for row in rows] == [["7", "5"]]
    assert rows[0].split()[-2:] == ["0.75", "0.975"]
    assert "not exact counts" in shown.err
    document = run(
        "stats", "--series", "--step", "hour", "--since", "2h", "--queue", "mail", "--json"
    ).document
    assert [point["started"] for point in document["items"]][-1] == 5
    assert (len(document["items"]), document["step"], document["queue"]) == (3, "hour", "mail")
    assert run("stats", "--series", "--task", "other").out.split() == header.split()


def test_options_of_a_series_need_it(run, harbor):
    assert "--series" in run("stats", "--queue", "mail", code=2).err


def test_stats_in_a_pipe(run, harbor):
    harbor.enqueue("echo")
    out = run("stats").out
    assert "ready      1\n" in out
    assert "\nqueues\nQUEUE " in out
    assert "\nworkers\nWORKER " in out
    assert "\x1b" not in out


# -- prune ---------------------------------------------------------------------------------------


def test_prune_deletes_what_is_old_enough(run, harbor, drain, dead):
    harbor.enqueue("echo")
    harbor.enqueue("sleep", delay=60)
    drain()
    assert run("prune", "--yes").out == "0 deleted\n"
    assert run("prune", "--older-than", "7d", "--yes").out == "0 deleted\n"
    assert run("prune", "--older-than", "0", "--json", "--yes").document == {"pruned": 1}
    assert run("prune", "--older-than", "0s", "--state", "dead", "--limit", "1", "--yes").out == "1 deleted\n"
    assert harbor.jobs.counts() == {**dict.fromkeys(map(str, State), 0), "dead": 1, "scheduled": 1}


def test_prune_asks_first(run, harbor, dead, monkeypatch):
    old = ("prune", "--older-than", "0", "--state", "dead")
    which = "every job in state dead that finished more than 0.0s ago for good"
    assert f"this deletes {which}: give --yes" in run(*old, code=2).error
    assert "every job that the retention does not keep" in run("prune", code=2).error
    assert "give --yes" in run(*old, "--json", code=2).error  # a script is never asked
    monkeypatch.setattr("taskharbor.cli.confirming._is_terminal", lambda: True)
    refused = run(*old, stdin="n\n", code=130)
    assert f"Delete {which}? [y/N]" in refused.err
    assert harbor.jobs.counts()["dead"] == 2
    asked = run(*old, "--limit", "1", stdin="y\n")
    assert "Delete at most 1 of the jobs in state dead" in asked.err
    assert asked.out.endswith("1 deleted\n")


def test_prune_refuses_what_is_not_finished(run):
    assert "'ready' is not one of" in run("prune", "--older-than", "1d", "--state", "ready", code=2).error
    assert "--state needs --older-than" in run("prune", "--state", "dead", code=2).error
    assert "not a duration" in run("prune", "--older-than", "a week", code=2).error


# -- migrate -------------------------------------------------------------------------------------


def test_migrate_says_what_it_applied(run, url, tmp_path):
    with sqlite3.connect(tmp_path / "harbor.db") as connection:
        connection.execute("CREATE TABLE somebody_elses (x)")
    connection.close()
    assert "database of another application" in run("list", code=1).error
    assert ": applied " in run("migrate").out
    assert run("migrate").out == f"{url}: up to date\n"
    assert run("migrate", "--json").document == {"url": url, "applied": []}
    assert len(run("list").out.splitlines()) == 1


# -- doctor --------------------------------------------------------------------------------------


def test_doctor_finds_a_sound_store_sound(run, empty):
    document = run("doctor", "--json").document
    assert document["ok"]
    assert {"file", "schema", "durability", "clock"} <= {check["name"] for check in document["checks"]}
    assert {check["status"] for check in document["checks"]} == {"ok"}
    assert run("doctor").out.splitlines()[1].split() == ["CHECK", "STATUS", "DETAIL"]


def test_doctor_only_warns_of_a_store_in_memory(run):
    checks = run("doctor", "--json", store="memory://").document["checks"]
    assert [check["status"] for check in checks if check["name"] == "durability"] == ["warning"]


def test_doctor_fails_when_a_check_does(run, url, empty, tmp_path):
    answer = run("doctor", store=f"{url}?synchronous=normal", code=1)
    assert answer.error == "the store has a problem: durability"
    assert "NORMAL" in answer.out
    (tmp_path / "text.db").write_text("this is no database, whatever its name says" * 100)
    answer = run("doctor", "--json", store=f"sqlite:///{tmp_path}/text.db", code=1)
    assert answer.error == "the store has a problem: reachable"
    assert not answer.document["ok"]
