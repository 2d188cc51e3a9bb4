"""`/`: how the whole system does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from starlette.responses import Response

from taskharbor.client.stats import SINCE
from taskharbor.clock import from_micros
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Period
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.view import View
from taskharbor.server.routes import dlq, stats
from taskharbor.views.rates import backlog_of, rates_of, serving
from taskharbor.views.rollup_documents import PointDocument, Series
from taskharbor.views.workers import Stats, stats_of

pages = Pages()

DEPTHS_SECONDS = 5.0  # how old a shown depth may be
DEPTHS_WAIT = 0.05  # seconds that a page waits for them: counting a million ready jobs takes longer
SERIES_SECONDS = 10.0  # workers write what they counted every ten seconds
GROUPS_SECONDS = 10.0
GROUPS_SHOWN = 5
ROWS_SHOWN = 60  # of a chart's numbers
STATS_QUERIES = 7


class Window(NamedTuple):
    """A time that the overview looks back."""

    label: str
    length: timedelta
    step: Literal["minute", "hour"]


WINDOWS = {
    "1h": Window("1 hour", timedelta(hours=1), "minute"),
    "24h": Window("24 hours", timedelta(days=1), "hour"),
    "7d": Window("7 days", timedelta(days=7), "hour"),
}


class WindowQuery(Struct, forbid_unknown_fields=True):
    """How far to look back."""

    window: Literal["1h", "24h", "7d"] = "1h"


@pages.page("/", query=WindowQuery, nav=Nav("Overview", key="o", order=10))
async def show_overview(view: View) -> Response:
    """Show counts, rates, times, the backlog, the workers and the newest causes of death."""
    window = WINDOWS[view.query.window]
    found = await read_stats(view)
    series = await read_series(view, window)
    recent = series if window.step == "minute" else await read_series(view, WINDOWS["1h"])
    groups = await view.ask(dlq.list_error_groups, query={"limit": 100}, seconds=GROUPS_SECONDS)
    newest = sorted(groups.items, key=lambda group: group.last_seen, reverse=True)
    return view.render(
        "overview.html",
        windows=WINDOWS,
        chosen=view.query.window,
        now=None if found is None else _now(found, [] if recent is None else recent.items),
        series=series,
        rates=None if series is None else rates_of(series.total),
        groups=newest[:GROUPS_SHOWN],
        charts=None if series is None else charts_of(series.items),
        depths_seconds=DEPTHS_SECONDS,
    )


def _now(found: Stats, recent: Sequence[PointDocument]) -> dict[str, Any]:
    """Return what stands where, as the page shows it."""
    served = [queue for queue in found.queues if serving(found.workers, queue.name)]
    return {
        "counts": found.counts,
        "workers": [worker for worker in found.workers if not worker.expired],
        "backlog": backlog_of(served, recent),
        "unserved": [
            queue for queue in found.queues if queue.ready and queue not in served and not queue.paused
        ],
        "paused": [queue for queue in found.queues if queue.paused],
    }


async def read_stats(view: View) -> Stats | None:
    """Return counts, queues and workers as they were a few seconds ago at most; None while they are counted."""
    found: Stats | None = await view.share(
        "stats",
        DEPTHS_SECONDS,
        lambda: stats_of(view.harbor, running_max=0),
        queries=STATS_QUERIES,
        wait=DEPTHS_WAIT,
    )
    return found


async def read_series(view: View, window: Window, queue: str | None = None) -> Series | None:
    """Return what workers counted in this window; None if the store keeps no roll-ups."""
    if Rollups.offered_by(view.harbor.driver) is None:
        return None

    async def read() -> Series:
        query: dict[str, Any] = {"step": window.step, "queue": queue}
        if window.length != timedelta(microseconds=SINCE[Period(window.step)]):
            begin = from_micros(await view.harbor.driver.now()) - window.length
            query["since"] = begin.isoformat()
        series: Series = await view.ask(stats.get_series, query=query, seconds=0)
        return series

    found: Series = await view.share(f"series {window.label} {queue}", SERIES_SECONDS, read)
    return found


class Chart(Struct, frozen=True):
    """Lines over time, as the page's script draws them and as the table beside them lists them."""

    times: list[int]
    lines: dict[str, list[float | None]]

    def rows(self) -> list[tuple[datetime, list[float | None]]]:
        """Return the newest points, as the table lists them."""
        newest = range(len(self.times) - 1, max(-1, len(self.times) - 1 - ROWS_SHOWN), -1)
        return [
            (datetime.fromtimestamp(self.times[at], UTC), [line[at] for line in self.lines.values()])
            for at in newest
        ]


def charts_of(points: Sequence[PointDocument]) -> dict[str, Chart]:
    """Return the charts of a series: what ended by outcome, and how long jobs waited and ran."""
    times = [int(point.at.timestamp()) for point in points]
    return {
        "outcomes": Chart(
            times,
            {
                name: [getattr(point, name) / point.seconds * 60 for point in points]
                for name in ("succeeded", "failed", "dead")
            },
        ),
        **{
            kind: Chart(
                times,
                {
                    name: [getattr(getattr(point, kind), name) for point in points]
                    for name in ("p50", "p95", "p99")
                },
            )
            for kind in ("wait", "duration")
        },
    }
