"""Server-sent events: what happens to jobs in this process, and changes of the store's counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.errors import StoreError
from taskharbor.server.errors import ApiError, api_error, logger
from taskharbor.server.shares import Shares
from taskharbor.telemetry.events import JOB_EVENTS, Event
from taskharbor.views.job_documents import EventDocument

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

STREAMS_MAX = 100
CLIENT_STREAMS_MAX = 20  # for one token, or one address
BEHIND_MAX = 500  # events that a slow reader may be behind; more are dropped and counted
HEARTBEAT_SECONDS = 15.0
COUNTS_SECONDS = 1.0  # the shortest time between two
ALLOWED_SECONDS = 1.0  # how long a reader is served before it is authorized again

_END = None
_HEARTBEAT = b": heartbeat\n\n"
CHANGE = "change"  # anything in the store
COUNTS = "counts"
_CHANGE = b"event: change\ndata: {}\n\n"


class Listener:
    """One reader's queue."""

    def __init__(self, key: str, names: frozenset[str]) -> None:
        self.key = key  # of the client that reads
        self.names = names  # of the events that it gets
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND_MAX + 1)  # and the end
        self._dropped = 0

    def put(self, message: bytes) -> None:
        if self.queue.qsize() >= BEHIND_MAX:
            self._dropped += 1
            return
        self.queue.put_nowait(message)

    def end(self) -> None:
        while self.queue.full():
            self.queue.get_nowait()
        self.queue.put_nowait(_END)

    def take_dropped(self) -> int:
        dropped, self._dropped = self._dropped, 0
        return dropped


class Feed:
    """All readers of the stream. The feed watches the harbor and its store only while there are readers."""

    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor
        self._listeners: set[Listener] = set()
        self._shares = Shares(STREAMS_MAX, CLIENT_STREAMS_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    def listen(self, key: str, names: frozenset[str]) -> Listener:
        """Add a listener of this client for the events of these names, to be passed to `stream`."""
        if self._stopped:
            raise ApiError(503, "stopping", "the server is stopping", headers={"Retry-After": "5"})
        if self._shares.is_full_for(key):
            raise ApiError(
                429,
                "too_many_streams",
                f"you have {CLIENT_STREAMS_MAX} open streams; close one of them",
            )
        if self._shares.is_full():
            raise ApiError(429, "too_many_streams", f"{STREAMS_MAX} streams are open; try again later")
        listener = Listener(key, names)
        self._shares.take(key)
        if not self._listeners:
            self._begin()
        self._listeners.add(listener)
        return listener

    async def stream(
        self, listener: Listener, allowed: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[bytes]:
        """Yield the listener's events until the reader leaves, loses its permission, or the server stops."""
        asked_at = time.monotonic()
        yield b": connected\n\n"
        if COUNTS in listener.names:
            yield _message("counts", await self._harbor.jobs.acounts())
        while True:
            try:
                message = await asyncio.wait_for(listener.queue.get(), HEARTBEAT_SECONDS)
            except TimeoutError:
                message = _HEARTBEAT
            if message is _END:
                return
            if time.monotonic() - asked_at >= ALLOWED_SECONDS:
                if not await _still(allowed):
                    return
                asked_at = time.monotonic()
            yield message
            if dropped := listener.take_dropped():
                yield _message("dropped", {"dropped": dropped})

    def stop(self) -> None:
        """End every stream; any thread may call this."""
        self._stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for listener in self._listeners:
            listener.end()

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in JOB_EVENTS:
            self._harbor.events.subscribe(name, self._forward)
        self._watching = self._loop.create_task(self._watch_store())

    def leave(self, listener: Listener) -> None:
        """Remove a listener; removing it twice is fine."""
        if listener not in self._listeners:
            return
        self._listeners.discard(listener)
        self._shares.give_back(listener.key)
        if self._listeners:
            return
        for name in JOB_EVENTS:
            self._harbor.events.unsubscribe(name, self._forward)
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _forward(self, event: Event) -> None:
        """Forward an event; this runs in the subscribers' thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._send, event.name, _message(event.name, EventDocument.of(event)))

    def _send(self, name: str, message: bytes) -> None:
        for listener in self._listeners:
            if name in listener.names:
                listener.put(message)

    async def _watch_store(self) -> None:
        """Send the counts whenever any process changes them, and that something changed, to whom that is enough."""
        driver = self._harbor.driver
        sent: dict[str, int] | None = None
        seen: int | None = None
        is_first = True
        while True:
            try:
                token = driver.change_token()
                if token != seen and seen is not None:
                    self._send(CHANGE, _CHANGE)
                seen = token
                if any(COUNTS in listener.names for listener in self._listeners):
                    counts = await self._harbor.jobs.acounts()
                    if counts != sent and not is_first:
                        self._send(COUNTS, _message(COUNTS, counts))
                    sent = counts
                else:
                    sent = None
                is_first = False  # from now on, a reader may have counts that are older
                await asyncio.sleep(COUNTS_SECONDS)
                await driver.wait_for_change(token, HEARTBEAT_SECONDS)
            except StoreError as error:
                logger.warning("cannot watch the store for the event stream: %s", error)
                await asyncio.sleep(HEARTBEAT_SECONDS)


async def _still(allowed: Callable[[], Awaitable[object]]) -> bool:
    try:
        await allowed()
    except StoreError:
        return True  # unknown for now; the next message asks again
    except Exception as error:  # noqa: BLE001 - the response has begun, so it cannot carry an error
        api_error(error)  # logs unexpected errors
        return False
    return True


def _message(name: str, document: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(document) + b"\n\n"
