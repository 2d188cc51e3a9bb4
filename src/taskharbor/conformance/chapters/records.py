"""Records: documents beside the jobs, by kind and key, some with an expiry."""

from __future__ import annotations

import pytest

from taskharbor.conformance.chapters.hostile import HOSTILE, label
from taskharbor.conformance.store import DAY, MINUTE, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.contract.records import Record, RecordKind
from taskharbor.drivers.typed_records import TOKENS, WORKERS
from taskharbor.records import TokenRecord

A, B = '{"of":"a"}', '{"of":"b"}'


class Records(Chapter):
    needs = capabilities.Records

    @pytest.mark.parametrize("kind", RecordKind)
    def test_record_is_kept_until_it_expires(self, store: Store, kind: RecordKind) -> None:
        """A record that lasts for a minute is gone in the instant when the minute is over."""
        store.put_records(kind, {"a": A}, MINUTE)
        assert store.records(kind) == [Record("a", A, store.now + MINUTE)]
        store.pass_time(MINUTE - 1)
        assert len(store.records(kind)) == 1
        store.pass_time(1)
        assert store.records(kind) == []

    @pytest.mark.parametrize("kind", RecordKind)
    def test_record_without_an_expiry_is_kept_until_it_is_dropped(
        self, store: Store, kind: RecordKind
    ) -> None:
        """It never expires; a drop says how many of the keys there were."""
        store.put_records(kind, {"a": A, "b": B})
        store.pass_time(1_000 * DAY)
        assert store.records(kind) == [Record("a", A), Record("b", B)]
        assert store.drop_records(kind, "a", "unknown") == 1
        assert store.drop_records(kind, "a") == 0
        assert store.records(kind) == [Record("b", B)]

    def test_records_come_by_key(self, store: Store) -> None:
        """In the order of their code points, whenever they were put."""
        store.put_records(RecordKind.WORKERS, {"b": B, "a": A}, MINUTE)
        store.put_records(RecordKind.WORKERS, {"B": B}, MINUTE)
        assert [record.key for record in store.records(RecordKind.WORKERS)] == ["B", "a", "b"]

    def test_put_replaces_the_record_of_the_same_key(self, store: Store) -> None:
        """Both what it says and how long it lasts."""
        store.put_records(RecordKind.WORKERS, {"a": A, "b": B}, MINUTE)
        store.pass_time(MINUTE - SECOND)
        store.put_records(RecordKind.WORKERS, {"a": B}, MINUTE)
        store.pass_time(SECOND)
        assert store.records(RecordKind.WORKERS) == [Record("a", B, store.now + MINUTE - SECOND)]

    def test_expired_record_may_be_put_again(self, store: Store) -> None:
        """A worker that was held up for long comes back under its name."""
        store.put_records(RecordKind.WORKERS, {"a": A}, MINUTE)
        store.pass_time(2 * MINUTE)
        store.put_records(RecordKind.WORKERS, {"a": A}, MINUTE)
        assert [record.key for record in store.records(RecordKind.WORKERS)] == ["a"]

    def test_kinds_are_kept_apart(self, store: Store) -> None:
        """A key of one kind says nothing about another kind, and dropping it leaves the other alone."""
        store.put_records(RecordKind.WORKERS, {"a": A}, MINUTE)
        store.put_records(RecordKind.TOKENS, {"a": B})
        assert store.drop_records(RecordKind.WORKERS, "a") == 1
        assert (store.records(RecordKind.WORKERS), store.records(RecordKind.TOKENS)) == ([], [Record("a", B)])

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_record_comes_back_as_it_was_put(self, store: Store, text: str) -> None:
        """Keys and documents are data."""
        store.put_records(RecordKind.TOKENS, {text: text})
        assert store.records(RecordKind.TOKENS) == [Record(text, text)]
        assert store.drop_records(RecordKind.TOKENS, text) == 1

    def test_records_touch_no_job(self, store: Store) -> None:
        """No job depends on them."""
        store.running()
        before = store.everything()
        store.put_records(RecordKind.WORKERS, {"a": A}, MINUTE)
        store.drop_records(RecordKind.WORKERS, "a")
        assert store.everything() == before

    # -- what they are used for --

    def test_workers_come_back_with_every_field(self, store: Store) -> None:
        """What a worker reported, by name, and until when that counts."""
        first = WorkerRecord("b", "host", 1, 10, 5, ("mail", "vip"), "host-0-b")
        second = WorkerRecord("a", "host", 2, 3, 5)
        store.run(WORKERS.put(store.driver, [first, second], MINUTE))
        assert store.run(WORKERS.all(store.driver)) == [
            WorkerRecord("a", "host", 2, 3, 5, None, None, store.now + MINUTE),
            WorkerRecord("b", "host", 1, 10, 5, ("mail", "vip"), "host-0-b", store.now + MINUTE),
        ]

    def test_tokens_are_kept_until_they_are_removed(self, store: Store) -> None:
        """Every field of each comes back as it was given, the oldest first, also after the token has expired."""
        older = TokenRecord("b", "deployment", "write", "0" * 64, store.now, store.now + DAY)
        newer = TokenRecord("a", "überwachung", "read", "f" * 64, store.now + 1)
        assert store.run(TOKENS.all(store.driver)) == []
        store.run(TOKENS.put(store.driver, [newer]))
        store.run(TOKENS.put(store.driver, [older]))
        store.pass_time(2 * DAY)
        assert store.run(TOKENS.all(store.driver)) == [older, newer]
        assert store.run(TOKENS.drop(store.driver, ["b"])) == 1
        assert store.run(TOKENS.drop(store.driver, ["b"])) == 0
        assert store.run(TOKENS.all(store.driver)) == [newer]
