"""Backlogs: jobs of one key of a log that execute one after the other, whatever becomes of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from taskharbor.conformance.store import Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import Cancel, DeadLetter, Delete, Discard, Operation, OperationVerdict, Requeue
from taskharbor.drivers.contract.handing_over import (
    BacklogPlace,
    HandedOver,
    HandOverAnswer,
    NotOwner,
    Owner,
)
from taskharbor.records import Reason, State

QUEUE = "stream:tasks"
UNFINISHED = (State.READY, State.SCHEDULED, State.RUNNING)


class Backlogs(Chapter):
    needs = capabilities.HandOver

    def log_verbs(self, store: Store) -> capabilities.HandOver:
        return capabilities.HandOver.of(store.driver)

    def backlog_message(
        self, store: Store, position: int, key: str = "log:a", *, holds: bool = False, **fields: Any
    ) -> HandedOver:
        """A message that has its place in a backlog, and has not been attempted."""
        opens = fields.pop("opens", False)
        job = store.new(queue=QUEUE, idempotency_key=f"{key}:{position:06}")
        return HandedOver(job, backlog=BacklogPlace(key, position, opens, holds), **fields)

    def hand_in(self, store: Store, *jobs: HandedOver, owners: Sequence[Owner] = ()) -> list[HandOverAnswer]:
        return store.run(self.log_verbs(store).hand_over(jobs, owners=owners, now=store.now))

    def opened_backlog(
        self, store: Store, count: int, key: str = "log:a", *, holds: bool = False
    ) -> list[str]:
        """A backlog of this many jobs; their ids, in order."""
        jobs = [self.backlog_message(store, n, key, opens=True, holds=holds) for n in range(count)]
        assert self.hand_in(store, *jobs) == [HandOverAnswer.STORED] * count
        return [each.job.id for each in jobs]

    def advance_all(self, store: Store) -> list[str]:
        return store.run(self.log_verbs(store).advance(100, now=store.now)).released

    def backlog_keys(self, store: Store) -> list[str]:
        return store.run(self.log_verbs(store).backlogs("log:", "log:~", 100))

    def end_job(self, store: Store, job_id: str, how: str) -> None:
        """Let a job that is ready end in one of the ways that there are."""
        if how in ("succeeds", "dies"):
            [held] = [each for each in store.claim() if each.id == job_id]
            (store.succeed if how == "succeeds" else store.bury)(held)
        else:
            operations: dict[str, Operation] = {
                "is cancelled": Cancel(),
                "is deleted": Delete(),
                "is dead by hand": DeadLetter(),
            }
            operation = operations[how]
            assert store.do(operation, job_id) is OperationVerdict.DONE

    def test_jobs_behind_the_first_wait(self, store: Store) -> None:
        """None of them can be claimed, and nothing is released before the first one has ended."""
        first, second, third = self.opened_backlog(store, 3)
        assert [store.state(each) for each in (first, second, third)] == [
            State.READY,
            State.WAITING,
            State.WAITING,
        ]
        assert self.advance_all(store) == []
        held = store.claim_one()
        assert (held.id, self.advance_all(store)) == (first, [])
        assert store.claim() == []

    @pytest.mark.parametrize("how", ["succeeds", "dies", "is cancelled", "is deleted", "is dead by hand"])
    def test_end_of_a_job_lets_the_next_one_run(self, store: Store, how: str) -> None:
        """However it ends; and with the last one the backlog ends."""
        jobs = self.opened_backlog(store, 3)
        for job_id, following in zip(jobs, [*jobs[1:], None], strict=True):
            assert store.state(job_id) is State.READY
            self.end_job(store, job_id, how)
            assert self.advance_all(store) == ([] if following is None else [following])
        assert self.backlog_keys(store) == []

    def test_job_that_is_retried_keeps_its_place(self, store: Store) -> None:
        """Those behind it wait for its last attempt."""
        first, second = self.opened_backlog(store, 2)
        store.fail(store.claim_one(), delay=0)
        assert (store.state(first), self.advance_all(store)) == (State.READY, [])
        store.succeed(store.claim_one())
        assert self.advance_all(store) == [second]
        assert store.claim_one().id == second

    def test_job_joins_only_a_backlog_that_is_there(self, store: Store) -> None:
        """Nothing is stored of one that comes too late: its worker executes it."""
        late = self.backlog_message(store, 7)
        assert self.hand_in(store, late) == [HandOverAnswer.NO_BACKLOG]
        assert store.find(late.job.id) is None
        [first] = self.opened_backlog(store, 1)
        joined = self.backlog_message(store, 8)
        assert self.hand_in(store, joined) == [HandOverAnswer.STORED]
        assert store.state(joined.job.id) is State.WAITING
        for expected in (first, joined.job.id):
            held = store.claim_one()
            assert held.id == expected
            store.succeed(held)
            self.advance_all(store)
        assert self.hand_in(store, self.backlog_message(store, 9)) == [HandOverAnswer.NO_BACKLOG]

    def test_backlog_lasts_until_a_round_has_found_it_empty(self, store: Store) -> None:
        """A job that joins after the last one has ended is released by the next round: there is no gap."""
        [first] = self.opened_backlog(store, 1)
        self.end_job(store, first, "succeeds")
        joined = self.backlog_message(store, 5)
        assert self.hand_in(store, joined) == [HandOverAnswer.STORED]
        assert store.state(joined.job.id) is State.WAITING
        assert self.advance_all(store) == [joined.job.id]

    def test_order_is_that_of_the_positions(self, store: Store) -> None:
        """Also for a job that is stored later than one behind it."""
        jobs = [self.backlog_message(store, position, opens=True) for position in (1, 9, 5)]
        self.hand_in(store, *jobs)
        run = []
        for _ in jobs:
            held = store.claim_one()
            run.append(held.id)
            store.succeed(held)
            self.advance_all(store)
        assert run == [jobs[0].job.id, jobs[2].job.id, jobs[1].job.id]

    def test_message_that_is_handed_over_twice_has_one_place(self, store: Store) -> None:
        """Whether or not its backlog is still there."""
        first = self.backlog_message(store, 1, opens=True)
        assert self.hand_in(store, first) == [HandOverAnswer.STORED]
        assert self.hand_in(store, first) == [HandOverAnswer.KNOWN]
        store.succeed(store.claim_one())
        assert (self.advance_all(store), self.backlog_keys(store)) == ([], [])
        again = HandedOver(first.job, backlog=BacklogPlace("log:a", 1))
        assert self.hand_in(store, again) == [HandOverAnswer.KNOWN]

    @pytest.mark.parametrize("verb", [Requeue(), Discard(), Delete()])
    def test_dead_job_holds_until_an_operator_decides(self, store: Store, verb: Any) -> None:
        """If the backlog holds: requeued, it runs first; discarded or deleted, the next one runs."""
        first, second = self.opened_backlog(store, 2, holds=True)
        self.end_job(store, first, "dies")
        assert (self.advance_all(store), store.state(second)) == ([], State.WAITING)
        assert store.do(verb, first) is OperationVerdict.DONE
        if isinstance(verb, Requeue):
            assert self.advance_all(store) == []
            held = store.claim_one()
            assert held.id == first
            store.succeed(held)
        assert self.advance_all(store) == [second]
        assert store.claim_one().id == second

    def test_message_that_is_dead_from_the_start_holds_too(self, store: Store) -> None:
        """Its backlog begins with a dead job."""
        dead = self.backlog_message(store, 0, opens=True, holds=True, to=State.DEAD, reason=Reason.EXHAUSTED)
        behind = self.backlog_message(store, 1, opens=True, holds=True)
        self.hand_in(store, dead, behind)
        assert (self.advance_all(store), store.state(behind.job.id)) == ([], State.WAITING)
        assert store.do(Discard(), dead.job.id) is OperationVerdict.DONE
        assert self.advance_all(store) == [behind.job.id]

    @pytest.mark.parametrize("verb", [Cancel(), Delete(), DeadLetter()])
    def test_waiting_job_that_ends_before_its_turn_is_passed(self, store: Store, verb: Any) -> None:
        """An operator may cancel or delete any of them; the others go on."""
        first, second, third = self.opened_backlog(store, 3)
        assert store.do(verb, second) is OperationVerdict.DONE
        self.end_job(store, first, "succeeds")
        assert self.advance_all(store) == [third]

    def test_keys_go_on_independently(self, store: Store) -> None:
        """A job that fails holds up no other key."""
        slow, _ = self.opened_backlog(store, 2, "log:a")
        quick, behind = self.opened_backlog(store, 2, "log:b")
        for held in store.claim():
            if held.id == quick:
                store.succeed(held)
        assert self.advance_all(store) == [behind]
        assert store.state(slow) is State.RUNNING
        assert self.backlog_keys(store) == ["log:a", "log:b"]

    def test_rounds_look_at_every_backlog(self, store: Store) -> None:
        """Each round at some, and the next one goes on from there."""
        second = []
        for key in ("log:a", "log:b", "log:c"):
            first, following = self.opened_backlog(store, 2, key)
            assert store.do(Delete(), first) is OperationVerdict.DONE
            second.append(following)
        released, cursor = [], None
        for _ in range(5):
            advanced = store.run(self.log_verbs(store).advance(2, cursor, now=store.now))
            released.append(advanced.released)
            cursor = advanced.cursor
            if cursor is None:
                break
        assert released[:2] == [second[:2], second[2:]]

    def test_job_knows_the_one_before_it(self, store: Store) -> None:
        """The first one has none before it, nor has a job without a backlog."""
        first, second, third = self.opened_backlog(store, 3)
        before = self.log_verbs(store).before_in_backlog
        assert [store.run(before(each)) for each in (first, second, third)] == [None, first, second]
        assert store.run(before(store.enqueue())) is None

    def test_only_the_latest_owner_hands_over(self, store: Store) -> None:
        """Each assignment of a partition raises its epoch; with an older one nothing is stored."""
        verbs = self.log_verbs(store)
        old = store.run(verbs.own("log:1"))
        other = store.run(verbs.own("log:2"))
        assert self.hand_in(store, self.backlog_message(store, 1, opens=True), owners=[old, other])
        new = store.run(verbs.own("log:1"))
        assert (new.partition, new.epoch > old.epoch) == ("log:1", True)
        refused = [self.backlog_message(store, 2), HandedOver(store.new(queue=QUEUE, idempotency_key="x"))]
        with pytest.raises(NotOwner) as raised:
            self.hand_in(store, *refused, owners=[old, other])
        assert raised.value.partitions == {"log:1"}
        assert [store.find(each.job.id) for each in refused] == [None, None]
        assert self.hand_in(store, refused[0], owners=[new, other]) == [HandOverAnswer.STORED]

    @pytest.mark.parametrize("seed", range(6))
    def test_no_verb_lets_a_job_overtake_or_leaves_a_backlog_stuck(self, store: Store, seed: int) -> None:
        """A simulation: whatever operators and workers do, at most one job of a key runs, in the order of the log."""
        simulation = _Simulation(self, store, random.Random(seed))
        for _ in range(60):
            simulation.step()
        simulation.drain()


class _Simulation:
    """Random verbs on the jobs of a few keys, compared with what the order allows."""

    def __init__(self, chapter: Backlogs, store: Store, chance: random.Random) -> None:
        self._chapter, self._store, self._chance = chapter, store, chance
        self._holds = chance.random() < 0.5
        self._next = 0
        self._jobs: dict[str, list[str]] = {"log:a": [], "log:b": []}  # by key, in the order of the log
        self._requeued: set[str] = set()  # an operator's decision: these run at once

    def step(self) -> None:
        key = self._chance.choice(list(self._jobs))
        self._chance.choice([self._append, self._append, self._run, self._run, self._operate, self._advance])(
            key
        )
        self.check()

    def check(self) -> None:
        for jobs in self._jobs.values():
            under_way = [
                each for each in jobs if self._state(each) in UNFINISHED and each not in self._requeued
            ]
            assert len(under_way) <= 1, "two jobs of one key at once"
            if under_way:
                before = jobs[: jobs.index(under_way[0])]
                assert all(self._state(each) is not State.WAITING for each in before), "a job was overtaken"

    def _state(self, job_id: str) -> State | None:
        found = self._store.find(job_id)
        return None if found is None else found.state

    def _append(self, key: str) -> None:
        message = self._chapter.backlog_message(self._store, self._next, key, opens=False, holds=self._holds)
        self._next += 1
        [answer] = self._chapter.hand_in(self._store, message)
        if answer is HandOverAnswer.NO_BACKLOG:
            failed = self._chapter.backlog_message(
                self._store, self._next, key, opens=True, holds=self._holds
            )
            self._next += 1
            message = failed
            assert self._chapter.hand_in(self._store, failed) == [HandOverAnswer.STORED]
        self._jobs[key].append(message.job.id)

    def _run(self, key: str) -> None:
        for held in self._store.claim():
            ending = self._chance.choice(["succeed", "fail", "bury"])
            if ending == "fail":
                self._store.fail(held, delay=0)
            else:
                (self._store.succeed if ending == "succeed" else self._store.bury)(held)

    def _operate(self, key: str) -> None:
        if not self._jobs[key]:
            return
        job_id = self._chance.choice(self._jobs[key])
        verbs: list[Operation] = [Cancel(), Delete(), Requeue(), Discard(), DeadLetter()]
        verb = self._chance.choice(verbs)
        if self._store.do(verb, job_id) is OperationVerdict.DONE and isinstance(verb, Requeue):
            self._requeued.add(job_id)

    def _advance(self, key: str) -> None:
        self._chapter.advance_all(self._store)

    def drain(self) -> None:
        """Work it all off: nothing waits in the end, and no backlog is left."""
        for _ in range(500):
            self.check()
            for held in self._store.claim():
                self._store.succeed(held)
            for jobs in self._jobs.values():
                for job_id in jobs if self._holds else ():
                    if self._state(job_id) is State.DEAD:
                        self._store.do(Discard(), job_id)
            if not self._chapter.advance_all(self._store) and not self._chapter.backlog_keys(self._store):
                break
        assert self._chapter.backlog_keys(self._store) == []
        states = {self._state(each) for jobs in self._jobs.values() for each in jobs}
        assert not states & {State.WAITING, State.READY, State.RUNNING}
