"""Copying: everything that a store keeps, as rows that another store takes over."""

from __future__ import annotations

import pytest

from taskharbor.conformance.store import Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import Delete
from taskharbor.drivers.contract.copying import KINDS, Row
from taskharbor.errors import ConfigurationError
from taskharbor.records import Options

MANY_BYTES = 1_000_000
TAGGED = Options(tags=("red",))


class Copying(Chapter):
    needs = capabilities.Copying

    def export(
        self, store: Store, kind: str, limit: int = 100, bytes_limit: int = MANY_BYTES
    ) -> list[list[Row]]:
        """Return the slices, up to the empty one at the end."""
        driver = capabilities.Copying.of(store.driver)
        slices: list[list[Row]] = []
        after: Row | None = None
        while rows := list(store.run(driver.export_rows(kind, after, limit, bytes_limit))):
            slices.append(rows)
            after = rows[-1]
        return slices

    def take_in(self, store: Store, kind: str, rows: list[Row]) -> int:
        return store.run(capabilities.Copying.of(store.driver).import_rows(kind, rows))

    def test_rows_come_in_slices_by_key_and_each_once(self, store: Store) -> None:
        """A slice begins behind the last row of the one before, whatever its size."""
        ids = sorted(store.enqueue(options=TAGGED) for _ in range(5))
        slices = self.export(store, "jobs", limit=2)
        assert [len(rows) for rows in slices] == [2, 2, 1]
        assert [row[0] for rows in slices for row in rows] == ids
        assert [row for rows in self.export(store, "tags", limit=3) for row in rows] == [
            ("red", job_id) for job_id in ids
        ]

    def test_slice_ends_when_its_text_is_large(self, store: Store) -> None:
        """With the row that brings it over the limit, so that memory is bounded and the copy goes on."""
        for _ in range(3):
            store.enqueue(payload='{"x":"%s"}' % ("y" * 1_000))
        assert [len(rows) for rows in self.export(store, "jobs", bytes_limit=1_500)] == [2, 1]

    def test_rows_that_exist_are_skipped(self, store: Store) -> None:
        """A copy that is repeated stores what is new, and nothing else."""
        store.enqueue(options=TAGGED)
        store.succeed(store.claim_one())
        before = store.everything()
        for kind in KINDS:
            for rows in self.export(store, kind):
                assert self.take_in(store, kind, rows) == 0
        assert store.everything() == before

    def test_rows_that_are_missing_or_differ_are_named(self, store: Store) -> None:
        """That is how a copy knows that its target has rows of its own."""
        store.enqueue(options=TAGGED)
        store.succeed(store.claim_one())
        driver = capabilities.Copying.of(store.driver)
        for kind in KINDS:
            for rows in self.export(store, kind):
                assert list(store.run(driver.missing_rows(kind, rows))) == []
        [[row]] = self.export(store, "jobs")
        queue = list(KINDS["jobs"].columns).index("queue")
        other = (store.new_id(), *row[1:])
        changed = (*row[:queue], "another", *row[queue + 1 :])
        assert list(store.run(driver.missing_rows("jobs", [row, other, changed]))) == [other, changed]
        assert list(store.run(driver.missing_rows("jobs", []))) == []

    def test_row_that_differs_is_refused_with_its_whole_slice(self, store: Store) -> None:
        """The target is in use for something else; nothing of the slice is stored."""
        store.enqueue()
        [[row]] = self.export(store, "jobs")
        queue = list(KINDS["jobs"].columns).index("queue")
        other = (store.new_id(), *row[1:])
        changed = (*row[:queue], "another", *row[queue + 1 :])
        with pytest.raises(ConfigurationError):
            self.take_in(store, "jobs", [other, changed])
        assert self.export(store, "jobs") == [[row]]

    def test_finished_jobs_come_back_as_they_were(self, store: Store) -> None:
        """With their history and counts, which the end of the import makes."""
        ids = [store.enqueue(idempotency_key=f"k{n}", options=TAGGED) for n in range(3)]
        for held in store.claim(limit=2):
            store.succeed(held, result="1")
        store.bury(store.claim_one(), error="no")
        kept = {kind: [row for rows in self.export(store, kind) for row in rows] for kind in KINDS}
        before, counts = store.everything(), store.counts()
        store.run(store.driver.operate(Delete(), ids, now=store.now))
        assert store.listed_ids() == []
        for kind, rows in kept.items():
            self.take_in(store, kind, rows)
        store.run(capabilities.Copying.of(store.driver).finish_import())
        assert (store.everything(), store.counts()) == (before, counts)
