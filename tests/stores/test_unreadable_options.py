"""Options that this version cannot read (a newer one wrote them, or somebody's hand) hide no job."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskharbor import Harbor
from taskharbor.cli import cli
from tests.postgres import store

UNREADABLE = '{"timeout": "soon", "new": [1]}'
Spoil = Callable[[str, str], None]  # (job id, the options' text)


@pytest.fixture(params=["sqlite", "postgres"])
def spoilt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Spoil]]:
    if request.param == "sqlite":
        file = tmp_path / "jobs.db"

        def spoil(job_id: str, text: str) -> None:
            with sqlite3.connect(file) as connection:
                connection.execute("UPDATE taskharbor_jobs SET options = ? WHERE id = ?", (text, job_id))
            connection.close()

        yield f"sqlite:///{file}", spoil
    else:
        with store.fresh() as driver:

            def spoil_row(job_id: str, text: str) -> None:
                store.execute(
                    driver.dsn, f"UPDATE {driver.schema}.jobs SET options = '{text}' WHERE id = '{job_id}'"
                )

            yield f"{driver.dsn}?schema={driver.schema}", spoil_row


@pytest.mark.parametrize("text", [UNREADABLE, "no json", "[]", ""])
def test_job_with_unreadable_options_is_listed_and_shown(spoilt: tuple[str, Spoil], text: str) -> None:
    url, spoil = spoilt
    with Harbor(url) as harbor:
        harbor.migrate()
        job, other = harbor.enqueue("t", {"a": 1}, timeout=5), harbor.enqueue("t", tags=["x"])
        spoil(job.id, text)
        assert {each.id for each in harbor.jobs.list()} == {job.id, other.id}
        found = harbor.jobs.get(job.id)
        assert (found.record.unreadable_options, found.timeout, found.payload) == (text, None, {"a": 1})
        assert other.refresh().record.unreadable_options is None
        run = CliRunner().invoke
        assert job.id in run(cli, ["list", "--url", url]).stdout
        shown = run(cli, ["inspect", job.id, "--url", url])
        assert shown.exit_code == 0, shown.output
        [line] = [line for line in shown.stdout.splitlines() if line.startswith("options ")]
        assert "unreadable:" in line
        assert '"optionsUnreadable"' in run(cli, ["inspect", job.id, "--json", "--url", url]).stdout
        assert "optionsUnreadable" not in run(cli, ["inspect", other.id, "--json", "--url", url]).stdout


def test_change_of_something_else_keeps_what_cannot_be_read(spoilt: tuple[str, Spoil]) -> None:
    url, spoil = spoilt
    with Harbor(url) as harbor:
        harbor.migrate()
        job = harbor.enqueue("t", timeout=5)
        spoil(job.id, UNREADABLE)
        assert harbor.jobs.update(job.id, priority=7).record.unreadable_options == UNREADABLE
        mended = harbor.jobs.update(job.id, timeout=9, tags=["mended"])
        assert (mended.record.unreadable_options, mended.timeout, mended.tags) == (None, 9, ("mended",))
        spoil(job.id, UNREADABLE)
        harbor.jobs.cancel(job.id)
        harbor.jobs.delete(job.id)
        assert harbor.jobs.list() == []
