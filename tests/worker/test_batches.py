"""What a worker hands to `settle`: plain successes as columns, everything else as transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor import Context, Harbor, State, Worker
from taskharbor.clock import ManualClock
from taskharbor.drivers.base import PlainSuccesses, SettleResult, Transition
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.records import AttemptStatus
from taskharbor.rules.retry import RetryPolicy


class Noting(MemoryDriver):
    """A store that notes what it is given to settle."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.batches: list[Sequence[Transition]] = []

    async def settle(
        self, transitions: Sequence[Transition], *, now: int | None = None
    ) -> list[SettleResult]:
        self.batches.append(transitions)
        return await super().settle(transitions, now=now)


def columns(results: list[str | None] | None = None) -> PlainSuccesses:
    return PlainSuccesses(["t", "t", "u"], ["a", "b", "c"], [1, 2, 3], [0, 1, 2], [10, None, 30], results)


@pytest.mark.parametrize("results", [None, ["1", None, "3"]])
def test_plain_successes_are_a_sequence_of_plain_transitions(results: list[str | None] | None) -> None:
    expected = [
        Transition(token, job_id, number, AttemptStatus.SUCCEEDED, State.SUCCEEDED, attempts, at, result=result)
        for token, job_id, number, attempts, at, result in zip(
            ["t", "t", "u"], ["a", "b", "c"], [1, 2, 3], [0, 1, 2], [10, None, 30], results or [None] * 3,
            strict=True,
        )
    ]  # fmt: skip
    batch = columns(results)
    assert list(batch) == expected
    assert (len(batch), batch[1], batch[-1]) == (3, expected[1], expected[2])
    assert all(each.is_plain for each in batch)
    assert list(batch[1:]) == expected[1:]
    assert batch[1:].ids == ["b", "c"]
    assert batch[0:] is batch


async def test_one_failure_does_not_send_the_successes_the_long_way(clock: ManualClock) -> None:
    store = Noting(clock)
    harbor = Harbor(driver=store)

    @harbor.task
    async def work(n: int) -> int | None:
        if n == 3:
            raise ValueError
        return n or None

    @harbor.task
    async def parent(ctx: Context) -> None:
        ctx.enqueue(work.s(0))

    await harbor.aenqueue_many([*(work.s(n) for n in range(6)), parent.s()])
    await Worker(harbor, retry=RetryPolicy(max_attempts=1)).drain()
    [plain, others, child] = store.batches
    assert isinstance(plain, PlainSuccesses)
    assert isinstance(child, PlainSuccesses)
    assert plain.results == [None, "1", "2", "4", "5"]
    assert child.results is None
    assert [each.to for each in others] == [State.DEAD, State.SUCCEEDED]
    assert not isinstance(others, PlainSuccesses)
    counts: Any = await harbor.jobs.acounts()
    assert (counts[State.SUCCEEDED], counts[State.DEAD]) == (7, 1)


@pytest.mark.parametrize("results", [None, ["1", None, "3"]])
def test_columns_of_plain_transitions_expand_to_the_same_transitions(results):
    transitions = list(columns(results))
    made = PlainSuccesses.of(transitions)
    assert made is not None
    assert list(made) == transitions
    assert made.results == results


def test_no_columns_are_made_of_a_batch_with_one_other_ending():
    plain = list(columns())
    assert PlainSuccesses.of([*plain, replace(plain[0], error="boom")]) is None


@pytest.mark.parametrize("results", [None, ["1", None, "3"]])
def test_columns_are_sorted_by_lease_in_their_order(results):
    batch = columns(results)
    by_token = batch.by_token()
    assert [(token, list(some)) for token, some in by_token.items()] == [
        ("t", list(batch)[:2]),
        ("u", list(batch)[2:]),
    ]


def test_batch_of_one_lease_is_not_copied():
    batch = columns()[:2]
    assert batch.by_token() == {"t": batch}
