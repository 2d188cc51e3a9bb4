"""What every worker does now and then for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import Harbor, State
from taskharbor.worker import maintenance
from tests.worker.stage import FaultyDriver, working


async def test_long_backlog_is_pruned_in_slices_with_a_collection_before_each(
    store: FaultyDriver, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vanished worker's jobs must not wait until a million old ones are deleted."""
    monkeypatch.setattr(maintenance, "PRUNE_SLICE", 10)
    monkeypatch.setattr(maintenance, "PRUNE_EVERY", 3)
    slices: list[tuple[int, int]] = []  # (collections so far, deleted)
    original = FaultyDriver.prune

    async def noting(self: FaultyDriver, before: dict[State, int], limit: int, **rest: Any) -> int:
        deleted = await original(self, before, limit, **rest)
        slices.append((self.calls["take_expired"], deleted))
        return deleted

    monkeypatch.setattr(FaultyDriver, "prune", noting)
    async with Harbor(driver=store, retention={"cancelled": 0.0}) as harbor:
        for _ in range(25):
            await harbor.jobs.acancel((await harbor.aenqueue("old")).id)
        async with working(harbor):
            for _ in range(12):
                await clock.jump(maintenance.COLLECT_SECONDS)
        assert (await harbor.jobs.acounts())["cancelled"] == 0
    assert [deleted for _, deleted in slices][:3] == [10, 10, 5]
    collections = [count for count, _ in slices]
    assert collections == sorted(set(collections))  # one at least between any two slices
