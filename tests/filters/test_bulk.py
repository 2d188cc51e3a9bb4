"""Bulk verbs visit each job once, whatever happens to the jobs meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Worker
from taskharbor.client import operating
from taskharbor.drivers.base import Operation
from tests.filters.stage import DONE, OF_DEAD, SURFACES, InPython, Number, Stage, stage_on

Meanwhile = Callable[[Sequence[str]], Any]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(operating, "BULK_PAGE", 2)
    with stage_on(request.param, tmp_path) as stage:
        yield stage


class Visits:
    """The jobs that bulk verbs act on, in order, and what happens before and after each part of them."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        self.before: Meanwhile | None = None
        self.after: Meanwhile | None = None
        driver = stage.harbor.driver
        operate = driver.operate

        async def watched(operation: Operation, ids: Sequence[str], **options: Any) -> Any:
            self.ids += ids
            before, self.before = self.before, None  # once: it may operate itself
            if before is not None:
                await before(ids)
            answers = await operate(operation, ids, **options)
            if self.after is not None:
                await self.after(ids)
            return answers

        monkeypatch.setattr(driver, "operate", watched)


@pytest.fixture
def visits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Visits:
    return Visits(stage, monkeypatch)


def made(stage: Stage, number: int, *, dead: bool) -> list[str]:
    """Jobs, the newest first."""
    ids = [stage.enqueue("disk", max_attempts=1) for _ in range(number)]
    if dead:
        stage.drain()
    return ids[::-1]


@pytest.mark.parametrize("verb", DONE)
def test_a_bulk_verb_acts_on_each_job_once_newest_first(stage: Stage, visits: Visits, verb: str):
    ids = made(stage, 5, dead=verb in OF_DEAD)
    assert InPython(stage).bulk(verb) == Number(5)
    assert visits.ids == ids


def test_jobs_that_die_again_meanwhile_are_not_requeued_again(stage: Stage, visits: Visits):
    ids = made(stage, 5, dead=True)

    async def work_and_add(_: Sequence[str]) -> None:
        await stage.harbor.tasks["t"].aenqueue(fails="disk")  # newer than all that were there
        await Worker(stage.harbor).drain()

    visits.after = work_and_add
    assert InPython(stage).bulk("requeue-all", state="dead") == Number(5)
    assert visits.ids == ids
    assert InPython(stage).count(dead=True) == Number(8)


def test_jobs_that_match_no_longer_when_their_turn_comes_are_left_out(stage: Stage, visits: Visits):
    ids = made(stage, 5, dead=True)

    async def discard_two(_: Sequence[str]) -> None:
        for job_id in (ids[0], ids[4]):  # one of this part, one of a later one
            await stage.harbor.dlq.adiscard(job_id)

    visits.before = discard_two
    assert InPython(stage).bulk("requeue-all") == Number(3)
    assert stage.states(*ids) == ["cancelled", "ready", "ready", "ready", "cancelled"]


def test_jobs_that_are_deleted_meanwhile_are_not_counted(stage: Stage, visits: Visits):
    ids = made(stage, 3, dead=False)

    async def delete_one(_: Sequence[str]) -> None:
        await stage.harbor.jobs.adelete(ids[1])

    visits.before = delete_one
    assert InPython(stage).bulk("cancel-all") == Number(2)
    assert stage.states(ids[0], ids[2]) == ["cancelled", "cancelled"]


@pytest.mark.parametrize("budget", [1, 3])
def test_a_bounded_search_leaves_no_job_out(stage: Stage, visits: Visits, budget: int):
    ids = made(stage, 7, dead=False)
    wanted = [stage.enqueue(tags=["x"]), *ids][::-1]
    stage.search_only(budget)
    assert InPython(stage).bulk("cancel-all", task="t") == Number(8)
    assert sorted(visits.ids) == sorted(wanted)


def test_requeueing_skips_at_most_once_jobs_also_in_its_dry_run(stage: Stage):
    ids = made(stage, 2, dead=True)
    once = stage.enqueue("disk", delivery="at_most_once")
    stage.drain()
    python = SURFACES["python"](stage)
    assert python.bulk("requeue-all", dry_run=True) == python.bulk("requeue-all") == Number(2)
    assert stage.states(once, *ids) == ["dead", "ready", "ready"]
