"""taskharbor demo: the whole show, and what it leaves behind when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from taskharbor import Harbor
from taskharbor.cli.demo.command import what_next
from tests.faults.processes import BUSY_MACHINE_SECONDS


def processes_of(folder: Path) -> list[int]:
    """Worker processes of a demo whose temporary files are in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_the_whole_show(started, tmp_path):
    began = time.monotonic()
    process = started("demo", env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert time.monotonic() - began < 20 + BUSY_MACHINE_SECONDS
    assert "\x1b" not in out
    for told in (
        "report:fetch attempt 2 failed: ConnectionError: connection reset by peer",
        "report:fetch attempt 3 succeeded",
        "card:charge is in the dead-letter queue: exhausted",
        "card:charge attempt 3 succeeded",
        "kill -9 ",
        "video:encode attempt 1 was lost with worker 1",
        "video:encode attempt 2 succeeded on worker 2",
        "11 jobs, every one of them succeeded",
        "  taskharbor enqueue echo message=hello --wait 10",
    ):
        assert told in out
    assert not list(tmp_path.iterdir())


def test_on_a_store_that_was_named_the_jobs_stay(started, url, tmp_path):
    process = started("demo", "--json", "--url", url)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    document = json.loads(out)
    stories = {job["task"]: [attempt["status"] for attempt in job["history"]] for job in document["jobs"]}
    assert stories == {
        "photo:resize": ["succeeded"],
        "report:fetch": ["succeeded", "failed", "failed"],
        "card:charge": ["succeeded", "failed", "failed"],
        "video:encode": ["succeeded", "lost"],
    }
    with Harbor(url) as harbor:
        assert harbor.jobs.counts()["succeeded"] == len(document["jobs"]) == 11


def test_what_it_says_to_try_next_works(run, started):
    lines = [line.partition("#")[0].split() for line in what_next(None) if line.startswith("  taskharbor ")]
    commands = [words for _, *words in lines]
    worker = commands.pop(0)
    assert worker == ["worker"]
    started(*worker)
    for words in commands:
        assert run(*words, store=None).out


def test_interrupted_it_leaves_nothing_behind(started, tmp_path):
    for number in (signal.SIGTERM, signal.SIGINT):
        process = started("demo", env={**os.environ, "TMPDIR": str(tmp_path)})
        assert process.stdout.readline()  # its first worker starts
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode in (130, 143)
        assert not list(tmp_path.iterdir())
        assert not processes_of(tmp_path)


async def test_an_hour_of_a_shop_is_work_that_has_happened(tmp_path, monkeypatch):
    """Shown by six minutes of it: every page of the dashboard has something to show."""
    from taskharbor.cli.demo import shop

    monkeypatch.setattr(shop, "MINUTES", 6)
    await shop.fill(str(tmp_path / "shop.db"))
    async with Harbor(f"sqlite:///{tmp_path}/shop.db") as harbor:
        counts = await harbor.jobs.acounts()
        assert counts["succeeded"] > 100
        assert counts["dead"] + counts["scheduled"] > 0
        charged = await harbor.jobs.acount(task="card:charge", state="succeeded")
        assert sum(point.succeeded for point in await harbor.stats.aseries(task="card:charge")) == charged
        assert [schedule.name for schedule in await harbor.schedules.alist()] == ["report of the day"]
        assert len(await harbor.workflows.alist()) == 2
        [paused] = await harbor.audit.alist(verb="queue.pause")
        assert paused.actor == "ada"


def test_demo_serve_takes_no_store(run):
    assert "leave --url and --json out" in run("demo", "--serve", "--json", code=2).error


def test_serving_without_the_extra_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = run("demo", "--serve", store=None, code=1).error
    assert error.startswith("the dashboard needs the extra: pip install 'taskharbor[server]'")
