"""Serve metrics beside a worker or a supervisor, as the options of `taskharbor worker` ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from taskharbor.telemetry.metrics.catalogue import PREFIX
from taskharbor.telemetry.metrics.store_gauges import Gauges, StoreGauges, StoreReading, in_loop
from taskharbor.telemetry.metrics.totals import Totals


class MetricsOptions(Struct, frozen=True):
    host: str
    port: int
    prefix: str = PREFIX
    store: bool = False  # show the store's gauges as well


@asynccontextmanager
async def serving(
    options: MetricsOptions | None, totals: Totals, read: Callable[[], Awaitable[StoreReading]]
) -> AsyncIterator[None]:
    """Answer scrapes until the block ends; without options, do nothing. `read` runs in the loop of this call."""
    if options is None:
        yield
        return
    from taskharbor.telemetry.metrics.endpoint import MetricsEndpoint
    from taskharbor.telemetry.metrics.exposition import Renderer

    gauges: Callable[[], Gauges] | None = None
    if options.store:
        store_gauges, reader = StoreGauges(), in_loop(asyncio.get_running_loop(), read)
        gauges = lambda: store_gauges.read(reader)  # noqa: E731
    renderer = Renderer(totals.snapshot, gauges, prefix=options.prefix)
    endpoint = MetricsEndpoint(renderer.render, options.host, options.port)
    endpoint.start()
    try:
        yield
    finally:
        endpoint.stop()  # without waiting: a scrape may be waiting for this loop
