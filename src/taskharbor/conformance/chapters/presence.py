"""Presence: workers tell the store that they are there, and are forgotten when they no longer do."""

from __future__ import annotations

from taskharbor.conformance.store import MINUTE, SECOND, Chapter, Store
from taskharbor.drivers.base import WorkerRecord


def worker(name: str = "host-1-a", **fields: object) -> WorkerRecord:
    about = {"host": "host", "pid": 1, "slots": 10, "started_at": 5}
    return WorkerRecord(name, **{**about, **fields})  # type: ignore[arg-type]


class Presence(Chapter):
    def test_worker_that_signed_on_is_there(self, store: Store) -> None:
        """With everything that it told, and until when that lasts."""
        told = worker(queues=("mail", "vip"), supervisor="host-0-b")
        store.run(store.driver.sign_on([told], MINUTE))
        [found] = store.run(store.driver.workers())
        assert found == WorkerRecord(
            "host-1-a", "host", 1, 10, 5, ("mail", "vip"), "host-0-b", store.now + MINUTE
        )

    def test_workers_are_listed_by_name(self, store: Store) -> None:
        """Each once, however often it signs on; what it says last stands."""
        store.run(store.driver.sign_on([worker("b"), worker("a")], MINUTE))
        store.run(store.driver.sign_on([worker("B"), worker("b", slots=3)], MINUTE))
        found = store.run(store.driver.workers())
        assert [(each.name, each.slots) for each in found] == [("B", 10), ("a", 10), ("b", 3)]

    def test_worker_that_does_not_sign_on_again_is_forgotten(self, store: Store) -> None:
        """In the instant when its time is over it is no longer there; one that repeats it is."""
        store.run(store.driver.sign_on([worker("a"), worker("b")], MINUTE))
        store.pass_time(MINUTE - SECOND)
        store.run(store.driver.sign_on([worker("b")], MINUTE))
        assert [each.name for each in store.run(store.driver.workers())] == ["a", "b"]
        store.pass_time(SECOND)
        assert [each.name for each in store.run(store.driver.workers())] == ["b"]

    def test_worker_whose_time_was_over_may_come_back(self, store: Store) -> None:
        """It was held up for long, and is there again."""
        store.run(store.driver.sign_on([worker("a")], MINUTE))
        store.pass_time(2 * MINUTE)
        store.run(store.driver.sign_on([worker("a")], MINUTE))
        assert [each.name for each in store.run(store.driver.workers())] == ["a"]

    def test_worker_that_signed_off_is_not_there(self, store: Store) -> None:
        """And whoever never was, may sign off as well."""
        store.run(store.driver.sign_on([worker("a"), worker("b")], MINUTE))
        store.run(store.driver.sign_off(["a", "nobody"]))
        assert [each.name for each in store.run(store.driver.workers())] == ["b"]

    def test_signing_on_touches_no_job(self, store: Store) -> None:
        """It is for onlookers: nothing depends on it."""
        store.running()
        before = store.everything()
        store.run(store.driver.sign_on([worker()], MINUTE))
        store.run(store.driver.sign_off(["host-1-a"]))
        assert store.everything() == before
