"""The order over all the queues a worker serves: priority, then due time."""

from __future__ import annotations

import pytest

from taskharbor import Worker
from taskharbor.errors import ConfigurationError


@pytest.fixture
def noted(harbor):
    """A task that notes what it was called with."""
    order: list[str] = []

    @harbor.task(name="note")
    async def note(name: str) -> None:
        order.append(name)

    note.order = order
    return note


async def test_higher_priority_runs_first_then_older_first(harbor, clock, noted):
    for name, priority in [("a", 0), ("b", -5), ("c", 9), ("d", 0), ("e", 9)]:
        await noted.using(priority=priority).aenqueue(name)
        clock.advance(0.001)
    await Worker(harbor, concurrency=1).drain()
    assert noted.order == ["c", "e", "a", "d", "b"]


async def test_the_order_holds_over_all_queues(harbor, clock, noted):
    for name, queue, priority in [("a", "one", 0), ("b", "two", 5), ("c", "one", 5), ("d", "two", 0)]:
        await noted.using(queue=queue, priority=priority).aenqueue(name)
        clock.advance(0.001)
    await Worker(harbor, queues=["one", "two"], concurrency=1).drain()
    assert noted.order == ["b", "c", "a", "d"]


async def test_due_time_not_enqueue_time_places_a_delayed_job(harbor, clock, noted):
    await noted.using(delay=5).aenqueue("early, delayed")
    clock.advance(2)
    await noted.aenqueue("late, at once")
    clock.advance(10)
    await Worker(harbor, concurrency=1).drain()
    assert noted.order == ["late, at once", "early, delayed"]


async def test_a_job_whose_time_is_ahead_is_never_claimed(harbor, clock, noted):
    await noted.using(delay=5).aenqueue("later")
    clock.advance(4.999)
    await Worker(harbor).drain()
    assert noted.order == []
    clock.advance(0.001)
    await Worker(harbor).drain()
    assert noted.order == ["later"]


async def test_only_the_queues_that_were_named_are_served(harbor, noted):
    for queue in ("mine", "other", "default"):
        await noted.using(queue=queue).aenqueue(queue)
    await Worker(harbor, queues=["mine"]).drain()
    assert noted.order == ["mine"]
    await Worker(harbor).drain()
    assert sorted(noted.order) == ["default", "mine", "other"]


@pytest.mark.parametrize(
    "options",
    [
        {"queues": "mail"},
        {"queues": []},
        {"queues": [""]},
        {"concurrency": 0},
        {"concurrency": True},
        {"lease_seconds": 0},
        {"lease_seconds": -1},
        {"grace_seconds": -1},
        {"retry": "often"},
        {"max_losses": 0},
        {"poll_seconds": 0},
    ],
)
async def test_settings_that_cannot_be_used_are_refused(memory, options):
    with pytest.raises(ConfigurationError):
        Worker(memory, **options)


def test_a_worker_needs_a_harbor():
    with pytest.raises(ConfigurationError, match="takes a Harbor"):
        Worker("sqlite:///x.db")  # type: ignore[arg-type]
