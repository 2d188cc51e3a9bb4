"""Ids by a unique prefix, on every surface, and several of them in one command."""

from __future__ import annotations

import json

import pytest

from tests.filters.stage import OnCommandLine, OverRest, Refused, Stage, Surface

ONE = "aaaa1111-0000-7000-8000-000000000001"
TWO = "aaaa1111-0000-7000-8000-000000000002"
OTHER = "aaaa2222-0000-7000-8000-000000000003"
LAST = "ffffffff-ffff-7fff-bfff-ffffffffffff"


@pytest.fixture(autouse=True)
def jobs(stage: Stage) -> None:
    for job_id in (ONE, TWO, OTHER, LAST):
        stage.enqueue(id=job_id)


@pytest.mark.parametrize(
    ("prefix", "id"),
    [
        ("aaaa2", OTHER),
        ("AAAA2", OTHER),
        ("aaaa2222-0000-7", OTHER),
        ("aaaa222200007", OTHER),
        ("ffff", LAST),
        (ONE.upper(), ONE),
        (TWO.replace("-", ""), TWO),
    ],
)
def test_a_unique_prefix_names_its_job(surface: Surface, prefix: str, id: str):
    assert surface.find(prefix) == id


def test_an_ambiguous_prefix_names_the_candidates(surface: Surface):
    with pytest.raises(Refused) as refusal:
        surface.find("aaaa1")
    told = str(refusal.value)
    assert "several jobs have an id that begins with aaaa1" in told
    assert (ONE in told, TWO in told, OTHER in told) == (True, True, False)
    assert "give more of it" in told


def test_an_ambiguous_prefix_names_ten_candidates_and_says_that_there_are_more(
    stage: Stage, surface: Surface
):
    ids = [f"bbbb0000-0000-7000-8000-{number:012}" for number in range(11)]
    for job_id in ids:
        stage.enqueue(id=job_id)
    with pytest.raises(Refused, match=" and more; give more of it") as refusal:
        surface.find("bbbb")
    assert sum(job_id in str(refusal.value) for job_id in ids) == 10


@pytest.mark.parametrize("prefix", ["beef", "aaaa3", "aaaa1111-0000-7000-8000-000000000009"])
def test_an_unknown_prefix_is_not_found(surface: Surface, prefix: str):
    with pytest.raises(Refused, match=f"no job has the id {prefix}") as refusal:
        surface.find(prefix)
    if isinstance(surface, OverRest):
        assert refusal.value.status == 404


@pytest.mark.parametrize("prefix", ["aaa", "a-a-a-", "mine", ONE + "0"])
def test_what_is_too_short_or_no_prefix_is_refused(surface: Surface, prefix: str):
    with pytest.raises(Refused, match="at least its first 4 characters") as refusal:
        surface.find(prefix)
    assert prefix in str(refusal.value)


def test_rest_takes_a_prefix_wherever_it_takes_an_id(stage: Stage):
    rest = OverRest(stage)
    assert rest.send("POST", "/jobs/aaaa2/cancel")["state"] == "cancelled"
    assert rest.send("POST", "/jobs/aaaa2/retry")["state"] == "ready"
    assert rest.send("POST", "/dlq/aaaa2/add")["state"] == "dead"
    assert rest.send("POST", "/dlq/aaaa2/requeue")["id"] == OTHER
    assert rest.send("PATCH", "/jobs/aaaa2", json={"priority": 9})["priority"] == 9
    assert rest.send("GET", "/jobs/aaaa2/history")["items"] == []
    with pytest.raises(Refused, match="several jobs"):
        rest.send("POST", "/jobs/aaaa/cancel")
    assert stage.states(ONE, TWO, OTHER) == ["ready", "ready", "ready"]


# -- several in one command --


@pytest.mark.parametrize(
    ("commands", "ends"),
    [
        (["cancel"], "cancelled"),
        (["dlq add"], "dead"),
        (["dlq add", "dlq requeue"], "ready"),
        (["dlq add", "dlq discard"], "cancelled"),
        (["cancel", "job retry"], "ready"),
    ],
)
def test_a_command_takes_several_ids_and_prefixes(stage: Stage, commands: list[str], ends: str):
    line = OnCommandLine(stage)
    for command in commands:
        shown = line.run(*command.split(), ONE, "aaaa2").splitlines()
        assert [each.split(" ")[0] for each in shown] == [ONE, OTHER]
    assert stage.states(ONE, TWO, OTHER) == [ends, "ready", ends]


def test_several_are_one_json_document(stage: Stage):
    line = OnCommandLine(stage)
    documents = json.loads(line.run("cancel", ONE, "aaaa2", "--json"))
    assert [(each["id"], each["state"]) for each in documents] == [(ONE, "cancelled"), (OTHER, "cancelled")]
    assert json.loads(line.run("job", "delete", ONE, "aaaa2", "--json")) == [
        {"id": ONE, "deleted": True},
        {"id": OTHER, "deleted": True},
    ]


def test_what_is_wrong_with_one_does_not_keep_the_others_from_it(stage: Stage):
    line = OnCommandLine(stage)
    told = line.run("cancel", "aaaa1", ONE, "beef", "aaaa2", code=None).splitlines()
    assert [each.split()[0] for each in told] == [ONE, OTHER, "Error:", "Error:"]
    assert stage.states(ONE, TWO, OTHER) == ["cancelled", "ready", "cancelled"]
    with pytest.raises(Refused, match="no job has the id beef"):  # and a status that scripts see
        line.run("cancel", "beef", "ffff")
    assert stage.states(LAST) == ["cancelled"]


def test_a_job_that_is_named_twice_is_acted_on_once(stage: Stage):
    line = OnCommandLine(stage)
    assert line.run("cancel", "aaaa2", OTHER, OTHER.upper()) == f"{OTHER}  t: cancelled\n"
