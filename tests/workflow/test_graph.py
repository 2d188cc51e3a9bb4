"""The graph is pure: signatures go in, who waits for whom comes out, or one clear error before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor import ConfigurationError, Harbor, PayloadError, Workflow, chain, chord, group
from taskharbor.records import Takes
from taskharbor.workflow import graph as graph_module
from taskharbor.workflow.graph import Graph, filled, graph_of, indexes_in, value_of
from taskharbor.workflow.parts import part_of
from taskharbor.workflow.storing import new_workflow_id
from taskharbor.workflow.tree import branches, drawn

harbor = Harbor("memory://")


@harbor.task(name="one")
async def one(x: Any = None, y: Any = None) -> Any:
    return x


@harbor.task(name="two")
async def two(a: int, b: int) -> int:
    return a + b


@harbor.task(name="none")
async def none() -> None: ...


def placed(written: Any) -> Graph:
    return graph_of(part_of(written))


def waits(written: Any) -> list[tuple[int, ...]]:
    return [member.after for member in placed(written).members]


# -- who waits for whom ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (one.s(), [()]),
        (chain(one.s(), one.s(), one.s()), [(), (0,), (1,)]),
        (group(one.s(), one.s()), [(), ()]),
        (chord([one.s(), one.s()], one.s()), [(), (), (0, 1)]),
        (chain(one.s(), group(one.s(), one.s()), one.s()), [(), (0,), (0,), (1, 2)]),
        (chain(group(one.s(), one.s()), group(one.s(), one.s())), [(), (), (0, 1), (0, 1)]),
        (chord([chain(one.s(), one.s()), one.s()], one.s()), [(), (0,), (), (1, 2)]),
        (chain(chord([one.s()], one.s()), chord([one.s()], one.s())), [(), (0,), (1,), (2,)]),
        (chain(one.s(), group(), one.s()), [(), (0,)]),
        (chain(one.s(), group(group(), group()), one.s()), [(), (0,)]),
        (chord([], one.s()), [()]),
        (group(), []),
        (chain(group(one.s(), one.s())), [(), ()]),
        (chord(group(one.s(), one.s()), one.s()), [(), (), (0, 1)]),
        (chord(chain(one.s(), one.s()), one.s()), [(), (0,), (1,)]),
    ],
)
def test_every_part_waits_for_what_comes_before_it(written, expected):
    assert waits(written) == expected


def test_result_is_taken_by_the_first_parameter_not_given():
    assert placed(chain(one.s(), one.s())).members[1].takes == Takes("x", 0)
    assert placed(chain(one.s(), one.s(1))).members[1].takes == Takes("y", 0)
    assert placed(chain(one.s(), one.s(x=1))).members[1].takes == Takes("y", 0)
    assert placed(chain(one.s(), two.s(b=1))).members[1].takes == Takes("a", 0)
    assert placed(chain(one.s(), one.si())).members[1].takes is None
    assert placed(chord([one.s(), one.s()], one.s())).members[2].takes == Takes("x")
    nested = placed(chord([group(one.s(), one.s()), one.s()], one.s())).members[3]
    assert nested.takes == Takes("x", [[0, 1], 2])


# Anything that can be written, with the value that a run of it would give when each job returns its number.
def parts() -> st.SearchStrategy[Any]:
    leaf = st.just(None).map(lambda _: one.s())
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=4).map(lambda each: chain(*each)),
            st.lists(inner, max_size=4).map(group),
            st.tuples(st.lists(inner, max_size=3), inner).map(lambda each: chord(each[0], each[1])),
        ),
        max_leaves=12,
    )


@given(parts())
def test_whatever_is_written_is_acyclic_and_hands_on_only_what_it_waited_for(written):
    graph = placed(written)
    for index, member in enumerate(graph.members):
        assert all(other < index for other in member.after), "a job waits only for those before it"
        assert len(set(member.after)) == len(member.after)
        if member.takes is not None and member.takes.results is not None:
            assert all(0 <= position < len(member.after) for position in indexes_in(member.takes.results))


@given(parts())
def test_shape_names_every_job_once_and_gives_the_result(written):
    graph = placed(written)
    value = value_of(graph.shape)
    assert set(indexes_in(value)) <= set(range(len(graph.members)))
    assert filled(value, dict(enumerate(range(len(graph.members))))) == value
    drawn_jobs = [
        line for line in drawn(branches(graph.shape), lambda _: "ready", lambda i: f"<{i}>") if "<" in line
    ]
    assert len(drawn_jobs) == len(graph.members)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (chain, "a chain needs at least one step"),
        (Workflow, "needs at least one step"),
        (lambda: chain(one.s(), 5), "made of signatures"),  # type: ignore[arg-type]
        (lambda: chain("abc"), "made of signatures"),  # type: ignore[arg-type]
        (lambda: group(one), "made of signatures"),  # type: ignore[arg-type]
        (lambda: chord([one.s()], one), "made of signatures"),  # type: ignore[arg-type]
        (lambda: chain(one.using(id="0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10").s()), "has an id of its own"),
        (lambda: chain(one.using(idempotency_key="k").s()), "has an idempotency key of its own"),
        (lambda: chain(group(one.s()).using(on_failure="cancel"), one.s()), "is only a part of one"),
        (lambda: chain(two.s()), "nothing comes before it"),
        (lambda: chain(one.s(), two.s()), "needs 'b', and nothing in the workflow gives it"),
        (lambda: chain(one.s(), none.s()), "has no parameter left"),
        (lambda: chain(one.s(), two.s(1, 2)), "has no parameter left"),
    ],
)
def test_what_cannot_be_a_workflow_is_refused_before_anything_is_stored(write, told):
    with pytest.raises((ConfigurationError, PayloadError), match=told):
        write().enqueue()
    assert sum(harbor.jobs.counts().values()) == 0


def test_argument_of_the_wrong_type_is_refused():
    with pytest.raises(PayloadError, match="expected `int`"):
        chain(two.s("x", 1)).enqueue()


def test_circle_is_refused_and_named():
    workflow = Workflow()
    workflow.add(one.s(), after="c", name="a")
    workflow.add(one.s(), after="a", name="b")
    workflow.add(one.s(), after=["b"], name="c")
    with pytest.raises(ConfigurationError, match="goes in a circle: .*'a' after 'c'"):
        workflow.enqueue()


def test_unknown_and_doubled_names_are_refused():
    workflow = Workflow()
    workflow.add(one.s(), after="nobody", name="a")
    with pytest.raises(ConfigurationError, match="comes after 'nobody', which is not in the workflow"):
        workflow.enqueue()
    with pytest.raises(ConfigurationError, match="has a step 'a' already"):
        workflow.add(one.s(), name="a")
    with pytest.raises(ConfigurationError, match="after takes what add"):
        workflow.add(one.s(), after=5)  # type: ignore[arg-type]


def test_tasks_of_another_harbor_are_refused():
    other = Harbor("memory://")
    stranger = other.task(name="stranger")(lambda: None)
    with pytest.raises(ConfigurationError, match="belongs to another harbor"):
        chain(one.s(), stranger.si()).enqueue()
    del other.tasks["stranger"]
    with pytest.raises(ConfigurationError, match="is not known to its harbor"):
        chain(stranger.s()).enqueue()


def test_size_is_bounded(monkeypatch):
    monkeypatch.setattr(graph_module, "MEMBERS_MAX", 10)
    assert len(placed(group(one.s() for _ in range(10))).members) == 10
    with pytest.raises(ConfigurationError, match="at most 10 jobs"):
        placed(group(one.s() for _ in range(11)))
    monkeypatch.setattr(graph_module, "DEPENDENCIES_MAX", 20)
    with pytest.raises(ConfigurationError, match="at most 20 dependencies"):
        placed(chain(group(one.s() for _ in range(5)), group(one.s() for _ in range(5))))
    deep: Any = one.s()
    for _ in range(200):
        deep = chain(deep)
    with pytest.raises(ConfigurationError, match="nested deeper than 100"):
        placed(deep)


@pytest.mark.parametrize(
    "options",
    [
        {"on_failure": "ignore"},
        {"failure_task": 5},
        {"id": "x"},
        {"idempotency_key": ""},
        {"correlation_id": "\n"},
    ],
)
def test_options_of_a_workflow_are_checked(options):
    with pytest.raises(ConfigurationError):
        chain(one.s()).using(**options)


def test_failure_task_that_cannot_be_called_is_refused():
    with pytest.raises(PayloadError, match="the failure task .* needs 'b'"):
        chain(one.s()).using(failure_task=two.s()).enqueue()


def test_workflow_that_is_not_enqueued_has_no_state():
    workflow = Workflow()
    with pytest.raises(ConfigurationError, match="not enqueued yet"):
        _ = workflow.state
    workflow.add(one.s(1))
    stored = workflow.enqueue()
    assert stored.state == "running"
    with pytest.raises(ConfigurationError, match="is stored already"):
        stored.add(one.s())
    assert workflow.enqueue().id != stored.id
    stored.cancel()
    assert repr(stored).startswith("Workflow(id='")


def test_ids_of_workflows_leave_room_for_their_jobs():
    ids = [new_workflow_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(each.endswith("00000") and each[14] == "7" for each in ids)
