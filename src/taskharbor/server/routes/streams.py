"""`/streams`"""

from __future__ import annotations

from taskharbor.server.operation import Call, Routes
from taskharbor.server.tokens import Role
from taskharbor.views.streams import StreamList, stream_list

routes = Routes("streams")


@routes.on("GET", "/streams", Role.READ)
async def list_streams(call: Call) -> StreamList:
    """List each topic and group that live workers read: partitions, committed offsets and lag."""
    return stream_list(await call.harbor.streams.alist())
