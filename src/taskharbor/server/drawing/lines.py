"""Small pictures for a cell of a table: a line of values, a strip of outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from taskharbor.server.drawing.svg import Svg, element, picture

WIDTH = 120
HEIGHT = 28
_EDGE = 2  # so that the line's own width is not cut off

RUNS_MAX = 50
_RUN_WIDTH = 6
_RUN_GAP = 2


def sparkline(values: Sequence[float | None], label: str) -> Svg:
    """Draw values as a line from left to right, the largest at the top. None leaves a gap."""
    top = max((value for value in values if value is not None), default=0.0)
    scale = (HEIGHT - 2 * _EDGE) / top if top > 0 else 0.0
    step = WIDTH / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{index * step:.1f},{HEIGHT - _EDGE - max(0.0, value) * scale:.1f}")
    drawn = [
        element("polyline", points=" ".join(points if len(points) > 1 else points * 2), class_="line")
        for points in lines
        if points
    ]
    return picture(
        label, *drawn, class_="sparkline", viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT
    )


class Run(Struct, frozen=True):
    """One run of a schedule, or one attempt: how it ended, and the words for it."""

    outcome: str  # a class of the style sheet, such as "succeeded"
    title: str
    href: str | None = None


def strip(runs: Sequence[Run], label: str) -> Svg:
    """Draw the newest runs from left to right, the oldest first. A failure is a lower bar, not only another colour."""
    shown = runs[-RUNS_MAX:]
    bars = []
    for index, run in enumerate(shown):
        top = 0 if run.outcome == "succeeded" else HEIGHT // 2
        bar = element(
            "rect",
            element("title", run.title),
            x=index * (_RUN_WIDTH + _RUN_GAP),
            y=top,
            width=_RUN_WIDTH,
            height=HEIGHT - top,
            rx=1,
            class_=f"run {run.outcome}",
        )
        bars.append(bar if run.href is None else element("a", bar, href=run.href, aria_label=run.title))
    width = max(1, len(shown) * (_RUN_WIDTH + _RUN_GAP))
    return picture(label, *bars, class_="strip", viewBox=f"0 0 {width} {HEIGHT}", width=width, height=HEIGHT)
