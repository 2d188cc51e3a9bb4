"""workflow list, show, cancel, retry."""

from __future__ import annotations

import pytest

from taskharbor import chain, chord, group


@pytest.fixture
def flow(harbor):
    @harbor.task(name="number")
    async def number(n: int) -> int:
        if n == 13 and not allowed:
            raise ValueError("unlucky")
        return n

    @harbor.task(name="total")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @harbor.task(name="show")
    async def show(n: int) -> str:
        return f"{n}"

    allowed: list[bool] = []
    return number.using(max_attempts=1), total, show, allowed


def test_show_draws_the_tree_with_states_and_times(run, flow, drain):
    number, total, show, _ = flow
    workflow = chain(chord([number.s(n) for n in (1, 13)], total.s()), show.s()).enqueue()
    drain()
    lines = run("workflow", "show", workflow.id).out.splitlines()
    assert lines[0] == f"workflow {workflow.id}: stuck, 1 of 4 jobs succeeded"
    assert [line[: line.index("─") + 1] if "─" in line else line for line in lines[1:4]] == [
        "chain",
        "├─",
        "│  ├─",
    ]
    ids = workflow.jobs.ids
    [dead] = [line for line in lines if ids[1] in line]
    assert dead.startswith("│  │  └─ number  dead  0.0s  2")
    assert dead.endswith("exhausted: ValueError: unlucky")
    assert f"│  └─ total  waiting  {ids[2]}" in lines
    assert f"└─ show  waiting  {ids[3]}" in lines


def test_large_group_is_counted_and_its_failures_drawn(run, flow, drain):
    number, *_ = flow
    workflow = group(number.s(n) for n in range(40)).enqueue()
    drain()
    lines = run("workflow", "show", workflow.id).out.splitlines()
    assert lines[1] == "group of 40: 39 succeeded, 1 dead"
    assert (len(lines), workflow.jobs.ids[13] in lines[2]) == (3, True)


def test_show_as_json(run, flow, drain):
    number, *_ = flow
    workflow = chain(number.s(1)).enqueue()
    drain()
    document = run("workflow", "show", workflow.id, "--json").document
    assert (document["id"], document["state"], document["succeeded"]) == (workflow.id, "succeeded", 1)
    assert (document["shape"], document["jobs"][0]["workflow"]) == ({"chain": [0]}, workflow.id)


def test_list(run, flow):
    number, *_ = flow
    first, second = chain(number.s(1)).enqueue(), group(number.s(n) for n in range(3)).enqueue()
    header, *rows = run("workflow", "list").out.splitlines()
    assert header.split()[:4] == ["ID", "STATE", "SUCCEEDED", "TOTAL"]
    assert [row.split()[:4] for row in rows] == [
        [second.id, "running", "0", "3"],
        [first.id, "running", "0", "1"],
    ]
    page = run("workflow", "list", "--limit", "1", "--json").document
    assert ([item["id"] for item in page["items"]], page["nextCursor"]) == ([second.id], second.id)
    assert "there are more" in run("workflow", "list", "--limit", "1").err


def test_list_by_state_fills_its_page(run, flow, drain, monkeypatch):
    number, *_ = flow
    monkeypatch.setattr("taskharbor.client.workflows.LOOK_PAGE", 2)
    monkeypatch.setattr("taskharbor.client.workflows.LOOK_MAX", 4)
    stuck = [chain(number.si(13), number.s()).enqueue().id for _ in range(2)]
    for n in range(9):
        chain(number.s(n)).enqueue()
    drain()
    page = run("workflow", "list", "--state", "stuck", "--limit", "1", "--json").document
    assert [item["id"] for item in page["items"]] == [stuck[1]]
    rest = run("workflow", "list", "--state", "stuck", "--cursor", page["nextCursor"]).out.splitlines()[1:]
    assert [row.split()[0] for row in rest] == [stuck[0]]


def test_cancel_and_retry(run, flow, drain):
    number, total, _, allowed = flow
    workflow = chord([number.s(n) for n in (1, 13)], total.s()).enqueue()
    assert "cancelled" in run("workflow", "cancel", workflow.id).out
    assert run("workflow", "retry", workflow.id, "--json").document["active"] == 2
    drain()
    assert workflow.refresh().state == "stuck"
    allowed.append(True)
    assert "running" in run("workflow", "retry", workflow.id).out
    drain()
    assert workflow.result(timeout=60) == 14


def test_unknown_workflow_is_one_clear_line(run, harbor):
    harbor.jobs.counts()  # there is a store
    answer = run("workflow", "show", "0197f3c2-8a5e-7cc3-98c8-5d1f9a300000", code=1)
    assert (answer.code, answer.error[:22]) == (1, "no workflow has the id")
