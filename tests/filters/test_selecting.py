"""Each filter selects the same jobs in Python, on the command line and over REST."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, chain
from tests.filters.stage import (
    DONE,
    OF_DEAD,
    START,
    SURFACES,
    Number,
    OverRest,
    Refused,
    Stage,
    Surface,
    stage_on,
)

HOUR = timedelta(hours=1)
LATER = START + HOUR
DEAD = {"full", "late", "unreachable", "withdrawn"}


class Filled:
    """Jobs of every kind; the first five were enqueued at START, the others an hour later."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        enqueue = stage.enqueue
        self.ids = {
            "plain": enqueue(tags=["x"], correlation_id="order-7"),
            "full": enqueue("disk", queue="mail", tags=["x", "y"]),
        }
        stage.drain()
        self.ids["late"] = enqueue("disk", correlation_id="order-7")
        stage.clock.advance(HOUR.total_seconds())
        self.ids["unreachable"] = enqueue("no route to 10.0.0.1", tags=["y"])
        stage.drain()
        self.ids["withdrawn"] = enqueue(queue="mail")
        self.ids["stopped"] = enqueue(tags=["y"])
        self.ids["waits"] = enqueue(correlation_id="order-8", tags=["yy"])
        stage.run(lambda harbor: harbor.dlq.aadd(self.ids["withdrawn"]))
        stage.run(lambda harbor: harbor.jobs.acancel(self.ids["stopped"]))
        self.workflow, self.ids["first"], self.ids["second"] = stage.run(_chained)
        self.full = stage.run(lambda harbor: harbor.jobs.aget(self.ids["full"])).record.fingerprint
        self.names = {job_id: name for name, job_id in self.ids.items()}
        assert stage.states(*self.ids.values()) == (
            ["succeeded", "dead", "dead", "dead", "dead", "cancelled", "ready", "ready", "waiting"]
        )

    def where(self, case: dict[str, Any]) -> dict[str, Any]:
        """The filter of a case, with what only the store knows."""
        known: dict[str, Any] = {"FULL": self.full, "WORKFLOW": self.workflow}
        return {
            name: known.get(value, value) if isinstance(value, str) else value for name, value in case.items()
        }


async def _chained(harbor: Harbor) -> tuple[str, str, str]:
    step = harbor.tasks["t"]
    workflow = await chain(step.si(), step.si()).aenqueue()
    ids = [job.id for job in await harbor.jobs.alist(workflow=workflow.id)]
    return workflow.id, *sorted(ids)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """On SQLite: that every store selects the same is held by the conformance suite."""
    with stage_on("sqlite", tmp_path_factory.mktemp("filters")) as stage:
        yield Filled(stage)


@pytest.fixture(params=SURFACES)
def surface(request: pytest.FixtureRequest, filled: Filled) -> Surface:
    return SURFACES[request.param](filled.stage)


# What each filter selects, newest first.
ALL = "second first waits stopped withdrawn unreachable late full plain"
CASES: list[tuple[dict[str, Any], str]] = [
    ({}, ALL),
    ({"state": "ready"}, "first waits"),
    ({"state": "waiting"}, "second"),
    ({"queue": "mail"}, "withdrawn full"),
    ({"task": "t"}, ALL),
    ({"task": "u"}, ""),
    ({"tag": "y"}, "stopped unreachable full"),
    ({"tag": "x", "state": "dead"}, "full"),
    ({"reason": "exhausted"}, "unreachable late full"),
    ({"reason": "operator"}, "withdrawn"),
    ({"reason": "cancelled"}, "stopped"),
    ({"error": "is full"}, "late full"),
    ({"error": "10.0.0.1"}, "unreachable"),
    ({"error": "IS FULL"}, ""),
    ({"fingerprint": "FULL"}, "late full"),
    ({"fingerprint": "FULL", "queue": "mail"}, "full"),
    ({"correlation_id": "order-7"}, "late plain"),
    ({"correlation_id": "order"}, ""),
    ({"workflow": "WORKFLOW"}, "second first"),
    ({"workflow": "WORKFLOW", "state": "ready"}, "first"),
    ({"enqueued_after": LATER}, "second first waits stopped withdrawn unreachable"),
    ({"enqueued_before": LATER}, "late full plain"),
    ({"enqueued_after": START, "enqueued_before": LATER}, "late full plain"),
    ({"finished_after": LATER}, "stopped withdrawn unreachable late"),
    ({"finished_before": LATER}, "full plain"),
    ({"finished_after": START, "finished_before": LATER, "state": "dead"}, "full"),
    ({"enqueued_before": LATER, "finished_after": LATER}, "late"),
    ({"payload": {"fails": "disk"}}, "late full"),
    ({"payload": {"fails": "disk"}, "queue": "mail"}, "full"),
    ({"payload": {"fails": None}}, ""),
]


def _told(value: object) -> str:
    return " ".join(value) or "everything" if isinstance(value, dict) else "-"


@pytest.mark.parametrize(("case", "names"), CASES, ids=_told)
def test_a_filter_selects_the_same_jobs_on_every_surface(
    filled: Filled, surface: Surface, case: dict[str, Any], names: str
):
    where = filled.where(case)
    assert [filled.names[job_id] for job_id in surface.ids(**where)] == names.split()
    assert surface.count(**where) == Number(len(names.split()))


@pytest.mark.parametrize(("case", "names"), [each for each in CASES if "state" not in each[0]], ids=_told)
def test_a_filter_of_the_dead_selects_the_same_jobs_on_every_surface(
    filled: Filled, surface: Surface, case: dict[str, Any], names: str
):
    where, wanted = filled.where(case), [name for name in names.split() if name in DEAD]
    assert [filled.names[job_id] for job_id in surface.ids(dead=True, **where)] == wanted
    assert surface.bulk("discard-all", dry_run=True, **where) == Number(len(wanted))


@pytest.mark.parametrize("store", ["memory", "postgres"])
def test_filters_select_the_same_jobs_on_the_other_stores(store: str, tmp_path: Path):
    with stage_on(store, tmp_path) as stage:
        filled = Filled(stage)
        surface = SURFACES["python"](stage)
        for case, names in CASES:
            assert [filled.names[job_id] for job_id in surface.ids(**filled.where(case))] == names.split(), (
                case
            )
        for verb, meant in MEANT.items():
            assert surface.bulk(verb, dry_run=True) == Number(meant), verb


def test_pages_join_without_gap_or_overlap(filled: Filled, surface: Surface):
    where: dict[str, Any] = {"task": "t", "limit": 2}
    assert [filled.names[job_id] for job_id in surface.ids(**where)] == ALL.split()
    assert len(surface.page(**where).ids) == 2


# -- ids -------------------------------------------------------------------------------------------

# How many of all the jobs each verb would act on.
MEANT = {"requeue-all": 4, "discard-all": 4, "cancel-all": 3, "delete-all": 9, "update-all": 3}


@pytest.mark.parametrize("verb", DONE)
def test_ids_select_in_a_bulk_verb_and_join_other_filters(filled: Filled, verb: str):
    some = [filled.ids[name] for name in ("full", "late", "waits", "plain")]
    strange = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"
    expected = {"requeue-all": 2, "discard-all": 2, "cancel-all": 1, "delete-all": 4, "update-all": 1}
    for name in ("python", "rest"):
        surface = SURFACES[name](filled.stage)
        assert surface.bulk(verb, dry_run=True, ids=[*some, strange]) == Number(expected[verb])
        narrowed = 1 if verb in (*OF_DEAD, "delete-all") else 0
        assert surface.bulk(verb, dry_run=True, ids=some, queue="mail") == Number(narrowed)
        assert surface.bulk(verb, dry_run=True, ids=[]) == Number(0)


def test_a_list_in_python_takes_ids_in_any_order(filled: Filled):
    surface = SURFACES["python"](filled.stage)
    wanted = [filled.ids[name] for name in ("late", "plain")]
    assert surface.ids(ids=[wanted[1], wanted[0], wanted[1].upper()]) == wanted


# -- dry runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", DONE)
def test_a_dry_run_shows_the_count_and_changes_nothing(filled: Filled, surface: Surface, verb: str):
    before = filled.stage.everything()
    filled.stage.events()
    assert surface.bulk(verb, dry_run=True) == Number(MEANT[verb])
    assert surface.bulk(verb, dry_run=True, tag="nothing has it") == Number(0)
    assert filled.stage.everything() == before
    assert filled.stage.events() == []


# -- bad input -------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"state": "sleeping"}, "sleeping"),
    ({"reason": "bad luck"}, "bad luck"),
    ({"payload": {"a": [1]}}, "[1]"),
    ({"fingerprint": "xyz"}, "fingerprint"),
    ({"workflow": "mine"}, "mine"),
    ({"error": ""}, "error"),
    ({"error": "e" * 201}, "200"),
    ({"tag": ""}, "tag"),
    ({"cursor": "yesterday"}, "yesterday"),
]


@pytest.mark.parametrize(("case", "said"), BAD, ids=_told)
def test_bad_input_is_one_line_that_names_it(
    filled: Filled, surface: Surface, case: dict[str, Any], said: str
):
    with pytest.raises(Refused) as refusal:
        surface.page(**case)
    assert said in str(refusal.value)
    if isinstance(surface, OverRest):
        assert refusal.value.status in (400, 422)
