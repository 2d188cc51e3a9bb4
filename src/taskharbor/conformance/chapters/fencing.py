"""Fencing: what a lease proves. A settle or a note that its lease does not prove changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from taskharbor.conformance.store import HOUR, SECOND, Chapter, Held, Store, ids, large_text
from taskharbor.drivers.base import Cancel, Delete, OperationVerdict, Requeue, SettleAnswer
from taskharbor.records import AttemptStatus, Reason, State


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
        first, _ = store.two_under_one_lease()
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
        assert (store.counts()[State.SUCCEEDED], store.leases()) == (300, [])

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
        old, neighbour = store.two_under_one_lease()
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
        old, neighbour = store.two_under_one_lease()
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
        gone, neighbour = store.two_under_one_lease()
        store.succeed(gone)
        if how == "delete":
            assert store.do(Delete(), gone.id) is OperationVerdict.DONE
        else:
            assert store.prune({State.SUCCEEDED: store.now + 1}) == 1
        assert ids(store.claim("worker/1")) == [neighbour.id]
        assert [lease.open for lease in store.leases()] == [1]
        settled = store.succeed(gone)
        assert (settled.answer, settled.recorded) == (SettleAnswer.NOT_RUNNING, None)
        assert store.extend("worker/1").cancel_requested == ()
        store.let_expire()
        assert ids(store.collect()) == [neighbour.id]

    def test_job_enqueued_again_under_a_deleted_id_owes_nothing_to_the_old_lease(self, store: Store) -> None:
        """A new job that takes a deleted one's id is another job: the old lease cannot settle or hold it."""
        gone, _ = store.two_under_one_lease()
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
        first, second = store.two_under_one_lease()
        store.succeed(first)
        store.do(Delete(), first.id)
        store.succeed(second)
        store.do(Delete(), second.id)
        assert store.leases() == []
        store.let_expire()
        assert store.take_expired() is None
