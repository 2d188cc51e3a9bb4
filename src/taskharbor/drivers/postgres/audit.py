"""Who did what and when: the newest actions, and which one changed a job last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import asyncpg

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
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.postgres.places import is_id
from taskharbor.rules.audit import changed_jobs, is_change


async def record(session: Session, action: Action, count: int = 0, jobs: Sequence[str] = ()) -> None:
    """Keep the action, or add to what it has changed already. The caller's transaction is that of the change."""
    await session.do(
        "record_action", action.id, session.given_now, action.verb, action.actor, action.job_id, action.subject,
        action.filter, action.details, count, list(jobs), contract.ACTIONS_KEPT, contract.TRIM_EVERY,
        contract.TRIMMED_AT_ONCE,
    )  # fmt: skip


async def record_operation(session: Session, action: Action, answers: Iterable[OperationResult]) -> None:
    answers = list(answers)
    count = sum(map(is_change, answers))
    if count:
        await record(session, action, count, changed_jobs(answers))


async def pause(session: Session, queue: str, paused: bool, action: Action | None) -> None:
    if paused:
        by = None if action is None else action.actor
        changed = await session.value("pause", queue, by, session.given_now)
    else:
        changed = await session.value("resume", queue)
    if changed and action is not None:
        await record(session, action)


async def put_records(
    session: Session, kind: RecordKind, about: Mapping[str, str], lasts: int | None, action: Action | None
) -> None:
    await session.do(f"put_{kind}", list(about), list(about.values()), lasts, session.given_now)
    if action is not None:
        await record(session, action)


async def drop_records(session: Session, kind: RecordKind, keys: Sequence[str], action: Action | None) -> int:
    dropped: int = await session.value(f"drop_{kind}", list(keys))
    if action is not None and dropped:
        await record(session, action)
    return dropped


async def page(session: Session, where: ActionFilter, cursor: str | None, limit: int) -> ActionPage:
    if cursor is not None and not is_id(cursor):
        return ActionPage([], None)
    job_id = where.job_id if where.job_id is not None and is_id(where.job_id) else None
    rows = await session.rows(
        "list_actions",
        cursor,
        where.actor,
        where.verb,
        where.job_id,
        job_id,
        where.after,
        where.before,
        None if where.tokens else OF_TOKENS,
        max(limit, 0) + 1,
    )
    found = [_record(row) for row in rows]
    return ActionPage(found[:limit], found[limit - 1].id if 0 < limit < len(found) else None)


async def get(session: Session, ids: Sequence[str]) -> list[ActionRecord | None]:
    rows = await session.rows("get_actions", [each for each in ids if is_id(each)])
    found = {row["id"]: _record(row) for row in rows}
    return [found.get(action_id) for action_id in ids]


async def pauses(session: Session) -> list[PauseRecord]:
    return [PauseRecord(*row) for row in await session.rows("pauses")]


def _record(row: asyncpg.Record) -> ActionRecord:
    return ActionRecord(*row)
