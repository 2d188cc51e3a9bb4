"""Roll-ups: appended rows, folded ones, and their sums."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.drivers.sqlite.session import Session
from taskharbor.drivers.sqlite.sql import statements
from taskharbor.rules import rollups as rules

ROLLUPS = statements("rollups")


def append(session: Session, rows: Sequence[Rollup]) -> None:
    values = [(row.at, row.queue, row.task, rules.to_text(row.figures)) for row in rows]
    session.insert(ROLLUPS["append"], values)


def fold(session: Session, limit: int) -> int:
    now = session.now
    rows = _take_appended(session, limit)
    rows += _take_old(session, Period.MINUTE, limit - len(rows))
    kept = {
        rules.Key(period, at, queue, task): rules.from_text(text)
        for period, at in rules.places_of(rows, now)
        for queue, task, text in session.execute(ROLLUPS["of_period"], (period, at))
    }
    changed = rules.folded(rows, kept, now).items()
    session.insert(ROLLUPS["put"], [(*key, rules.to_text(figures)) for key, figures in changed])
    return len(rows) + len(_take_old(session, Period.HOUR, limit - len(rows)))


def _take_appended(session: Session, limit: int) -> list[Rollup]:
    found = session.execute(ROLLUPS["take_appended"], (session.now - rules.FOLD_AFTER, limit)).fetchall()
    session.executemany(ROLLUPS["delete_appended"], [(rowid,) for rowid, *_ in found])
    return [_rollup(*rest) for _, *rest in found]


def _take_old(session: Session, period: Period, limit: int) -> list[Rollup]:
    """Take out the periods that are no longer kept as such."""
    oldest = rules.first_kept(period, session.now)
    found = session.execute(ROLLUPS["old_periods"], (period, oldest, limit)).fetchall()
    session.executemany(ROLLUPS["delete_folded"], [(period, *key) for *key, _ in found])
    return [_rollup(*row) for row in found]


def read(
    session: Session, begin: int, end: int, period: Period, queue: str | None, task: str | None
) -> list[Rollup]:
    rows = session.execute(ROLLUPS["read"], (begin, end, queue, task, period))
    return rules.added_up((_rollup(*row) for row in rows), period)


def _rollup(at: int, queue: str, task: str, text: str) -> Rollup:
    return Rollup(at, queue, task, rules.from_text(text))
