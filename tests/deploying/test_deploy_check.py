"""`deploy-check`: what new code would meet in the store, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskharbor import Harbor, Worker, chain
from taskharbor.cli import cli
from taskharbor.clock import ManualClock
from taskharbor.deploying import DeploymentReport, check_deployment
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Rollup
from taskharbor.telemetry.metrics.buckets import SECONDS
from tests.postgres import store

DAY = 86_400 * 1_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db?synchronous=normal"
        return
    with store.database() as dsn:
        with Harbor(dsn) as harbor:
            harbor.migrate()
        yield dsn


def seen(report: DeploymentReport, topic: str) -> dict[str, tuple[str, int]]:
    return {each.subject: (each.severity, each.jobs) for each in report.findings if each.topic == topic}


async def test_jobs_that_the_new_code_cannot_take_are_problems(url: str):
    async with Harbor(url) as old:

        @old.task(name="send")
        def send(to: str, when: str = "") -> None: ...

        @old.task(name="renamed")
        def renamed(mail: str) -> None: ...

        @old.task(name="gone")
        def gone() -> None: ...

        @old.task(name="add")
        def add(a: int, b: int = 0) -> int:
            return a + b

        await send.aenqueue("a", when="soon")
        await send.aenqueue("b", when="2026-01-01T00:00:00Z")
        await send.aenqueue("c")
        await renamed.aenqueue("a")
        for _ in range(3):
            await gone.using(delay=60).aenqueue()
        await chain(add.s(1), add.s(b=2)).aenqueue()
        async with Harbor(url) as new:

            @new.task(name="send")
            def new_send(to: str, when: datetime | None = None) -> None: ...

            @new.task(name="renamed", parameter_aliases={"mail": "to"})
            def new_renamed(to: str) -> None: ...

            @new.task(name="add")
            def new_add(a: int, b: str = "") -> int:
                return 0

            report = await check_deployment(new, grace=7)
        same = await check_deployment(old, grace=7)

    assert seen(report, "jobs") == {"gone": ("problem", 3), "send": ("problem", 1), "add": ("problem", 1)}
    assert report.problems == 3
    [unfit] = [each.detail for each in report.findings if each.subject == "send"]
    assert "when" in unfit
    assert (report.examined, report.unfinished) == (9, 9)
    assert same.findings == ()


async def test_a_sample_is_bounded_and_says_so(url: str):
    async with Harbor(url) as harbor:
        await harbor.aenqueue_many([harbor.task(name="t")(lambda: None).s() for _ in range(3)])
        await harbor.aenqueue("other", queue="elsewhere")
        report = await check_deployment(harbor, grace=7, sample=2)
        assert (report.examined, report.unfinished) == (2, 4)
        assert (await check_deployment(harbor, grace=7, queues=["default"])).problems == 0
        assert (await check_deployment(harbor, grace=7)).problems == 1


async def test_a_queue_that_nothing_knows_is_a_problem(url: str):
    """A gate that looks at nothing because of a slip in a name would let everything pass."""
    async with Harbor(url) as harbor:
        harbor.task(name="t", queue="mail")(lambda: None)
        await harbor.aenqueue("t", queue="other")
        report = await check_deployment(harbor, grace=7, queues=["mail", "other", "nosuch"])
        assert seen(report, "queues") == {"nosuch": ("problem", 0)}
        assert report.problems == 1


async def test_schedules_that_change_are_noticed(url: str):
    async with Harbor(url) as old:
        for name, when in (("moved", "0 9 * * *"), ("left", "0 8 * * *"), ("same", "0 7 * * *")):
            old.task(name=name, schedule=when)(lambda: None)
        await Worker(old).drain()
        async with Harbor(url) as new:
            for name, when in (("moved", "0 10 * * *"), ("fresh", "0 6 * * *"), ("same", "0 7 * * *")):
                new.task(name=name, schedule=when)(lambda: None)
            new.task(name="left")(lambda: None)
            report = await check_deployment(new, grace=7)
            again = await check_deployment(new, grace=7)
    assert {each.subject: each.detail.split(" ")[0].strip(":") for each in report.findings} == {
        "fresh": "new",
        "moved": "changes",
        "left": "the",
    }
    assert "'0 9 * * *' (UTC) to '0 10 * * *' (UTC)" in str(report.findings)
    assert report.problems == 0
    assert again.findings == report.findings  # nothing was changed


async def test_running_jobs_that_outlive_the_grace_are_named(url: str):
    clock = ManualClock()
    async with Harbor(url, clock=clock) as harbor:
        begun, end = asyncio.Semaphore(0), asyncio.Event()

        @harbor.task(name="slow")
        async def slow() -> None:
            begun.release()
            await end.wait()

        @harbor.task(name="once", delivery="at_most_once")
        async def once() -> None:
            begun.release()
            await end.wait()

        minute = clock.now() - clock.now() % (60 * 1_000_000) - DAY
        long = Figures(started=10, duration=(6_000 * 10**6, *([0] * SECONDS.index(600)), 10))
        rows = [Rollup(minute, "default", name, long) for name in ("slow", "once")]
        await Rollups.of(harbor.driver).append_rollups(rows)
        await slow.aenqueue()
        await once.aenqueue()
        async with Worker(harbor):
            await begun.acquire()
            await begun.acquire()
            report = await check_deployment(harbor, grace=7)
            patient = await check_deployment(harbor, grace=10**7)
            end.set()
    assert seen(report, "running") == {"slow": ("notice", 1), "once": ("problem", 1)}
    assert patient.findings == ()


def test_an_older_schema_is_a_finding_and_stays_as_it_is(tmp_path: Path):
    path = tmp_path / "shop.db"
    with Harbor(f"sqlite:///{path}") as harbor:
        harbor.migrate()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE taskharbor_schema SET version = 99, serves = 99")
    with Harbor(f"sqlite:///{path}") as harbor:
        report = asyncio.run(check_deployment(harbor, grace=7))
    assert [(each.topic, each.severity) for each in report.findings] == [("schema", "problem")]
    assert "99" in report.findings[0].detail


def test_the_command_tells_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "newshop.py").write_text(
        "from taskharbor import Harbor\nharbor = Harbor('sqlite:///shop.db')\n"
        "@harbor.task(name='send')\ndef send(to: str): ...\n"
    )
    runner = CliRunner()
    with Harbor("sqlite:///shop.db") as harbor:
        harbor.enqueue("send", {"to": "a"})
    fine = runner.invoke(cli, ["deploy-check", "-A", "newshop:harbor"])
    assert (fine.exit_code, fine.output) == (0, "looked at 1 of 1 unfinished job\n")
    with Harbor("sqlite:///shop.db") as harbor:
        harbor.enqueue("send", {"too": "b"})
    bad = runner.invoke(cli, ["deploy-check", "-A", "newshop:harbor", "--json"])
    document = json.loads(bad.stdout)
    assert (bad.exit_code, document["ok"], document["findings"][0]["jobs"]) == (1, False, 1)
    assert runner.invoke(cli, ["deploy-check", "--url", "sqlite:///shop.db"]).exit_code == 2
