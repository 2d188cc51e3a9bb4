"""A timeline: rows of bars on one time axis. Positions are percentages, so that it fits every width."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from taskharbor.server.drawing.svg import Svg, element, picture, shortened

ROWS_MAX = 200
BARS_MAX = 1_000  # in all rows together
LABEL_MAX = 60

_AXIS_HEIGHT = 24
_ROW_HEIGHT = 36
_BAR_HEIGHT = 14
_TICKS = 5
_NARROWEST = 0.4  # per cent: a bar of a millisecond in an hour is still visible

# The distances between ticks, in seconds; the first that gives at most `_TICKS` of them is taken.
_STEPS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800,
    3_600, 7_200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000,
)  # fmt: skip


class Bar(Struct, frozen=True):
    """A span of time: waiting, an attempt, a backoff, a step."""

    kind: str  # a class of the style sheet, such as "failed"
    begin: datetime
    end: datetime | None  # None: it goes on
    title: str
    href: str | None = None


class Mark(Struct, frozen=True):
    """A moment: an operator's action."""

    kind: str
    at: datetime
    title: str


class Row(Struct, frozen=True):
    label: str
    bars: Sequence[Bar] = ()
    marks: Sequence[Mark] = ()


class _Axis:
    """Turns a time into a place from left to right, in per cent."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin = begin
        self.seconds = max(0.001, (end - begin).total_seconds())

    def place(self, at: datetime) -> float:
        return min(100.0, max(0.0, 100 * (at - self.begin).total_seconds() / self.seconds))

    def ticks(self) -> list[datetime]:
        step = next((step for step in _STEPS if self.seconds / step <= _TICKS), self.seconds / _TICKS)
        first = -(-self.begin.timestamp() // step) * step
        count = int((self.begin.timestamp() + self.seconds - first) / step) + 1
        return [datetime.fromtimestamp(first + n * step, UTC) for n in range(max(0, count))]

    def words(self, at: datetime) -> str:
        """Write a tick: the date only where the axis is longer than a day, fractions only where it is short."""
        if self.seconds > 2 * 86_400:
            return at.strftime("%d %b %H:%M") if self.seconds < 20 * 86_400 else at.strftime("%d %b %Y")
        if self.seconds >= 300:
            return at.strftime("%H:%M")
        return at.strftime("%H:%M:%S") + ("" if self.seconds >= 5 else f".{at.microsecond // 1000:03}")


def timeline(rows: Sequence[Row], now: datetime, label: str) -> Svg:
    """Draw rows of bars and marks, from the first begin to the last end. Times are UTC."""
    shown = _bounded(rows)
    times = [bar.begin for row in shown for bar in row.bars]
    times += [bar.end or now for row in shown for bar in row.bars]
    times += [mark.at for row in shown for mark in row.marks]
    axis = _Axis(min(times, default=now - timedelta(seconds=1)), max(times, default=now))
    height = _AXIS_HEIGHT + _ROW_HEIGHT * len(shown)
    drawn = [*_drawn_axis(axis, height)]
    for index, row in enumerate(shown):
        drawn += _drawn_row(axis, row, _AXIS_HEIGHT + index * _ROW_HEIGHT, now)
    return picture(label, *drawn, class_="timeline", width="100%", height=height)


def _bounded(rows: Sequence[Row]) -> list[Row]:
    """Keep the newest bars and rows: a job that failed 10,000 times is a picture of its last ones."""
    left, shown = BARS_MAX, []
    for row in rows[:ROWS_MAX]:
        bars, marks = (row.bars[-left:], row.marks[-left:]) if left else ((), ())
        left = max(0, left - len(bars) - len(marks))
        shown.append(Row(row.label, bars, marks))
    return shown


def _drawn_axis(axis: _Axis, height: int) -> list[Svg]:
    drawn = []
    for at in axis.ticks():
        place = axis.place(at)
        x = f"{place:.2f}%"
        anchor = "start" if place < 8 else "end" if place > 92 else "middle"
        drawn.append(element("line", x1=x, x2=x, y1=_AXIS_HEIGHT - 6, y2=height, class_="tick"))
        drawn.append(element("text", axis.words(at), x=x, y=12, text_anchor=anchor, class_="tick-label"))
    return drawn


def _drawn_row(axis: _Axis, row: Row, top: int, now: datetime) -> list[Svg]:
    drawn = [element("text", shortened(row.label, LABEL_MAX), x=0, y=top + 12, class_="row-label")]
    y = top + _ROW_HEIGHT - _BAR_HEIGHT - 4
    for bar in row.bars:
        begin, end = axis.place(bar.begin), axis.place(bar.end or now)
        width = max(_NARROWEST, end - begin)
        shape = element(
            "rect",
            element("title", bar.title),
            x=f"{min(begin, 100 - width):.2f}%",
            y=y,
            width=f"{width:.2f}%",
            height=_BAR_HEIGHT,
            rx=2,
            class_=f"period {bar.kind}" + (" open" if bar.end is None else ""),
        )
        drawn.append(shape if bar.href is None else element("a", shape, href=bar.href, aria_label=bar.title))
    drawn += [
        element(
            "circle",
            element("title", mark.title),
            cx=f"{axis.place(mark.at):.2f}%",
            cy=y + _BAR_HEIGHT // 2,
            r=5,
            class_=f"mark {mark.kind}",
        )
        for mark in row.marks
    ]
    return drawn
