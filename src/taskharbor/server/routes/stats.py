"""`/stats`, and `/autoscale`, which follows from it"""

from __future__ import annotations

from taskharbor.drivers.contract.rollups import Period
from taskharbor.server import requests
from taskharbor.server.operation import Call, Routes
from taskharbor.server.options import instant
from taskharbor.server.tokens import Role
from taskharbor.views.rollup_documents import Autoscale, PointDocument, QueueDemandDocument, Series
from taskharbor.views.workers import Stats, stats_of

routes = Routes("stats")


@routes.on("GET", "/stats", Role.READ)
async def get_stats(call: Call) -> Stats:
    """Return the counts of jobs by state, the queues, and what the workers do."""
    return await stats_of(call.harbor)


@routes.on("GET", "/stats/series", Role.READ, query=requests.SeriesQuery, errors=(422,))
async def get_series(call: Call) -> Series:
    """Return what workers counted in each minute or hour. These are not exact counts."""
    query = call.query
    since = instant(query.since, "since")
    points, total = await call.harbor.stats._series_and_total(query.queue, query.task, since, query.step)
    items = [PointDocument.of(point) for point in points]
    return Series(items, PointDocument.of(total), Period(query.step), query.queue, query.task)


@routes.on("GET", "/autoscale", Role.READ, query=requests.AutoscaleQuery, errors=(422,))
async def get_autoscale(call: Call) -> Autoscale:
    """Return how many slots keep the oldest ready job younger than an age."""
    demand = await call.harbor.stats.aslots_wanted(call.query.queue, age=call.query.age)
    return Autoscale(demand.slots, demand.age, [QueueDemandDocument.of(each) for each in demand.queues])
