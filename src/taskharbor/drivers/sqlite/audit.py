"""Who did what and when: the newest actions, and which one changed a job last."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.base import (
    Action,
    ActionFilter,
    ActionPage,
    ActionRecord,
    OperationResult,
    PauseRecord,
)
from taskharbor.drivers.contract import audit as contract
from taskharbor.drivers.contract.audit import OF_TOKENS
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.drivers.stored import Reading
from taskharbor.rules.audit import changed_jobs, is_change

AUDIT = statements("audit")


def record(session: Session, action: Action, count: int) -> None:
    """Keep the action, or add to what it has changed already. The caller's transaction is that of the change."""
    if session.execute(AUDIT["add_to_action"], (count, action.id)).rowcount:
        return
    row = (
        action.id, session.now, action.verb, action.actor, action.job_id, action.subject, action.filter,
        action.details, count,
    )  # fmt: skip
    number = session.execute(AUDIT["insert_action"], row).lastrowid
    if number is not None and number % contract.TRIM_EVERY == 0:
        session.execute(AUDIT["trim_actions"], (contract.ACTIONS_KEPT, contract.TRIMMED_AT_ONCE))


def record_operation(session: Session, action: Action, answers: Sequence[OperationResult]) -> None:
    count = sum(map(is_change, answers))
    if count:
        record(session, action, count)
        changed = [(action.id, job_id) for job_id in changed_jobs(answers)]
        session.executemany(AUDIT["mark_job"], changed)


def pause(session: Session, queue: str, paused: bool, action: Action | None) -> None:
    if paused:
        by = None if action is None else action.actor
        done = session.execute(AUDIT["pause"], (queue, by, session.now))
    else:
        done = session.execute(AUDIT["resume"], (queue,))
    if done.rowcount and action is not None:
        record(session, action, 0)


def page(session: Session, where: ActionFilter, cursor: str | None, limit: int) -> ActionPage:
    after = None if cursor is None else session.one(AUDIT["number_of_action"], (cursor,))
    if cursor is not None and after is None:
        return ActionPage([], None)  # one that is no longer kept is older than all that are
    latest = None if where.job_id is None else session.one(AUDIT["latest_action"], (where.job_id,))
    asked = {
        "below": None if after is None else after[0],
        "actor": where.actor,
        "verb": where.verb,
        "job": where.job_id,
        "latest": None if latest is None else latest[0],
        "after": where.after,
        "before": where.before,
        "hidden": None if where.tokens else f"{OF_TOKENS}*",
        "limit": max(limit, 0) + 1,
    }
    found = [_record(*row) for row in session.execute(AUDIT["list_actions"], asked)]
    return ActionPage(found[:limit], found[limit - 1].id if 0 < limit < len(found) else None)


def get(session: Session, ids: Sequence[str]) -> list[ActionRecord | None]:
    rows = [session.one(AUDIT["get_action"], (action_id,)) for action_id in ids]
    return [None if row is None else _record(*row) for row in rows]


def pauses(session: Session) -> list[PauseRecord]:
    found = []
    for queue, by, since in session.execute(AUDIT["pauses"]):
        read = Reading()
        found.append(
            PauseRecord(read.text("queue", queue), read.optional_text("by", by), read.instant("since", since))
        )
    return found


def _record(
    action_id: object, at: object, verb: object, actor: object, job_id: object, subject: object, where: object,
    details: object, count: object,
) -> ActionRecord:  # fmt: skip
    read = Reading()
    return ActionRecord(
        read.text("id", action_id),
        read.instant("at", at),
        read.text("verb", verb),
        read.optional_text("actor", actor),
        read.optional_text("job_id", job_id),
        read.optional_text("subject", subject),
        read.optional_text("filter", where),
        read.optional_text("details", details),
        read.integer("count", count),
    )
