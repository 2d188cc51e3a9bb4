"""`harbor.streams`: which topics live workers read, and how far they are behind."""

from __future__ import annotations

from taskharbor.client.operating import Operator
from taskharbor.client.sync_methods import sync_method
from taskharbor.drivers.capabilities import Records
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.stream_readings import StreamReading, readings_of


class Streams(Operator):
    """`harbor.streams`"""

    async def alist(self) -> list[StreamReading]:
        """List each topic and group that live workers read, as they recorded it in the last seconds."""
        if Records.offered_by(self._driver) is None:
            return []
        return readings_of(await WORKERS.all(self._driver))

    list = sync_method(alist)
