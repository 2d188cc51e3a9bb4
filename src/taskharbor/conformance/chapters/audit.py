"""The audit: who did what and when, kept with the change itself."""

from __future__ import annotations

import pytest

from taskharbor.conformance.chapters.hostile import HOSTILE, label
from taskharbor.conformance.store import DAY, HOUR, MINUTE, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.base import (
    Action,
    ActionFilter,
    ActionRecord,
    Cancel,
    Delete,
    Operation,
    OperationVerdict,
    PauseRecord,
    Requeue,
    Update,
    Verb,
)
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.records import State

A = '{"of":"a"}'


class Audit(Chapter):
    needs = capabilities.Audit

    # -- recording --

    def test_action_is_recorded_with_every_field(self, store: Store) -> None:
        """All that it was given with comes back, with the store's time and how many jobs it changed."""
        first, second = store.enqueue(), store.enqueue()
        action = Action(
            store.new_id(), Verb.CANCEL, "ana", first, "subject", '{"queue":"a"}', '{"force":true}'
        )
        act(store, Cancel(), [first, second], action)
        kept = ActionRecord(
            action.id, store.now, "job.cancel", "ana", first, "subject", '{"queue":"a"}', '{"force":true}', 2
        )
        assert actions(store) == [kept]
        assert store.run(audit(store).get_actions([action.id, store.new_id()])) == [kept, None]

    def test_changed_job_keeps_the_id_of_the_latest_action(self, store: Store) -> None:
        """A job names the latest action that changed it; one without any names none."""
        changed, other = store.enqueue(), store.enqueue()
        assert store.job(changed).action_id is None
        for operation in (Update(priority=1), Update(payload='{"n":2}'), Cancel(), Requeue()):
            action = act(store, operation, [changed])
            assert store.job(changed).action_id == action.id
            assert store.find(changed) in store.listed()
        assert store.job(other).action_id is None

    def test_running_job_keeps_the_action_that_asks_it_to_end(self, store: Store) -> None:
        """A request counts as a change, and the job names it also when it has ended."""
        held = store.running()
        action = act(store, Cancel(), [held.id])
        assert actions(store)[0].count == 1
        assert store.job(held.id).action_id == action.id
        store.succeed(held)
        assert store.job(held.id).action_id == action.id

    def test_dependant_that_ends_with_a_job_keeps_the_action(self, store: Store) -> None:
        """The dependants that a cancelled job takes with it name the same action, and are not counted."""
        store.need(capabilities.Workflows)
        first = store.enqueue()
        dependant = store.enqueue(depends_on=(first,), ends_with_members=True)
        action = act(store, Cancel(), [first])
        assert (store.state(dependant), store.job(dependant).action_id) == (State.CANCELLED, action.id)
        assert actions(store)[0].count == 1

    def test_parts_of_one_action_are_one_row(self, store: Store) -> None:
        """Calls with the same action add to its count; its time and place are those of the first."""
        jobs = [store.enqueue() for _ in range(5)]
        bulk = Action(store.new_id(), Verb.CANCEL, "ana", filter="{}")
        begun = store.now
        act(store, Cancel(), jobs[:2], bulk)
        store.pass_time(SECOND)
        other = act(store, Cancel(), jobs[2:3])
        act(store, Cancel(), jobs[3:], bulk)
        assert [(each.id, each.count, each.at) for each in actions(store)] == [
            (other.id, 1, store.now),
            (bulk.id, 4, begun),
        ]
        assert [store.job(job_id).action_id for job_id in jobs] == [bulk.id] * 2 + [other.id] + [bulk.id] * 2

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.DEAD])
    def test_refused_action_is_not_recorded(self, store: Store, state: State) -> None:
        """What was a conflict, unknown or overtaken left no change, and so leaves no action."""
        job_id = store.job_in(state)
        earlier = store.job(job_id)
        act(store, Cancel(), [job_id, store.new_id()])
        act(store, Cancel(), [])
        changed = store.enqueue()
        act(store, Update(priority=1, version=99), [changed])
        assert (actions(store), store.job(job_id), store.job(changed).action_id) == ([], earlier, None)

    def test_only_changed_jobs_are_counted(self, store: Store) -> None:
        """A conflict of one job neither counts nor keeps the others from counting."""
        ready, dead = store.enqueue(), store.job_in(State.DEAD)
        action = act(store, Cancel(), [ready, dead])
        assert [(each.id, each.count) for each in actions(store)] == [(action.id, 1)]
        assert store.job(dead).action_id is None

    def test_operation_without_an_action_is_not_recorded(self, store: Store) -> None:
        """A store records the actions that a caller gives, and nothing else."""
        job_id = store.enqueue()
        store.do(Cancel(), job_id)
        assert (actions(store), store.job(job_id).action_id) == ([], None)

    def test_deleting_a_job_keeps_the_action(self, store: Store) -> None:
        """The job is gone; who deleted it stays, also when a new job comes under its id."""
        job_id = store.enqueue()
        action = act(store, Delete(), [job_id], Action(store.new_id(), Verb.DELETE, "ana", job_id))
        assert [each.id for each in actions(store, job_id=job_id)] == [action.id]
        store.enqueue_all(store.new(id=job_id))
        assert store.job(job_id).action_id is None

    def test_action_is_named_through_later_attempts(self, store: Store) -> None:
        """What an operator did to a job is not forgotten when it is attempted again."""
        job_id = store.enqueue()
        action = act(store, Update(priority=5), [job_id])
        store.fail(store.claim_one())
        assert store.job(job_id).action_id == action.id
        store.succeed(store.claim_one())
        assert store.job(job_id).action_id == action.id

    @pytest.mark.parametrize("text", HOSTILE, ids=label)
    def test_any_action_comes_back_as_it_was_given(self, store: Store, text: str) -> None:
        """Names and texts are data."""
        job_id = store.enqueue()
        action = Action(store.new_id(), text, text, text, text, text, text)
        act(store, Cancel(), [job_id], action)
        [kept] = actions(store, actor=text, verb=text, job_id=text)
        assert (kept.verb, kept.actor, kept.job_id, kept.subject) == (text,) * 4
        assert (kept.filter, kept.details) == (text, text)

    # -- queues and records --

    def test_pause_says_who_and_since_when(self, store: Store) -> None:
        """The store keeps who paused a queue and when, until it is resumed."""
        since = store.now
        pause(store, "b", True, "ana")
        store.pass_time(MINUTE)
        store.run(store.driver.pause("a", True, now=store.now))
        assert pauses(store) == [PauseRecord("a", None, store.now), PauseRecord("b", "ana", since)]
        pause(store, "b", False, "ben")
        assert [each.queue for each in pauses(store)] == ["a"]

    def test_pause_is_recorded_only_if_it_changes_something(self, store: Store) -> None:
        """The first pause counts; pausing what is paused and resuming what is not changes nothing."""
        since = store.now
        pause(store, "a", False, "ana")
        first = pause(store, "a", True, "ana")
        store.pass_time(MINUTE)
        pause(store, "a", True, "ben")
        assert pauses(store) == [PauseRecord("a", "ana", since)]
        resumed = pause(store, "a", False, "ben")
        assert [(each.id, each.actor, each.count) for each in actions(store)] == [
            (resumed.id, "ben", 0),
            (first.id, "ana", 0),
        ]

    def test_change_of_records_is_recorded_with_it(self, store: Store) -> None:
        """Putting records is an action, dropping them too, unless there was none of them."""
        store.need(capabilities.Records)
        records = capabilities.Records.of(store.driver)
        put, missed, dropped = (
            Action(store.new_id(), verb, "ana", subject="a")
            for verb in (Verb.CREATE_TOKEN, Verb.REVOKE_TOKEN, Verb.REVOKE_TOKEN)
        )
        store.run(records.put_records(RecordKind.TOKENS, {"a": A}, None, now=store.now, action=put))
        store.run(records.drop_records(RecordKind.TOKENS, ["b"], now=store.now, action=missed))
        store.run(records.drop_records(RecordKind.TOKENS, ["a"], now=store.now, action=dropped))
        assert [each.id for each in actions(store)] == [dropped.id, put.id]
        assert actions(store, tokens=False) == []

    # -- reading --

    def test_actions_are_listed_latest_first_and_page_by_page(self, store: Store) -> None:
        """A cursor goes on where the page ended, whatever is added meanwhile."""
        made = [act(store, Cancel(), [store.enqueue()]).id for _ in range(5)][::-1]
        first = store.run(audit(store).actions(ActionFilter(), limit=2))
        act(store, Cancel(), [store.enqueue()])
        second = store.run(audit(store).actions(ActionFilter(), cursor=first.next_cursor, limit=2))
        third = store.run(audit(store).actions(ActionFilter(), cursor=second.next_cursor, limit=2))
        pages = [[each.id for each in page.actions] for page in (first, second, third)]
        assert pages == [made[:2], made[2:4], made[4:]]
        assert third.next_cursor is None
        unknown = store.run(audit(store).actions(ActionFilter(), cursor=store.new_id()))
        assert (unknown.actions, unknown.next_cursor) == ([], None)

    def test_actions_are_found_by_actor_verb_and_time(self, store: Store) -> None:
        """Each filter narrows the list, and all of them hold together; a time range has its begin and not its end."""
        job = store.enqueue(delay=DAY)
        by_ana = act(store, Update(priority=1), [job], Action(store.new_id(), Verb.UPDATE, "ana"))
        store.pass_time(HOUR)
        at = store.now
        by_ben = act(store, Cancel(), [job], Action(store.new_id(), Verb.CANCEL, "ben"))
        found = {
            "ana": ActionFilter(actor="ana"),
            "cancel": ActionFilter(verb=Verb.CANCEL),
            "after": ActionFilter(after=at),
            "before": ActionFilter(before=at),
            "both": ActionFilter(actor="ana", verb=Verb.CANCEL),
            "none": ActionFilter(actor="ANA"),
        }
        ids = {name: ids_of(store, where) for name, where in found.items()}
        assert ids == {
            "ana": [by_ana.id],
            "cancel": [by_ben.id],
            "after": [by_ben.id],
            "before": [by_ana.id],
            "both": [],
            "none": [],
        }

    def test_actions_of_a_job_are_its_own_and_the_latest_bulk_one(self, store: Store) -> None:
        """Those that name the job, and the one that changed it last, even if that names no job."""
        job, other = store.enqueue(delay=DAY), store.enqueue(delay=DAY)
        own = act(store, Update(priority=1), [job], Action(store.new_id(), Verb.UPDATE, job_id=job))
        act(store, Update(priority=1), [other], Action(store.new_id(), Verb.UPDATE, job_id=other))
        bulk = act(store, Cancel(), [job, other], Action(store.new_id(), Verb.CANCEL, filter="{}"))
        assert ids_of(store, ActionFilter(job_id=job)) == [bulk.id, own.id]
        assert ids_of(store, ActionFilter(job_id=store.new_id())) == []


# -- shorthands ------------------------------------------------------------------------------------


def audit(store: Store) -> capabilities.Audit:
    return capabilities.Audit.of(store.driver)


def act(store: Store, operation: Operation, ids: list[str], action: Action | None = None) -> Action:
    """Operate on these jobs as a new action, or as a part of this one."""
    action = action or Action(store.new_id(), Verb.UPDATE, "ana")
    answers = store.run(store.driver.operate(operation, ids, now=store.now, action=action))
    assert all(isinstance(answer.verdict, OperationVerdict) for answer in answers)
    return action


def pause(store: Store, queue: str, paused: bool, actor: str) -> Action:
    action = Action(store.new_id(), Verb.PAUSE_QUEUE if paused else Verb.RESUME_QUEUE, actor, subject=queue)
    store.run(store.driver.pause(queue, paused, now=store.now, action=action))
    return action


def actions(
    store: Store,
    actor: str | None = None,
    verb: str | None = None,
    job_id: str | None = None,
    tokens: bool = True,
) -> list[ActionRecord]:
    where = ActionFilter(actor, verb, job_id, tokens=tokens)
    return store.run(audit(store).actions(where, limit=100)).actions


def ids_of(store: Store, where: ActionFilter) -> list[str]:
    return [each.id for each in store.run(audit(store).actions(where)).actions]


def pauses(store: Store) -> list[PauseRecord]:
    return store.run(audit(store).pauses())
