"""Who did what and when: the newest actions, and which one changed a job last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import asdict, replace

from taskharbor.drivers.base import OperationResult, PauseRecord
from taskharbor.drivers.contract import audit as contract
from taskharbor.drivers.contract.audit import OF_TOKENS, Action, ActionFilter, ActionPage, ActionRecord
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.drivers.memory.store import Store
from taskharbor.rules.audit import changed_jobs, is_change


def record(store: Store, action: Action, count: int, now: int) -> None:
    """Keep the action, or add to what it has changed already."""
    kept = store.actions.get(action.id)
    if kept is not None:
        store.actions[action.id] = replace(kept, count=kept.count + count)
        return
    store.actions[action.id] = ActionRecord(**asdict(action), at=now, count=count)
    if len(store.actions) > contract.ACTIONS_KEPT + contract.TRIM_EVERY:
        doomed = list(islice(store.actions, len(store.actions) - contract.ACTIONS_KEPT))
        for action_id in doomed[: contract.TRIMMED_AT_ONCE]:
            del store.actions[action_id]


def record_operation(store: Store, action: Action, answers: Sequence[OperationResult], now: int) -> None:
    count = sum(map(is_change, answers))
    if not count:
        return
    record(store, action, count, now)
    for job_id in changed_jobs(answers):
        if (job := store.jobs.get(job_id)) is not None:
            job.row = replace(job.row, action_id=action.id)


def page(store: Store, where: ActionFilter, cursor: str | None, limit: int) -> ActionPage:
    latest_first = reversed(store.actions.values())
    if cursor is not None:  # one that is no longer kept is older than all that are
        while (seen := next(latest_first, None)) is not None and seen.id != cursor:
            pass
    job = None if where.job_id is None else store.jobs.get(where.job_id)
    latest = None if job is None else job.row.action_id
    matching = (each for each in latest_first if _matches(each, where, latest))
    found = list(islice(matching, limit))
    more = len(found) == limit > 0 and next(matching, None) is not None
    return ActionPage(found, found[-1].id if more else None)


def _matches(action: ActionRecord, where: ActionFilter, latest: str | None) -> bool:
    return (
        where.actor in (None, action.actor)
        and where.verb in (None, action.verb)
        and (where.job_id in (None, action.job_id) or action.id == latest)
        and (where.after is None or action.at >= where.after)
        and (where.before is None or action.at < where.before)
        and (where.tokens or not action.verb.startswith(OF_TOKENS))
    )


def pause(store: Store, queue: str, paused: bool, action: Action | None, now: int) -> None:
    if paused is (queue in store.paused):
        return
    if paused:
        store.paused[queue] = PauseRecord(queue, None if action is None else action.actor, now)
    else:
        del store.paused[queue]
    if action is not None:
        record(store, action, 0, now)


def hold(store: Store, kind: HoldKind, name: str, action: Action | None, now: int) -> bool:
    if (kind, name) in store.holds:
        return False
    store.holds[kind, name] = HoldRecord(kind, name, now, None if action is None else action.actor)
    if action is not None:
        record(store, action, 0, now)
    return True


def release(store: Store, kind: HoldKind, name: str, action: Action | None, now: int) -> bool:
    if store.holds.pop((kind, name), None) is None:
        return False
    if action is not None:
        record(store, action, 0, now)
    return True
