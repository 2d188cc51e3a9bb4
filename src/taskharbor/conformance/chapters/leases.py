"""Leases: how long they last, what they prove, and what becomes of them when their worker does not come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec import structs

from taskharbor.clock import seconds_to_micros
from taskharbor.conformance.store import HOUR, LEASE, SECOND, Chapter, Held, Store, ids, large_text
from taskharbor.drivers.base import (
    Cancel,
    Delete,
    Driver,
    Extension,
    LeaseRecord,
    OperationVerdict,
    Requeue,
    SettleAnswer,
    SettleResult,
    StepNote,
    Transition,
)
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.rescue import COLLECT_SECONDS, COLLECTOR_LEASE, Collector


def leases(store: Store) -> list[LeaseRecord]:
    return sorted(store.run(store.driver.leases(now=store.now)), key=lambda lease: lease.token)


def two_under_one_lease(store: Store) -> tuple[Held, Held]:
    store.enqueue_all(store.new(), store.new())
    first, second = store.claim("worker/1")
    return first, second


class _Vanished(BaseException):
    """As SIGKILL: nothing after it happens."""


class _Vanishing:
    """A driver whose process vanishes when it is about to settle."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def settle(self, transitions: Sequence[Transition]) -> list[SettleResult]:
        raise _Vanished


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
        first, second = two_under_one_lease(store)
        store.extend(first.token, running=((first.id, store.now - 5),))
        assert [lease.running for lease in leases(store)] == [{first.id: store.now - 5}]
        store.extend(first.token, running=((second.id, store.now),))
        assert [lease.running for lease in leases(store)] == [{second.id: store.now}]

    def test_leases_are_listed_with_what_is_open(self, store: Store) -> None:
        """A lease tells its worker, its expiry and how many of its jobs are not settled yet."""
        first, _ = two_under_one_lease(store)
        assert leases(store) == [LeaseRecord("worker/1", "worker", store.now + LEASE, False, 2, {})]
        store.succeed(first)
        assert [lease.open for lease in leases(store)] == [1]
        store.let_expire()
        assert [lease.expired for lease in leases(store)] == [True]

    def test_lease_is_gone_with_its_last_job(self, store: Store) -> None:
        """Once everything under it is settled, nothing is left of a lease."""
        first, second = two_under_one_lease(store)
        store.succeed(first)
        store.fail(second)
        assert leases(store) == []
        store.let_expire()
        assert store.take_expired() is None


class Fencing(Chapter):
    # -- NOT_RUNNING: no lease covers the job --

    @pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
    def test_job_that_is_not_running_cannot_be_settled(self, store: Store, state: State) -> None:
        """Where no lease covers the job, no token proves anything."""
        job_id, other = store.job_in(state), store.running()
        forged = Held(other.token, structs.replace(other.job, id=job_id, number=store.job(job_id).number + 1))
        before = store.everything()
        assert store.succeed(forged).answer is SettleAnswer.NOT_RUNNING
        assert store.everything() == before

    def test_unknown_job_cannot_be_settled(self, store: Store) -> None:
        """A job that was never enqueued, or was deleted, is running under no lease."""
        held = store.running()
        forged = Held(held.token, structs.replace(held.job, id=store.new_id()))
        settled = store.succeed(forged)
        assert (settled.answer, settled.recorded) == (SettleAnswer.NOT_RUNNING, None)
        assert store.report(forged, 0.5) is SettleAnswer.NOT_RUNNING

    # -- LEASE_MISMATCH: another lease or number does --

    def test_another_lease_cannot_settle(self, store: Store) -> None:
        """A job is settled by the token that holds it, and by no other."""
        held, other = store.running(), store.running()
        before = store.everything()
        for token in (other.token, "stranger/1", held.token + "x", held.token.upper(), ""):
            assert store.succeed(held, token=token).answer is SettleAnswer.LEASE_MISMATCH, token
        assert store.everything() == before

    @pytest.mark.parametrize("number", [0, 2, 3, -1])
    def test_another_number_cannot_settle(self, store: Store, number: int) -> None:
        """The right token with another attempt's number proves nothing."""
        held = store.running()
        before = store.everything()
        assert store.succeed(held, number=number).answer is SettleAnswer.LEASE_MISMATCH
        assert store.everything() == before

    def test_mismatch_comes_before_expiry(self, store: Store) -> None:
        """That another lease covers the job is said first, even when that one or one's own has expired."""
        held = store.running()
        store.let_expire()
        assert store.succeed(held, token="stranger/1").answer is SettleAnswer.LEASE_MISMATCH
        assert store.succeed(held, number=9).answer is SettleAnswer.LEASE_MISMATCH
        store.collect()
        assert store.succeed(held).answer is SettleAnswer.LEASE_MISMATCH

    # -- LEASE_EXPIRED: this one does, but its time is over --

    @pytest.mark.parametrize("status", list(AttemptStatus))
    def test_expired_lease_cannot_commit(self, store: Store, status: AttemptStatus) -> None:
        """After its expiry a lease commits nothing, whatever it wants to say."""
        held = store.running()
        store.let_expire()
        before = store.everything()
        to = State.SUCCEEDED if status is AttemptStatus.SUCCEEDED else State.DEAD
        assert store.settle(held, status, to).answer is SettleAnswer.LEASE_EXPIRED
        assert store.everything() == before

    def test_expired_lease_stores_no_note(self, store: Store) -> None:
        """Progress and steps are fenced exactly as a settle is."""
        held = store.running()
        store.let_expire()
        before = store.everything()
        assert store.report(held, 0.5) is SettleAnswer.LEASE_EXPIRED
        assert store.step(held, "a", "1") is SettleAnswer.LEASE_EXPIRED
        assert store.everything() == before

    @pytest.mark.parametrize("proof", [{"token": "stranger/1"}, {"number": 2}])
    def test_mismatched_lease_stores_no_note(self, store: Store, proof: dict[str, Any]) -> None:
        """Another token or number can neither report progress nor store a step."""
        held = store.running()
        before = store.everything()
        assert store.report(held, 0.5, **proof) is SettleAnswer.LEASE_MISMATCH
        assert store.step(held, "a", "1", **proof) is SettleAnswer.LEASE_MISMATCH
        assert store.everything() == before

    def test_settled_attempt_stores_no_note(self, store: Store) -> None:
        """An attempt that is over has nothing more to report, even while its lease lives on for others."""
        first, _ = two_under_one_lease(store)
        store.fail(first, delay=HOUR)
        before = store.everything()
        assert store.report(first, 0.5) is SettleAnswer.NOT_RUNNING
        assert store.step(first, "a", "1") is SettleAnswer.NOT_RUNNING
        assert store.everything() == before

    # -- many bytes --

    def test_batch_of_large_endings_is_answered_member_by_member(self, store: Store) -> None:
        """However many bytes a batch has: results, errors and children are stored, and each member is answered."""
        store.enqueue_all(*[store.new() for _ in range(30)])
        held = store.claim(limit=30)
        children = [store.new(payload=large_text(n)) for n in range(10)]
        stranger = Held("stranger/1", held[3].job)
        endings = [
            store.transition(each, AttemptStatus.SUCCEEDED, State.SUCCEEDED, result=large_text(n))
            for n, each in enumerate([*held[:3], stranger, *held[4:20]])
        ]
        endings += [
            store.transition(
                each, AttemptStatus.FAILED, State.DEAD, reason=Reason.EXHAUSTED, attempts=1, error="e",
                traceback=large_text(n),
            )
            for n, each in enumerate(held[20:29])
        ]  # fmt: skip
        endings.append(
            store.transition(held[29], AttemptStatus.SUCCEEDED, State.SUCCEEDED, inserts=tuple(children))
        )
        answers = [each.answer for each in store.settle_all(*endings)]
        assert answers == [SettleAnswer.DONE] * 3 + [SettleAnswer.LEASE_MISMATCH] + [SettleAnswer.DONE] * 26
        assert [store.job(each.id).result for each in held[4:20]] == [large_text(n) for n in range(4, 20)]
        assert [store.history(each.id)[0].traceback for each in held[20:29]] == [
            large_text(n) for n in range(9)
        ]
        assert [store.job(child.id).payload for child in children] == [large_text(n) for n in range(10)]
        assert store.state(held[3].id) is State.RUNNING

    # -- repeating --

    def test_settle_repeated_answers_done_and_changes_nothing(self, store: Store) -> None:
        """A settle whose answer was lost is repeated without harm."""
        held = store.running()
        store.fail(held, delay=HOUR)
        store.pass_time(SECOND)
        before = store.everything()
        assert store.fail(held, delay=HOUR).answer is SettleAnswer.DONE
        assert store.everything() == before

    def test_settle_repeated_answers_done_whatever_happened_since(self, store: Store) -> None:
        """That an attempt was settled stays true when the job has been claimed, finished and requeued since."""
        old = store.running()
        store.fail(old)
        assert store.fail(old).answer is SettleAnswer.DONE
        new = store.claim_one()
        assert store.fail(old).answer is SettleAnswer.DONE
        assert store.state(old.id) is State.RUNNING
        store.bury(new)
        assert store.fail(old).answer is SettleAnswer.DONE
        store.do(Requeue(), old.id)
        assert store.fail(old).answer is SettleAnswer.DONE
        assert (store.state(old.id), len(store.history(old.id))) == (State.READY, 2)

    def test_settle_repeated_with_another_status_answers_with_the_recorded_one(self, store: Store) -> None:
        """The first outcome stands; a different second one learns which."""
        held = store.running()
        store.fail(held)
        before = store.everything()
        refused = store.succeed(held)
        assert (refused.answer, refused.recorded) == (SettleAnswer.NOT_RUNNING, AttemptStatus.FAILED)
        assert store.everything() == before

    def test_recorded_attempt_is_done_only_for_its_own_token(self, store: Store) -> None:
        """A caller that did not settle the attempt itself learns that it is over, not that it did it."""
        held = store.running()
        store.succeed(held)
        refused = store.succeed(held, token="stranger/1")
        assert (refused.answer, refused.recorded) == (SettleAnswer.NOT_RUNNING, AttemptStatus.SUCCEEDED)

    def test_same_transition_twice_in_a_batch_takes_effect_once(self, store: Store) -> None:
        """The members of a batch see each other's effects."""
        held = store.running()
        done = store.transition(held, AttemptStatus.SUCCEEDED, State.SUCCEEDED)
        other = store.transition(held, AttemptStatus.FAILED, State.READY)
        first, second, third = store.settle_all(done, done, other)
        assert (first.answer, second.answer, third.answer) == (
            SettleAnswer.DONE,
            SettleAnswer.DONE,
            SettleAnswer.NOT_RUNNING,
        )
        assert third.recorded is AttemptStatus.SUCCEEDED
        assert len(store.history(held.id)) == 1

    # -- batches --

    def test_refused_member_does_not_hold_up_its_batch(self, store: Store) -> None:
        """A batch is answered member by member: a stale one is refused and the others are done."""
        stale, good, gone = store.running(), store.running(), store.running()
        store.succeed(gone)
        transitions = [
            store.transition(stale, AttemptStatus.SUCCEEDED, State.SUCCEEDED, number=7),
            store.transition(gone, AttemptStatus.FAILED, State.READY),
            store.transition(good, AttemptStatus.SUCCEEDED, State.SUCCEEDED),
        ]
        answers = [settled.answer for settled in store.settle_all(*transitions)]
        assert answers == [SettleAnswer.LEASE_MISMATCH, SettleAnswer.NOT_RUNNING, SettleAnswer.DONE]
        assert (store.state(stale.id), store.state(good.id)) == (State.RUNNING, State.SUCCEEDED)

    def test_large_batch_is_settled_in_its_order(self, store: Store) -> None:
        """Hundreds of transitions over several leases are answered one by one, in the order given."""
        store.enqueue_all(*[store.new() for _ in range(300)])
        held = [one for _ in range(3) for one in store.claim(limit=100)]
        backwards = held[::-1]
        answers = store.settle_all(
            *[
                store.transition(one, AttemptStatus.SUCCEEDED, State.SUCCEEDED, result=f'"{one.id}"')
                for one in backwards
            ]
        )
        assert {settled.answer for settled in answers} == {SettleAnswer.DONE}
        assert all(store.job(one.id).result == f'"{one.id}"' for one in held[::50])
        assert (store.counts()[State.SUCCEEDED], leases(store)) == (300, [])

    def test_empty_batches_do_nothing(self, store: Store) -> None:
        """No transitions, notes, extensions or ids: no answers."""
        assert store.settle_all() == []
        assert store.run(store.stepping.note([], now=store.now)) == []
        assert store.beat().leases == []
        assert store.operate(Cancel()) == []
        assert store.run(store.driver.get([], now=store.now)) == []

    # -- several leases over time --

    def test_job_handed_back_and_claimed_again_obeys_the_new_lease_alone(self, store: Store) -> None:
        """An old lease that lives on for its other jobs proves nothing of one that was handed back."""
        old, neighbour = two_under_one_lease(store)
        store.hand_back(old)
        new = store.claim_one()
        assert (new.id, new.number) == (old.id, 2)
        assert store.hand_back(old).answer is SettleAnswer.DONE
        assert store.succeed(old).recorded is AttemptStatus.RELEASED
        assert store.succeed(old, number=2).answer is SettleAnswer.LEASE_MISMATCH
        assert store.state(old.id) is State.RUNNING
        assert store.succeed(new).answer is SettleAnswer.DONE
        assert store.succeed(neighbour).answer is SettleAnswer.DONE

    def test_old_lease_does_not_give_back_what_it_handed_back(self, store: Store) -> None:
        """A repeated claim, a heartbeat and a collection speak of the open jobs of a lease, and of no others."""
        old, neighbour = two_under_one_lease(store)
        store.hand_back(old)
        new = store.claim_one(lease=HOUR)
        store.do(Cancel(), new.id)
        assert ids(store.claim("worker/1")) == [neighbour.id]
        assert store.extend(old.token).cancel_requested == ()
        assert store.extend(new.token, lease=HOUR).cancel_requested == (new.id,)
        store.let_expire()
        assert ids(store.collect()) == [neighbour.id]

    @pytest.mark.parametrize("how", ["delete", "prune"])
    def test_deleted_job_leaves_no_ghost_in_its_lease(self, store: Store, how: str) -> None:
        """A settled job that is deleted while its lease lives on is not open again."""
        gone, neighbour = two_under_one_lease(store)
        store.succeed(gone)
        if how == "delete":
            assert store.do(Delete(), gone.id) is OperationVerdict.DONE
        else:
            assert store.prune({State.SUCCEEDED: store.now + 1}) == 1
        assert ids(store.claim("worker/1")) == [neighbour.id]
        assert [lease.open for lease in leases(store)] == [1]
        settled = store.succeed(gone)
        assert (settled.answer, settled.recorded) == (SettleAnswer.NOT_RUNNING, None)
        assert store.extend("worker/1").cancel_requested == ()
        store.let_expire()
        assert ids(store.collect()) == [neighbour.id]

    def test_job_enqueued_again_under_a_deleted_id_owes_nothing_to_the_old_lease(self, store: Store) -> None:
        """A new job that takes a deleted one's id is another job: the old lease cannot settle or hold it."""
        gone, _ = two_under_one_lease(store)
        store.succeed(gone)
        store.do(Delete(), gone.id)
        store.enqueue(id=gone.id)
        assert store.succeed(gone).answer is SettleAnswer.NOT_RUNNING
        new = store.claim_one()
        assert (new.id, new.number) == (gone.id, 1)
        assert store.succeed(gone).answer is SettleAnswer.LEASE_MISMATCH
        assert store.succeed(new).answer is SettleAnswer.DONE

    def test_last_job_struck_out_ends_the_lease(self, store: Store) -> None:
        """When the settled jobs of a lease are deleted, what is open still decides whether it lives."""
        first, second = two_under_one_lease(store)
        store.succeed(first)
        store.do(Delete(), first.id)
        store.succeed(second)
        store.do(Delete(), second.id)
        assert leases(store) == []
        store.let_expire()
        assert store.take_expired() is None


class Collecting(Chapter):
    def test_nothing_expired_is_nothing_to_collect(self, store: Store) -> None:
        """A lease is collected from its expiry on, and not a microsecond before."""
        assert store.take_expired() is None
        store.running()
        store.pass_time(LEASE - 1)
        assert store.take_expired() is None
        store.pass_time(1)
        assert store.take_expired() is not None

    def test_expired_lease_comes_with_all_the_policy_needs(self, store: Store) -> None:
        """The collector learns whose lease it was, what was open, what had begun and when it expired."""
        store.enqueue_all(*[store.new() for _ in range(3)])
        first, second, third = store.claim("worker-x/7", supervised=True)
        began_at, expired_at = store.now + 3, store.now + LEASE
        store.extend("worker-x/7", running=((third.id, began_at),))
        store.succeed(second)
        store.pass_time(HOUR)
        expired = store.collected("collector/1")
        assert (expired.token, expired.worker) == ("collector/1", "worker-x")
        assert (expired.now, expired.expires_at, expired.expired_at) == (
            store.now,
            store.now + LEASE,
            expired_at,
        )
        assert (expired.alone, expired.supervised, expired.worker_survived) == (False, True, False)
        assert expired.jobs == [first.job, third.job]
        assert expired.running == {third.id: began_at}

    def test_lease_of_a_suspect_is_marked_alone(self, store: Store) -> None:
        """Only a loss while alone counts against a job, so the collector learns of it."""
        store.lose(store.running(), suspect=True)
        store.claim_one(suspects=True)
        store.let_expire()
        assert store.collected().alone

    def test_losses_are_weighed_by_the_setting_of_the_worker_that_claimed(self, store: Store) -> None:
        """A lease claimed with `max_losses=2` keeps it: for any collector, and for a repeated claim."""
        job_id = store.enqueue()
        store.claim("worker/1", max_losses=2)
        assert store.ask("worker/1", limit=0).max_losses == 2
        store.let_expire()
        assert store.collected("collector/1").max_losses == 2
        store.let_expire()
        assert store.collected("collector/2").max_losses == 2
        [held] = store.collect("collector/2")
        store.lose(held, suspect=True)
        for expected in (State.READY, State.DEAD):
            assert store.claimed_ids(suspects=True, max_losses=2) == [job_id]
            store.let_expire()
            store.run(Collector(store.driver).collect())
            assert store.state(job_id) is expected
        assert store.job(job_id).reason is Reason.POISON

    def test_the_lease_that_expired_first_is_collected_first(self, store: Store) -> None:
        """Leases are collected in the order of their expiry, one by one."""
        for lease in (3, 1, 2):
            store.enqueue()
            store.claim_one(f"for-{lease}-seconds/1", lease=lease * SECOND)
        store.let_expire()
        assert [store.collected().worker for _ in range(3)] == [
            "for-1-seconds",
            "for-2-seconds",
            "for-3-seconds",
        ]
        assert store.take_expired() is None

    def test_two_collectors_never_get_the_same_lease(self, store: Store) -> None:
        """Taking a lease over is taking it: the next collector gets the next one, or none."""
        store.running()
        store.let_expire()
        assert store.take_expired() is not None
        assert store.take_expired() is None

    def test_collecting_repeated_with_its_token_gives_the_same_lease(self, store: Store) -> None:
        """A collection whose answer was lost is repeated, and takes nothing more."""
        store.running()
        store.running()
        store.let_expire()
        first = store.collected("collector/1")
        store.pass_time(SECOND)
        again = store.collected("collector/1")
        assert (again.jobs, again.expires_at, again.expired_at) == (
            first.jobs,
            first.expires_at,
            first.expired_at,
        )
        assert store.collected("collector/2").jobs != first.jobs

    def test_repeated_collection_leaves_out_what_was_settled(self, store: Store) -> None:
        """A collector that goes on after a break sees what is left to decide."""
        first, second = two_under_one_lease(store)
        store.let_expire()
        held, _ = store.collect("collector/1")
        store.lose(held)
        assert (first.id, ids(store.collect("collector/1"))) == (held.id, [second.id])

    def test_collector_settles_under_its_own_token(self, store: Store) -> None:
        """The new token proves the old numbers, and the attempt is recorded as its worker's."""
        old = store.running()
        store.let_expire()
        held = store.collect_one()
        assert (held.id, held.number) == (old.id, old.number)
        assert store.lose(held, worker="worker-x").answer is SettleAnswer.DONE
        attempt = store.last_attempt(held.id)
        assert (attempt.status, attempt.worker) == (AttemptStatus.LOST, "worker-x")
        assert store.state(held.id) is State.READY

    def test_collected_lease_is_no_longer_its_workers(self, store: Store) -> None:
        """From then on the worker that let it expire can neither settle, extend nor note."""
        old = store.running()
        store.let_expire()
        store.collect()
        before = store.everything()
        assert store.succeed(old).answer is SettleAnswer.LEASE_MISMATCH
        assert store.report(old, 0.5) is SettleAnswer.LEASE_MISMATCH
        assert store.extend(old.token).answer is SettleAnswer.NOT_RUNNING
        assert store.everything() == before

    def test_collected_job_is_still_running(self, store: Store) -> None:
        """A collection decides nothing: the job is running, under a lease that has not expired."""
        held = store.running()
        store.let_expire()
        store.collect()
        record = store.job(held.id)
        assert (record.state, record.lease_expired) == (State.RUNNING, False)
        assert record.lease_expires_at == store.now + LEASE
        assert store.claim() == []

    def test_collector_that_vanishes_is_collected_itself(self, store: Store) -> None:
        """A second collector finds all that the first one found, and when the lease expired in the beginning."""
        store.enqueue()
        first = store.claim_one("worker-x/7", supervised=True)
        store.extend("worker-x/7", running=((first.id, 5),))
        expired_at = store.now + LEASE
        store.let_expire()
        store.collect("collector/1")
        store.let_expire()
        again = store.collected("collector/2")
        assert (again.worker, again.supervised, again.running) == ("worker-x", True, {first.id: 5})
        assert (again.jobs, again.expired_at) == ([first.job], expired_at)
        assert store.lose(Held("collector/1", first.job)).answer is SettleAnswer.LEASE_MISMATCH
        assert store.lose(Held("collector/2", first.job)).answer is SettleAnswer.DONE

    def test_collector_can_extend_its_lease(self, store: Store) -> None:
        """A collected lease is a lease: a heartbeat keeps it alive."""
        store.running()
        store.let_expire()
        store.collect("collector/1")
        store.pass_time(LEASE - 1)
        assert store.extend("collector/1").answer is SettleAnswer.DONE
        store.pass_time(LEASE - 1)
        assert store.take_expired() is None

    def test_collector_that_extends_its_lease_keeps_what_the_next_one_needs(self, store: Store) -> None:
        """Should it vanish after all, when the lost attempts began is still known, and when the lease expired."""
        held = store.running()
        store.extend(held.token, running=((held.id, 5),))
        expired_at = store.now + LEASE
        store.let_expire()
        first = store.collected("collector/1")
        store.extend("collector/1", lease=SECOND, running=tuple(first.running.items()))
        store.pass_time(SECOND)
        again = store.collected("collector/2")
        assert (again.running, again.expired_at) == ({held.id: 5}, expired_at)

    def test_jobs_whose_collector_vanishes_are_collected_two_seconds_after_their_lease(
        self, store: Store
    ) -> None:
        """At the latest: the first collector came as late as one may, and so does the second."""
        held = two_under_one_lease(store)
        store.let_expire()
        expired_at = store.now
        store.pass_time(seconds_to_micros(COLLECT_SECONDS))
        with pytest.raises(_Vanished):
            store.run(Collector(cast(Driver, _Vanishing(store.driver))).collect())
        store.pass_time(COLLECTOR_LEASE - 1)
        assert store.run(Collector(store.driver).collect()) == []
        store.pass_time(seconds_to_micros(COLLECT_SECONDS))
        assert len(store.run(Collector(store.driver).collect())) == 2
        assert store.now - expired_at < 2 * SECOND
        for one in held:
            assert (store.state(one.id), store.last_attempt(one.id).status) == (
                State.READY,
                AttemptStatus.LOST,
            )

    def test_settled_jobs_are_not_collected(self, store: Store) -> None:
        """Only what was open when the lease expired is handed to the policy."""
        first, second = two_under_one_lease(store)
        store.succeed(first)
        store.let_expire()
        assert ids(store.collect()) == [second.id]
        assert store.state(first.id) is State.SUCCEEDED

    # -- workers that survive their leases --

    def test_worker_that_survives_its_lease_is_known_to_the_collector(self, store: Store) -> None:
        """An outage counts for no job: the refusal of whatever the worker asks for marks the lease."""
        for ask in WAYS_TO_ASK:
            held = store.running()
            store.let_expire()
            ask(store, held)
            expired = store.collected()
            assert (expired.worker_survived, ids(expired.jobs)) == (True, [held.id])
            store.succeed(Held(expired.token, expired.jobs[0]))

    def test_survival_is_remembered_through_collections(self, store: Store) -> None:
        """The worker asks with the token it claimed with, also after a collector took the lease over."""
        for ask in WAYS_TO_ASK:
            held = store.running()
            store.let_expire()
            expired = store.collected()
            assert not expired.worker_survived
            ask(store, held)
            assert store.collected(expired.token).worker_survived
            store.let_expire()
            expired = store.collected()
            assert expired.worker_survived
            store.succeed(Held(expired.token, expired.jobs[0]))

    def test_recorded_losses_of_a_worker_that_survived_are_marked(self, store: Store) -> None:
        """When the losses are recorded already, the rows of every job of the lease are marked."""
        for ask in WAYS_TO_ASK:
            store.enqueue_all(store.new(), store.new())
            held = store.claim()
            store.let_expire()
            for lost in store.collect():
                store.lose(lost)
            assert not any(store.last_attempt(one.id).worker_survived for one in held)
            ask(store, held[0])
            assert all(store.last_attempt(one.id).worker_survived for one in held)
            for again in store.claim():
                store.succeed(again)

    def test_survival_while_the_lease_is_collected_is_not_forgotten(self, store: Store) -> None:
        """The worker asks after a collector has taken the lease, and before that one settles the loss."""
        for ask in WAYS_TO_ASK:
            held = store.running()
            store.let_expire()
            collected = store.collect_one()
            ask(store, held)
            store.lose(collected)
            assert store.last_attempt(held.id).worker_survived
            store.succeed(store.claim_one())

    def test_live_lease_is_not_marked_by_a_refusal(self, store: Store) -> None:
        """A worker that is refused about one job may still die with the others."""
        first, second = two_under_one_lease(store)
        store.fail(first)
        assert store.succeed(first).answer is SettleAnswer.NOT_RUNNING
        store.let_expire()
        expired = store.collected()
        assert (expired.worker_survived, ids(expired.jobs)) == (False, [second.id])

    def test_settle_for_a_dead_worker_proves_nothing(self, store: Store) -> None:
        """A supervisor settles under the token of its dead child, and names it."""
        held = store.running()
        store.let_expire()
        assert store.lose(held, worker="child").answer is SettleAnswer.LEASE_EXPIRED
        assert not store.collected().worker_survived

    def test_collector_that_is_refused_proves_nothing(self, store: Store) -> None:
        """A collector that was too slow is alive; that says nothing about the worker."""
        store.running()
        store.let_expire()
        slow = store.collect_one()
        store.let_expire()
        collected = store.collect_one()
        for ask in WAYS_TO_ASK:
            ask(store, slow)
        assert not store.collected(collected.token).worker_survived
        store.lose(collected)
        assert not store.last_attempt(collected.id).worker_survived

    def test_only_losses_that_a_collector_settled_are_marked(self, store: Store) -> None:
        """What the worker settled under its own lease stays as it is, a loss of its own child process included."""
        first, second = two_under_one_lease(store)
        store.lose(first)
        store.let_expire()
        before = store.history(first.id)
        for ask in WAYS_TO_ASK:
            ask(store, second)
        assert store.history(first.id) == before

    def test_token_that_the_store_does_not_know_marks_nothing(self, store: Store) -> None:
        """No claim was made under it, so there is no lease that could have been survived."""
        held = store.running()
        store.let_expire()
        before = store.everything()
        for ask in WAYS_TO_ASK:
            ask(store, Held("stranger/1", held.job))
        assert store.everything() == before


def _beat(store: Store, held: Held) -> None:
    assert store.extend(held.token).answer is not SettleAnswer.DONE


def _settle(store: Store, held: Held) -> None:
    assert store.succeed(held).answer is not SettleAnswer.DONE


def _note(store: Store, held: Held) -> None:
    note = StepNote(held.token, held.id, held.number, "step", "1")
    assert store.run(store.stepping.note([note], now=store.now)) != [SettleAnswer.DONE]


WAYS_TO_ASK = (_beat, _settle, _note)
