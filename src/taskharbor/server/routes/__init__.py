"""Every operation of the interface, one module a resource."""

from __future__ import annotations

from taskharbor.server.operation import Operation
from taskharbor.server.routes import (
    audit,
    dlq,
    events,
    health,
    jobs,
    metrics,
    queues,
    schedules,
    stats,
    streams,
    tasks,
    workflows,
)

PREFIX = "/api/v1"
OPERATIONS: tuple[Operation, ...] = (
    *jobs.routes,
    *dlq.routes,
    *queues.routes,
    *tasks.routes,
    *schedules.routes,
    *workflows.routes,
    *audit.routes,
    *stats.routes,
    *streams.routes,
    *events.routes,
)
ROOT_OPERATIONS: tuple[Operation, ...] = (*health.routes, *metrics.routes)
