"""`/metrics`, at the root as Prometheus expects it: the gauges of the store."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.errors import ConfigurationError
from taskharbor.server.errors import ApiError
from taskharbor.server.operation import Call, Routes
from taskharbor.server.tokens import Role
from taskharbor.telemetry.metrics.store_gauges import read_store

routes = Routes("metrics")


@routes.on("GET", "/metrics", Role.READ, text="text/plain")
async def get_metrics(call: Call) -> Response:
    """Return the metrics of the store for Prometheus. What workers count is at `taskharbor worker --metrics-port`."""
    try:
        from taskharbor.telemetry.metrics.exposition import Renderer
    except ConfigurationError as error:
        raise ApiError(501, "unsupported", str(error)) from None
    driver = call.harbor.driver
    gauges = await call.gauges.aread(lambda: read_store(driver))
    renderer = Renderer(gauges=lambda: gauges, prefix=call.metrics_prefix)
    content_type, body = renderer.render(call.request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})
