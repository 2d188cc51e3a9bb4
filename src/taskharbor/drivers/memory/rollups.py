"""Roll-ups: appended rows, folded ones, and their sums."""

from __future__ import annotations

from heapq import nsmallest
from operator import attrgetter

from taskharbor.drivers.contract.rollups import Period, Rollup
from taskharbor.drivers.memory.store import Store
from taskharbor.rules import rollups as rules


def fold(store: Store, limit: int, now: int) -> int:
    rows = _take_appended(store, limit, now)
    rows += _take_old_minutes(store, limit - len(rows), now)
    store.folded_rollups |= rules.folded(rows, store.folded_rollups, now)
    oldest = rules.first_kept(Period.HOUR, now)
    doomed = sorted(key for key in store.folded_rollups if key.period is Period.HOUR and key.at < oldest)
    for key in doomed[: limit - len(rows)]:
        del store.folded_rollups[key]
    return min(limit, len(rows) + len(doomed))


def _take_appended(store: Store, limit: int, now: int) -> list[Rollup]:
    over = [row for row in store.appended_rollups if row.at <= now - rules.FOLD_AFTER]
    taken = nsmallest(limit, over, key=attrgetter("at"))
    ids = {id(row) for row in taken}
    store.appended_rollups = [row for row in store.appended_rollups if id(row) not in ids]
    return taken


def _take_old_minutes(store: Store, limit: int, now: int) -> list[Rollup]:
    oldest = rules.first_kept(Period.MINUTE, now)
    old = nsmallest(
        limit, (key for key in store.folded_rollups if key.period is Period.MINUTE and key.at < oldest)
    )
    return [Rollup(key.at, key.queue, key.task, store.folded_rollups.pop(key)) for key in old]


def read(
    store: Store, begin: int, end: int, period: Period, queue: str | None, task: str | None
) -> list[Rollup]:
    folded = (
        Rollup(key.at, key.queue, key.task, figures)
        for key, figures in store.folded_rollups.items()
        if key.period is period or period is Period.HOUR
    )
    rows = [
        row
        for row in (*store.appended_rollups, *folded)
        if begin <= row.at < end and queue in (None, row.queue) and task in (None, row.task)
    ]
    return rules.added_up(rows, period)
