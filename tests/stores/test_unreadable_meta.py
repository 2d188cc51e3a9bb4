"""A meta that cannot be read (somebody's hand wrote it) hides no job and stops no worker: it counts as none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskharbor import Context, Harbor, Worker
from taskharbor.cli import cli
from tests.postgres import store

Spoil = Callable[[str, str], None]  # (job id, the text of its meta)


@pytest.fixture(params=["sqlite", "postgres"])
def spoilt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Spoil]]:
    if request.param == "sqlite":
        file = tmp_path / "jobs.db"

        def spoil(job_id: str, text: str) -> None:
            with sqlite3.connect(file) as connection:
                connection.execute("UPDATE taskharbor_jobs SET meta = ? WHERE id = ?", (text, job_id))
            connection.close()

        yield f"sqlite:///{file}", spoil
    else:
        with store.fresh() as driver:

            def spoil_row(job_id: str, text: str) -> None:
                store.execute(
                    driver.dsn, f"UPDATE {driver.schema}.jobs SET meta = '{text}' WHERE id = '{job_id}'"
                )

            yield f"{driver.dsn}?schema={driver.schema}", spoil_row


@pytest.mark.parametrize("text", ["no json", "[]", "", '{"a": 5}'])
def test_job_with_an_unreadable_meta_is_shown_changed_and_executed(spoilt: tuple[str, Spoil], text: str):
    url, spoil = spoilt
    with Harbor(url) as harbor:
        harbor.migrate()
        seen: list[tuple[str, dict[str, str]]] = []

        @harbor.task(name="child")
        def child(ctx: Context) -> None:
            seen.append(("child", ctx.job.meta))

        @harbor.task(name="t")
        def handle(ctx: Context) -> None:
            seen.append(("t", ctx.job.meta))
            ctx.enqueue(child.using(meta={"own": "1"}).s())

        job, other = harbor.enqueue("t", meta={"a": "b"}), harbor.enqueue("t", meta={"c": "d"})
        spoil(job.id, text)
        assert {each.id: each.meta for each in harbor.jobs.list()} == {job.id: {}, other.id: {"c": "d"}}
        run = CliRunner().invoke
        shown = run(cli, ["inspect", job.id, "--url", url])
        assert shown.exit_code == 0, shown.output
        [line] = [line for line in shown.stdout.splitlines() if line.startswith("unreadable ")]
        assert "meta" in line
        assert "unreadable" not in run(cli, ["inspect", other.id, "--json", "--url", url]).stdout
        assert harbor.jobs.update(job.id, priority=5).record.meta == text
        Worker(harbor, concurrency=1).drain_sync()
        assert seen[0] == ("t", {})  # it has the higher priority
        assert sorted(seen[1:], key=lambda each: (each[0], len(each[1]))) == [
            ("child", {"own": "1"}),
            ("child", {"own": "1", "c": "d"}),
            ("t", {"c": "d"}),
        ]
        assert job.refresh().state == "succeeded"
