"""Searches and counts that end before they have seen everything say so, and miss nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor.client import jobs as client_jobs
from taskharbor.client import operating
from taskharbor.client.filters import COUNT_MAX, Count
from tests.filters.stage import DONE, START, Number, OnCommandLine, Stage, Surface, work

JOBS = 11
RARE = (0, 5, 6)  # by their place, the oldest first


@pytest.fixture
def ids(stage: Stage) -> list[str]:
    """A job every minute, some of another task, the newest first; a search looks at three of them."""
    stage.harbor.task(name="rare")(work)
    ids: list[str] = []
    for number in range(JOBS):
        ids.insert(0, stage.enqueue(task="rare" if number in RARE else "t"))
        stage.clock.advance(60)
    stage.search_only(3)
    return ids


def test_a_bounded_search_says_how_far_it_got_and_goes_on_from_there(surface: Surface, ids: list[str]):
    wanted = [ids[JOBS - 1 - place] for place in sorted(RARE, reverse=True)]
    rest, found, query = ids, list[str](), dict[str, Any]()
    for _ in range(JOBS):
        page = surface.page(task="rare", **query)
        assert 1 <= page.examined <= 3
        looked_at = rest[: page.examined]
        assert page.ids == [job_id for job_id in looked_at if job_id in wanted]
        found, rest = found + page.ids, rest[page.examined :]
        if page.cursor is None:
            break
        assert page.cursor == looked_at[-1]
        assert page.reached == START + timedelta(minutes=len(rest))
        query["cursor"] = page.cursor
    assert (found, rest) == (wanted, [])


def test_the_command_line_says_how_far_it_looked_and_how_to_go_on(stage: Stage, ids: list[str]):
    told = OnCommandLine(stage).run("list", "--task", "rare", code=None)
    assert not any(job_id in told.splitlines()[0] for job_id in ids)
    assert f"looked at 3 jobs, back to 2026-03-01T12:08:00+00:00; to go on: --cursor {ids[2]}" in told
    told = OnCommandLine(stage).run("list", "--task", "rare", "--cursor", ids[8], code=None)
    assert ids[-1] in told
    assert "to go on" not in told


def test_a_full_page_says_that_there_are_more_and_not_how_far_it_looked(stage: Stage, ids: list[str]):
    told = OnCommandLine(stage).run("list", "--limit", "2", code=None)
    assert f"there are more: --cursor {ids[1]}" in told
    assert "looked at" not in told


def test_a_count_and_a_bulk_verb_go_on_until_they_have_seen_everything(surface: Surface, ids: list[str]):
    assert surface.count(task="rare") == Number(3)
    for verb in ("cancel-all", "delete-all", "update-all"):
        assert surface.bulk(verb, dry_run=True, task="rare") == Number(3)
    assert surface.bulk("cancel-all", task="rare") == Number(3)
    assert surface.count(state="cancelled") == Number(3)


# -- counts above the limit ------------------------------------------------------------------------


def test_a_count_is_written_with_a_plus_above_ten_thousand():
    assert [str(Count(9_999)), str(Count(10_000)), str(Count(10_000, more=True))] == [
        "9,999",
        "10,000",
        "10,000+",
    ]
    assert COUNT_MAX == 10_000


@pytest.mark.parametrize("budget", [2, 100])
def test_a_count_above_the_limit_is_the_limit_and_more(
    stage: Stage, surface: Surface, budget: int, monkeypatch: pytest.MonkeyPatch
):
    for module in (client_jobs, operating):
        monkeypatch.setattr(module, "COUNT_MAX", 3)
    stage.search_only(budget)
    ids = [stage.enqueue(delay=60) for _ in range(3)]
    of_waiting = ["cancel-all", "delete-all", "update-all"]
    assert surface.count() == Number(3)
    assert [surface.bulk(verb, dry_run=True) for verb in of_waiting] == [Number(3)] * 3
    ids.append(stage.enqueue())
    assert surface.count() == Number(3, more=True)
    assert [surface.bulk(verb, dry_run=True) for verb in of_waiting] == [Number(3, more=True)] * 3
    for job_id in ids:
        surface.add(job_id)
    assert surface.count(dead=True) == Number(3, more=True)
    assert [surface.bulk(verb, dry_run=True) for verb in DONE if verb not in of_waiting] == (
        [Number(3, more=True)] * 2
    )
    assert surface.bulk("discard-all") == Number(4)  # what was done is counted whole
