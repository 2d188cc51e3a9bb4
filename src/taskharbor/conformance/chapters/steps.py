"""Durable steps, progress and children: what an attempt leaves behind while it runs, and with its success."""

from __future__ import annotations

import pytest

from taskharbor.conformance.chapters.hostile import HOSTILE, label
from taskharbor.conformance.store import HOUR, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import Note, ProgressNote, SettleAnswer, StepNote
from taskharbor.records import Delivery, Options, Progress, State


class Steps(Chapter):
    needs = capabilities.Steps

    # -- steps --

    def test_step_is_stored_once(self, store: Store) -> None:
        """The first result under a name stays; storing another answers done and changes nothing."""
        held = store.running()
        assert store.step(held, "charge", '"first"') is SettleAnswer.DONE
        assert store.step(held, "charge", '"second"') is SettleAnswer.DONE
        assert store.steps(held.id) == {"charge": '"first"'}

    def test_steps_are_remembered_by_the_next_attempt(self, store: Store) -> None:
        """Retry, hand-back, sleep and loss keep the steps of the run."""
        store.step(held := store.running(), "a", "1")
        store.fail(held)
        store.step(held := store.claim_one(), "b", "2")
        store.hand_back(held)
        store.step(held := store.claim_one(), "a", "9")
        store.sleep(held, delay=0)
        store.lose(store.claim_one())
        assert store.steps(held.id) == {"a": "1", "b": "2"}

    def test_steps_of_a_job_are_its_own(self, store: Store) -> None:
        """The same name in another job is another step; a job without steps has none."""
        first, second = store.running(), store.running()
        store.step(first, "a", "1")
        assert store.step(second, "a", "2") is SettleAnswer.DONE
        assert (store.steps(first.id), store.steps(second.id)) == ({"a": "1"}, {"a": "2"})
        assert store.steps(store.enqueue()) == {}

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_step_name_and_result_is_kept(self, store: Store, text: str) -> None:
        """Names and results of steps are data."""
        held = store.running()
        store.step(held, text, text)
        assert store.steps(held.id) == {text: text}

    def test_steps_stay_with_a_finished_job(self, store: Store) -> None:
        """Steps belong to the job for as long as it is kept."""
        held = store.running()
        store.step(held, "a", "1")
        store.succeed(held)
        assert store.steps(held.id) == {"a": "1"}

    # -- progress --

    def test_progress_is_the_latest_report(self, store: Store) -> None:
        """Each report replaces the one before it, exactly as it was given."""
        held = store.running()
        assert store.job(held.id).progress is None
        store.report(held, 0.1, "begun")
        assert store.report(held, 1 / 3, "a third") is SettleAnswer.DONE
        assert store.job(held.id).progress == Progress(1 / 3, "a third")

    def test_progress_keeps_its_value_until_the_next_report(self, store: Store) -> None:
        """A report may have a JSON value; one without a value takes the earlier one away."""
        held = store.running()
        store.report(held, 0.1, "begun", '{"rows":["é",1]}')
        assert store.job(held.id).progress == Progress(0.1, "begun", '{"rows":["é",1]}')
        store.report(held, 0.2, "on")
        assert store.job(held.id).progress == Progress(0.2, "on")

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_progress_message_is_kept(self, store: Store, text: str) -> None:
        """A message is data."""
        held = store.running()
        store.report(held, 0.5, text)
        assert store.job(held.id).progress == Progress(0.5, text)

    def test_progress_stays_through_a_retry_and_with_the_finished_job(self, store: Store) -> None:
        """How far a job had come is still to be seen afterwards."""
        held = store.running()
        store.report(held, 0.5, "half")
        store.fail(held)
        assert store.job(held.id).progress == Progress(0.5, "half")
        store.bury(store.claim_one())
        assert store.job(held.id).progress == Progress(0.5, "half")

    def test_notes_are_answered_one_by_one(self, store: Store) -> None:
        """A batch of notes holds progress and steps of many jobs; each is answered for itself."""
        first, second = store.running(), store.running()
        notes: list[Note] = [
            StepNote(first.token, first.id, 1, "a", "1"),
            ProgressNote("stranger/1", second.id, 1, Progress(0.9)),
            ProgressNote(second.token, second.id, 1, Progress(0.2)),
            StepNote(first.token, first.id, 1, "a", "2"),
            StepNote(first.token, store.new_id(), 1, "a", "1"),
        ]
        answers = store.run(store.stepping.note(notes, now=store.now))
        assert answers == [
            SettleAnswer.DONE,
            SettleAnswer.LEASE_MISMATCH,
            SettleAnswer.DONE,
            SettleAnswer.DONE,
            SettleAnswer.NOT_RUNNING,
        ]
        assert (store.steps(first.id), store.job(second.id).progress) == ({"a": "1"}, Progress(0.2))

    def test_collector_holds_the_right_to_note(self, store: Store) -> None:
        """The holder of a lease may write under it, a collector too."""
        store.running()
        store.let_expire()
        held = store.collect_one()
        assert store.step(held, "a", "1") is SettleAnswer.DONE


class Children(Chapter):
    def test_children_exist_with_the_success_of_their_parent(self, store: Store) -> None:
        """Jobs that come with a transition are stored together with it."""
        held = store.running()
        child = store.new(
            task="child", payload='{"n":1}', queue="c", options=Options(tags=("x",)), meta='{"tenant":"acme"}'
        )
        assert store.succeed(held, inserts=(child,)).answer is SettleAnswer.DONE
        record = store.job(child.id)
        assert (record.task, record.payload, record.queue, record.meta) == (
            "child",
            '{"n":1}',
            "c",
            child.meta,
        )
        assert (record.state, record.enqueued_at, record.options.tags) == (State.READY, store.now, ("x",))

    def test_childs_delay_counts_from_the_settle(self, store: Store) -> None:
        """A child is enqueued when its parent's success is settled, and its delay begins then."""
        held, child = store.running(), store.new(delay=HOUR)
        store.pass_time(SECOND)
        store.succeed(held, inserts=(child,))
        assert (store.state(child.id), store.job(child.id).run_at) == (State.SCHEDULED, store.now + HOUR)

    def test_refused_settle_stores_no_children(self, store: Store) -> None:
        """Stale, mismatched or expired: what comes with a refused transition does not exist."""
        held, child = store.running(), store.new(idempotency_key="k")
        store.succeed(held, number=7, inserts=(child,))
        store.succeed(held, token="stranger/1", inserts=(child,))
        store.let_expire()
        store.succeed(held, inserts=(child,))
        assert store.find(child.id) is None
        assert store.enqueue(idempotency_key="k") != child.id

    def test_repeated_settle_stores_its_children_once(self, store: Store) -> None:
        """Repeating a settle does not repeat its children."""
        held = store.running()
        store.succeed(held, inserts=(store.new(),))
        store.succeed(held, inserts=(store.new(),))
        assert store.counts()[State.READY] == 1

    def test_child_whose_key_exists_is_that_job(self, store: Store) -> None:
        """A key that is taken hinders neither the settle nor the other children."""
        existing = store.enqueue(idempotency_key="k", delay=HOUR)
        held = store.running()
        taken, free = store.new(idempotency_key="k"), store.new()
        assert store.succeed(held, inserts=(taken, free)).answer is SettleAnswer.DONE
        assert (store.find(taken.id), store.state(free.id)) == (None, State.READY)
        assert store.state(existing) is State.SCHEDULED

    def test_any_ending_may_insert(self, store: Store) -> None:
        """A store does not ask why a transition inserts jobs: it stores them with every kind of ending."""
        buried, failed = store.running(), store.running()
        copy, other = store.new(), store.new(delivery=Delivery.AT_MOST_ONCE)
        store.bury(buried, inserts=(copy,))
        store.fail(failed, inserts=(other,), delay=HOUR)
        assert store.claimed_ids() == [copy.id, other.id]

    def test_children_may_wait_for_each_other(self, store: Store) -> None:
        """Children that depend on each other, or on another job, wait as any job does."""
        held, other = store.running(), store.running()
        first = store.new()
        second = store.new(depends_on=(first.id, other.id))
        store.succeed(held, inserts=(second, first))
        assert (store.state(first.id), store.state(second.id)) == (State.READY, State.WAITING)
        store.succeed(store.claim_one())
        assert store.succeed(other).released == (second.id,)
