"""Roll-ups: appended rows, folded ones, and their sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import asyncpg

from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.drivers.postgres.connections import Session
from taskharbor.rules import rollups as rules


async def append(session: Session, rows: Sequence[Rollup]) -> None:
    texts = [rules.to_text(row.figures) for row in rows]
    columns = ([row.at for row in rows], [row.queue for row in rows], [row.task for row in rows], texts)
    await session.do("append_rollups", *columns)


async def fold(session: Session, limit: int) -> int:
    if not await session.value("lock_rollups"):
        return 0
    now = await session.now()
    rows = _rollups(await session.rows("take_appended_rollups", now - rules.FOLD_AFTER, limit))
    rows += await _take_old(session, Period.MINUTE, limit - len(rows), now)
    if rows:
        await _add(session, rows, now)
    return len(rows) + len(await _take_old(session, Period.HOUR, limit - len(rows), now))


async def _add(session: Session, rows: Sequence[Rollup], now: int) -> None:
    places = rules.places_of(rows, now)
    found = await session.rows(
        "rollups_of_periods", [period for period, _ in places], [at for _, at in places]
    )
    kept = {
        rules.Key(Period(period), at, queue, task): rules.from_text(text)
        for period, at, queue, task, text in found
    }
    changed = rules.folded(rows, kept, now)
    columns = [[key[field] for key in changed] for field in range(len(rules.Key._fields))]
    await session.do("put_rollups", *columns, [rules.to_text(figures) for figures in changed.values()])


async def _take_old(session: Session, period: Period, limit: int, now: int) -> list[Rollup]:
    """Take out the periods that are no longer kept as such."""
    return _rollups(await session.rows("take_old_rollups", period, rules.first_kept(period, now), limit))


async def read(
    session: Session, begin: int, end: int, period: Period, queue: str | None, task: str | None
) -> list[Rollup]:
    return rules.added_up(
        _rollups(await session.rows("read_rollups", begin, end, queue, task, period)), period
    )


def _rollups(rows: Iterable[asyncpg.Record]) -> list[Rollup]:
    return [Rollup(at, queue, task, rules.from_text(text)) for at, queue, task, text in rows]
