"""Server-sent events: what happens to jobs in this process, and how the counts of the store change."""

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
from taskharbor.views.documents import EventDocument

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

STREAMS_MAX = 100
CLIENT_STREAMS_MAX = 20  # of one token, or of one address
BEHIND_MAX = 500  # events that a slow reader may be behind; more are dropped, and it is told how many
HEARTBEAT_SECONDS = 15.0
COUNTS_SECONDS = 1.0  # at most so often
ALLOWED_SECONDS = 1.0  # for so long a reader who was let in is told things unasked

_END = None
_HEARTBEAT = b": heartbeat\n\n"


class Listener:
    """One reader's queue."""

    def __init__(self, key: str) -> None:
        self.key = key  # of the client that reads
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
    """Everybody who listens. It watches the harbor and its store only while somebody does."""

    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor
        self._listeners: set[Listener] = set()
        self._shares = Shares(STREAMS_MAX, CLIENT_STREAMS_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    def listen(self, key: str) -> Listener:
        """A place in the feed for this client, to be given to `stream`."""
        if self._stopped:
            raise ApiError(503, "stopping", "the server is stopping", headers={"Retry-After": "5"})
        if self._shares.is_full_for(key):
            raise ApiError(
                429,
                "too_many_streams",
                f"you have {CLIENT_STREAMS_MAX} streams open already; close one of them",
            )
        if self._shares.is_full():
            raise ApiError(
                429, "too_many_streams", f"{STREAMS_MAX} streams are open already; try again later"
            )
        listener = Listener(key)
        self._shares.take(key)
        if not self._listeners:
            self._begin()
        self._listeners.add(listener)
        return listener

    async def stream(
        self, listener: Listener, names: frozenset[str], allowed: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[bytes]:
        """The events of these names as they come, until the reader goes, may read no more, or the server stops."""
        asked_at = time.monotonic()
        yield b": connected\n\n"
        if "counts" in names:
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
            if message is _HEARTBEAT or message[7 : message.index(b"\n")].decode() in names:
                yield message
            if dropped := listener.take_dropped():
                yield _message("dropped", {"dropped": dropped})

    def stop(self) -> None:
        """End every stream; called from any thread."""
        self._stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for listener in self._listeners:
            listener.end()

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        for name in JOB_EVENTS:
            self._harbor.events.subscribe(name, self._heard)
        self._watching = self._loop.create_task(self._watch_store())

    def leave(self, listener: Listener) -> None:
        """Give a place back; it may be given back twice."""
        if listener not in self._listeners:
            return
        self._listeners.discard(listener)
        self._shares.give_back(listener.key)
        if self._listeners:
            return
        for name in JOB_EVENTS:
            self._harbor.events.unsubscribe(name, self._heard)
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _heard(self, event: Event) -> None:
        """Called in the subscribers' thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._tell, _message(event.name, EventDocument.of(event)))

    def _tell(self, message: bytes) -> None:
        for listener in self._listeners:
            listener.put(message)

    async def _watch_store(self) -> None:
        """Whatever any process does to the store shows in its counts."""
        driver = self._harbor.driver
        told: dict[str, int] | None = None
        while True:
            try:
                token = driver.change_token()
                counts = await self._harbor.jobs.acounts()
                if counts != told:
                    if told is not None:
                        self._tell(_message("counts", counts))
                    told = counts
                await asyncio.sleep(COUNTS_SECONDS)
                await driver.wait_for_change(token, HEARTBEAT_SECONDS)
            except StoreError as error:
                logger.warning("the store cannot be watched for the event stream: %s", error)
                await asyncio.sleep(HEARTBEAT_SECONDS)


async def _still(allowed: Callable[[], Awaitable[object]]) -> bool:
    try:
        await allowed()
    except StoreError:
        return True  # nobody can tell now; it is asked again with the next message
    except Exception as error:  # noqa: BLE001 - there is no answer any more that could hold it
        api_error(error)  # what nobody expected is logged there
        return False
    return True


def _message(name: str, document: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(document) + b"\n\n"
