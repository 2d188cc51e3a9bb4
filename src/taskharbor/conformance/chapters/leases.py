"""Leases: how long they last, and what a heartbeat and a list of them tell."""

from __future__ import annotations

from taskharbor.conformance.store import HOUR, LEASE, Chapter, Store
from taskharbor.drivers.base import Extension, LeaseRecord, SettleAnswer


class Leases(Chapter):
    def test_lease_is_valid_until_its_expiry_and_not_in_it(self, store: Store) -> None:
        """A lease holds up to the microsecond before its expiry."""
        in_time, late = store.running(), store.running()
        store.pass_time(LEASE - 1)
        assert store.succeed(in_time).answer is SettleAnswer.DONE
        store.pass_time(1)
        assert store.succeed(late).answer is SettleAnswer.LEASE_EXPIRED

    def test_extended_lease_lasts_from_the_stores_now(self, store: Store) -> None:
        """A heartbeat sets the expiry anew, counted from the moment the store hears it."""
        held = store.running()
        store.pass_time(LEASE - 1)
        extended = store.extend(held.token)
        assert (extended.answer, extended.expires_at) == (SettleAnswer.DONE, store.now + LEASE)
        store.pass_time(LEASE - 1)
        assert store.take_expired() is None
        assert store.succeed(held).answer is SettleAnswer.DONE

    def test_expired_lease_cannot_be_extended(self, store: Store) -> None:
        """A worker that was away for longer than its lease does not get it back."""
        held = store.running()
        store.let_expire()
        before = store.everything()
        assert store.extend(held.token, running=((held.id, 1),)).answer is SettleAnswer.LEASE_EXPIRED
        assert store.everything() == before

    def test_unknown_lease_cannot_be_extended(self, store: Store) -> None:
        """A token that has no lease is refused as such: never claimed, or all of it settled."""
        held = store.running()
        assert store.extend("stranger/1").answer is SettleAnswer.NOT_RUNNING
        store.succeed(held)
        assert store.extend(held.token).answer is SettleAnswer.NOT_RUNNING

    def test_heartbeat_answers_lease_by_lease(self, store: Store) -> None:
        """One heartbeat may extend many leases; each is answered, in the order given."""
        live, other = store.running(), store.running()
        store.pass_time(LEASE // 2)
        dead = store.running()
        beat = store.beat(
            *[Extension(held.token, HOUR) for held in (other, live)], Extension("stranger/1", HOUR)
        )
        assert [extended.token for extended in beat.leases] == [other.token, live.token, "stranger/1"]
        assert [extended.answer for extended in beat.leases] == [
            SettleAnswer.DONE,
            SettleAnswer.DONE,
            SettleAnswer.NOT_RUNNING,
        ]
        assert beat.now == store.now
        store.let_expire()
        assert store.job(dead.id).lease_expired
        assert not store.job(live.id).lease_expired

    def test_heartbeat_tells_the_paused_queues(self, store: Store) -> None:
        """With every heartbeat a worker hears which queues' unbegun jobs it should hand back."""
        held = store.running()
        store.pause("a")
        store.pause("b")
        assert store.beat(Extension(held.token, LEASE)).paused == frozenset({"a", "b"})
        store.resume("a")
        assert store.beat().paused == frozenset({"b"})

    def test_lease_shows_what_its_worker_says_is_running(self, store: Store) -> None:
        """Each heartbeat replaces what the last one told about jobs that have begun."""
        first, second = store.two_under_one_lease()
        store.extend(first.token, running=((first.id, store.now - 5),))
        assert [lease.running for lease in store.leases()] == [{first.id: store.now - 5}]
        store.extend(first.token, running=((second.id, store.now),))
        assert [lease.running for lease in store.leases()] == [{second.id: store.now}]

    def test_leases_are_listed_with_what_is_open(self, store: Store) -> None:
        """A lease tells its worker, its expiry and how many of its jobs are not settled yet."""
        first, _ = store.two_under_one_lease()
        assert store.leases() == [LeaseRecord("worker/1", "worker", store.now + LEASE, False, 2, {})]
        store.succeed(first)
        assert [lease.open for lease in store.leases()] == [1]
        store.let_expire()
        assert [lease.expired for lease in store.leases()] == [True]

    def test_lease_is_gone_with_its_last_job(self, store: Store) -> None:
        """Once everything under it is settled, nothing is left of a lease."""
        first, second = store.two_under_one_lease()
        store.succeed(first)
        store.fail(second)
        assert store.leases() == []
        store.let_expire()
        assert store.take_expired() is None
