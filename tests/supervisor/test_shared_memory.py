"""The page that a child and its supervisor share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.worker.pipeline.leases import HeldLease
from taskharbor.worker.supervisor import shared_memory
from taskharbor.worker.supervisor.shared_memory import BLOCK_JOBS, Publisher, Reader


class Both:
    """The two sides of one page."""

    def __init__(self, blocks: int = 64) -> None:
        descriptor = shared_memory.create(blocks)
        self.child = Publisher(descriptor)
        self.supervisor = Reader(descriptor)
        os.close(descriptor)
        self.serial = 0

    def claim(
        self, jobs: int, *, alone: bool = False, expires_at: int = 1_000
    ) -> tuple[HeldLease, list[Any]]:
        self.serial += 1
        lease = HeldLease(f"worker/x-{self.serial}", expires_at, alone)
        executions = [
            SimpleNamespace(claimed=SimpleNamespace(id=str(uuid.uuid4())), cell=0) for _ in range(jobs)
        ]
        self.child.claiming(self.serial, alone=alone)
        self.child.claimed(self.serial, lease if jobs else None, executions)  # type: ignore[arg-type]
        return lease, executions

    def close(self) -> None:
        self.supervisor.close()


@pytest.fixture
def both() -> Iterator[Both]:
    both = Both()
    yield both
    both.close()


def test_a_published_lease_is_read_with_what_has_begun_and_ended(both: Both):
    _, executions = both.claim(40, alone=True, expires_at=77)
    first, second, *rest = executions
    both.child.words[first.cell] = 5
    both.child.words[second.cell] = -6
    [held] = both.supervisor.leases()
    assert (held.serial, held.alone, held.expires_at) == (1, True, 77)
    assert held.begun == {first.claimed.id: 5, second.claimed.id: 6}
    assert held.ended == {second.claimed.id}
    assert held.running == {first.claimed.id: 5}
    assert held.unbegun == {each.claimed.id for each in rest}


def test_a_claim_without_an_answer_is_left_behind(both: Both):
    both.child.claiming(9, alone=True)
    assert both.supervisor.leases() == []
    [held] = both.supervisor.orphaned_leases()
    assert (held.serial, held.alone, held.begun) == (9, True, {})
    both.child.claimed(9, None, [])
    assert both.supervisor.orphaned_leases() == []


def test_what_a_handler_wrote_over_costs_no_reader_anything(both: Both):
    """A child that has written anywhere in its memory: its other jobs are known, and so are those of other children."""
    spoilt, executions = both.claim(3)
    whole, _ = both.claim(2)
    [block] = spoilt.blocks
    both.child.words[block + shared_memory.IDS] = -1
    both.child.words[block + shared_memory.COUNT] = 2**40
    found = {held.serial: held for held in both.supervisor.orphaned_leases()}
    ids = [execution.claimed.id for execution in executions]
    assert found[1].unbegun & set(ids) == set(ids[1:])
    assert len(found[1].unbegun | found[1].begun.keys()) <= BLOCK_JOBS
    assert len(found[2].unbegun) == 2
    assert whole.blocks


def test_a_lease_that_is_over_is_not_read_and_its_room_is_used_again(both: Both):
    room = both.child.room
    lease, executions = both.claim(500)
    assert both.child.room == room - 32 * BLOCK_JOBS
    both.child.words[executions[0].cell] = 5
    both.child.free(lease)
    both.child.free(lease)  # a second time does nothing
    assert both.supervisor.leases() == []
    assert both.child.room == room
    both.claim(room)
    assert both.child.room == 0
    [held] = both.supervisor.leases()
    assert (len(held.unbegun), held.begun) == (room, {})


def test_a_lost_lease_is_not_extended_but_keeps_its_cells(both: Both):
    lease, executions = both.claim(3)
    room = both.child.room
    both.child.withdraw(lease)
    assert both.supervisor.leases() == []
    other, _ = both.claim(3)
    assert not set(lease.blocks) & set(other.blocks)
    both.child.words[executions[0].cell] = -9  # its handler ends, late
    [held] = both.supervisor.leases()
    assert held.begun == {}
    both.child.free(lease)
    both.child.free(other)
    assert both.child.room == room + BLOCK_JOBS


def test_an_extension_reaches_its_lease_and_no_other_in_the_same_place(both: Both):
    lease, _ = both.claim(20)
    assert both.child.extended_to(1, lease) == 0
    [held] = both.supervisor.leases()
    both.supervisor.extended(held, 5_000)
    assert both.child.extended_to(1, lease) == 5_000
    both.child.free(lease)
    assert both.child.extended_to(1, lease) == 0
    after, _ = both.claim(20)
    assert set(after.blocks) & set(held.blocks)
    both.supervisor.extended(held, 9_000)  # meant for the first one: its answer came late
    assert both.child.extended_to(2, after) == 0


def test_ids_that_are_no_uuids_are_not_published(both: Both):
    lease = HeldLease("worker/x-1", 1)
    execution: Any = SimpleNamespace(claimed=SimpleNamespace(id="short"), cell=0)
    both.child.claimed(1, lease, [execution])
    assert (lease.blocks, execution.cell) == ((), 0)
    assert both.supervisor.leases() == []
    assert both.child.extended_to(1, lease) == 0


def test_signs_of_life_rise(both: Both):
    before = both.supervisor.alive_count
    both.child.show_alive()
    assert both.supervisor.alive_count == before + 1


def test_a_closed_page_takes_no_extension():
    both = Both()
    both.claim(1)
    [held] = both.supervisor.leases()
    both.supervisor.close()
    both.supervisor.extended(held, 1)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["begin", "end", "lose", "free", "extend"]), st.integers(0, 10_000)),
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_whatever_happens_the_supervisor_reads_what_the_child_holds(story: list[tuple[str, int]]):
    both = Both(blocks=24)
    held: dict[int, tuple[HeldLease, list[Any]]] = {}
    lost: list[HeldLease] = []
    state: dict[str, int] = {}
    reached: dict[int, int] = {}
    for moment, (step, number) in enumerate(story, 1):
        live = list(held)
        if step == "claim" and number <= both.child.room:
            lease, executions = both.claim(number)
            if number:
                held[both.serial] = (lease, executions)
                state |= {each.claimed.id: 0 for each in executions}
        elif live and step != "claim":
            serial = live[number % len(live)]
            lease, executions = held[serial]
            execution = executions[number % len(executions)]
            if step == "begin" and not state[execution.claimed.id]:
                both.child.words[execution.cell] = state[execution.claimed.id] = moment
            elif step == "end" and state[execution.claimed.id] > 0:
                state[execution.claimed.id] = both.child.words[execution.cell] = -state[execution.claimed.id]
            elif step == "lose":
                both.child.withdraw(lease)
                lost.append(lease)
                del held[serial]
            elif step == "free":
                both.child.free(lease)
                del held[serial]
            elif step == "extend":
                [read] = [each for each in both.supervisor.leases() if each.serial == serial]
                both.supervisor.extended(read, moment)
                reached[serial] = moment
        found = {each.serial: each for each in both.supervisor.leases()}
        assert found.keys() == held.keys()
        for serial, (lease, executions) in held.items():
            ids = {each.claimed.id for each in executions}
            assert found[serial].begun == {each: abs(state[each]) for each in ids if state[each]}
            assert found[serial].unbegun == {each for each in ids if not state[each]}
            assert found[serial].ended == {each for each in ids if state[each] < 0}
            assert both.child.extended_to(serial, lease) == reached.get(serial, 0)
    for lease in [*lost, *(lease for lease, _ in held.values())]:
        both.child.free(lease)
    assert both.child.room == 24 * BLOCK_JOBS
    both.close()
