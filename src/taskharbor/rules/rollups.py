"""Roll-ups: which periods are kept, and how rows add up. Every store folds by these functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.contract.rollups import Figures, Period, Rollup

MINUTE = 60 * MICROS_PER_SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LENGTHS = {Period.MINUTE: MINUTE, Period.HOUR: HOUR}
MINUTES_KEPT = DAY
HOURS_KEPT = 30 * DAY
FOLD_AFTER = MINUTE + 15 * MICROS_PER_SECOND  # from a minute's begin: by then its rows have usually arrived
PAIRS_MAX = 200  # of a queue and a task, in one period; further ones are kept as `OTHER`
OTHER = "_other"

COUNTS = ("enqueued", "started", "succeeded", "failed", "retried", "dead", "lost", "cancelled")


class Key(NamedTuple):
    """Names one row of the folded roll-ups."""

    period: Period
    at: int
    queue: str
    task: str


# -- periods ---------------------------------------------------------------------------------------


def begin_of(at: int, period: Period) -> int:
    """Return the begin of the minute or hour that this instant is in."""
    return at - at % LENGTHS[period]


def first_kept(period: Period, now: int) -> int:
    """Return the begin of the oldest period that is kept. Whole hours leave the minutes at once."""
    return begin_of(now - (MINUTES_KEPT if period is Period.MINUTE else HOURS_KEPT), Period.HOUR)


def place_of(at: int, now: int) -> tuple[Period, int] | None:
    """Return where a row of this minute is kept: in its minute, in its hour if it is late; None if it is too old."""
    for period in Period:
        if at >= first_kept(period, now):
            return period, begin_of(at, period)
    return None


# -- sums ------------------------------------------------------------------------------------------


def added(one: Figures, other: Figures) -> Figures:
    """Add up two rows of the same period."""
    return Figures(
        one.enqueued + other.enqueued,
        one.started + other.started,
        one.succeeded + other.succeeded,
        one.failed + other.failed,
        one.retried + other.retried,
        one.dead + other.dead,
        one.lost + other.lost,
        one.cancelled + other.cancelled,
        _added_times(one.wait, other.wait),
        _added_times(one.duration, other.duration),
    )


def _added_times(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    if not one or not other:
        return one or other
    return tuple([a + b for a, b in zip_longest(one, other, fillvalue=0)])


def added_up(rows: Iterable[Rollup], period: Period) -> list[Rollup]:
    """Add up the rows of each period, queue and task; in this order."""
    sums: dict[tuple[int, str, str], Figures] = {}
    for row in rows:
        key = (begin_of(row.at, period), row.queue, row.task)
        present = sums.get(key)
        sums[key] = row.figures if present is None else added(present, row.figures)
    return [Rollup(*key, figures) for key, figures in sorted(sums.items())]


def folded(rows: Sequence[Rollup], kept: Mapping[Key, Figures], now: int) -> dict[Key, Figures]:
    """Add rows to what is kept of their periods; return what changes. `kept` has all rows of `places_of(rows, now)`."""
    pairs = Counter((key.period, key.at) for key in kept if (key.queue, key.task) != (OTHER, OTHER))
    changed: dict[Key, Figures] = {}
    for row in rows:
        place = place_of(row.at, now)
        if place is None:
            continue
        key = Key(*place, row.queue, row.task)
        if key not in kept and key not in changed and (row.queue, row.task) != (OTHER, OTHER):
            if pairs[place] >= PAIRS_MAX:
                key = Key(*place, OTHER, OTHER)
            else:
                pairs[place] += 1
        present = changed.get(key) or kept.get(key)
        changed[key] = row.figures if present is None else added(present, row.figures)
    return changed


def places_of(rows: Iterable[Rollup], now: int) -> list[tuple[Period, int]]:
    """Return the periods that rows are folded into."""
    return sorted({place for row in rows if (place := place_of(row.at, now)) is not None})


# -- as text ---------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Figures).decode


def to_text(figures: Figures) -> str:
    """Encode figures for a store."""
    return _encode(figures).decode()


def from_text(text: str) -> Figures:
    """Decode figures; what something else has written into the table counts as nothing."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return Figures()
