"""Holds, which keep the jobs of a task or a tag aside."""

from __future__ import annotations

from taskharbor.drivers.contract.audit import Action
from taskharbor.drivers.contract.holds import HoldKind, HoldRecord
from taskharbor.drivers.postgres import audit
from taskharbor.drivers.postgres.connections import Session


async def hold(session: Session, kind: HoldKind, name: str, action: Action | None) -> bool:
    by = None if action is None else action.actor
    done = bool(await session.value("hold", kind, name, by, session.given_now))
    if done and action is not None:
        await audit.record(session, action)
    return done


async def release(session: Session, kind: HoldKind, name: str, action: Action | None) -> bool:
    done = bool(await session.value("release", kind, name))
    if done and action is not None:
        await audit.record(session, action)
    return done


async def holds(session: Session) -> list[HoldRecord]:
    rows = await session.rows("holds")
    return [HoldRecord(HoldKind(row["kind"]), row["name"], row["since"], row["held_by"]) for row in rows]


async def hold_labels(session: Session) -> frozenset[str]:
    return frozenset(row["label"] for row in await session.rows("hold_labels"))
